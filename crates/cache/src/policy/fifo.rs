//! First in, first out: what a cache without any bookkeeping does.

use super::rings::{NOWHERE, Rings};
use super::{Algorithm, Room};

const HELD: u8 = 0;

/// Evicts the entry that came first.
#[derive(Debug)]
pub struct Fifo(Rings<1>);

impl Fifo {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self(Rings::new(room.ids))
    }
}

impl Algorithm for Fifo {
    const REMEMBERS: bool = false;

    fn holds(&self, id: u32) -> bool {
        self.0.list(id) != NOWHERE
    }

    fn hit(&mut self, _: u32) {}

    fn insert(&mut self, id: u32, _: u64) {
        self.0.reserve(id);
        self.0.push_tail(HELD, id);
    }

    fn evict(&mut self) -> Option<u32> {
        self.0.pop_head(HELD)
    }

    fn remove(&mut self, id: u32) {
        self.0.take(id);
    }

    fn len(&self) -> usize {
        self.0.len(HELD) as usize
    }
}
