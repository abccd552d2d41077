//! Times in log-linear buckets: 64 to each power of two, so that a percentile is at most 1.6 % off.

use serde::Serialize;

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Powers of two above the linear part, up to 2^42 ns (73 min); longer times count as that.
const POWERS: usize = 36;

/// A histogram of times in nanoseconds. About 18 KiB.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    most: u64,
}

/// What a histogram says, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The mean, exact.
    pub mean_us: f64,
    /// Half of all are at most this.
    pub p50_us: f64,
    /// 90 % are at most this.
    pub p90_us: f64,
    /// 99 % are at most this.
    pub p99_us: f64,
    /// 99.9 % are at most this.
    pub p999_us: f64,
    /// The longest, exact.
    pub max_us: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; SUB as usize * (POWERS + 1)], total: 0, sum: 0, most: 0 }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn record(&mut self, nanos: u64) {
        let index = bucket(nanos).min(self.counts.len() - 1);
        self.counts[index] += 1;
        self.total += 1;
        self.sum += u128::from(nanos);
        self.most = self.most.max(nanos);
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.most = self.most.max(other.most);
    }

    /// How many times were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mean in nanoseconds; 0 when nothing was counted.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// The time in nanoseconds that a `fraction` (0 to 1) of all does not exceed; 0 when nothing
    /// was counted.
    pub fn percentile(&self, fraction: f64) -> u64 {
        let rank = (self.total as f64 * fraction).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(index).min(self.most);
            }
        }
        0
    }

    /// The usual figures.
    pub fn summary(&self) -> Summary {
        let at = |fraction| self.percentile(fraction) as f64 / 1e3;
        Summary {
            mean_us: self.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.most as f64 / 1e3,
        }
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
            let (mut histogram, mut half) = (Histogram::default(), Histogram::default());
            for (index, value) in nanos.iter().enumerate() {
                if index % 2 == 0 { &mut histogram } else { &mut half }.record(*value);
            }
            histogram.merge(&half);
            prop_assert_eq!(histogram.total(), nanos.len() as u64);
            let mean = nanos.iter().sum::<u64>() as f64 / nanos.len() as f64;
            prop_assert!((histogram.mean() - mean).abs() <= mean * 1e-9);
            nanos.sort_unstable();
            let rank = ((nanos.len() as f64 * fraction).ceil() as usize).max(1);
            let (exact, got) = (nanos[rank - 1], histogram.percentile(fraction));
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.016 + 1.0, "{got} {exact}");
            prop_assert!(got <= nanos[nanos.len() - 1]);
        }
    }

    #[test]
    fn nothing_counted_is_zero_and_a_stall_is_not_lost() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), Summary::default());
        histogram.record(u64::MAX);
        assert!(histogram.summary().max_us > 1e15);
        assert!(histogram.percentile(0.5) > 1 << 41);
    }
}
