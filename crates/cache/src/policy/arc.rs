//! ARC, the adaptive replacement cache (N. Megiddo, D. S. Modha: "ARC: A Self-Tuning, Low Overhead
//! Replacement Cache", FAST 2003, Figure 4).
//!
//! Two LRU lists, of what was used once and of what was used more often, each with the names of
//! what left it. A use of such a name says that its list should have been longer.

use super::queues::{NOWHERE, Queues};
use super::{Algorithm, Forgotten, Room};

/// T1: held, used once lately.
const ONCE: u8 = 0;
/// T2: held, used at least twice lately.
const OFTEN: u8 = 1;
/// B1: names of what left [`ONCE`].
const LEFT_ONCE: u8 = 2;
/// B2: names of what left [`OFTEN`].
const LEFT_OFTEN: u8 = 3;

/// Evicts the least recently used of what was used once or of what was used often; it learns how
/// many of each to keep.
#[derive(Debug)]
pub struct Arc {
    queues: Queues<4>,
    /// How many entries of those used once to keep.
    target: f64,
    /// The list that remembers what will be inserted next.
    incoming: u8,
    full: usize,
    forgotten: Forgotten,
}

impl Arc {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        Self {
            queues: Queues::new(room.ids),
            target: 0.0,
            incoming: NOWHERE,
            full: room.entries.max(1) as usize,
            forgotten: room.forgotten(),
        }
    }

    #[inline(always)]
    fn size(&self, list: u8) -> usize {
        self.queues.len(list) as usize
    }

    /// REPLACE of the paper.
    #[inline(always)]
    fn replace(&mut self) -> Option<u32> {
        let once = self.queues.len(ONCE) as f64;
        let from_once = once >= 1.0
            && (once > self.target || (self.incoming == LEFT_OFTEN && once == self.target));
        let from = if from_once || self.queues.len(OFTEN) == 0 { ONCE } else { OFTEN };
        let id = self.queues.head(from)?;
        self.queues.move_to_tail(from + LEFT_ONCE, id);
        Some(id)
    }

    #[inline(always)]
    fn forget_oldest(&mut self, list: u8) {
        if let Some(id) = self.queues.pop_head(list) {
            self.forgotten.push(id);
        }
    }
}

impl Algorithm for Arc {
    const REMEMBERS: bool = true;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        self.queues.list(id) <= OFTEN
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        self.queues.move_to_tail(OFTEN, id);
    }

    #[inline(always)]
    fn miss(&mut self, id: u32) {
        self.incoming = self.queues.list(id);
        let (once, often) = (self.size(LEFT_ONCE) as f64, self.size(LEFT_OFTEN) as f64);
        match self.incoming {
            LEFT_ONCE => {
                self.target = (self.target + (often / once).max(1.0)).min(self.full as f64);
            }
            LEFT_OFTEN => self.target = (self.target - (once / often).max(1.0)).max(0.0),
            _ => {}
        }
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, _: u64) {
        self.queues.reserve(id);
        match self.queues.list(id) {
            LEFT_ONCE | LEFT_OFTEN => self.queues.move_to_tail(OFTEN, id),
            _ => self.queues.push_tail(ONCE, id),
        }
        self.incoming = NOWHERE;
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        self.full = self.len();
        let new = !matches!(self.incoming, LEFT_ONCE | LEFT_OFTEN);
        if new && self.size(ONCE) + self.size(LEFT_ONCE) >= self.full {
            if self.size(LEFT_ONCE) == 0 {
                let id = self.queues.pop_head(ONCE)?;
                self.forgotten.push(id);
                return Some(id);
            }
            self.forget_oldest(LEFT_ONCE);
        }
        let id = self.replace()?;
        // A name comes for each that leaves, and none goes for what came from a name: the bound
        // holds before the next is inserted.
        let names = if new { self.full } else { self.full + 1 };
        while self.size(LEFT_ONCE) + self.size(LEFT_OFTEN) > names {
            let list = if self.size(LEFT_OFTEN) > 0 { LEFT_OFTEN } else { LEFT_ONCE };
            self.forget_oldest(list);
        }
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.queues.take(id);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.size(ONCE) + self.size(OFTEN)
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
