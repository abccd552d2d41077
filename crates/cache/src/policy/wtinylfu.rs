//! W-TinyLFU (G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache Admission
//! Policy", ACM Transactions on Storage 2017, section 4).
//!
//! What is new goes through a small LRU window. What leaves the window replaces the next victim of
//! the main part, a segmented LRU, only when it was used more often lately.

use super::parameters::{Tunable, part};
use super::queues::{NOWHERE, Queues};
use super::sketch::{Sketch, SketchKey};
use super::{Algorithm, Ratio, Room};
use block::Result;

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// The parameters of W-TinyLFU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WTinyLfuParameters {
    /// The window, as a part of the cache; one entry at least.
    pub window: Ratio,
    /// The protected segment, as a part of the rest.
    pub protected: Ratio,
}

impl Default for WTinyLfuParameters {
    fn default() -> Self {
        Self { window: Ratio::hundredths(1), protected: Ratio::hundredths(80) }
    }
}

impl Tunable for WTinyLfuParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![("window", self.window.to_string()), ("protected", self.protected.to_string())]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "window" => self.window = part(name, value)?,
            "protected" => self.protected = part(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the less often used of two: the oldest of the new, and the oldest of the others.
#[derive(Debug)]
pub struct WTinyLfu {
    parameters: WTinyLfuParameters,
    /// With what each id is counted under.
    queues: Queues<3, SketchKey>,
    sketch: Sketch,
    full: usize,
    /// Entries of the window when the cache is full.
    window: usize,
    /// The most entries of the protected segment.
    protected: u32,
    /// The victim that won last, or [`NOBODY`], and how often it was used at least: whoever was used no more
    /// often loses to it, too, without another look at the victim's counters.
    incumbent: (u32, u32),
}

/// No victim: none is known to have been used.
const NOBODY: u32 = u32::MAX;

impl WTinyLfu {
    /// An empty cache.
    pub fn new(room: Room, parameters: WTinyLfuParameters) -> Self {
        let full = room.entries.max(1) as usize;
        let mut new = Self {
            parameters,
            queues: Queues::new(room.ids),
            sketch: Sketch::new(full),
            full,
            window: 1,
            protected: 0,
            incumbent: (NOBODY, 0),
        };
        new.set_full(full);
        new
    }

    fn set_full(&mut self, full: usize) {
        self.full = full;
        self.window = self.parameters.window.of(full).max(1);
        let main = full.saturating_sub(self.window);
        self.protected = self.parameters.protected.of(main) as u32;
    }

    /// Counts a use. What was used so often at least still was, unless counters were halved.
    #[inline(always)]
    fn count(&mut self, key: SketchKey) {
        if self.sketch.add(key) {
            self.incumbent.0 = NOBODY;
        }
    }

    /// Whether a candidate was used more often than a victim.
    #[inline(always)]
    fn wins(&mut self, candidate: u32, victim: u32) -> bool {
        let candidate = self.queues.data(candidate);
        let (incumbent, least) = self.incumbent;
        if incumbent == victim && !self.sketch.exceeds(candidate, least) {
            return false;
        }
        let least = self.sketch.estimate(self.queues.data(victim));
        self.incumbent = (victim, least);
        self.sketch.exceeds(candidate, least)
    }

    /// Takes out an id, which may stand for another key next.
    #[inline(always)]
    fn drop_id(&mut self, id: u32) {
        if id == self.incumbent.0 {
            self.incumbent.0 = NOBODY;
        }
        self.queues.take(id);
    }
}

impl Algorithm for WTinyLfu {
    const REMEMBERS: bool = false;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        self.queues.list(id) != NOWHERE
    }

    #[inline(always)]
    fn announce(&self, id: u32) -> bool {
        self.sketch.touch(self.queues.data(id))
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        self.count(self.queues.data(id));
        match self.queues.list(id) {
            WINDOW => self.queues.move_to_tail(WINDOW, id),
            _ => self.queues.move_to_tail(PROTECTED, id),
        }
        while self.queues.len(PROTECTED) > self.protected {
            let Some(oldest) = self.queues.head(PROTECTED) else { break };
            self.queues.move_to_tail(PROBATION, oldest);
        }
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, fingerprint: u64) {
        self.queues.reserve(id);
        let key = Sketch::key(fingerprint);
        self.queues.set_data(id, key);
        self.count(key);
        self.queues.push_tail(WINDOW, id);
        // Until the cache is full for the first time, nobody has to compete.
        while self.queues.len(WINDOW) as usize > self.window && self.len() <= self.full {
            let Some(oldest) = self.queues.head(WINDOW) else { break };
            self.queues.move_to_tail(PROBATION, oldest);
        }
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        if self.len() != self.full {
            self.set_full(self.len());
            self.sketch.resize(self.full);
            self.incumbent.0 = NOBODY;
        }
        let victim = self.queues.head(PROBATION).or_else(|| self.queues.head(PROTECTED));
        let candidate = self.queues.head(WINDOW);
        let leaves = match (victim, candidate) {
            (Some(victim), Some(candidate)) if self.queues.len(WINDOW) as usize >= self.window => {
                if self.wins(candidate, victim) {
                    self.queues.move_to_tail(PROBATION, candidate);
                    victim
                } else {
                    candidate
                }
            }
            (victim, candidate) => victim.or(candidate)?,
        };
        self.drop_id(leaves);
        Some(leaves)
    }

    fn remove(&mut self, id: u32) {
        self.drop_id(id);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        (self.queues.len(WINDOW) + self.queues.len(PROBATION) + self.queues.len(PROTECTED)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// With ids that stand for another key each time, and many halvings.
        #[test]
        fn who_leaves_was_used_no_more_often(
            entries in 3u32..30,
            calls in prop::collection::vec((0u8..20, 0u32..60), 1..3000),
        ) {
            let mut policy = WTinyLfu::new(Room::simulated(entries, 60), Default::default());
            for (fingerprint, (call, id)) in calls.into_iter().enumerate() {
                match (policy.holds(id), call) {
                    (true, 0) => policy.remove(id),
                    (true, _) => policy.hit(id),
                    (false, _) => {
                        if policy.len() >= entries as usize {
                            let candidate = policy.queues.head(WINDOW).unwrap();
                            let victim = policy.queues.head(PROBATION);
                            let victim = victim.or_else(|| policy.queues.head(PROTECTED)).unwrap();
                            let uses = |id| policy.sketch.estimate(policy.queues.data(id));
                            let wins = uses(candidate) > uses(victim);
                            let leaves = if wins { victim } else { candidate };
                            prop_assert_eq!(policy.evict(), Some(leaves));
                        }
                        // Few fingerprints, some of which are used often.
                        policy.insert(id, fingerprint as u64 % 7 * u64::from(call));
                    }
                }
            }
        }
    }
}
