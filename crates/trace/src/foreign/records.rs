//! Binary formats: records of one size.

use super::intake::{Intake, TimeOrigin};
use super::{Foreign, Parsed};
use crate::bytes::fill;
use crate::source::BATCH;
use crate::{Header, Request, Source};
use block::Error;
use std::io::Read;
use std::path::PathBuf;

/// A binary format.
pub(crate) trait RecordFormat: Send {
    /// Bytes of a record.
    fn size(&self) -> usize;

    /// Reads a record, which is of that size, and has what it holds accepted into a batch: a request or
    /// none.
    fn record(&mut self, bytes: &[u8], intake: &mut Intake, batch: &mut Vec<Request>)
    -> Parsed<()>;

    /// Reads whole records and adds what they hold to a batch; after an error, how many were read
    /// before. Compiled for each format, as there is one virtual call for a whole batch.
    fn records(
        &mut self,
        bytes: &[u8],
        intake: &mut Intake,
        batch: &mut Vec<Request>,
    ) -> Result<(), (usize, String)> {
        for (number, record) in bytes.chunks_exact(self.size()).enumerate() {
            self.record(record, intake, batch).map_err(|what| (number, what))?;
        }
        Ok(())
    }
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
    fn times(&self) -> TimeOrigin {
        self.intake.times
    }
}

impl<R: Read + Send> Source for Records<R> {
    fn header(&self) -> &Header {
        &self.intake.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> block::Result<bool> {
        batch.clear();
        while batch.is_empty() && !self.done {
            let read = fill(&mut self.input, &mut self.buffer)
                .map_err(|e| Error::io(self.path.display(), e))?;
            self.done = read < self.buffer.len();
            let size = self.format.size();
            let whole = read / size * size;
            let parsed = self.format.records(&self.buffer[..whole], &mut self.intake, batch);
            let parsed = parsed.and_then(|()| match whole == read {
                true => Ok(()),
                false => Err((whole / size, format!("a record of {size} bytes is cut off"))),
            });
            parsed.map_err(|(number, what)| {
                let at = self.at + (number * size) as u64;
                Error::invalid(format!("{}: offset {at}: {what}", self.path.display()))
            })?;
            self.at += read as u64;
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
    let whole = sample.len() / format.size() * format.size();
    format.records(&sample[..whole], &mut intake, &mut found).is_ok() && !found.is_empty()
}
