//! LRU at every size in one pass.
//!
//! From a sample of one in `n` blocks the same pass gives an estimate for all (SHARDS: C. A.
//! Waldspurger, N. Park, A. Garthwaite, I. Ahmad: "Efficient MRC Construction with SHARDS", FAST
//! 2015, with the correction of section 4.2): distances are multiplied by `n`, and what the sample
//! has too few or too many references counts at the smallest distance.

use crate::stack::Stack;
use crate::stream::{AHEAD, ReferenceStream};
use serde::Serialize;

/// The hit ratio of LRU by size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Curve {
    /// References by stack distance: `references[d]` hit in a cache of more than `d` blocks of the
    /// sample.
    #[serde(skip)]
    distances: Vec<u64>,
    /// All references.
    pub references: u64,
    /// Distinct blocks of the sample.
    pub blocks: u32,
    /// One of so many blocks was looked at.
    pub one_in: u32,
    /// References that the sample has too few (or too many), as if they hit in the smallest cache.
    adjustment: i64,
}

impl Curve {
    /// The curve of a stream; an estimate when the stream is a sample.
    pub fn of(stream: &ReferenceStream) -> Self {
        let mut stack = Stack::new(stream.blocks());
        let mut distances = vec![0u64; stream.blocks() as usize];
        let mut found = Vec::with_capacity(AHEAD);
        for chunk in stream.packed().chunks(AHEAD) {
            stack.announce(chunk.iter().map(|reference| ReferenceStream::unpack(*reference).0));
            for reference in chunk {
                let (id, _) = ReferenceStream::unpack(*reference);
                found.extend(stack.reference(id));
            }
            // All together, as each may have to wait for its line of memory.
            found.drain(..).for_each(|distance: u32| distances[distance as usize] += 1);
        }
        let references = stream.len() as u64;
        let expected = match stream.one_in {
            0 | 1 => references,
            one_in => stream.sampled_from().map_or(references, |all| all / u64::from(one_in)),
        };
        let adjustment = expected as i64 - references as i64;
        let one_in = stream.one_in.max(1);
        Self { distances, references: expected, blocks: stream.blocks(), one_in, adjustment }
    }

    /// The hit ratio with each of these numbers of blocks.
    pub fn hit_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(self.distances.len() + 1);
        let mut sum = self.adjustment;
        sums.push(0);
        for count in &self.distances {
            sum += *count as i64;
            sums.push(sum);
        }
        let ratio = |size: &u64| {
            // Between two distances of the sample, in proportion.
            let at = *size as f64 / f64::from(self.one_in);
            let (low, part) = ((at as usize).min(sums.len() - 1), at.fract());
            let high = (low + 1).min(sums.len() - 1);
            let hits = sums[low] as f64 * (1.0 - part) + sums[high] as f64 * part;
            (hits / self.references.max(1) as f64).clamp(0.0, 1.0)
        };
        sizes.iter().map(ratio).collect()
    }

    /// Hits in a cache of `size` blocks, exactly; for a curve that is no estimate.
    pub fn hits(&self, size: u32) -> u64 {
        self.distances.iter().take(size as usize).sum()
    }
}
