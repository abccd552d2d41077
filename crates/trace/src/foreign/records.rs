//! Binary formats: records of one size.

use super::intake::{Intake, Raw, Times};
use super::{Foreign, Parsed};
use crate::native::frame::fill;
use crate::source::BATCH;
use crate::{Header, Request, Source};
use block::{Error, Result};
use std::io::Read;
use std::path::PathBuf;

/// A binary format.
pub(crate) trait RecordFormat: Send {
    /// Bytes of a record.
    fn size(&self) -> usize;

    /// Reads a record, which is of that size; `None` when it holds no request.
    fn record(&mut self, bytes: &[u8]) -> Parsed<Option<Raw>>;
}

/// A trace in a binary format.
pub(crate) struct Records<R> {
    input: R,
    path: PathBuf,
    format: Box<dyn RecordFormat>,
    intake: Intake,
    buffer: Vec<u8>,
    at: u64,
    done: bool,
}

impl<R: Read> Records<R> {
    pub(crate) fn new(
        input: R,
        path: PathBuf,
        format: Box<dyn RecordFormat>,
        intake: Intake,
    ) -> Self {
        let buffer = vec![0; BATCH * format.size()];
        Self { input, path, format, intake, buffer, at: 0, done: false }
    }
}

impl<R: Read + Send> Foreign for Records<R> {
    fn times(&self) -> Times {
        self.intake.times
    }
}

impl<R: Read + Send> Source for Records<R> {
    fn header(&self) -> &Header {
        &self.intake.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        batch.clear();
        while batch.is_empty() && !self.done {
            let read = fill(&mut self.input, &mut self.buffer)
                .map_err(|e| Error::io(self.path.display(), e))?;
            self.done = read < self.buffer.len();
            let size = self.format.size();
            for record in self.buffer[..read].chunks(size) {
                let parsed = match record.len() == size {
                    true => self.format.record(record),
                    false => Err(format!("a record of {size} bytes is cut off")),
                };
                let accepted = parsed.and_then(|raw| match raw {
                    Some(raw) => self.intake.accept(&raw, batch),
                    None => Ok(()),
                });
                accepted.map_err(|what| {
                    let path = self.path.display();
                    Error::invalid(format!("{path}: offset {}: {what}", self.at))
                })?;
                self.at += size as u64;
            }
        }
        if self.done {
            self.intake.end();
        }
        Ok(!batch.is_empty())
    }
}

/// Whether every whole record of a sample makes sense.
pub(crate) fn understands(
    sample: &[u8],
    mut format: Box<dyn RecordFormat>,
    mut intake: Intake,
) -> bool {
    let mut found = Vec::new();
    for record in sample.chunks_exact(format.size()) {
        let accepted = format.record(record).and_then(|raw| match raw {
            Some(raw) => intake.accept(&raw, &mut found),
            None => Ok(()),
        });
        if accepted.is_err() {
            return false;
        }
    }
    !found.is_empty()
}
