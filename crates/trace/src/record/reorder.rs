//! Notes that wait for their place. Only batches are put in order; the requests stay where they
//! were noted until they are written.

use super::log::{AnswerBatch, Notes, Party, SubmittedNotes};
use block::Answered;
use std::sync::Arc;

/// Who a buffer's requests are of, and under which numbers in the file.
pub(super) struct Owner {
    pub(super) party: Arc<Party>,
    /// Client and disk; none until the first of them is written.
    pub(super) numbers: Option<(u32, u32)>,
}

/// A buffer some of whose batches are still to be written.
struct Buffer {
    owner: Owner,
    notes: Notes,
    left: usize,
}

/// Where a batch lies, and when it has its turn.
#[derive(Clone, Copy)]
struct BatchTurn {
    /// Nanoseconds since the recorder's start.
    time: u64,
    buffer: u32,
    batch: u32,
    /// Its first request.
    first: u32,
}

/// Batches in order of time.
#[derive(Default)]
pub(super) struct ReorderBuffer {
    buffers: Vec<Option<Buffer>>,
    /// Places in `buffers` that are free.
    free: Vec<u32>,
    /// In order of time.
    places: Vec<BatchTurn>,
    requests: usize,
}

impl ReorderBuffer {
    /// How many requests wait.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Takes buffers. Batches that began before `written` come late: their turn is then. Gives how
    /// many requests those are.
    pub(super) fn add(&mut self, taken: Vec<SubmittedNotes>, written: u64) -> u64 {
        let (before, mut late) = (self.places.len(), 0);
        for SubmittedNotes { party, notes } in taken {
            let at = self.free.pop().unwrap_or_else(|| {
                self.buffers.push(None);
                self.buffers.len() as u32 - 1
            });
            let mut first = 0;
            for (batch, one) in notes.batches.iter().enumerate() {
                if one.began < written {
                    late += one.requests as u64;
                }
                let (time, batch) = (one.began.max(written), batch as u32);
                self.places.push(BatchTurn { time, buffer: at, batch, first });
                first += one.requests as u32;
            }
            self.requests += notes.requests.len();
            let (owner, left) = (Owner { party, numbers: None }, notes.batches.len());
            self.buffers[at as usize] = Some(Buffer { owner, notes, left });
        }
        // What was held is in order: only what the new ones may go between is sorted again.
        let new = self.places[before..].iter().map(|place| place.time).min().unwrap_or(u64::MAX);
        let from = self.places[..before].partition_point(|place| place.time <= new);
        self.places[from..].sort_by_key(|place| place.time);
        late
    }

    /// A time before which all but about `most` requests begin.
    pub(super) fn time_of_excess(&self, most: usize) -> u64 {
        let mut excess = self.requests.saturating_sub(most);
        for place in &self.places {
            let Some(buffer) = &self.buffers[place.buffer as usize] else { continue };
            let requests = buffer.notes.batches[place.batch as usize].requests;
            if excess < requests {
                return place.time;
            }
            excess -= requests;
        }
        u64::MAX
    }

    /// Forgets under which numbers anybody is known.
    pub(super) fn rename(&mut self) {
        self.buffers.iter_mut().flatten().for_each(|buffer| buffer.owner.numbers = None);
    }

    /// Gives the batches that begin before `until` to `write`, in order, with the time of their
    /// turn; buffers that are done go to `done`.
    ///
    /// # Errors
    /// Any error from `write`; the batch that it failed for counts as written.
    pub(super) fn drain<E>(
        &mut self,
        until: u64,
        mut write: impl FnMut(u64, &mut Owner, AnswerBatch, &[Answered]) -> Result<(), E>,
        mut done: impl FnMut(Notes),
    ) -> Result<(), E> {
        let count = self.places.partition_point(|place| place.time < until);
        let mut result = Ok(());
        let mut drained = 0;
        for place in &self.places[..count] {
            drained += 1;
            let slot = &mut self.buffers[place.buffer as usize];
            let Some(buffer) = slot else { continue };
            let batch = buffer.notes.batches[place.batch as usize];
            let requests = &buffer.notes.requests[place.first as usize..][..batch.requests];
            result = write(place.time, &mut buffer.owner, batch, requests);
            self.requests -= batch.requests;
            buffer.left -= 1;
            if buffer.left == 0 {
                self.free.push(place.buffer);
                done(slot.take().map(|buffer| buffer.notes).unwrap_or_default());
            }
            if result.is_err() {
                break;
            }
        }
        self.places.drain(..drained);
        result
    }
}
