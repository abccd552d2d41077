//! Which entry leaves when room is needed.
//!
//! A policy is pure: it knows numbers and counts accesses, and has no clock, no keys and no values.
//! Each is an [`Algorithm`] over ids, which stand for keys; a simulator drives one alone, at full
//! speed. A cache, whose entries have slots, drives one per shard behind [`Policy`].
//!
//! ```
//! use cache::PolicyKind;
//! let mut policy = PolicyKind::Lru.build(2);
//! policy.insert(0, 0xa); // slot 0 holds what has fingerprint 0xa
//! policy.insert(1, 0xb);
//! policy.hit(0);
//! policy.miss(0xc);
//! assert_eq!(policy.evict(&|slot| [0xa, 0xb][slot as usize]), Some(1)); // slot 1 is free for the next entry
//! policy.insert(1, 0xc);
//! ```
//!
//! | module | policy |
//! |---|---|
//! | [`lru`], [`fifo`], [`clock`], [`lfu`] | the classics |
//! | [`fmpq`], [`mq`] | multi-queue, with a fixed and with an adaptive lifetime: for a cache behind caches |
//! | [`twoq`], [`arc`], [`lirs`], [`fbr`] | recency and frequency combined |
//! | [`s3fifo`], [`sieve`], [`wtinylfu`] | of the last years |
//! | [`duel`] | LRU or LIRS, whichever does better lately |
//!
//! [`sketch`] counts uses for one of them.

pub mod arc;
pub mod clock;
pub mod duel;
pub mod fbr;
pub mod fifo;
pub mod fmpq;
mod kind;
pub mod lfu;
pub mod lirs;
pub mod lru;
pub mod mq;
mod parameters;
mod queues;
mod ratio;
mod rings;
pub mod s3fifo;
pub mod sieve;
pub mod sketch;
pub(crate) mod slotted;
#[cfg(test)]
mod tests;
pub mod twoq;
pub mod wtinylfu;

pub use kind::*;
pub use ratio::Ratio;

/// Decides which of the entries of a cache leaves next, by slot.
///
/// Entries are slots, numbered from 0 without gaps by the caller, who reuses the numbers of entries
/// that left. Each access is a call of [`hit`](Self::hit) when the entry is there, else
/// [`miss`](Self::miss), [`evict`](Self::evict) as often as room is needed, and then
/// [`insert`](Self::insert).
///
/// No call allocates once the policy has seen its highest slot number and the cache has been full
/// for a while.
pub trait Policy: Send {
    /// An access to the entry in `slot`.
    fn hit(&mut self, slot: u32);

    /// Tells that what has this fingerprint is not there and will be inserted next, once room was
    /// made. A policy may choose by it what leaves.
    fn miss(&mut self, fingerprint: u64);

    /// An access to what was not there and is now in `slot`, which must not be in use.
    /// `fingerprint` identifies it for policies that remember what left: a hash of its key, whose low
    /// half alone is well spread.
    fn insert(&mut self, slot: u32, fingerprint: u64);

    /// Chooses the entry to leave and drops it; `None` when there is no entry. `fingerprints` tells
    /// the fingerprint of what is in a slot, to policies that remember it.
    fn evict(&mut self, fingerprints: &dyn Fn(u32) -> u64) -> Option<u32>;

    /// Drops an entry that leaves for another reason, and remembers nothing of it.
    fn remove(&mut self, slot: u32);

    /// The number of entries.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A replacement algorithm over ids: dense numbers that stand for keys, held or remembered.
///
/// Each access is one call of [`hit`](Self::hit) when [`holds`](Self::holds) says so, else
/// [`miss`](Self::miss), [`evict`](Self::evict) as often as room is needed, and
/// [`insert`](Self::insert). A simulator gives every key its own id for ever. A cache must use ids
/// again: an id is free once it was [`remove`](Self::remove)d or was told as
/// [`forgotten`](Self::forgotten).
pub trait Algorithm: Send {
    /// Whether it remembers anything of what left. When not, what left is forgotten at once, and
    /// [`forgotten`](Self::forgotten) tells nothing.
    const REMEMBERS: bool;

    /// Whether `id` is held.
    fn holds(&self, id: u32) -> bool;

    /// Looks up what an access to `id` will need, in vain, so that it is near when the access comes: there must be
    /// [`Room`] for the id. What is returned says nothing; it is there for the compiler to keep the look-up.
    #[inline(always)]
    fn announce(&self, id: u32) -> bool {
        self.holds(id)
    }

    /// An access to `id`, which must be held.
    fn hit(&mut self, id: u32);

    /// Tells that `id` is not held and will be inserted next, once room was made.
    fn miss(&mut self, id: u32) {
        let _ = id;
    }

    /// An access to `id`, which must not be held and now is. `fingerprint` is the same for the same
    /// key at all times.
    fn insert(&mut self, id: u32, fingerprint: u64);

    /// Chooses what leaves, and drops it; `None` when nothing is held.
    fn evict(&mut self) -> Option<u32>;

    /// Drops `id`, which must be held, and remembers nothing of it.
    fn remove(&mut self, id: u32);

    /// How many ids are held.
    fn len(&self) -> usize;

    /// Whether nothing is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An id that was evicted and is not remembered any more, each once.
    fn forgotten(&mut self) -> Option<u32> {
        None
    }

    /// Bytes of what grows with use beside the lists of ids.
    fn beside(&self) -> usize {
        0
    }
}

/// How large an algorithm is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Entries that the cache holds when it is full; the algorithm follows when it are more or less.
    pub entries: u32,
    /// Ids to make room for; it grows when there are more.
    pub ids: u32,
    /// Whether the caller asks for [`forgotten`](Algorithm::forgotten) ids, to use them
    /// again. When not, they are not collected.
    pub reuse: bool,
}

impl Room {
    /// For a simulation: `ids` ids, each of which stands for one key.
    pub const fn simulated(entries: u32, ids: u32) -> Self {
        Self { entries, ids, reuse: false }
    }

    fn forgotten(self) -> Forgotten {
        Forgotten { ids: Vec::new(), wanted: self.reuse }
    }
}

/// Ids that were forgotten and not yet told.
#[derive(Debug)]
struct Forgotten {
    ids: Vec<u32>,
    wanted: bool,
}

impl Forgotten {
    #[inline]
    fn push(&mut self, id: u32) {
        if self.wanted {
            self.ids.push(id);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        self.ids.pop()
    }
}
