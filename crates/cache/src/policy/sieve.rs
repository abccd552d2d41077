//! SIEVE (Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: "SIEVE is Simpler than LRU", NSDI
//! 2024, section 3).
//!
//! For comparisons only. Behind a client cache nothing is used again before the hand has passed, so
//! that the hand always takes what came last and the rest is frozen for ever.

use super::rings::{NOWHERE, Rings};
use super::{Algorithm, Room};

const HELD: u8 = 0;

/// Evicts the first entry, from the old to the new, that was not used since the hand last passed;
/// what was used stays where it is.
#[derive(Debug)]
pub struct Sieve {
    rings: Rings<1>,
    /// Where the hand stands: the next to look at. At the oldest when absent.
    hand: Option<u32>,
}

impl Sieve {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self { rings: Rings::new(room.ids), hand: None }
    }
}

impl Algorithm for Sieve {
    const REMEMBERS: bool = false;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.rings.list(id) != NOWHERE
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        self.rings.set_stamp(id, 1);
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.rings.reserve(id);
        self.rings.set_stamp(id, 0);
        self.rings.push_tail(HELD, id);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        let mut at = self.hand.or_else(|| self.rings.head(HELD))?;
        while self.rings.stamp(at) != 0 {
            self.rings.set_stamp(at, 0);
            at = self.rings.behind(at).or_else(|| self.rings.head(HELD))?;
        }
        self.hand = self.rings.behind(at);
        self.rings.take(at);
        Some(at)
    }

    fn remove(&mut self, id: u32) {
        if self.hand == Some(id) {
            self.hand = self.rings.behind(id);
        }
        self.rings.take(id);
    }

    #[inline]
    fn len(&self) -> usize {
        self.rings.len(HELD) as usize
    }
}
