//! Times counted in classes of at most 0.8 % width: percentiles of any number of requests in a fixed
//! room. Mean and variance are exact.

use crate::Nanos;

/// Classes of an octave, as a power of two.
const FINE: u32 = 7;

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct TimeHistogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    squares: f64,
    most: Nanos,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        let classes = ((64 - FINE as usize) << FINE) + (1 << FINE);
        Self { counts: vec![0; classes], count: 0, sum: 0, squares: 0.0, most: 0 }
    }
}

/// The class of a time.
fn class(time: Nanos) -> usize {
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
    /// Counts one.
    pub fn add(&mut self, time: Nanos) {
        self.counts[class(time)] += 1;
        self.count += 1;
        self.sum += u128::from(time);
        // Milliseconds: squares of nanoseconds lose digits sooner.
        let ms = time as f64 * 1e-6;
        self.squares += ms * ms;
        self.most = self.most.max(time);
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

    /// The greatest in milliseconds.
    pub fn most_ms(&self) -> f64 {
        self.most as f64 * 1e-6
    }

    /// The time in milliseconds below which `part` (0 to 1) of them lie, to 0.8 %.
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
    use crate::Random;

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
    fn moments_are_exact_and_quantiles_close() {
        let (mut histogram, mut random) = (TimeHistogram::default(), Random::new(5));
        let mut all: Vec<f64> = Vec::new();
        for _ in 0..50_000 {
            let time = (random.exponential(3e6)) as u64;
            histogram.add(time);
            all.push(time as f64 * 1e-6);
        }
        all.sort_by(f64::total_cmp);
        let mean = all.iter().sum::<f64>() / 5e4;
        let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5e4;
        assert!((histogram.mean_ms() - mean).abs() < 1e-9);
        assert!((histogram.variance_ms2() / variance - 1.0).abs() < 1e-6);
        for part in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = all[(part * 5e4) as usize];
            assert!((histogram.quantile_ms(part) / exact - 1.0).abs() < 0.01, "{part}");
        }
        assert_eq!(histogram.quantile_ms(1.0), histogram.most_ms());
        assert_eq!(histogram.curve().last().unwrap().1, 1.0);
    }
}
