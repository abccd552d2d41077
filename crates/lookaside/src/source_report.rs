//! What came from where.

use crate::SourceKind;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counted by many tasks at once.
#[derive(Debug, Default)]
pub(crate) struct SourceTally {
    pub(crate) asked: AtomicU64,
    pub(crate) had: AtomicU64,
    pub(crate) missed: AtomicU64,
    pub(crate) wrong: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) rests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) plain: AtomicU64,
}

impl SourceTally {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }
}

/// Whether a source is asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It is.
    Ready,
    /// Not for a while: it gave wrong answers, failed, or did not answer in time.
    Resting,
}

/// What a source did since the server began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// What people call it.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
    /// Whether it is asked now.
    pub state: SourceState,
    /// How many milliseconds it still rests.
    pub resting_ms: u64,
    /// Chunks that it claims to have; nothing is known of the store's own.
    pub claims: Option<u64>,
    /// What a request of 64 KiB is expected to take, in microseconds.
    pub expected_us: u64,
    /// Chunks and maps that it was asked for.
    pub asked: u64,
    /// Those that it gave, verified.
    pub had: u64,
    /// Those that it claimed to have and did not.
    pub missed: u64,
    /// Answers that were not what was asked for.
    pub wrong: u64,
    /// Those that somebody else gave, because it took too long.
    pub late: u64,
    /// Requests that failed.
    pub failed: u64,
    /// How often it was not asked for a while.
    pub rests: u64,
    /// Bytes of what it gave, as they were moved.
    pub bytes: u64,
    /// The same, decompressed.
    pub plain_bytes: u64,
}

impl SourceReport {
    pub(crate) fn count(&mut self, tally: &SourceTally) {
        self.asked = tally.asked.load(Relaxed);
        self.had = tally.had.load(Relaxed);
        self.missed = tally.missed.load(Relaxed);
        self.wrong = tally.wrong.load(Relaxed);
        self.late = tally.late.load(Relaxed);
        self.failed = tally.failed.load(Relaxed);
        self.rests = tally.rests.load(Relaxed);
        self.bytes = tally.bytes.load(Relaxed);
        self.plain_bytes = tally.plain.load(Relaxed);
    }
}
