//! What a throttle did, and how late it was.

use parking_lot::Mutex;
use schedule::Nanos;
use serde::{Deserialize, Serialize};

/// Later than this, in nanoseconds, counts as late.
const LATE: Nanos = 1_000_000;

/// What a throttle did since it was made.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ThrottleCounters {
    /// Reads and writes.
    pub requests: u64,
    /// Reads and writes that were made to fail.
    pub failed: u64,
    /// Pauses of the whole disk.
    pub stalls: u64,
    /// Answers that came more than a millisecond after they were due: the machine, or the device
    /// behind, was slower than the model.
    pub late: u64,
    /// The mean time, in microseconds, that answers came after they were due.
    pub late_mean_us: f64,
    /// The longest.
    pub late_worst_us: f64,
}

/// Counts.
#[derive(Debug, Default)]
pub(crate) struct LiveThrottleCounters(Mutex<(ThrottleCounters, f64)>);

impl LiveThrottleCounters {
    /// A request was answered so long after it was due.
    pub(crate) fn answered(&self, lateness: Nanos, failed: bool) {
        let (counters, sum) = &mut *self.0.lock();
        counters.requests += 1;
        counters.failed += u64::from(failed);
        counters.late += u64::from(lateness > LATE);
        *sum += lateness as f64 * 1e-3;
        counters.late_mean_us = *sum / counters.requests as f64;
        counters.late_worst_us = counters.late_worst_us.max(lateness as f64 * 1e-3);
    }

    pub(crate) fn stalled(&self) {
        self.0.lock().0.stalls += 1;
    }

    pub(crate) fn counters(&self) -> ThrottleCounters {
        self.0.lock().0
    }
}
