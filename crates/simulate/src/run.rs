//! One policy and one size over a stream.

use crate::client::access;
use crate::opt;
use crate::stream::{AHEAD, ReferenceStream};
use block::{Error, Result};
use cache::PolicyKind;
use cache::policy::lru::Lru;
use cache::policy::{Algorithm, Room, Visitor};
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

/// The classes of distances: one for each power of two.
pub const CLASSES: usize = 32;

/// A policy, or the best that any could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimulatedPolicy {
    /// One that a cache can have.
    Kind(PolicyKind),
    /// The one that knows the future: see [`opt`].
    Opt,
}

impl fmt::Display for SimulatedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Opt => f.write_str("opt"),
        }
    }
}

impl FromStr for SimulatedPolicy {
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
pub fn run(
    policy: SimulatedPolicy,
    blocks: u32,
    stream: &ReferenceStream,
    distances: bool,
) -> Outcome {
    match (policy, blocks) {
        (_, 0) => run_cache(stream, distances, HitFunction(|_| false)),
        (SimulatedPolicy::Opt, _) => {
            run_opt(&opt::next_references(stream), blocks, stream, distances)
        }
        (SimulatedPolicy::Kind(kind), _) => {
            let room = Room::simulated(blocks, stream.blocks());
            kind.visit(room, ReferenceCount { blocks: blocks as usize, stream, distances })
        }
    }
}

/// Runs the best possible with `blocks` blocks, at least one, with what [`opt::next_references`] says of the
/// stream.
pub(crate) fn run_opt(
    next: &[u32],
    blocks: u32,
    stream: &ReferenceStream,
    distances: bool,
) -> Outcome {
    run_cache(stream, distances, opt::Opt::new(next, blocks))
}

struct ReferenceCount<'a> {
    blocks: usize,
    stream: &'a ReferenceStream,
    distances: bool,
}

impl Visitor for ReferenceCount<'_> {
    type Output = Outcome;

    fn visit<A: Algorithm + 'static>(self, algorithm: A) -> Outcome {
        run_cache(self.stream, self.distances, SimulatedCache { algorithm, blocks: self.blocks })
    }
}

/// How many requests need nothing but a cache, and how many of the others nothing but it and what lies below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WholeRequests {
    /// Requests that find all of their blocks in the cache.
    pub cache: u64,
    /// Requests that find the rest of their blocks in the cache below it.
    pub below: u64,
}

/// What a cache of `blocks` blocks and an LRU cache of `below` blocks behind it, which keeps what passes
/// through, answer whole: `ends` are the places in the stream where each request ends, ascending. A request
/// without references finds all.
pub fn whole(
    policy: PolicyKind,
    blocks: u32,
    below: u32,
    stream: &ReferenceStream,
    ends: &[u32],
) -> WholeRequests {
    struct Whole<'a>(usize, u32, &'a ReferenceStream, &'a [u32]);
    impl Visitor for Whole<'_> {
        type Output = WholeRequests;
        fn visit<A: Algorithm + 'static>(self, mut algorithm: A) -> WholeRequests {
            let Self(blocks, below, stream, ends) = self;
            let mut lower = Lru::new(Room::simulated(below.max(1), stream.blocks()));
            let (mut references, mut from) = (stream.references(), 0);
            let mut whole = WholeRequests::default();
            for end in ends {
                let count = end.saturating_sub(from) as usize;
                from = *end;
                let (mut cached, mut kept) = (true, true);
                // Each of them is referenced, whether or not one before it missed.
                for (id, _) in references.by_ref().take(count) {
                    if !access(&mut algorithm, blocks, id) {
                        cached = false;
                        kept &= below > 0 && access(&mut lower, below as usize, id);
                    }
                }
                whole.cache += u64::from(cached);
                whole.below += u64::from(!cached && kept);
            }
            whole
        }
    }
    let room = Room::simulated(blocks.max(1), stream.blocks());
    policy.visit(room, Whole(blocks.max(1) as usize, below, stream, ends))
}

/// Counts what a cache says that is none of ours: `access` is called with the block of each reference
/// in turn, and says whether that is a hit.
pub fn drive(
    stream: &ReferenceStream,
    distances: bool,
    access: impl FnMut(u32) -> bool,
) -> Outcome {
    run_cache(stream, distances, HitFunction(access))
}

/// A cache that is told the references of a stream, in order.
pub(crate) trait ReferencedCache {
    /// The next references, [`AHEAD`] of them but at the end. Looking their blocks up in vain, one after the other
    /// and waiting for none, brings what is known of them near: what then is done with each of them does wait.
    fn announce(&mut self, _: &[u32]) {}

    /// The reference at place `at`, to `id`; whether it hits.
    fn access(&mut self, at: usize, id: u32) -> bool;
}

struct SimulatedCache<A> {
    algorithm: A,
    blocks: usize,
}

impl<A: Algorithm> ReferencedCache for SimulatedCache<A> {
    #[inline]
    fn announce(&mut self, references: &[u32]) {
        let held = references.iter().filter(|reference| {
            let (id, _) = ReferenceStream::unpack(**reference);
            self.algorithm.announce(id)
        });
        black_box(held.count());
    }

    #[inline]
    fn access(&mut self, _: usize, id: u32) -> bool {
        access(&mut self.algorithm, self.blocks, id)
    }
}

impl ReferencedCache for opt::Opt<'_> {
    #[inline]
    fn access(&mut self, at: usize, _: u32) -> bool {
        self.access(at)
    }
}

/// A function that says whether a block hits.
struct HitFunction<F>(F);

impl<F: FnMut(u32) -> bool> ReferencedCache for HitFunction<F> {
    fn access(&mut self, _: usize, id: u32) -> bool {
        (self.0)(id)
    }
}

/// Counts what a cache makes of each reference.
#[inline]
pub(crate) fn run_cache(
    stream: &ReferenceStream,
    distances: bool,
    mut cache: impl ReferencedCache,
) -> Outcome {
    let mut counted = [[0u64; 2]; 2];
    let mut distances = distances.then(|| Distances::new(stream));
    let mut at = 0;
    for chunk in stream.packed().chunks(AHEAD) {
        cache.announce(chunk);
        for reference in chunk {
            let (id, write) = ReferenceStream::unpack(*reference);
            let hit = cache.access(at, id);
            counted[usize::from(write)][usize::from(hit)] += 1;
            if let Some(distances) = &mut distances {
                distances.count(at as u32, id, hit);
            }
            at += 1;
        }
    }
    let [[read_misses, read_hits], [write_misses, write_hits]] = counted;
    let [misses_by_distance, hits_by_distance] =
        distances.map_or_else(Default::default, |d| d.counted);
    Outcome {
        hits: read_hits + write_hits,
        misses: read_misses + write_misses,
        cold: u64::from(stream.blocks()),
        read_hits,
        reads: read_hits + read_misses,
        hits_by_distance,
        misses_by_distance,
    }
}

/// Misses and hits by distance.
struct Distances {
    /// The last reference to each block; `u32::MAX` before the first.
    last: Vec<u32>,
    counted: [Vec<u64>; 2],
}

impl Distances {
    fn new(stream: &ReferenceStream) -> Self {
        let last = vec![u32::MAX; stream.blocks() as usize];
        Self { last, counted: [vec![0; CLASSES], vec![0; CLASSES]] }
    }

    #[inline]
    fn count(&mut self, at: u32, id: u32, hit: bool) {
        let last = std::mem::replace(&mut self.last[id as usize], at);
        if last != u32::MAX {
            let distance = at.wrapping_sub(last).max(1);
            self.counted[usize::from(hit)][distance.ilog2() as usize] += 1;
        }
    }
}
