//! Working set, temporal distance, sharing: what needs to know of every block when it was last
//! used. Where blocks are too many, a part of the hash range is followed, which is halved
//! whenever memory runs out (SHARDS' fixed-size variant), and each stands for its likes.

use super::StatsOptions;
use super::timeline::Recorder;
use crate::header::MAX_PARTIES;
use crate::transform::mix;
use crate::{Bases, Header, Op, Request};
use serde::Serialize;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Different blocks that a trace uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WorkingSet {
    /// Bytes of a block.
    pub block: u32,
    /// All of them.
    pub blocks: u64,
    /// Those that are only read.
    pub only_read: u64,
    /// Those that are only written.
    pub only_written: u64,
    /// Those that are read and written.
    pub both: u64,
    /// Uses of blocks, by reads and by writes.
    pub read_references: u64,
    /// See `read_references`.
    pub write_references: u64,
    /// One of how many blocks was followed: 1 when the numbers are exact.
    pub sampled: u64,
}

/// How many uses of blocks, of any kind and by anybody, lie between a use of a block and its last
/// use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Distances {
    /// First uses by a read, and by a write.
    pub cold_reads: u64,
    /// See `cold_reads`.
    pub cold_writes: u64,
    /// (a power of two, reads, writes) at less than that distance and at least half of it.
    pub by_power: Vec<(u64, u64, u64)>,
}

/// Blocks by how many clients use them. Disks made from one image share a block until one of them
/// has written to it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SharingStats {
    /// (clients, blocks, uses of these blocks).
    pub by_clients: Vec<(u32, u64, u64)>,
    /// With more than 64 clients, counts of clients are lower bounds.
    pub lower_bound: bool,
}

#[derive(Clone, Copy)]
struct Block {
    last_time: u64,
    last_use: u64,
    uses: u64,
    /// One bit a client, modulo 64.
    clients: u64,
    read: bool,
    written: bool,
}

/// Multiplies (Fibonacci hashing); keys are numbers already.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type BlockKey = (u32, u64);

/// What a disk shares with others of its base; its own number when it has none.
fn shared_by(bases: &Bases, disk: u32) -> u32 {
    bases.of(disk).map_or(disk, |first| MAX_PARTIES + first)
}

/// Follows blocks.
pub(super) struct BlockTracker {
    options: StatsOptions,
    known: HashMap<BlockKey, Block, BuildHasherDefault<Multiply>>,
    /// Blocks whose hash has this many leading zeroes are followed.
    zeroes: u32,
    bases: Bases,
    uses: u64,
    references: [u64; 2],
    distances: [[u64; 2]; 65],
    cold: [u64; 2],
    most_client: u32,
}

impl BlockTracker {
    pub(super) fn new(options: StatsOptions) -> Self {
        Self {
            options,
            known: HashMap::default(),
            zeroes: 0,
            bases: Bases::default(),
            uses: 0,
            references: [0; 2],
            distances: [[0; 2]; 65],
            cold: [0; 2],
            most_client: 0,
        }
    }

    /// Takes note of disks that the header names by now.
    pub(super) fn learn(&mut self, header: &Header) {
        self.bases.learn(&header.disks);
    }

    pub(super) fn add(&mut self, request: &Request, timeline: &mut Recorder) {
        let grain = u64::from(self.options.block);
        if request.length == 0 {
            return;
        }
        self.most_client = self.most_client.max(request.client);
        let write = request.op == Op::Write;
        for block in request.offset / grain..=(request.end() - 1) / grain {
            self.uses += 1;
            self.references[usize::from(write)] += 1;
            let own = (request.disk, block);
            let base = shared_by(&self.bases, request.disk);
            let shared = (base, block);
            // Sampled by the block and what is shared of it, so that both lives are followed.
            if self.zeroes > 0 {
                let hash = mix(block ^ u64::from(base).rotate_left(40));
                if hash.leading_zeros() < self.zeroes {
                    continue;
                }
            }
            let key = match write || base == request.disk || self.known.contains_key(&own) {
                true => own,
                false => shared,
            };
            self.touch(key, request, write, timeline);
        }
        if self.known.len() > self.options.most_blocks {
            self.thin();
        }
    }

    fn touch(&mut self, key: BlockKey, request: &Request, write: bool, timeline: &mut Recorder) {
        let weight = 1u64 << self.zeroes;
        let now = self.uses;
        let kind = usize::from(write);
        let client = 1 << (request.client % 64);
        let mut fresh = false;
        let block = self.known.entry(key).or_insert_with(|| {
            fresh = true;
            Block {
                last_time: request.time,
                last_use: now,
                uses: 0,
                clients: 0,
                read: false,
                written: false,
            }
        });
        if fresh {
            self.cold[kind] += weight;
            timeline.block(request.time, None, weight);
        } else {
            let distance = now - block.last_use - 1;
            self.distances[(64 - distance.leading_zeros()) as usize][kind] += weight;
            timeline.block(request.time, Some(block.last_time), weight);
        }
        block.last_time = request.time;
        block.last_use = now;
        block.uses += 1;
        block.clients |= client;
        block.read |= !write;
        block.written |= write;
    }

    /// Follows half of the blocks from here on.
    fn thin(&mut self) {
        self.zeroes += 1;
        let (zeroes, bases) = (self.zeroes, &self.bases);
        self.known.retain(|(disk, block), _| {
            let base = shared_by(bases, *disk);
            mix(block ^ u64::from(base).rotate_left(40)).leading_zeros() >= zeroes
        });
    }

    pub(super) fn finish(self) -> (WorkingSet, Distances, SharingStats) {
        let weight = 1u64 << self.zeroes;
        let mut set = WorkingSet {
            block: self.options.block,
            read_references: self.references[0],
            write_references: self.references[1],
            sampled: weight,
            ..WorkingSet::default()
        };
        let mut by_clients = [(0u64, 0u64); 65];
        for block in self.known.values() {
            match (block.read, block.written) {
                (true, true) => set.both += weight,
                (false, true) => set.only_written += weight,
                _ => set.only_read += weight,
            }
            let (blocks, uses) = &mut by_clients[block.clients.count_ones() as usize];
            *blocks += weight;
            *uses += block.uses * weight;
        }
        set.blocks = set.both + set.only_read + set.only_written;
        let power = |(bits, counts): (usize, [u64; 2])| {
            (1u64.checked_shl(bits as u32).unwrap_or(u64::MAX), counts[0], counts[1])
        };
        let last = self.distances.iter().rposition(|c| *c != [0, 0]).map_or(0, |at| at + 1);
        let distances = Distances {
            cold_reads: self.cold[0],
            cold_writes: self.cold[1],
            by_power: self.distances.into_iter().take(last).enumerate().map(power).collect(),
        };
        let sharing = SharingStats {
            by_clients: (0u32..)
                .zip(by_clients)
                .filter(|(_, (blocks, _))| *blocks > 0)
                .map(|(clients, (blocks, uses))| (clients, blocks, uses))
                .collect(),
            lower_bound: self.most_client >= 64,
        };
        (set, distances, sharing)
    }
}
