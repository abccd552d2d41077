//! Where requests come from: a trace in whatever format, or memory.

use crate::{Header, Request};
use block::Result;

/// Requests in batches, so that a reader costs little per request.
pub trait Source: Send {
    /// What is known of the whole; see [`Header`] for what grows.
    fn header(&self) -> &Header;

    /// Clears `batch` and fills it with the next requests, in order of time; `false` at the end,
    /// with `batch` empty. Otherwise a batch holds 1 to 65,536 requests.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) or [`Corrupt`](block::ErrorKind::Corrupt) with the
    /// line or offset of what is wrong. Do not read on after an error.
    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn header(&self) -> &Header {
        (**self).header()
    }
    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        (**self).read(batch)
    }
}

/// Requests in a batch of sources that can choose.
pub(crate) const BATCH: usize = 4096;

/// A trace in memory.
#[derive(Debug)]
pub struct Memory {
    header: Header,
    requests: Vec<Request>,
    next: usize,
}

impl Memory {
    /// A trace of these requests, which must be in order of time.
    pub fn new(mut header: Header, requests: Vec<Request>) -> Self {
        header.requests = Some(requests.len() as u64);
        Self { header, requests, next: 0 }
    }
}

impl Source for Memory {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        batch.clear();
        let end = self.requests.len().min(self.next + BATCH);
        batch.extend_from_slice(&self.requests[self.next..end]);
        self.next = end;
        Ok(!batch.is_empty())
    }
}
