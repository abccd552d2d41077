//! Least recently used: the yardstick, and right for a cache with no cache before it.

use super::Policy;
use super::list::{Links, List};

/// Evicts the entry whose last access is the longest ago.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    order: List,
    len: usize,
}

impl Lru {
    /// A policy for a cache of about `entries` entries.
    pub fn new(entries: u32) -> Self {
        Self { links: Links::new(entries), order: List::EMPTY, len: 0 }
    }
}

impl Policy for Lru {
    fn hit(&mut self, slot: u32) {
        self.order.remove(&mut self.links, slot);
        self.order.push_tail(&mut self.links, slot);
    }

    fn insert(&mut self, slot: u32, _: u64) {
        self.order.push_tail(&mut self.links, slot);
        self.len += 1;
    }

    fn evict(&mut self) -> Option<u32> {
        let slot = self.order.head()?;
        self.remove(slot);
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        self.order.remove(&mut self.links, slot);
        self.len -= 1;
    }

    fn len(&self) -> usize {
        self.len
    }
}
