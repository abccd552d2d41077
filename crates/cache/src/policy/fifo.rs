//! First in, first out: what a cache without any bookkeeping does.

use super::queues::{NOWHERE, Queues};
use super::{Algorithm, Room};

const HELD: u8 = 0;

/// Evicts the entry that came first.
#[derive(Debug)]
pub struct Fifo(Queues<1>);

impl Fifo {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self(Queues::new(room.ids))
    }
}

impl Algorithm for Fifo {
    const REMEMBERS: bool = false;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.0.list(id) != NOWHERE
    }

    #[inline]
    fn hit(&mut self, _: u32) {}

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.0.reserve(id);
        self.0.push_tail(HELD, id);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        self.0.pop_head(HELD)
    }

    fn remove(&mut self, id: u32) {
        self.0.take(id);
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len(HELD) as usize
    }
}
