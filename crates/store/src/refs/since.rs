//! Whether a writer slept between looking at a name and writing its next record.

use crate::Store;
use tokio::time::Instant;

/// For how many seconds a record is there at the least after it was superseded, less a wide margin.
const AWAKE: u64 = 3600;

/// When a writer looked at a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    /// By the machine's clock, which goes on while it sleeps; in Unix seconds.
    clock: u64,
    /// By a clock that nobody sets.
    at: Instant,
}

impl Began {
    pub(super) fn now(store: &Store) -> Self {
        Self { clock: store.world().clock.now(), at: Instant::now() }
    }

    /// Whether records that were there then may have been cleared away since.
    pub(super) fn is_long_ago(self, store: &Store) -> bool {
        store.world().clock.now().abs_diff(self.clock) > AWAKE
            || self.at.elapsed().as_secs() > AWAKE
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
