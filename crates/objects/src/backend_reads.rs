//! Reads of a backend, by how many others were under way when each began: what head-room tells a queue from a
//! delay by.
//!
//! They are counted at the backend itself, behind the layers that join, share and keep reads: one that brings
//! several chunks is one, and one that a cache on the local disk answers is none.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::time::Instant;

/// Numbers of reads under way that are told apart.
pub const DEPTHS: usize = 32;

/// Reads that succeeded since the backend was opened, by how many others were under way when each began; the
/// last place is for all that are more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackendReads(pub [ReadsAtDepth; DEPTHS]);

/// Reads that began beside the same number of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadsAtDepth {
    /// How many.
    pub count: u64,
    /// The sum of their times, in nanoseconds.
    pub nanos: u64,
}

/// The same, counted by many tasks at once.
#[derive(Debug, Default)]
pub(crate) struct BackendReadMeter {
    under_way: AtomicU64,
    depths: [(AtomicU64, AtomicU64); DEPTHS],
}

/// A read that is under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct BackendRead<'a> {
    meter: &'a BackendReadMeter,
    /// How many others were when it began.
    before: u64,
    began: Instant,
}

impl BackendReadMeter {
    /// A read begins.
    pub(crate) fn begin(&self) -> BackendRead<'_> {
        let before = self.under_way.fetch_add(1, Relaxed);
        BackendRead { meter: self, before, began: Instant::now() }
    }

    pub(crate) fn snapshot(&self) -> BackendReads {
        BackendReads(self.depths.each_ref().map(|(count, nanos)| ReadsAtDepth {
            count: count.load(Relaxed),
            nanos: nanos.load(Relaxed),
        }))
    }
}

impl BackendRead<'_> {
    /// It brought what was asked for: it counts. One that failed does not.
    pub(crate) fn succeeded(self) {
        let nanos = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (count, sum) = &self.meter.depths[(self.before as usize).min(DEPTHS - 1)];
        count.fetch_add(1, Relaxed);
        sum.fetch_add(nanos, Relaxed);
    }
}

impl Drop for BackendRead<'_> {
    fn drop(&mut self) {
        self.meter.under_way.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn reads_are_told_apart_by_how_many_were_under_way() {
        let meter = BackendReadMeter::default();
        let (first, failed) = (meter.begin(), meter.begin());
        tokio::time::sleep(Duration::from_millis(3)).await;
        drop(failed);
        let second = meter.begin();
        tokio::time::sleep(Duration::from_millis(4)).await;
        first.succeeded();
        second.succeeded();
        meter.begin().succeeded();
        let mut expected = BackendReads::default();
        expected.0[0] = ReadsAtDepth { count: 2, nanos: 7_000_000 };
        expected.0[1] = ReadsAtDepth { count: 1, nanos: 4_000_000 };
        assert_eq!(meter.snapshot(), expected);
        let crowd: Vec<_> = (0..DEPTHS as u64 + 5).map(|_| meter.begin()).collect();
        crowd.into_iter().for_each(BackendRead::succeeded);
        assert_eq!(meter.snapshot().0[DEPTHS - 1].count, 6);
    }
}
