//! One policy and one size over a stream.

use crate::client::access;
use crate::opt;
use crate::stream::Stream;
use block::{Error, Result};
use cache::PolicyKind;
use cache::policy::{Algorithm, Room, Visitor};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The classes of distances: one for each power of two.
pub const CLASSES: usize = 32;

/// A policy, or the best that any could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// One that a cache can have.
    Kind(PolicyKind),
    /// The one that knows the future: see [`opt`].
    Opt,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Opt => f.write_str("opt"),
        }
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "opt" => Ok(Self::Opt),
            _ => text.parse().map(Self::Kind).map_err(|e| {
                Error::invalid(format!("{}, or opt for the best possible", e.message()))
            }),
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// References that found their block.
    pub hits: u64,
    /// References that did not.
    pub misses: u64,
    /// First references to a block: misses whatever the policy.
    pub cold: u64,
    /// Hits of reads.
    pub read_hits: u64,
    /// Reads.
    pub reads: u64,
    /// Hits by distance: class `k` has those whose block was last referenced 2^k to 2^(k+1) - 1
    /// references before. Empty when not asked for.
    pub hits_by_distance: Vec<u64>,
    /// Misses likewise, without the first references.
    pub misses_by_distance: Vec<u64>,
}

impl Outcome {
    /// Hits per reference; 0 when there is no reference.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Hits and misses of references at a distance below and from `2^power` references. First
    /// references are in none of them.
    pub fn split(&self, power: usize) -> [u64; 4] {
        let sum = |classes: &[u64], from_power: bool| {
            let at = power.min(classes.len());
            classes[if from_power { at..classes.len() } else { 0..at }].iter().sum()
        };
        let (hits, misses) = (&self.hits_by_distance, &self.misses_by_distance);
        [sum(hits, false), sum(misses, false), sum(hits, true), sum(misses, true)]
    }
}

/// Runs a policy with `blocks` blocks over a stream; counts hits and misses by distance when
/// `distances` is set. A cache of no blocks misses everything.
pub fn run(policy: Policy, blocks: u32, stream: &Stream, distances: bool) -> Outcome {
    let mut outcome = match (policy, distances, blocks) {
        (_, _, 0) => count(stream, distances, |_, _| false),
        (Policy::Opt, ..) => {
            let mut cache = opt::Opt::new(stream, blocks);
            count(stream, distances, |at, id| cache.access(at, id))
        }
        (Policy::Kind(kind), ..) => {
            let room = Room::simulated(blocks, stream.blocks());
            kind.visit(room, Run { blocks: blocks as usize, stream, distances })
        }
    };
    outcome.cold = u64::from(stream.blocks());
    outcome
}

struct Run<'a> {
    blocks: usize,
    stream: &'a Stream,
    distances: bool,
}

impl Visitor for Run<'_> {
    type Output = Outcome;

    fn visit<A: Algorithm + 'static>(self, mut algorithm: A) -> Outcome {
        count(self.stream, self.distances, |_, id| access(&mut algorithm, self.blocks, id))
    }
}

/// Counts what a cache says that is none of ours: `access` is called with the block of each reference
/// in turn, and says whether that is a hit.
pub fn drive(stream: &Stream, distances: bool, mut access: impl FnMut(u32) -> bool) -> Outcome {
    let outcome = count(stream, distances, |_, id| access(id));
    Outcome { cold: u64::from(stream.blocks()), ..outcome }
}

/// Counts what `access` says of each reference: its place in the stream and the block's id.
#[inline]
fn count(stream: &Stream, distances: bool, mut access: impl FnMut(usize, u32) -> bool) -> Outcome {
    let mut counted = [[0u64; 2]; 2];
    let mut outcome = Outcome::default();
    if distances {
        let mut last = vec![u32::MAX; stream.blocks() as usize];
        let mut by_distance = [[0u64; CLASSES]; 2];
        for (at, reference) in stream.packed().iter().enumerate() {
            let (id, write) = Stream::unpack(*reference);
            let hit = access(at, id);
            counted[usize::from(write)][usize::from(hit)] += 1;
            let last = &mut last[id as usize];
            if *last != u32::MAX {
                let distance = (at as u32).wrapping_sub(*last).max(1);
                by_distance[usize::from(hit)][distance.ilog2() as usize] += 1;
            }
            *last = at as u32;
        }
        outcome.misses_by_distance = by_distance[0].to_vec();
        outcome.hits_by_distance = by_distance[1].to_vec();
    } else {
        for (at, reference) in stream.packed().iter().enumerate() {
            let (id, write) = Stream::unpack(*reference);
            counted[usize::from(write)][usize::from(access(at, id))] += 1;
        }
    }
    let [[read_misses, read_hits], [write_misses, write_hits]] = counted;
    outcome.hits = read_hits + write_hits;
    outcome.misses = read_misses + write_misses;
    outcome.read_hits = read_hits;
    outcome.reads = read_hits + read_misses;
    outcome
}
