//! Whether a writer slept between looking at a name and writing its next record.

use crate::Store;
use crate::stopwatch::Stopwatch;
use std::time::Duration;

/// For how long a record is there at the least after it was superseded, less a wide margin.
const AWAKE: Duration = Duration::from_secs(3600);

/// When a writer looked at a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began(Stopwatch);

impl Began {
    pub(super) fn now(store: &Store) -> Self {
        Self(Stopwatch::start(store))
    }

    /// Whether records that were there then may have been cleared away since.
    pub(super) fn is_long_ago(self, store: &Store) -> bool {
        self.0.is_past(AWAKE, store)
    }
}

/// What a new record follows.
#[derive(Debug, Clone, Copy)]
pub(super) enum PreviousRecord {
    /// A record, or nothing.
    Record,
    /// A removal, which may be cleared away at any time.
    Removal,
}
