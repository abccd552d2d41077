//! A duel of LRU and LIRS (R. Subramanian, Y. Smaragdakis, G. Loh: "Adaptive Caches: Effective Shaping
//! of Cache Behavior to Workloads", MICRO 2006, with a single set).
//!
//! Beside what the cache holds goes what it would hold under each of the two, names alone. The cache lets
//! go of what the one that missed less lately does not hold, and so comes to hold the same.
//!
//! LIRS is good where something is used again after a long while, and bad where guests read the same one
//! after the other and then no more; that is what LRU is for. The defaults come from the loads of
//! docs/simulate.md; a lead of 32 to 256 is as good on average. With a part of the cache instead of a number
//! it takes long until a large cache follows.

use super::lirs::{Lirs, LirsParameters};
use super::lru::Lru;
use super::parameters::{Tunable, integer, part};
use super::queues::Queues;
use super::{Algorithm, Forgotten, Ratio, Room};
use block::Result;

/// Mark of an id that the cache holds.
const HELD: u32 = 1;
/// No id.
const NOTHING: u32 = u32::MAX;
/// Uses in a row that make a difference.
const MOST_USES: u32 = 2;

/// The number of a contender.
const LRU: u8 = 0;
/// The number of the other one.
const LIRS: u8 = 1;

/// Mark of an id that a contender holds or remembers.
const fn known(contender: u8) -> u32 {
    2 << contender
}

/// The parameters of the duel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DuelParameters {
    /// How many misses one of the two may be ahead at most, 1 to a million: with more, what was long ago
    /// counts, too.
    pub lead: u32,
    /// The queue of LIRS, as a part of the cache.
    pub queue: Ratio,
    /// How many names LIRS remembers, as a multiple of the cache's entries.
    pub history: Ratio,
}

impl Default for DuelParameters {
    fn default() -> Self {
        Self { lead: 64, queue: Ratio::hundredths(5), history: Ratio::times(2) }
    }
}

impl DuelParameters {
    /// The parameters of a duel on one `n`th of everything. What is ahead by chance grows with the square root of the
    /// misses.
    pub(super) fn in_miniature(self, n: u32) -> Self {
        let lead = f64::from(self.lead) / f64::from(n.max(1)).sqrt();
        Self { lead: (lead.round() as u32).max(1), ..self }
    }
}

impl Tunable for DuelParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("lead", self.lead.to_string()),
            ("queue", self.queue.to_string()),
            ("history", self.history.to_string()),
        ]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "lead" => self.lead = integer(name, value, 1, 1_000_000)?,
            "queue" => self.queue = part(name, value)?,
            "history" => self.history = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Who has which id, and what the contenders do not hold of what the cache does.
#[derive(Debug)]
struct Holders {
    /// A list for each contender: what the cache holds and it does not, in the order in which it let that
    /// go. An id can be in both; it stands there as [`listed`]. The count of the first is who has it.
    queues: Queues<2>,
    forgotten: Forgotten,
}

/// The number under which an id, which is below 2^31, stands in a contender's list.
const fn listed(id: u32, contender: u8) -> u32 {
    2 * id + contender as u32
}

impl Holders {
    #[inline]
    fn has(&self, id: u32, who: u32) -> bool {
        self.queues.count(listed(id, 0)) & who != 0
    }

    #[inline]
    fn set(&mut self, id: u32, who: u32) {
        let number = listed(id, 0);
        self.queues.set_count(number, self.queues.count(number) | who);
    }

    /// Somebody has an id no more; it is forgotten when nobody has it.
    #[inline]
    fn clear(&mut self, id: u32, who: u32) {
        let number = listed(id, 0);
        let others = self.queues.count(number) & !who;
        self.queues.set_count(number, others);
        if others == 0 {
            self.forgotten.push(id);
        }
    }

    /// Notes that a contender does not hold what the cache does.
    #[inline]
    fn list(&mut self, id: u32, contender: u8) {
        self.queues.push_tail(contender, listed(id, contender));
    }

    /// Notes that the cache does not hold it either, or both do.
    #[inline]
    fn delist(&mut self, id: u32, contender: u8) {
        let number = listed(id, contender);
        if self.queues.list(number) == contender {
            self.queues.take(number);
        }
    }

    /// The first of a contender's list.
    #[inline]
    fn first(&mut self, contender: u8) -> Option<u32> {
        self.queues.head(contender).map(|number| number / 2)
    }
}

/// What the cache would hold under one policy.
#[derive(Debug)]
struct Contender<A> {
    policy: A,
    number: u8,
}

impl<A: Algorithm> Contender<A> {
    /// An access, with room for so many entries; whether it hit.
    #[inline]
    fn access(&mut self, id: u32, room: usize, holders: &mut Holders) -> bool {
        if self.policy.holds(id) {
            self.policy.hit(id);
            self.forget(holders);
            return true;
        }
        while self.policy.len() >= room
            && let Some(left) = self.evict(holders)
        {
            if holders.has(left, HELD) {
                holders.list(left, self.number);
            }
        }
        // Neither goes by fingerprints, nor has to be told of a miss.
        self.policy.insert(id, 0);
        holders.set(id, known(self.number));
        holders.delist(id, self.number);
        self.forget(holders);
        false
    }

    #[inline]
    fn evict(&mut self, holders: &mut Holders) -> Option<u32> {
        let left = self.policy.evict()?;
        if !A::REMEMBERS {
            holders.clear(left, known(self.number));
        }
        self.forget(holders);
        Some(left)
    }

    #[inline]
    fn forget(&mut self, holders: &mut Holders) {
        while let Some(id) = self.policy.forgotten() {
            holders.clear(id, known(self.number));
        }
    }

    /// What the cache lets go to hold what this one does: what this one let go before, or does now.
    #[inline]
    fn choose(&mut self, holders: &mut Holders) -> Option<u32> {
        if let Some(id) = holders.first(self.number) {
            return Some(id);
        }
        loop {
            let left = self.evict(holders)?;
            if holders.has(left, HELD) {
                return Some(left);
            }
        }
    }
}

/// Evicts what LRU or LIRS would, whichever missed less lately.
#[derive(Debug)]
pub struct Duel {
    parameters: DuelParameters,
    lru: Contender<Lru>,
    lirs: Contender<Lirs>,
    holders: Holders,
    held: usize,
    /// Entries when something had to leave last; no bound before.
    full: usize,
    /// The last access, and how many in a row were to the same.
    last: (u32, u32),
    /// By how many misses LRU is behind LIRS; ahead, when negative.
    behind: i64,
}

impl Duel {
    /// An empty cache.
    pub fn new(room: Room, parameters: DuelParameters) -> Self {
        let of_lirs = LirsParameters { queue: parameters.queue, history: parameters.history };
        let queues = Queues::new(room.ids.saturating_mul(2));
        Self {
            parameters,
            lru: Contender { policy: Lru::new(room), number: LRU },
            lirs: Contender { policy: Lirs::new(room, of_lirs), number: LIRS },
            holders: Holders { queues, forgotten: room.forgotten() },
            held: 0,
            full: usize::MAX,
            last: (NOTHING, 0),
            behind: 0,
        }
    }

    /// Has both go on, and compares them.
    #[inline]
    fn access(&mut self, id: u32) {
        let room = self.full.max(self.held);
        let lru = self.lru.access(id, room, &mut self.holders);
        let lirs = self.lirs.access(id, room, &mut self.holders);
        let most = i64::from(self.parameters.lead);
        self.behind = (self.behind + i64::from(lirs) - i64::from(lru)).clamp(-most, most);
    }
}

impl Algorithm for Duel {
    const REMEMBERS: bool = true;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.holders.has(id, HELD)
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        let times = if self.last.0 == id { self.last.1 + 1 } else { 1 };
        // Both have it on top, and LIRS as proven: nothing changes by a third use.
        if times <= MOST_USES {
            self.last = (id, times);
            self.access(id);
        }
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.holders.queues.reserve(listed(id, 1));
        self.holders.set(id, HELD);
        self.held += 1;
        self.last = (id, 1);
        self.access(id);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        if self.held == 0 {
            return None;
        }
        self.full = self.held;
        self.last = (NOTHING, 0);
        let id = match self.behind > 0 {
            true => self.lirs.choose(&mut self.holders),
            false => self.lru.choose(&mut self.holders),
        }?;
        self.held -= 1;
        for contender in [LRU, LIRS] {
            self.holders.delist(id, contender);
        }
        self.holders.clear(id, HELD);
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.last = (NOTHING, 0);
        self.held -= 1;
        if self.lru.policy.holds(id) {
            self.lru.policy.remove(id);
        }
        match self.lirs.policy.holds(id) {
            true => self.lirs.policy.remove(id),
            false => self.lirs.policy.forget_name(id),
        }
        // While the cache has it: nobody is told that it was forgotten.
        self.lirs.forget(&mut self.holders);
        for contender in [LRU, LIRS] {
            self.holders.delist(id, contender);
        }
        self.holders.queues.set_count(listed(id, 0), 0);
    }

    #[inline]
    fn len(&self) -> usize {
        self.held
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.holders.forgotten.pop()
    }
}
