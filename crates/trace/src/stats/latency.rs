//! How long answers took.

use serde::Serialize;

/// Steps between a power of two and the next: an error of at most 1/16.
const STEPS: u32 = 16;

/// Latencies in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latencies {
    /// Requests whose latency is known.
    pub requests: u64,
    /// On average.
    pub mean: f64,
    /// The middle one; this and the next two to 1/16.
    pub p50: u64,
    /// Ninety of a hundred were not slower.
    pub p90: u64,
    /// Ninety-nine of a hundred were not slower.
    pub p99: u64,
    /// The slowest; 4,294,967,295 stands for anything longer.
    pub largest: u32,
}

/// Counts latencies.
#[derive(Debug)]
pub(crate) struct LatencyHistogram {
    counts: Vec<u64>,
    sum: u128,
    largest: u32,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: vec![0; (33 * STEPS) as usize], sum: 0, largest: 0 }
    }
}

fn slot(latency: u32) -> usize {
    if latency < STEPS {
        return latency as usize;
    }
    let power = latency.ilog2();
    let step = (latency >> (power - STEPS.ilog2())) - STEPS;
    ((power - STEPS.ilog2() + 1) * STEPS + step) as usize
}

/// The largest latency of a slot.
fn highest(slot: usize) -> u64 {
    let (power, step) = (slot as u64 / u64::from(STEPS), slot as u64 % u64::from(STEPS));
    if power == 0 {
        return step;
    }
    ((u64::from(STEPS) + step + 1) << (power - 1)) - 1
}

impl LatencyHistogram {
    pub(crate) fn add(&mut self, latency: u32) {
        self.counts[slot(latency)] += 1;
        self.sum += u128::from(latency);
        self.largest = self.largest.max(latency);
    }

    pub(crate) fn finish(self) -> Latencies {
        let requests: u64 = self.counts.iter().sum();
        let quantile = |part: f64| {
            let mut rest = (requests as f64 * part).ceil() as u64;
            for (slot, count) in self.counts.iter().enumerate() {
                if *count >= rest && *count > 0 {
                    return highest(slot).min(self.largest.into());
                }
                rest -= count;
            }
            0
        };
        Latencies {
            requests,
            mean: if requests == 0 { 0.0 } else { self.sum as f64 / requests as f64 },
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            largest: self.largest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_slot_holds_its_latencies_to_a_sixteenth(latency: u32) {
            let top = highest(slot(latency));
            prop_assert!(top >= u64::from(latency));
            prop_assert!(top - u64::from(latency) <= u64::from(latency) / 16);
        }
    }
}
