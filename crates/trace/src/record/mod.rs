//! Recording: what notes the requests of connections, and what gathers the notes and writes them in
//! order of time.
//!
//! A client never waits for the recorder. Each connection notes whole batches of requests, with the
//! times that were taken anyway, into a buffer of its own; full buffers are handed over, and where
//! nobody takes them fast enough they are emptied and counted as dropped. The caller calls
//! [`Collector::pass`] now and then, away from the threads that serve.
//!
//! | module | concept |
//! |---|---|
//! | [`log`](mod@log) | [`ConnectionLog`], what a connection notes into |
//! | `reorder` | notes that wait for their place |
//! | [`collector`] | [`Collector`], which writes |

mod collector;
mod log;
mod reorder;

#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use log::ConnectionLog;

use crate::TraceDisk;
use log::{Notes, Party, SubmittedNotes};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::time::Instant;

/// Buffers that wait for the collector at most: 48 MiB.
const WAITING: usize = 1024;
/// Buffers that are kept for the next requests.
const SPARES: usize = 64;

/// Where the connections of a server note their requests.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    /// When that was, in nanoseconds of Unix time.
    clock: u64,
    full: Mutex<Vec<SubmittedNotes>>,
    spare: Mutex<Vec<Notes>>,
    logs: Mutex<Vec<Weak<ConnectionLog>>>,
    dropped: AtomicU64,
    stopped: AtomicBool,
}

impl Recorder {
    /// A recorder whose trace begins now, which is `clock` in nanoseconds of Unix time.
    pub fn new(clock: u64) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            clock,
            full: Mutex::default(),
            spare: Mutex::default(),
            logs: Mutex::default(),
            dropped: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Where a connection of `client` to `disk` notes its requests.
    pub fn log(self: &Arc<Self>, client: String, disk: TraceDisk) -> Arc<ConnectionLog> {
        let log = Arc::new(ConnectionLog::new(Arc::clone(self), Arc::new(Party { client, disk })));
        if !self.is_stopped() {
            self.logs.lock().push(Arc::downgrade(&log));
        }
        log
    }

    /// Requests that were not recorded because nobody took them in time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// From now on nothing is noted.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Nanoseconds from the start to `moment`.
    fn nanos(&self, moment: Instant) -> u64 {
        nanos(moment.saturating_duration_since(self.start))
    }

    /// An empty buffer.
    fn empty(&self) -> Notes {
        self.spare.lock().pop().unwrap_or_else(Notes::whole)
    }

    /// Takes a full buffer; drops it when too many wait.
    fn hand_over(&self, taken: SubmittedNotes) {
        let mut full = self.full.lock();
        if full.len() < WAITING {
            full.push(taken);
            return;
        }
        drop(full);
        self.dropped.fetch_add(taken.notes.requests.len() as u64, Ordering::Relaxed);
        self.give_back(taken.notes);
    }

    /// Keeps a buffer for the next requests.
    fn give_back(&self, mut notes: Notes) {
        notes.clear();
        let mut spare = self.spare.lock();
        if spare.len() < SPARES && notes.is_whole() {
            spare.push(notes);
        }
    }

    /// All that was noted and not taken yet.
    fn take(&self) -> Vec<SubmittedNotes> {
        let mut taken = std::mem::take(&mut *self.full.lock());
        let mut logs = std::mem::take(&mut *self.logs.lock());
        logs.retain(|log| {
            let Some(log) = log.upgrade() else { return false };
            taken.extend(log.take());
            true
        });
        self.logs.lock().append(&mut logs);
        taken
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}
