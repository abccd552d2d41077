//! One policy at many sizes, in one pass over a stream.
//!
//! A pass for each size waits for memory, as what is known of a block is somewhere else for each size, and
//! decides at every size whether the block hits. Here what all sizes know of a block stands side by side, a
//! bit for each size: a reference looks it up once, a hit at all sizes costs a few operations on whole words,
//! and only a size that misses is gone through by itself.
//!
//! That needs the rules of a policy in another form, where what a hit does is the same for all sizes. So this
//! is the second form of those policies where it pays, and only of these; all others run one size after the
//! other. A test holds every one of them to the hits of [`run()`](fn@run), which the cache's own form decides.
//!
//! | module | policies |
//! |---|---|
//! | `count` | what all have in common: hits and misses of each size |
//! | `lru` | LRU: the stack's distance says which sizes hit |
//! | [`opt`] | the best possible: one size after the other, and only one look into the future |
//! | `recency` | a log of the last uses, which lists of the least recently used are parts of |
//! | `arc`, `lfu` | ARC and LFU, over such a log |
//! | `ring` | FIFO and CLOCK: in order of arrival, each size in a ring of its own |
//! | `sieve` | SIEVE: likewise, in a log with gaps |
//! | `wtinylfu` | W-TinyLFU: one size after the other, and only one look into the past |

mod arc;
mod count;
mod lfu;
mod lru;
mod recency;
mod ring;
mod sieve;
mod wtinylfu;

use crate::opt;
use crate::run::{Outcome, SimulatedPolicy, run, run_cache, run_opt};
use crate::stream::ReferenceStream;
use cache::PolicyKind;
use wtinylfu::TimedWTinyLfu;

/// The most sizes of one pass: a bit of a word for each.
const MOST: usize = 32;

/// The bit of each size.
const BITS: [u32; MOST] = {
    let mut bits = [0; MOST];
    let mut at = 0;
    while at < MOST {
        bits[at] = 1 << at;
        at += 1;
    }
    bits
};

/// Fewer sizes than this are run one by one, which is as fast.
const FEW: usize = 5;

/// Streams of more blocks are run one size after the other: places of a log are numbers below 2^31.
const MOST_BLOCKS: u32 = 1 << 29;

/// A policy at many sizes.
trait ManySizes {
    /// What will be referenced next: looked up in vain, it is near when it comes.
    fn announce(&self, ids: impl Iterator<Item = u32>);

    /// A reference to `id`; the sizes that it misses at, a bit for each.
    fn access(&mut self, id: u32) -> u32;
}

/// Runs a policy with each of these numbers of blocks over a stream, as [`run()`](fn@run) does with one of them,
/// and many times as fast for some of the policies.
pub fn run_sizes(
    policy: SimulatedPolicy,
    sizes: &[u32],
    stream: &ReferenceStream,
    distances: bool,
) -> Vec<Outcome> {
    sizes.chunks(MOST).flat_map(|sizes| run_some(policy, sizes, stream, distances)).collect()
}

/// Runs [`MOST`] sizes at most.
fn run_some(
    policy: SimulatedPolicy,
    sizes: &[u32],
    stream: &ReferenceStream,
    distances: bool,
) -> Vec<Outcome> {
    let blocks = stream.blocks();
    let one_by_one = || sizes.iter().map(|size| run(policy, *size, stream, distances)).collect();
    // What has room for nothing has no rules either.
    if sizes.len() < FEW || sizes.contains(&0) || blocks > MOST_BLOCKS {
        return one_by_one();
    }
    // No cache holds more than all there is.
    let rooms: Vec<u32> = sizes.iter().map(|size| (*size).min(blocks)).collect();
    let counts = count::SizeCounts::new(stream, sizes.len(), distances);
    match policy {
        SimulatedPolicy::Kind(PolicyKind::Arc) => counts.of(arc::ArcSizes::new(&rooms, blocks)),
        SimulatedPolicy::Kind(PolicyKind::Lfu) => counts.of(lfu::LfuSizes::new(&rooms, blocks)),
        SimulatedPolicy::Kind(PolicyKind::Lru) => counts.of(lru::LruSizes::new(&rooms, blocks)),
        SimulatedPolicy::Kind(PolicyKind::Fifo) => counts.of(ring::FifoSizes::new(&rooms, blocks)),
        SimulatedPolicy::Kind(PolicyKind::Clock) => {
            counts.of(ring::ClockSizes::new(&rooms, blocks))
        }
        SimulatedPolicy::Kind(PolicyKind::Sieve) => {
            counts.of(sieve::SieveSizes::new(&rooms, blocks))
        }
        SimulatedPolicy::Kind(PolicyKind::WTinyLfu(parameters)) => {
            let previous = wtinylfu::previous_references(stream);
            let sized = |room: &u32| TimedWTinyLfu::new(*room, parameters, stream, &previous);
            rooms.iter().map(|room| run_cache(stream, distances, sized(room))).collect()
        }
        SimulatedPolicy::Opt => {
            let next = opt::next_references(stream);
            sizes.iter().map(|size| run_opt(&next, *size, stream, distances)).collect()
        }
        SimulatedPolicy::Kind(_) => one_by_one(),
    }
}

/// A bit for each of so many sizes, [`MOST`] at most.
const fn all(sizes: usize) -> u32 {
    u32::MAX >> (MOST - sizes)
}

/// The sizes of a word, one after the other.
#[inline]
fn each(mut sizes: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let size = sizes.trailing_zeros();
        let word = sizes;
        sizes &= sizes.wrapping_sub(1);
        (word != 0).then_some(size as usize)
    })
}
