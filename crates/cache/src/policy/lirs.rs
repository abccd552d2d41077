//! LIRS (S. Jiang, X. Zhang: "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy
//! to Improve Buffer Cache Performance", SIGMETRICS 2002, section 3).
//!
//! Nearly the whole cache holds entries whose last two uses were close together (LIR). All others
//! (HIR) pass through a small queue, and prove themselves by a second use while they are still in
//! the stack, which goes back to the LIR entry that was not used for the longest time.

use super::queues::{NOWHERE, Queues};
use super::{Algorithm, Forgotten, Ratio, Room};

/// The stack S; its tail is the top.
const STACK: u8 = 0;
/// Of [`Lirs::others`]: the queue Q of held HIR entries.
const QUEUE: u8 = 0;
/// Of [`Lirs::others`]: names of HIR entries that left and are still in the stack.
const LEFT: u8 = 1;

/// Of an id: neither held nor remembered.
const UNKNOWN: u32 = 0;
/// Of an id: LIR.
const PROVEN: u32 = 1;
/// Of an id: HIR, and held.
const WAITING: u32 = 2;
/// Of an id: its name is remembered.
const NAME: u32 = 3;

/// The parameters of LIRS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// The queue of HIR entries, as a part of the cache; one entry at least.
    pub queue: Ratio,
    /// How many names are remembered, as a multiple of the cache's entries.
    pub history: Ratio,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { queue: Ratio::hundredths(1), history: Ratio::times(2) }
    }
}

/// Evicts the first of those entries that did not prove themselves.
#[derive(Debug)]
pub struct Lirs {
    parameters: Parameters,
    /// The stack. The count of an id, in the stack or not, is what it is: [`PROVEN`], ...
    stack: Queues<1>,
    others: Queues<2>,
    proven: usize,
    /// The most LIR entries.
    most: usize,
    full: usize,
    forgotten: Forgotten,
}

impl Lirs {
    /// An empty cache.
    pub fn new(room: Room, parameters: Parameters) -> Self {
        let mut new = Self {
            parameters,
            stack: Queues::new(room.ids),
            others: Queues::new(room.ids),
            proven: 0,
            most: 0,
            full: 0,
            forgotten: room.forgotten(),
        };
        new.set_full(room.entries.max(1) as usize);
        new
    }

    #[inline]
    fn set_full(&mut self, full: usize) {
        if full != self.full {
            self.full = full;
            self.most = full.saturating_sub(self.parameters.queue.of(full).max(1));
        }
    }

    #[inline]
    fn is(&self, id: u32) -> u32 {
        self.stack.count(id)
    }

    #[inline]
    fn set(&mut self, id: u32, what: u32) {
        self.stack.set_count(id, what);
    }

    /// Puts `id` on top of the stack as LIR, and makes the lowest HIR when they are too many.
    #[inline]
    fn prove(&mut self, id: u32) {
        self.set(id, PROVEN);
        self.proven += 1;
        while self.proven > self.most {
            let Some(lowest) = self.stack.head(STACK) else { break };
            self.disprove(lowest);
            self.set(lowest, WAITING);
            self.others.push_tail(QUEUE, lowest);
        }
    }

    /// Takes `id`, the lowest of the stack and LIR, out of the stack.
    #[inline]
    fn disprove(&mut self, id: u32) {
        self.set(id, UNKNOWN);
        self.stack.take(id);
        self.proven -= 1;
        self.prune();
    }

    /// Lets the stack begin with a LIR entry.
    #[inline]
    fn prune(&mut self) {
        while let Some(id) = self.stack.head(STACK) {
            match self.is(id) {
                PROVEN => break,
                NAME => self.forget(id),
                _ => self.stack.take(id),
            }
        }
    }

    /// Drops a name.
    #[inline]
    fn forget(&mut self, id: u32) {
        self.set(id, UNKNOWN);
        self.stack.take(id);
        self.others.take(id);
        self.forgotten.push(id);
    }
}

impl Algorithm for Lirs {
    const REMEMBERS: bool = true;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        matches!(self.is(id), PROVEN | WAITING)
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        if self.is(id) == PROVEN {
            let lowest = self.stack.head(STACK) == Some(id);
            self.stack.move_to_tail(STACK, id);
            if lowest {
                self.prune();
            }
        } else if self.stack.list(id) == STACK {
            self.stack.move_to_tail(STACK, id);
            self.others.take(id);
            self.prove(id);
        } else {
            self.stack.push_tail(STACK, id);
            self.others.move_to_tail(QUEUE, id);
            self.prune();
        }
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.stack.reserve(id);
        self.others.reserve(id);
        let known = self.is(id) == NAME;
        if known {
            self.others.take(id);
            self.stack.take(id);
        }
        self.stack.push_tail(STACK, id);
        if known || self.proven < self.most {
            self.prove(id);
        } else {
            self.set(id, WAITING);
            self.others.push_tail(QUEUE, id);
            self.prune();
        }
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        self.set_full(self.len());
        let Some(id) = self.others.head(QUEUE) else {
            let id = self.stack.head(STACK)?;
            self.disprove(id);
            self.forgotten.push(id);
            return Some(id);
        };
        if self.stack.list(id) == NOWHERE {
            self.set(id, UNKNOWN);
            self.others.take(id);
            self.forgotten.push(id);
            return Some(id);
        }
        self.set(id, NAME);
        self.others.move_to_tail(LEFT, id);
        while self.others.len(LEFT) as usize > self.parameters.history.of(self.full) {
            let Some(old) = self.others.head(LEFT) else { break };
            self.forget(old);
        }
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        if self.is(id) == PROVEN {
            self.proven -= 1;
        } else {
            self.others.take(id);
        }
        self.set(id, UNKNOWN);
        if self.stack.list(id) == STACK {
            self.stack.take(id);
            self.prune();
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.proven + self.others.len(QUEUE) as usize
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
