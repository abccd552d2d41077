//! How long ago something was, also for a process whose machine sleeps.

use crate::Store;
use std::time::Duration;
use tokio::time::Instant;

/// The time since it was started, by two clocks: one that nobody sets may stand still while the machine sleeps, and one
/// that goes on may be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    /// By the machine's clock, which goes on while it sleeps; in Unix seconds.
    clock: u64,
    /// By a clock that nobody sets.
    at: Instant,
}

impl Stopwatch {
    /// Starts it.
    pub(crate) fn start(store: &Store) -> Self {
        Self { clock: store.world().clock.now(), at: Instant::now() }
    }

    /// Whether more than `time` has passed by either clock, or one of them was set back by as much.
    pub(crate) fn is_past(self, time: Duration, store: &Store) -> bool {
        store.world().clock.now().abs_diff(self.clock) > time.as_secs() || self.at.elapsed() > time
    }
}
