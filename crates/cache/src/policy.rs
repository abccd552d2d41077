//! Which entry leaves when room is needed.
//!
//! A policy is pure: it knows dense slot numbers and counts accesses, and has no clock, no keys and
//! no values. The cache drives one per shard; a simulator can drive one alone.
//!
//! ```
//! use cache::PolicyKind;
//! let mut policy = PolicyKind::Lru.build(2);
//! policy.insert(0, 0xa); // slot 0 holds what has fingerprint 0xa
//! policy.insert(1, 0xb);
//! policy.hit(0);
//! assert_eq!(policy.evict(), Some(1)); // slot 1 is free for the next entry
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub mod fmpq;
pub(crate) mod history;
mod list;
pub mod lru;
#[cfg(test)]
mod tests;

pub use fmpq::Fmpq;
pub use lru::Lru;

/// Decides which of the entries of a cache leaves next.
///
/// Entries are slots, numbered from 0 without gaps by the caller, who reuses the numbers of entries
/// that left. Each access is one call: [`hit`](Self::hit) when the entry is there, else
/// [`evict`](Self::evict) as often as room is needed and then [`insert`](Self::insert).
///
/// No call allocates once the policy has seen its highest slot number and the cache has been full.
pub trait Policy: Send {
    /// An access to the entry in `slot`.
    fn hit(&mut self, slot: u32);

    /// An access to what was not there and is now in `slot`, which must not be in use.
    /// `fingerprint` identifies it for policies that remember what left: a hash of its key.
    fn insert(&mut self, slot: u32, fingerprint: u64);

    /// Chooses the entry to leave and drops it; `None` when there is no entry.
    fn evict(&mut self) -> Option<u32>;

    /// Drops an entry that leaves for another reason, and remembers nothing of it.
    fn remove(&mut self, slot: u32);

    /// The number of entries.
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// [`Lru`]: the least recently used entry leaves.
    Lru,
    /// [`Fmpq`]: the least recently used of the least often used leaves; for a cache behind caches.
    #[default]
    Fmpq,
}

impl PolicyKind {
    /// All of them, in the order of their names.
    pub const ALL: [Self; 2] = [Self::Fmpq, Self::Lru];

    /// The name, as configuration and command line spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Fmpq => "fmpq",
        }
    }

    /// A policy with its default parameters for a cache of about `entries` entries.
    pub fn build(self, entries: u32) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru::new(entries)),
            Self::Fmpq => Box::new(Fmpq::new(entries, fmpq::Parameters::default())),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = block::Error;

    fn from_str(text: &str) -> block::Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            block::Error::invalid(format!("cache policy \"{text}\" is unknown; use one of {names}"))
        })
    }
}
