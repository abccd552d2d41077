//! Frequency-based multi-priority queues: for a cache behind other caches, where an entry comes back
//! only after a long distance and recency says little.
//!
//! FMPQ is the server cache of TransCom ("Transparent Computing"); it is the multi-queue algorithm
//! (Y. Zhou, J. F. Philbin, K. Li: "The Multi-Queue Replacement Algorithm for Second Level Buffer
//! Caches", USENIX 2001) with a fixed lifetime:
//!
//! * Queue `k` holds entries with `floor(log2 count) = k`, the last queue all above, each in order
//!   of use.
//! * An entry that is not used for the lifetime, in accesses, moves to the tail of the next lower
//!   queue when it stands at its queue's head. Its count stays.
//! * The head of the lowest queue that is not empty leaves. Its count goes to a history; if it comes
//!   back while that remembers it, it goes on from there.
//!
//! The defaults come from real desktop traces: more than 8 queues change nothing, a lifetime
//! between 3 and 8 times the entries is best (too short is far worse than too long), a history of
//! once or twice the entries is enough, and none at all costs 4 to 12 points of hits.

use super::parameters::{Tunable, integer};
use super::queues::Queues;
use super::{Algorithm, Forgotten, Ratio, Room};
use block::Result;

/// The most queues there can be: counts are kept up to 2^24.
const QUEUES: usize = 24;

/// The list of what left and is remembered, behind all queues.
const HISTORY: u8 = QUEUES as u8;

/// The longest lifetime, in accesses: times are compared modulo 2^32.
const LONGEST: usize = 1 << 30;

/// The parameters of FMPQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FmpqParameters {
    /// The number of queues: 1 (which is LRU) to 24.
    pub queues: u8,
    /// How long an entry stays in a queue without a use, as a multiple of the cache's entries; at
    /// most 2^30 accesses.
    pub lifetime: Ratio,
    /// The length of the history, as a multiple of the cache's entries; 0 for none.
    pub history: Ratio,
}

impl FmpqParameters {
    /// The defaults.
    pub const DEFAULT: Self =
        Self { queues: 8, lifetime: Ratio::times(4), history: Ratio::times(2) };
}

impl Default for FmpqParameters {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunable for FmpqParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("queues", self.queues.to_string()),
            ("lifetime", self.lifetime.to_string()),
            ("history", self.history.to_string()),
        ]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "queues" => self.queues = integer(name, value, 1, 24)? as u8,
            "lifetime" => self.lifetime = value.parse()?,
            "history" => self.history = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the least recently used of the least often used entries.
///
/// Lifetime and history follow the number of entries that the cache holds when it is full. A cache
/// whose entries differ in size holds now more, now fewer; the policy goes by what it held when
/// something last had to leave.
#[derive(Debug)]
pub struct Fmpq {
    parameters: FmpqParameters,
    queues: u8,
    /// With each entry its count and the access at which it came to its queue.
    lists: Queues<{ QUEUES + 1 }, u32>,
    len: usize,
    /// The number of entries of the full cache.
    full: usize,
    lifetime: u32,
    /// Accesses so far, modulo 2^32.
    now: u32,
    /// No head of a queue expires before this access.
    due: u32,
    forgotten: Forgotten,
}

impl Fmpq {
    /// An empty cache.
    pub fn new(room: Room, parameters: FmpqParameters) -> Self {
        let mut new = Self {
            parameters,
            queues: parameters.queues.clamp(1, QUEUES as u8),
            lists: Queues::new(room.ids),
            len: 0,
            full: 0,
            lifetime: 0,
            now: 0,
            due: 0,
            forgotten: room.forgotten(),
        };
        new.set_full(room.entries.max(1) as usize);
        new
    }

    #[inline]
    fn set_full(&mut self, full: usize) {
        if full != self.full {
            self.full = full;
            self.set_lifetime(self.parameters.lifetime.of(full));
        }
    }

    /// Changes how long an entry stays in a queue without a use, in accesses.
    pub(super) fn set_lifetime(&mut self, lifetime: usize) {
        self.lifetime = lifetime.min(LONGEST) as u32;
        self.due = self.now;
    }

    /// The number of entries of the full cache.
    pub(super) fn full(&self) -> usize {
        self.full
    }

    /// Whether `id` left and is remembered.
    pub(super) fn remembers(&self, id: u32) -> bool {
        self.lists.list(id) == HISTORY
    }

    /// Puts `id`, which is in no list, where its count says.
    #[inline]
    fn enqueue(&mut self, id: u32, count: u32) {
        self.lists.set_count(id, count);
        self.lists.set_data(id, self.now);
        let queue = (count.max(1).ilog2() as u8).min(self.queues - 1);
        self.lists.push_tail(queue, id);
        self.now = self.now.wrapping_add(1);
        if self.now.wrapping_sub(self.due) < LONGEST as u32 {
            self.demote();
        }
    }

    /// Moves the heads that were not used for the lifetime one queue down, one of each queue.
    #[inline]
    fn demote(&mut self) {
        self.due = self.now.wrapping_add(self.lifetime + 1);
        for queue in 1..self.queues {
            let Some(id) = self.lists.head(queue) else { continue };
            if self.age(id) > self.lifetime {
                self.lists.move_to_tail(queue - 1, id);
                self.lists.set_data(id, self.now);
            }
            if let Some(head) = self.lists.head(queue) {
                let left = (self.lifetime + 1).saturating_sub(self.age(head)).max(1);
                let due = self.now.wrapping_add(left);
                if self.due.wrapping_sub(due) < u32::MAX / 2 {
                    self.due = due;
                }
            }
        }
    }

    #[inline]
    fn age(&self, id: u32) -> u32 {
        self.now.wrapping_sub(self.lists.data(id))
    }
}

impl Algorithm for Fmpq {
    const REMEMBERS: bool = true;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.lists.list(id) < HISTORY
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        self.lists.take(id);
        self.enqueue(id, self.lists.count(id) + 1);
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.lists.reserve(id);
        let mut count = 1;
        if self.lists.list(id) == HISTORY {
            self.lists.take(id);
            count += self.lists.count(id);
        }
        self.len += 1;
        self.enqueue(id, count);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        let id = (0..self.queues).find_map(|queue| self.lists.head(queue))?;
        self.set_full(self.len);
        self.len -= 1;
        self.lists.move_to_tail(HISTORY, id);
        while self.lists.len(HISTORY) as usize > self.parameters.history.of(self.full) {
            let Some(old) = self.lists.pop_head(HISTORY) else { break };
            self.forgotten.push(old);
        }
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.lists.take(id);
        self.len -= 1;
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
