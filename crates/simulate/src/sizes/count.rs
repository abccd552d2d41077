//! Hits and misses of many sizes: only misses are counted of each, all else is the same for all.

use super::{BITS, MOST, ManySizes};
use crate::run::{CLASSES, Outcome};
use crate::stream::{AHEAD, ReferenceStream};

/// What is counted of a stream.
pub(super) struct SizeCounts<'a> {
    stream: &'a ReferenceStream,
    sizes: usize,
    /// Misses of reads and of writes, by size.
    misses: [[u64; MOST]; 2],
    writes: u64,
    distances: Option<DistanceCounts>,
}

/// What is counted of references that are not the first of their block, by distance.
struct DistanceCounts {
    /// The last reference to each block; `u32::MAX` before the first.
    last: Vec<u32>,
    all: [u64; CLASSES],
    missed: Vec<[u64; MOST]>,
}

impl<'a> SizeCounts<'a> {
    /// For so many sizes.
    pub(super) fn new(stream: &'a ReferenceStream, sizes: usize, distances: bool) -> Self {
        let distances = distances.then(|| DistanceCounts {
            last: vec![u32::MAX; stream.blocks() as usize],
            all: [0; CLASSES],
            missed: vec![[0; MOST]; CLASSES],
        });
        Self { stream, sizes, misses: [[0; MOST]; 2], writes: 0, distances }
    }

    /// What comes of a policy at each size.
    pub(super) fn of(mut self, mut policy: impl ManySizes) -> Vec<Outcome> {
        let mut at = 0u32;
        for chunk in self.stream.packed().chunks(AHEAD) {
            policy.announce(chunk.iter().map(|reference| ReferenceStream::unpack(*reference).0));
            // Words of 32 bits in a loop of this length are counted several at a time.
            let mut misses = [[0u32; MOST]; 2];
            for reference in chunk {
                let (id, write) = ReferenceStream::unpack(*reference);
                let missing = policy.access(id);
                let counted = &mut misses[usize::from(write)];
                for (count, bit) in counted.iter_mut().zip(BITS) {
                    *count += u32::from(missing & bit != 0);
                }
                self.writes += u64::from(write);
                if let Some(distances) = &mut self.distances {
                    distances.count(at, id, missing);
                }
                at = at.wrapping_add(1);
            }
            for (sum, count) in self.misses.as_flattened_mut().iter_mut().zip(misses.as_flattened())
            {
                *sum += u64::from(*count);
            }
        }
        (0..self.sizes).map(|size| self.outcome(size)).collect()
    }

    fn outcome(&self, size: usize) -> Outcome {
        let references = self.stream.len() as u64;
        let reads = references - self.writes;
        let [read_misses, write_misses] = self.misses.map(|misses| misses[size]);
        let misses_by_distance: Vec<u64> = self
            .distances
            .iter()
            .flat_map(|distances| distances.missed.iter().map(|missed| missed[size]))
            .collect();
        let all = self.distances.iter().flat_map(|distances| distances.all);
        Outcome {
            hits: references - read_misses - write_misses,
            misses: read_misses + write_misses,
            cold: u64::from(self.stream.blocks()),
            read_hits: reads - read_misses,
            reads,
            hits_by_distance: all
                .zip(&misses_by_distance)
                .map(|(all, missed)| all - missed)
                .collect(),
            misses_by_distance,
        }
    }
}

impl DistanceCounts {
    fn count(&mut self, at: u32, id: u32, missing: u32) {
        let last = std::mem::replace(&mut self.last[id as usize], at);
        if last == u32::MAX {
            return;
        }
        let class = at.wrapping_sub(last).max(1).ilog2() as usize;
        self.all[class] += 1;
        super::each(missing).for_each(|size| self.missed[class][size] += 1);
    }
}
