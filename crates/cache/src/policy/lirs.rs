//! LIRS (S. Jiang, X. Zhang: "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy
//! to Improve Buffer Cache Performance", SIGMETRICS 2002, section 3).
//!
//! Nearly the whole cache holds entries whose last two uses were close together (LIR). All others
//! (HIR) pass through a small queue, and prove themselves by a second use while they are still in
//! the stack, which goes back to the LIR entry that was not used for the longest time.

use super::parameters::{Tunable, part};
use super::queues::{NOWHERE, Queues};
use super::{Algorithm, Forgotten, Ratio, Room};
use block::Result;

/// The stack S; its tail is the top.
const STACK: u8 = 0;
/// The queue Q of held HIR entries.
const QUEUE: u8 = 1;
/// Names of HIR entries that left and are still in the stack.
const LEFT: u8 = 2;

/// State of an id that is neither held nor remembered.
const UNKNOWN: u32 = 0;
/// State of an id that is LIR.
const PROVEN: u32 = 1;
/// State of an id that is HIR, and held.
const WAITING: u32 = 2;
/// State of an id whose name is remembered.
const NAME: u32 = 3;

/// The parameters of LIRS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LirsParameters {
    /// The queue of HIR entries, as a part of the cache; one entry at least.
    pub queue: Ratio,
    /// How many names are remembered, as a multiple of the cache's entries.
    pub history: Ratio,
}

impl Default for LirsParameters {
    fn default() -> Self {
        Self { queue: Ratio::hundredths(1), history: Ratio::times(2) }
    }
}

impl Tunable for LirsParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![("queue", self.queue.to_string()), ("history", self.history.to_string())]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "queue" => self.queue = part(name, value)?,
            "history" => self.history = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the first of those entries that did not prove themselves.
#[derive(Debug)]
pub struct Lirs {
    parameters: LirsParameters,
    /// An id can be in the stack and in one of the others. It stands in the stack as [`stacked`], in
    /// the others as the next number: one line of memory has both. The count of the first, in the
    /// stack or not, is what the id is: [`PROVEN`], ...
    queues: Queues<3>,
    proven: usize,
    /// The most LIR entries.
    most: usize,
    full: usize,
    forgotten: Forgotten,
}

/// The number under which an id, which is below 2^31, stands in the stack.
const fn stacked(id: u32) -> u32 {
    2 * id
}

/// The number under which an id stands in the queue or among the names.
const fn queued(id: u32) -> u32 {
    2 * id + 1
}

impl Lirs {
    /// An empty cache.
    pub fn new(room: Room, parameters: LirsParameters) -> Self {
        let mut new = Self {
            parameters,
            queues: Queues::new(room.ids.saturating_mul(2)),
            proven: 0,
            most: 0,
            full: 0,
            forgotten: room.forgotten(),
        };
        new.set_full(room.entries.max(1) as usize);
        new
    }

    #[inline(always)]
    fn set_full(&mut self, full: usize) {
        if full != self.full {
            self.full = full;
            self.most = full.saturating_sub(self.parameters.queue.of(full).max(1));
        }
    }

    /// The lowest of the stack.
    #[inline(always)]
    fn lowest(&mut self) -> Option<u32> {
        self.first(STACK)
    }

    /// The first of a list.
    #[inline(always)]
    fn first(&mut self, list: u8) -> Option<u32> {
        self.queues.head(list).map(|number| number / 2)
    }

    #[inline(always)]
    fn is(&self, id: u32) -> u32 {
        self.queues.count(stacked(id))
    }

    #[inline(always)]
    fn set(&mut self, id: u32, what: u32) {
        self.queues.set_count(stacked(id), what);
    }

    /// Puts `id` on top of the stack as LIR, and makes the lowest HIR when they are too many.
    #[inline(always)]
    fn prove(&mut self, id: u32) {
        self.set(id, PROVEN);
        self.proven += 1;
        while self.proven > self.most {
            let Some(lowest) = self.lowest() else { break };
            self.disprove(lowest);
            self.set(lowest, WAITING);
            self.queues.push_tail(QUEUE, queued(lowest));
        }
    }

    /// Takes `id`, the lowest of the stack and LIR, out of the stack.
    #[inline(always)]
    fn disprove(&mut self, id: u32) {
        self.set(id, UNKNOWN);
        self.queues.take(stacked(id));
        self.proven -= 1;
        self.prune();
    }

    /// Lets the stack begin with a LIR entry.
    #[inline(always)]
    fn prune(&mut self) {
        while let Some(id) = self.lowest() {
            match self.is(id) {
                PROVEN => break,
                NAME => self.forget(id),
                _ => self.queues.take(stacked(id)),
            }
        }
    }

    /// Drops the name of what is not held, if it is remembered.
    pub(super) fn forget_name(&mut self, id: u32) {
        if self.is(id) == NAME {
            self.forget(id);
        }
    }

    /// Drops a name.
    #[inline(always)]
    fn forget(&mut self, id: u32) {
        self.set(id, UNKNOWN);
        self.queues.take(stacked(id));
        self.queues.take(queued(id));
        self.forgotten.push(id);
    }
}

impl Algorithm for Lirs {
    const REMEMBERS: bool = true;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        matches!(self.is(id), PROVEN | WAITING)
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        if self.is(id) == PROVEN {
            let lowest = self.lowest() == Some(id);
            self.queues.move_to_tail(STACK, stacked(id));
            if lowest {
                self.prune();
            }
        } else if self.queues.list(stacked(id)) == STACK {
            self.queues.move_to_tail(STACK, stacked(id));
            self.queues.take(queued(id));
            self.prove(id);
        } else {
            self.queues.push_tail(STACK, stacked(id));
            self.queues.move_to_tail(QUEUE, queued(id));
            self.prune();
        }
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, _: u64) {
        self.queues.reserve(queued(id));
        let known = self.is(id) == NAME;
        if known {
            self.queues.take(queued(id));
            self.queues.take(stacked(id));
        }
        self.queues.push_tail(STACK, stacked(id));
        if known || self.proven < self.most {
            self.prove(id);
        } else {
            self.set(id, WAITING);
            self.queues.push_tail(QUEUE, queued(id));
            self.prune();
        }
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        self.set_full(self.len());
        let Some(id) = self.first(QUEUE) else {
            let id = self.lowest()?;
            self.disprove(id);
            self.forgotten.push(id);
            return Some(id);
        };
        if self.queues.list(stacked(id)) == NOWHERE {
            self.set(id, UNKNOWN);
            self.queues.take(queued(id));
            self.forgotten.push(id);
            return Some(id);
        }
        self.set(id, NAME);
        self.queues.move_to_tail(LEFT, queued(id));
        while self.queues.len(LEFT) as usize > self.parameters.history.of(self.full) {
            let Some(old) = self.first(LEFT) else { break };
            self.forget(old);
        }
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        if self.is(id) == PROVEN {
            self.proven -= 1;
        } else {
            self.queues.take(queued(id));
        }
        self.set(id, UNKNOWN);
        if self.queues.list(stacked(id)) == STACK {
            self.queues.take(stacked(id));
            self.prune();
        }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.proven + self.queues.len(QUEUE) as usize
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
