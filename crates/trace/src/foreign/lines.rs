//! Text formats: one request a line.

use super::intake::{Intake, TimeOrigin};
use super::{Foreign, Parsed};
use crate::source::BATCH;
use crate::{Header, Request, Source};
use block::{Error, Result};
use std::io::BufRead;
use std::path::PathBuf;

/// The longest line, in bytes.
pub(crate) const MAX_LINE: u64 = 64 << 10;

/// A text format.
pub(crate) trait LineFormat: Send {
    /// Takes a line (without its end, not blank) and passes its requests on, if it holds any.
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()>;

    /// Passes on what was held back.
    fn end(&mut self, intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let _ = (intake, out);
        Ok(())
    }
}

/// A trace in a text format.
pub(crate) struct Lines<R> {
    input: R,
    path: PathBuf,
    format: Box<dyn LineFormat>,
    intake: Intake,
    line: Vec<u8>,
    number: u64,
    done: bool,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(
        input: R,
        path: PathBuf,
        format: Box<dyn LineFormat>,
        intake: Intake,
    ) -> Self {
        Self { input, path, format, intake, line: Vec::new(), number: 0, done: false }
    }

    /// Reads a line; `false` at the end.
    fn next(&mut self) -> Result<bool> {
        use std::io::Read;
        self.line.clear();
        let read = (&mut self.input)
            .take(MAX_LINE)
            .read_until(b'\n', &mut self.line)
            .map_err(|e| Error::io(self.path.display(), e))?;
        self.number += 1;
        if read as u64 == MAX_LINE && self.line.last() != Some(&b'\n') {
            return Err(self.wrong(&format!("the line is longer than {MAX_LINE} bytes")));
        }
        Ok(read > 0)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("{}: line {}: {what}", self.path.display(), self.number))
    }
}

impl<R: BufRead + Send> Foreign for Lines<R> {
    fn times(&self) -> TimeOrigin {
        self.intake.times
    }
}

impl<R: BufRead + Send> Source for Lines<R> {
    fn header(&self) -> &Header {
        &self.intake.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        batch.clear();
        while batch.len() < BATCH && !self.done {
            if !self.next()? {
                self.done = true;
                self.format.end(&mut self.intake, batch).map_err(|what| self.wrong(&what))?;
                self.intake.end();
                break;
            }
            let line = self.line.trim_ascii_end();
            if line.is_empty() {
                continue;
            }
            if let Err(what) = self.format.line(line, &mut self.intake, batch) {
                return Err(self.wrong(&what));
            }
        }
        Ok(!batch.is_empty())
    }
}

/// Whether a format understands the first lines of a sample. `whole`: there is nothing behind it.
pub(crate) fn understands(
    sample: &[u8],
    whole: bool,
    mut format: Box<dyn LineFormat>,
    mut intake: Intake,
) -> bool {
    /// Lines that say enough.
    const LINES: usize = 100;
    let mut lines: Vec<&[u8]> = sample.split(|b| *b == b'\n').collect();
    // The last one may be cut off.
    if !whole {
        lines.pop();
    }
    let mut found = Vec::new();
    for line in lines {
        let line = line.trim_ascii_end();
        if !line.is_empty() && format.line(line, &mut intake, &mut found).is_err() {
            return false;
        }
        if found.len() >= LINES {
            return true;
        }
    }
    format.end(&mut intake, &mut found).is_ok() && !found.is_empty()
}
