//! 2Q, the full version (T. Johnson, D. Shasha: "2Q: A Low Overhead High Performance Buffer
//! Management Replacement Algorithm", VLDB 1994, section 3, Figure 2).
//!
//! What is new waits in a FIFO queue; what is asked for again after it left that queue, while its
//! name is still remembered, goes to an LRU queue.

use super::parameters::{Tunable, part};
use super::queues::Queues;
use super::{Algorithm, Forgotten, Ratio, Room};
use block::Result;

const IN: u8 = 0;
const MAIN: u8 = 1;
const OUT: u8 = 2;

/// The parameters of 2Q.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TwoQParameters {
    /// Kin: the length of the queue of the new, as a part of the cache.
    pub inside: Ratio,
    /// Kout: how many names are remembered, as a multiple of the cache's entries.
    pub outside: Ratio,
}

impl Default for TwoQParameters {
    fn default() -> Self {
        Self { inside: Ratio::hundredths(25), outside: Ratio::hundredths(50) }
    }
}

impl Tunable for TwoQParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![("inside", self.inside.to_string()), ("outside", self.outside.to_string())]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "inside" => self.inside = part(name, value)?,
            "outside" => self.outside = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the first of the new when they are too many, else the least recently used of the proven.
#[derive(Debug)]
pub struct TwoQ {
    parameters: TwoQParameters,
    queues: Queues<3>,
    full: usize,
    /// Whether what will be inserted next is remembered: asked before room is made, which may
    /// forget it.
    known: bool,
    forgotten: Forgotten,
}

impl TwoQ {
    /// An empty cache.
    pub fn new(room: Room, parameters: TwoQParameters) -> Self {
        Self {
            parameters,
            queues: Queues::new(room.ids),
            full: room.entries.max(1) as usize,
            known: false,
            forgotten: room.forgotten(),
        }
    }
}

impl Algorithm for TwoQ {
    const REMEMBERS: bool = true;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        self.queues.list(id) <= MAIN
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        if self.queues.list(id) == MAIN {
            self.queues.move_to_tail(MAIN, id);
        }
    }

    #[inline(always)]
    fn miss(&mut self, id: u32) {
        self.known = self.queues.list(id) == OUT;
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, _: u64) {
        self.queues.reserve(id);
        if self.queues.list(id) == OUT {
            self.queues.take(id);
        }
        self.queues.push_tail(if self.known { MAIN } else { IN }, id);
        self.known = false;
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        self.full = self.len();
        let new = self.queues.len(IN) as usize > self.parameters.inside.of(self.full);
        if !new && let Some(id) = self.queues.pop_head(MAIN) {
            self.forgotten.push(id);
            return Some(id);
        }
        let id = self.queues.head(IN)?;
        self.queues.move_to_tail(OUT, id);
        while self.queues.len(OUT) as usize > self.parameters.outside.of(self.full) {
            let Some(old) = self.queues.pop_head(OUT) else { break };
            self.forgotten.push(old);
        }
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.queues.take(id);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        (self.queues.len(IN) + self.queues.len(MAIN)) as usize
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
