//! Times counted in classes of at most 0.8 % width: percentiles of any number of requests in bounded
//! room. Mean and variance are exact.

/// Classes of an octave, as a power of two.
const FINE: u32 = 7;

/// A histogram of times in nanoseconds. It has room for the classes up to the longest time so far: 24 KiB for
/// times up to a second, 58 KiB for any.
#[derive(Clone, Debug, Default)]
pub struct TimeHistogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    /// Squares of milliseconds: squares of nanoseconds lose digits sooner.
    squares: f64,
    most: u64,
}

/// The class of a time.
fn class(time: u64) -> usize {
    let octave = 63 - (time | 1).leading_zeros();
    if octave < FINE {
        return time as usize;
    }
    let shift = octave - FINE;
    ((shift as usize + 1) << FINE) + ((time >> shift) as usize & ((1 << FINE) - 1))
}

/// Where a class begins and how wide it is.
fn bounds(class: usize) -> (f64, f64) {
    let (octave, inside) = (class >> FINE, class & ((1 << FINE) - 1));
    match octave {
        0 => (inside as f64, 1.0),
        _ => {
            let width = ((octave - 1) as f64).exp2();
            (((1 << FINE) + inside) as f64 * width, width)
        }
    }
}

impl TimeHistogram {
    /// Counts one time, in nanoseconds.
    pub fn add(&mut self, time: u64) {
        let class = class(time);
        if class >= self.counts.len() {
            // To the end of its octave.
            self.counts.resize((class | ((1 << FINE) - 1)) + 1, 0);
        }
        self.counts[class] += 1;
        self.count += 1;
        self.sum += u128::from(time);
        let ms = time as f64 * 1e-6;
        self.squares += ms * ms;
        self.most = self.most.max(time);
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
        self.most = self.most.max(other.most);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum in nanoseconds.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The mean in milliseconds; 0 without any.
    pub fn mean_ms(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64 * 1e-6
    }

    /// The variance in square milliseconds.
    pub fn variance_ms2(&self) -> f64 {
        let mean = self.mean_ms();
        (self.squares / self.count.max(1) as f64 - mean * mean).max(0.0)
    }

    /// The longest in milliseconds.
    pub fn most_ms(&self) -> f64 {
        self.most as f64 * 1e-6
    }

    /// The time in milliseconds below which `part` (0 to 1) of them lie, to 0.8 %; 0 without any.
    pub fn quantile_ms(&self, part: f64) -> f64 {
        let wanted = part.clamp(0.0, 1.0) * self.count as f64;
        let mut below = 0.0;
        for (index, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                let (low, width) = bounds(index);
                let inside = ((wanted - below) / count).clamp(0.0, 1.0);
                return ((low + width * inside) * 1e-6).min(self.most_ms());
            }
            below += count;
        }
        self.most_ms()
    }

    /// Time in milliseconds and the part of all that lies below it, for a plot of the distribution.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            below += count;
            let (low, width) = bounds(index);
            points.push(((low + width) * 1e-6, below as f64 / self.count as f64));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_time_lies_in_its_class() {
        let shifts = (0..64).flat_map(|s| [1u64 << s, (1 << s) | 1 << (s / 2)]);
        for time in (0..5000).chain(shifts).chain([u64::MAX]) {
            let (low, width) = bounds(class(time));
            assert!(low <= time as f64 && time as f64 <= low + width, "{time}: {low} {width}");
            assert!(width <= 1.0 || width / low < 0.008);
        }
    }

    #[test]
    fn nothing_counted_is_zero_and_a_stall_is_not_lost() {
        let mut histogram = TimeHistogram::default();
        assert_eq!((histogram.quantile_ms(0.5), histogram.mean_ms()), (0.0, 0.0));
        assert!(histogram.curve().is_empty());
        histogram.add(u64::MAX);
        assert!(histogram.most_ms() > 1e12 && histogram.quantile_ms(0.5) > 1e12);
    }

    proptest! {
        #[test]
        fn moments_are_exact_and_quantiles_close(
            mut times in proptest::collection::vec(1_u64..10_000_000_000, 1..400),
            part in 0.0..=1.0_f64,
        ) {
            let (mut histogram, mut half) = (TimeHistogram::default(), TimeHistogram::default());
            for (index, time) in times.iter().enumerate() {
                if index % 2 == 0 { &mut histogram } else { &mut half }.add(*time);
            }
            histogram.merge(&half);
            prop_assert_eq!(histogram.count(), times.len() as u64);
            prop_assert_eq!(histogram.sum(), times.iter().map(|time| u128::from(*time)).sum());
            let count = times.len() as f64;
            let mean = times.iter().map(|time| *time as f64 * 1e-6).sum::<f64>() / count;
            let off = |time: &u64| (*time as f64 * 1e-6 - mean).powi(2);
            let variance = times.iter().map(off).sum::<f64>() / count;
            prop_assert!((histogram.mean_ms() - mean).abs() <= mean * 1e-9);
            prop_assert!((histogram.variance_ms2() - variance).abs() <= mean * mean * 1e-6);
            times.sort_unstable();
            let rank = ((count * part).ceil() as usize).max(1);
            let (exact, got) = (times[rank - 1] as f64 * 1e-6, histogram.quantile_ms(part));
            prop_assert!((got - exact).abs() <= exact * 0.008 + 1e-6, "{} {}", got, exact);
            prop_assert!(got <= histogram.most_ms());
            prop_assert_eq!(histogram.quantile_ms(1.0), histogram.most_ms());
            prop_assert_eq!(histogram.curve().last().unwrap().1, 1.0);
        }
    }
}
