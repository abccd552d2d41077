//! Least frequently used, in constant time (K. Shah, A. Mitra, D. Matani: "An O(1) algorithm for
//! implementing the LFU cache eviction scheme", 2010). Counts end with an entry's stay.

use super::rings::{MAX_COUNT, NOWHERE, Rings};
use super::{Algorithm, Room};

const HELD: u8 = 0;
const NONE: u32 = u32::MAX;

/// Evicts the entry with the fewest accesses since it came; among equals the one whose last access
/// is the longest ago.
#[derive(Debug)]
pub struct Lfu {
    /// In order of count, then of use.
    rings: Rings<1>,
    /// The last entry of each count.
    last: Vec<u32>,
}

impl Lfu {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self { rings: Rings::new(room.ids), last: vec![NONE; 2] }
    }

    /// Takes `id` out of its place.
    fn take(&mut self, id: u32) -> u32 {
        let count = self.rings.count(id);
        if self.last[count as usize] == id {
            let before = self.rings.before(id).filter(|id| self.rings.count(*id) == count);
            self.last[count as usize] = before.unwrap_or(NONE);
        }
        self.rings.take(id);
        count
    }
}

impl Algorithm for Lfu {
    const REMEMBERS: bool = false;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        self.rings.list(id) != NOWHERE
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        // What stands before and behind `id` is where the next count begins, if nothing has it yet.
        let before = self.rings.before(id);
        let old = self.take(id) as usize;
        let count = (old + 1).min(MAX_COUNT as usize);
        if count >= self.last.len() {
            self.last.resize(count + 1, NONE);
        }
        let place = match (self.last[count], self.last[old]) {
            (NONE, NONE) => before,
            (NONE, last) | (last, _) => Some(last),
        };
        self.rings.set_count(id, count as u32);
        match place {
            Some(place) => self.rings.push_behind(HELD, place, id),
            None => self.rings.push_head(HELD, id),
        }
        self.last[count] = id;
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, _: u64) {
        self.rings.reserve(id);
        self.rings.set_count(id, 1);
        match self.last[1] {
            NONE => self.rings.push_head(HELD, id),
            last => self.rings.push_behind(HELD, last, id),
        }
        self.last[1] = id;
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        let id = self.rings.head(HELD)?;
        self.take(id);
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.take(id);
    }

    fn beside(&self) -> usize {
        self.last.capacity() * size_of::<u32>()
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.rings.len(HELD) as usize
    }
}
