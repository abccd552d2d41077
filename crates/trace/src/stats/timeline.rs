//! Rates and working set over time, in one pass, without knowing how long it takes.
//!
//! Bins are a power of two long, and pairs of them are joined when there are too many. How many
//! different blocks a joined bin saw can still be told: a use counts in a bin when the block's
//! last use was before the bin, that is, when the highest bit in which the two times differ is at
//! least the bin's length. So each bin counts its uses by that bit.

use crate::{Op, Request};
use serde::Serialize;

/// Bins at most.
const BINS: usize = 256;

/// A stretch of time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Bin {
    /// When it begins, in nanoseconds (without times: requests).
    pub start: u64,
    /// All requests.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Different blocks used.
    pub blocks: u64,
    /// Blocks used for the first time.
    pub new_blocks: u64,
}

/// Over time.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Timeline {
    /// How long each bin is, in nanoseconds (without times: requests).
    pub width: u64,
    /// The bins, without gaps.
    pub bins: Vec<Bin>,
}

#[derive(Clone, Debug)]
struct Wide {
    bin: Bin,
    /// Uses of blocks by the highest bit in which the time differs from that of the last use.
    uses: [u64; 64],
}

impl Default for Wide {
    fn default() -> Self {
        Self { bin: Bin::default(), uses: [0; 64] }
    }
}

impl Wide {
    fn join(&mut self, other: &Self) {
        self.bin.requests += other.bin.requests;
        self.bin.read_bytes += other.bin.read_bytes;
        self.bin.written_bytes += other.bin.written_bytes;
        self.bin.new_blocks += other.bin.new_blocks;
        self.uses.iter_mut().zip(&other.uses).for_each(|(a, b)| *a += b);
    }
}

/// Counts over time.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    shift: u32,
    bins: Vec<Wide>,
}

impl Recorder {
    fn bin(&mut self, time: u64) -> &mut Wide {
        while time >> self.shift >= BINS as u64 {
            let joined = self.bins.chunks(2).map(|pair| {
                let mut one = pair[0].clone();
                pair.iter().skip(1).for_each(|other| one.join(other));
                one
            });
            self.bins = joined.collect();
            self.shift += 1;
        }
        let index = (time >> self.shift) as usize;
        if self.bins.len() <= index {
            self.bins.resize_with(index + 1, Wide::default);
        }
        &mut self.bins[index]
    }

    pub(crate) fn request(&mut self, request: &Request) {
        let bin = &mut self.bin(request.time).bin;
        bin.requests += 1;
        match request.op {
            Op::Read => bin.read_bytes += u64::from(request.length),
            Op::Write => bin.written_bytes += u64::from(request.length),
            _ => {}
        }
    }

    /// A use of a block that stands for `weight` blocks.
    pub(crate) fn block(&mut self, time: u64, last: Option<u64>, weight: u64) {
        let bin = self.bin(time);
        match last.map(|last| last ^ time) {
            None => bin.bin.new_blocks += weight,
            Some(0) => {}
            Some(differs) => bin.uses[differs.ilog2() as usize] += weight,
        }
    }

    pub(crate) fn finish(self) -> Timeline {
        let shift = self.shift;
        let narrow = |(index, wide): (usize, &Wide)| {
            let again: u64 = wide.uses[shift as usize..].iter().sum();
            Bin { start: (index as u64) << shift, blocks: wide.bin.new_blocks + again, ..wide.bin }
        };
        let bins = self.bins.iter().enumerate().map(narrow).collect();
        Timeline { width: 1 << shift, bins }
    }
}
