//! Latencies in log-linear buckets: 64 to each power of two, so a percentile is at most 1.6 % off.

use std::time::Duration;

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Powers of two above the linear part, up to 2^36 ns (69 s); longer ones count as that.
const POWERS: usize = 30;

/// A histogram of durations.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; SUB as usize * (POWERS + 1)], total: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let index = bucket(nanos).min(self.counts.len() - 1);
        self.counts[index] += 1;
        self.total += 1;
    }

    /// Adds what `other` counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// How many durations were counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The duration, in microseconds, that a `fraction` (0 to 1) of all does not exceed; 0 when
    /// nothing was counted.
    pub(crate) fn percentile(&self, fraction: f64) -> f64 {
        let rank = (self.total as f64 * fraction).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(index) as f64 / 1000.0;
            }
        }
        0.0
    }
}

/// The bucket of `nanos`: the value itself below [`SUB`], then [`SUB`] steps to each power of two.
fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let power = nanos.ilog2() - SUB_BITS;
    ((u64::from(power) + 1) * SUB + (nanos >> power) - SUB) as usize
}

/// The largest value of a bucket, in nanoseconds.
fn upper_bound(index: usize) -> u64 {
    let index = index as u64;
    if index < SUB {
        return index;
    }
    let power = index / SUB - 1;
    ((index % SUB + SUB + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_agree_with_sorting_within_the_bucket_width(
            mut nanos in proptest::collection::vec(1u64..10_000_000_000, 1..400),
            fraction in 0.0f64..=1.0,
        ) {
            let (mut left, mut right) = (Histogram::default(), Histogram::default());
            for (index, value) in nanos.iter().enumerate() {
                let half = if index % 2 == 0 { &mut left } else { &mut right };
                half.record(Duration::from_nanos(*value));
            }
            left.merge(&right);
            prop_assert_eq!(left.total(), nanos.len() as u64);
            nanos.sort_unstable();
            let rank = ((nanos.len() as f64 * fraction).ceil() as usize).max(1);
            let exact = nanos[rank - 1] as f64 / 1000.0;
            let got = left.percentile(fraction);
            prop_assert!(got >= exact * 0.999_999 && got <= exact * 1.016 + 0.001, "{got} {exact}");
        }
    }

    #[test]
    fn nothing_counted_is_zero_and_a_stall_is_not_lost() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), 0.0);
        histogram.record(Duration::from_secs(100_000));
        assert!(histogram.percentile(0.5) > 60e6);
    }
}
