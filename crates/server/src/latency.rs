//! How long requests took, as the status tells it. Field names are documented in docs/cli.md and do
//! not change.

use nbd::server::{Latencies, Latency, TimedOperation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The times of requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Requests that were timed.
    pub count: u64,
    /// The mean, in microseconds.
    pub mean_us: f64,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// The 90th percentile, in microseconds.
    pub p90_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile, in microseconds.
    pub p999_us: f64,
    /// The sum of their times.
    pub seconds: f64,
    /// The buckets that are not empty: the longest time of each in nanoseconds, and how many
    /// requests took so long.
    pub buckets: Vec<(u64, u64)>,
}

impl LatencyView {
    /// What buckets and the sum of all times say.
    pub(crate) fn of(buckets: Vec<(u64, u64)>, seconds: f64) -> Self {
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let at = |fraction| percentile(&buckets, fraction) as f64 / 1e3;
        Self {
            count,
            mean_us: if count == 0 { 0.0 } else { seconds * 1e6 / count as f64 },
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            seconds,
            buckets,
        }
    }

    /// What came after `before`, which is an earlier state of the same.
    pub fn since(&self, before: &Self) -> Self {
        let earlier: BTreeMap<u64, u64> = before.buckets.iter().copied().collect();
        let fresh = self.buckets.iter().map(|(most, count)| {
            (*most, count.saturating_sub(earlier.get(most).copied().unwrap_or(0)))
        });
        let buckets = fresh.filter(|(_, count)| *count > 0).collect();
        Self::of(buckets, (self.seconds - before.seconds).max(0.0))
    }

    /// Both together.
    pub fn with(&self, other: &Self) -> Self {
        let mut sum: BTreeMap<u64, u64> = self.buckets.iter().copied().collect();
        for (most, count) in &other.buckets {
            *sum.entry(*most).or_default() += count;
        }
        Self::of(sum.into_iter().collect(), self.seconds + other.seconds)
    }
}

impl From<&Latency> for LatencyView {
    fn from(latency: &Latency) -> Self {
        Self::of(latency.buckets().collect(), latency.nanos() as f64 / 1e9)
    }
}

/// By kind of request; kinds that nobody asked for are left out.
pub(crate) fn by_kind(latencies: &Latencies) -> BTreeMap<String, LatencyView> {
    TimedOperation::ALL
        .into_iter()
        .filter(|operation| latencies.of(*operation).count() > 0)
        .map(|operation| (operation.name().to_owned(), latencies.of(operation).into()))
        .collect()
}

/// The longest time of the bucket below which a `fraction` of all lies, in nanoseconds; 0 when
/// there is none.
fn percentile(buckets: &[(u64, u64)], fraction: f64) -> u64 {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = (total as f64 * fraction).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (most, count) in buckets {
        seen += count;
        if seen >= rank {
            return *most;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_differences_are_those_of_the_buckets() {
        let before = LatencyView::of(vec![(1000, 90), (2000, 10)], 0.0001);
        assert_eq!(
            (before.count, before.p50_us, before.p90_us, before.p99_us),
            (100, 1.0, 1.0, 2.0)
        );
        assert!((before.mean_us - 1.0).abs() < 1e-9);
        let now = LatencyView::of(vec![(1000, 90), (2000, 20), (9000, 10)], 0.0003);
        let fresh = now.since(&before);
        assert_eq!(fresh.buckets, [(2000, 10), (9000, 10)]);
        assert_eq!((fresh.p50_us, fresh.p99_us), (2.0, 9.0));
        assert_eq!(fresh.with(&before).buckets, now.buckets);
        assert_eq!(LatencyView::of(Vec::new(), 0.0), LatencyView::default());
    }
}
