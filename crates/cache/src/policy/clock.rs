//! CLOCK, the second chance: LRU's cheap approximation (F. J. Corbató: "A Paging Experiment with the
//! Multics System", MIT Project MAC 1968), with one bit.

use super::queues::{NOWHERE, Queues};
use super::{Algorithm, Room};

const HELD: u8 = 0;

/// Evicts the first entry, in order of arrival, that was not used since the hand last passed.
#[derive(Debug)]
pub struct Clock(Queues<1>);

impl Clock {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self(Queues::new(room.ids))
    }
}

impl Algorithm for Clock {
    const REMEMBERS: bool = false;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.0.list(id) != NOWHERE
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        self.0.set_count(id, 1);
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.0.reserve(id);
        self.0.set_count(id, 0);
        self.0.push_tail(HELD, id);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        loop {
            let id = self.0.head(HELD)?;
            if self.0.count(id) == 0 {
                self.0.take(id);
                return Some(id);
            }
            self.0.set_count(id, 0);
            self.0.move_to_tail(HELD, id);
        }
    }

    fn remove(&mut self, id: u32) {
        self.0.take(id);
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len(HELD) as usize
    }
}
