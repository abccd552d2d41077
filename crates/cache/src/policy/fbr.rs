//! FBR, frequency-based replacement (J. T. Robinson, M. V. Devarakonda: "Data Cache Management Using
//! Frequency-Based Replacement", SIGMETRICS 1990, section 2).
//!
//! An LRU list in three sections. A use while an entry is in the new section does not count, so that
//! bursts count once; what leaves is the least often used of the old section.

use super::parameters::{Tunable, integer, part};
use super::rings::{MAX_COUNT, NOWHERE, Rings};
use super::{Algorithm, Ratio, Room};
use block::Result;

/// The chains of the old section, one for each count; the last one for all above.
const CHAINS: usize = 240;
const NEW: u8 = CHAINS as u8;
const MIDDLE: u8 = NEW + 1;

/// The parameters of FBR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FbrParameters {
    /// The new section, as a part of the cache.
    pub new: Ratio,
    /// The old section, as a part of the cache.
    pub old: Ratio,
    /// All counts are halved when their mean exceeds this; 1 at least.
    pub mean: u32,
}

impl Default for FbrParameters {
    fn default() -> Self {
        Self { new: Ratio::hundredths(25), old: Ratio::hundredths(60), mean: 100 }
    }
}

impl Tunable for FbrParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("new", self.new.to_string()),
            ("old", self.old.to_string()),
            ("mean", self.mean.to_string()),
        ]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "new" => self.new = part(name, value)?,
            "old" => self.old = part(name, value)?,
            "mean" => self.mean = integer(name, value, 1, 1 << 20)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the least often used of the entries that were not used for long.
#[derive(Debug)]
pub struct Fbr {
    parameters: FbrParameters,
    /// Each entry's count; the stamp of one in the old section is when it came there.
    rings: Rings<{ CHAINS + 2 }>,
    /// The sum of all counts.
    sum: u64,
    len: usize,
    full: usize,
    /// Entries that came to the old section so far, modulo 2^32.
    aged: u32,
    /// No chain below this has an entry.
    lowest: u8,
}

impl Fbr {
    /// An empty cache.
    pub fn new(room: Room, parameters: FbrParameters) -> Self {
        Self {
            parameters,
            rings: Rings::new(room.ids),
            sum: 0,
            len: 0,
            full: room.entries.max(1) as usize,
            aged: 0,
            lowest: 0,
        }
    }

    fn chain(count: u32) -> u8 {
        count.min(CHAINS as u32 - 1) as u8
    }

    fn push_old(&mut self, id: u32) {
        let chain = Self::chain(self.rings.count(id));
        self.rings.push_tail(chain, id);
        self.lowest = self.lowest.min(chain);
    }

    /// Puts `id`, which is in no list, first, and moves on what the sections have too much.
    fn push_new(&mut self, id: u32) {
        self.rings.push_tail(NEW, id);
        let new = self.parameters.new.of(self.full).max(1);
        let middle = self.full.saturating_sub(new + self.parameters.old.of(self.full));
        while self.rings.len(NEW) as usize > new {
            let Some(id) = self.rings.head(NEW) else { break };
            self.rings.move_to_tail(MIDDLE, id);
        }
        while self.rings.len(MIDDLE) as usize > middle {
            let Some(id) = self.rings.pop_head(MIDDLE) else { break };
            self.rings.set_stamp(id, self.aged);
            self.aged = self.aged.wrapping_add(1);
            self.push_old(id);
        }
        if self.sum > u64::from(self.parameters.mean.max(1)) * self.len as u64 {
            self.halve();
        }
    }

    /// Halves all counts, rounding up. Rare: the mean has to double in between.
    fn halve(&mut self) {
        let mut old = Vec::new();
        for chain in 0..CHAINS as u8 {
            while let Some(id) = self.rings.pop_head(chain) {
                old.push(id);
            }
        }
        // In the order in which they came.
        old.sort_unstable_by_key(|id| self.aged.wrapping_sub(self.rings.stamp(*id)));
        self.sum = 0;
        for list in [NEW, MIDDLE] {
            let mut at = self.rings.head(list);
            while let Some(id) = at {
                self.sum += u64::from(self.halve_one(id));
                at = self.rings.behind(id);
            }
        }
        for id in old.into_iter().rev() {
            self.sum += u64::from(self.halve_one(id));
            self.push_old(id);
        }
    }

    fn halve_one(&mut self, id: u32) -> u32 {
        let count = self.rings.count(id).div_ceil(2);
        self.rings.set_count(id, count);
        count
    }

    fn drop_entry(&mut self, id: u32) {
        self.rings.take(id);
        self.sum -= u64::from(self.rings.count(id));
        self.len -= 1;
    }
}

impl Algorithm for Fbr {
    const REMEMBERS: bool = false;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.rings.list(id) != NOWHERE
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        if self.rings.list(id) != NEW && self.rings.count(id) < MAX_COUNT {
            self.rings.set_count(id, self.rings.count(id) + 1);
            self.sum += 1;
        }
        self.rings.take(id);
        self.push_new(id);
    }

    #[inline]
    fn insert(&mut self, id: u32, _: u64) {
        self.rings.reserve(id);
        self.rings.set_count(id, 1);
        self.sum += 1;
        self.len += 1;
        self.push_new(id);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        self.full = self.len;
        while self.lowest < CHAINS as u8 - 1 && self.rings.len(self.lowest) == 0 {
            self.lowest += 1;
        }
        let lists = [self.lowest, MIDDLE, NEW];
        let id = lists.into_iter().find_map(|list| self.rings.head(list))?;
        self.drop_entry(id);
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        self.drop_entry(id);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}
