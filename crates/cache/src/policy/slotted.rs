//! An algorithm over ids as a policy over slots.
//!
//! An id stays with a key for as long as the algorithm holds or remembers it, a slot only while it
//! is held. For algorithms that remember nothing the two are the same number.
//!
//! Beside the algorithm's own memory this takes 8 bytes for what is held, and about 12 for what is
//! remembered: of that, 32 bits of the fingerprint are kept. Once in a while something is taken for
//! another key that left, which costs a policy nothing.

use super::{Algorithm, Policy};
use crate::index::{FingerprintIndex, MOST_SLOTS};

/// A policy over slots.
#[derive(Debug)]
pub(super) struct Slotted<A> {
    algorithm: A,
    /// The id of what is in each slot.
    held: Vec<u32>,
    /// For each id the slot while it is held, the name while it is remembered.
    names: Vec<u32>,
    free: Vec<u32>,
    /// The ids of what is remembered, by name.
    remembered: FingerprintIndex,
    /// How many they are.
    count: usize,
}

/// What is kept of a fingerprint.
fn name(fingerprint: u64) -> u32 {
    fingerprint as u32
}

/// A name in place of a fingerprint: the table goes by the high bits of its low half, and compares
/// the highest.
fn spread(name: u32) -> u64 {
    u64::from(name) << 56 | u64::from(name)
}

impl<A: Algorithm> Slotted<A> {
    /// For a cache of about `entries` entries.
    pub(super) fn new(algorithm: A, entries: u32) -> Self {
        Self {
            algorithm,
            held: Vec::new(),
            names: Vec::new(),
            free: Vec::new(),
            remembered: FingerprintIndex::new(if A::REMEMBERS { entries as usize } else { 0 }),
            count: 0,
        }
    }

    fn id(&self, slot: u32) -> u32 {
        if A::REMEMBERS { self.held[slot as usize] } else { slot }
    }

    /// The id that is remembered by a name.
    fn recall(&self, name: u32) -> Option<u32> {
        let look = |id: u32| (self.names[id as usize] == name).then_some(id);
        self.remembered.find(spread(name), look)
    }

    fn remember(&mut self, id: u32, name: u32) {
        self.names[id as usize] = name;
        // Beyond what a table can tell apart, things leave without a trace.
        if id < MOST_SLOTS {
            let names = &self.names;
            let of = |id: u32| spread(names[id as usize]);
            self.remembered.insert(spread(name), id, self.count, of);
            self.count += 1;
        }
    }

    fn forget(&mut self, id: u32) {
        let names = &self.names;
        let of = |id: u32| spread(names[id as usize]);
        if self.remembered.remove(of(id), id, of) {
            self.count -= 1;
        }
    }

    /// Takes back the ids that were forgotten.
    fn collect(&mut self) {
        while let Some(id) = self.algorithm.forgotten() {
            self.forget(id);
            self.free.push(id);
        }
    }

    /// The number of names remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.count
    }
}

impl<A: Algorithm> Policy for Slotted<A> {
    fn hit(&mut self, slot: u32) {
        let id = self.id(slot);
        self.algorithm.hit(id);
        self.collect();
    }

    fn miss(&mut self, fingerprint: u64) {
        if A::REMEMBERS
            && let Some(id) = self.recall(name(fingerprint))
        {
            self.algorithm.miss(id);
        }
    }

    fn insert(&mut self, slot: u32, fingerprint: u64) {
        if !A::REMEMBERS {
            return self.algorithm.insert(slot, fingerprint);
        }
        let known = self.recall(name(fingerprint)).inspect(|id| self.forget(*id));
        let id = known.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.names.push(0);
            (self.names.len() - 1) as u32
        });
        self.names[id as usize] = slot;
        if slot as usize >= self.held.len() {
            self.held.resize(slot as usize + 1, 0);
        }
        self.held[slot as usize] = id;
        self.algorithm.insert(id, fingerprint);
        self.collect();
    }

    fn evict(&mut self, fingerprints: &dyn Fn(u32) -> u64) -> Option<u32> {
        let id = self.algorithm.evict()?;
        if !A::REMEMBERS {
            return Some(id);
        }
        let slot = self.names[id as usize];
        self.remember(id, name(fingerprints(slot)));
        self.collect();
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        let id = self.id(slot);
        self.algorithm.remove(id);
        if A::REMEMBERS {
            self.free.push(id);
            self.collect();
        }
    }

    fn len(&self) -> usize {
        self.algorithm.len()
    }
}
