//! W-TinyLFU (G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache Admission
//! Policy", ACM Transactions on Storage 2017, section 4).
//!
//! What is new goes through a small LRU window. What leaves the window replaces the next victim of
//! the main part, a segmented LRU, only when it was used more often lately.

use super::rings::{NOWHERE, Rings};
use super::sketch::Sketch;
use super::{Algorithm, Ratio, Room};

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// The parameters of W-TinyLFU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// The window, as a part of the cache; one entry at least.
    pub window: Ratio,
    /// The protected segment, as a part of the rest.
    pub protected: Ratio,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { window: Ratio::hundredths(1), protected: Ratio::hundredths(80) }
    }
}

/// Evicts the less often used of two: the oldest of the new, and the oldest of the others.
#[derive(Debug)]
pub struct WTinyLfu {
    parameters: Parameters,
    rings: Rings<3>,
    /// The fingerprint of each id.
    fingerprints: Vec<u64>,
    sketch: Sketch,
    full: usize,
    /// The most entries of the protected segment.
    protected: u32,
}

impl WTinyLfu {
    /// An empty cache.
    pub fn new(room: Room, parameters: Parameters) -> Self {
        let full = room.entries.max(1) as usize;
        let mut new = Self {
            parameters,
            rings: Rings::new(room.ids),
            fingerprints: vec![0; room.ids as usize],
            sketch: Sketch::new(full),
            full,
            protected: 0,
        };
        new.set_full(full);
        new
    }

    fn window(&self) -> usize {
        self.parameters.window.of(self.full).max(1)
    }

    fn set_full(&mut self, full: usize) {
        self.full = full;
        let main = full.saturating_sub(self.window());
        self.protected = self.parameters.protected.of(main) as u32;
    }

    fn estimate(&self, id: u32) -> u32 {
        self.sketch.estimate(self.fingerprints[id as usize])
    }
}

impl Algorithm for WTinyLfu {
    const REMEMBERS: bool = false;

    fn holds(&self, id: u32) -> bool {
        self.rings.list(id) != NOWHERE
    }

    fn hit(&mut self, id: u32) {
        self.sketch.add(self.fingerprints[id as usize]);
        match self.rings.list(id) {
            WINDOW => self.rings.move_to_tail(WINDOW, id),
            _ => self.rings.move_to_tail(PROTECTED, id),
        }
        while self.rings.len(PROTECTED) > self.protected {
            let Some(oldest) = self.rings.head(PROTECTED) else { break };
            self.rings.move_to_tail(PROBATION, oldest);
        }
    }

    fn insert(&mut self, id: u32, fingerprint: u64) {
        self.rings.reserve(id);
        if id as usize >= self.fingerprints.len() {
            self.fingerprints.resize(id as usize + 1, 0);
        }
        self.fingerprints[id as usize] = fingerprint;
        self.sketch.add(fingerprint);
        self.rings.push_tail(WINDOW, id);
        // Until the cache is full for the first time, nobody has to compete.
        while self.rings.len(WINDOW) as usize > self.window() && self.len() <= self.full {
            let Some(oldest) = self.rings.head(WINDOW) else { break };
            self.rings.move_to_tail(PROBATION, oldest);
        }
    }

    fn evict(&mut self) -> Option<u32> {
        if self.len() != self.full {
            self.set_full(self.len());
            self.sketch.resize(self.full);
        }
        let victim = self.rings.head(PROBATION).or_else(|| self.rings.head(PROTECTED));
        let candidate = self.rings.head(WINDOW);
        let leaves = match (victim, candidate) {
            (Some(victim), Some(candidate)) if self.rings.len(WINDOW) as usize >= self.window() => {
                if self.estimate(candidate) > self.estimate(victim) {
                    self.rings.move_to_tail(PROBATION, candidate);
                    victim
                } else {
                    candidate
                }
            }
            (victim, candidate) => victim.or(candidate)?,
        };
        self.rings.take(leaves);
        Some(leaves)
    }

    fn remove(&mut self, id: u32) {
        self.rings.take(id);
    }

    fn len(&self) -> usize {
        (self.rings.len(WINDOW) + self.rings.len(PROBATION) + self.rings.len(PROTECTED)) as usize
    }
}
