//! The curve of LRU in bounded memory: SHARDS of fixed size (C. A. Waldspurger, N. Park,
//! A. Garthwaite, I. Ahmad: "Efficient MRC Construction with SHARDS", FAST 2015, section 3.2, with the
//! correction of section 4.2).
//!
//! A block is looked at when its hash is below a threshold. When there are more such blocks than
//! there is room for, the ones of the highest hash leave and the threshold falls to it: so the sample
//! grows thinner as the trace touches more. A reference in a sample of one in `n` counts `n` times, at
//! `n` times its distance.

use crate::stack::Stack;
use crate::table::mix;
use block::{Error, Result};
use std::collections::{BinaryHeap, HashMap};

/// The fewest blocks of a sample: with fewer the curve says nothing.
const FEWEST: u32 = 64;
/// The most: ids of blocks are of 32 bits, and places of the stack twice as many.
const MOST: u32 = 1 << 28;

/// Steps of the histogram in a doubling of the distance: one is half a percent wide.
const STEPS: usize = 128;

/// Counts references as they come.
#[derive(Debug)]
pub struct Shards {
    /// The most blocks that are looked at.
    samples: u32,
    /// Hashes below this are looked at; `None` for all of them, at the beginning.
    threshold: Option<u64>,
    /// The blocks that are looked at, by hash; no two have the same, as the hash can be undone.
    ids: HashMap<u64, u32>,
    highest: BinaryHeap<u64>,
    free: Vec<u32>,
    stack: Stack,
    /// References by scaled distance, each counted as often as it stands for others.
    histogram: Vec<f64>,
    /// All of the histogram, and the first references of blocks.
    counted: f64,
    references: u64,
}

impl Shards {
    /// Looks at so many blocks at most, 64 to 2^28; takes about 100 bytes for each.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for another number.
    pub fn new(samples: u32) -> Result<Self> {
        if !(FEWEST..=MOST).contains(&samples) {
            return Err(Error::invalid(format!(
                "a curve of {samples} blocks cannot be made; use {FEWEST} to {MOST}"
            )));
        }
        Ok(Self {
            samples,
            threshold: None,
            ids: HashMap::new(),
            highest: BinaryHeap::new(),
            free: Vec::new(),
            stack: Stack::new(samples + 1),
            histogram: Vec::new(),
            counted: 0.0,
            references: 0,
        })
    }

    /// A reference to a block, whatever number stands for it.
    pub fn reference(&mut self, key: u64) {
        self.references += 1;
        let hash = mix(key ^ 0x05ee_1ed5_a5ee_1ed5);
        if self.threshold.is_some_and(|threshold| hash >= threshold) {
            return;
        }
        let scale = 1.0 / self.rate();
        self.counted += scale;
        if let Some(id) = self.ids.get(&hash) {
            if let Some(distance) = self.stack.reference(*id) {
                let step = step((f64::from(distance) + 0.5) * scale);
                if step >= self.histogram.len() {
                    self.histogram.resize(step + 1, 0.0);
                }
                self.histogram[step] += scale;
            }
            return;
        }
        let id = self.free.pop().unwrap_or(self.ids.len() as u32);
        self.ids.insert(hash, id);
        self.highest.push(hash);
        self.stack.reference(id);
        if self.ids.len() > self.samples as usize
            && let Some(highest) = self.highest.pop()
            && let Some(id) = self.ids.remove(&highest)
        {
            self.stack.forget(id);
            self.free.push(id);
            self.threshold = Some(highest);
        }
    }

    /// The part of all blocks that is looked at.
    fn rate(&self) -> f64 {
        self.threshold.map_or(1.0, |threshold| threshold.max(1) as f64 / 2f64.powi(64))
    }

    /// The curve of what was counted.
    pub fn finish(self) -> Estimate {
        Estimate {
            distinct: (self.ids.len() as f64 / self.rate()).round() as u64,
            samples: self.ids.len() as u32,
            rate: self.rate(),
            references: self.references,
            adjustment: self.references as f64 - self.counted,
            histogram: self.histogram,
        }
    }
}

/// The hit ratio of LRU by size, estimated from a sample of fixed size.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    histogram: Vec<f64>,
    /// References that the sample has too few (or too many), as if they hit in the smallest cache.
    adjustment: f64,
    /// All references.
    pub references: u64,
    /// Distinct blocks of all references, estimated.
    pub distinct: u64,
    /// Blocks that were looked at in the end.
    pub samples: u32,
    /// The part of all blocks that they are: above 0, and 1 when they are all.
    pub rate: f64,
}

impl Estimate {
    /// The hit ratio with each of these numbers of blocks.
    pub fn hit_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(self.histogram.len() + 1);
        let mut sum = self.adjustment;
        sums.push(sum);
        for count in &self.histogram {
            sum += count;
            sums.push(sum);
        }
        let ratio = |size: &u64| {
            if *size == 0 {
                return 0.0;
            }
            let at = step(*size as f64);
            let low = sums[at.min(sums.len() - 1)];
            let high = sums[(at + 1).min(sums.len() - 1)];
            // Between the ends of a step, in proportion.
            let (from, to) = (start(at), start(at + 1));
            let hits = low + (high - low) * (*size as f64 - from) / (to - from);
            (hits / self.references.max(1) as f64).clamp(0.0, 1.0)
        };
        sizes.iter().map(ratio).collect()
    }
}

/// The step of the histogram that a distance belongs to. Up to `STEPS` each has its own.
fn step(distance: f64) -> usize {
    if distance < STEPS as f64 {
        return distance.max(0.0) as usize;
    }
    let whole = distance as u64;
    let octave = (whole.ilog2() - STEPS.ilog2()) as usize;
    octave * STEPS + (whole >> octave) as usize
}

/// The least distance of a step.
fn start(step: usize) -> f64 {
    let octave = (step / STEPS).saturating_sub(1);
    (step - octave * STEPS) as f64 * 2f64.powi(octave as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_distance_is_in_its_step(distance in 0u64..1 << 50) {
            let step = step(distance as f64);
            prop_assert!(start(step) <= distance as f64 && (distance as f64) < start(step + 1));
        }
    }

    #[test]
    fn the_sample_never_grows_beyond_its_size() {
        let mut shards = Shards::new(64).unwrap();
        for key in 0..100_000u64 {
            shards.reference(key);
            shards.reference(key / 2);
            let tables = [shards.ids.len(), shards.highest.len(), shards.free.len()];
            assert!(tables.iter().all(|len| *len <= 64), "{tables:?}");
        }
        assert!(shards.histogram.len() < 40 * STEPS);
        let estimate = shards.finish();
        assert_eq!((estimate.references, estimate.samples), (200_000, 64));
        assert!((50_000..200_000).contains(&estimate.distinct), "{}", estimate.distinct);
    }
}
