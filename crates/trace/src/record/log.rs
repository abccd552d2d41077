//! What a connection notes into.

use super::{Recorder, nanos};
use crate::TraceDisk;
use block::{Answered, Observer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Requests of a buffer.
pub(super) const BUFFER: usize = 1024;
/// Up to so many requests are rather copied than handed over in a buffer of this length.
const FEW: usize = BUFFER / 4;

/// Who asks what.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) client: String,
    pub(super) disk: TraceDisk,
}

/// Requests that were answered together.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerBatch {
    /// Nanoseconds from the recorder's start to when they were taken up.
    pub(super) began: u64,
    /// Nanoseconds until they were answered.
    pub(super) took: u64,
    pub(super) requests: usize,
}

/// A buffer of noted requests: little for each, because writing it to memory is most of what noting
/// costs.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    pub(super) batches: Vec<AnswerBatch>,
    pub(super) requests: Vec<Answered>,
}

impl Notes {
    /// An empty buffer that does not have to grow.
    pub(super) fn whole() -> Self {
        Self { batches: Vec::with_capacity(BUFFER), requests: Vec::with_capacity(BUFFER) }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.batches.capacity() >= BUFFER && self.requests.capacity() >= BUFFER
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.requests.clear();
    }
}

/// A buffer on its way to the collector.
#[derive(Debug)]
pub(super) struct SubmittedNotes {
    pub(super) party: Arc<Party>,
    pub(super) notes: Notes,
}

/// What one connection notes into.
#[derive(Debug)]
pub struct ConnectionLog {
    recorder: Arc<Recorder>,
    party: Arc<Party>,
    notes: Mutex<Notes>,
}

impl ConnectionLog {
    pub(super) fn new(recorder: Arc<Recorder>, party: Arc<Party>) -> Self {
        // Grows with its first requests: most connections are quiet.
        Self { recorder, party, notes: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) fn holds_buffer(&self) -> bool {
        self.notes.lock().is_whole()
    }

    /// What was noted and not handed over yet. Memory follows what a connection asks: the notes of
    /// one with little to note are copied, and one that was quiet gives its buffer back.
    pub(super) fn take(&self) -> Option<SubmittedNotes> {
        let mut notes = self.notes.lock();
        if notes.requests.is_empty() {
            let unused = std::mem::take(&mut *notes);
            drop(notes);
            self.recorder.give_back(unused);
            return None;
        }
        let taken = if notes.requests.len() < FEW {
            let copy = notes.clone();
            notes.clear();
            copy
        } else {
            std::mem::replace(&mut *notes, self.recorder.empty())
        };
        Some(SubmittedNotes { party: Arc::clone(&self.party), notes: taken })
    }
}

impl Observer for ConnectionLog {
    fn answered(&self, began: Instant, took: Duration, requests: &[Answered]) {
        if self.recorder.is_stopped() {
            return;
        }
        let (began, took) = (self.recorder.nanos(began), nanos(took));
        let mut notes = self.notes.lock();
        for part in requests.chunks(BUFFER) {
            if notes.requests.len() + part.len() > BUFFER {
                let full = std::mem::replace(&mut *notes, self.recorder.empty());
                let party = Arc::clone(&self.party);
                self.recorder.hand_over(SubmittedNotes { party, notes: full });
            }
            notes.batches.push(AnswerBatch { began, took, requests: part.len() });
            notes.requests.extend_from_slice(part);
        }
    }
}

impl Drop for ConnectionLog {
    fn drop(&mut self) {
        let notes = std::mem::take(self.notes.get_mut());
        if !notes.requests.is_empty() {
            self.recorder.hand_over(SubmittedNotes { party: Arc::clone(&self.party), notes });
        }
    }
}
