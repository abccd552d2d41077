//! An algorithm over ids as a policy over slots.
//!
//! An id stays with a key for as long as the algorithm holds or remembers it, a slot only while it
//! is held. For algorithms that remember nothing the two are the same number.

use super::{Algorithm, Policy};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Passes a fingerprint, which is a hash already, through.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Passed(u64);

impl Hasher for Passed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map by fingerprint.
pub(crate) type ByFingerprint<T> = HashMap<u64, T, BuildHasherDefault<Passed>>;

/// What an id stands for.
#[derive(Debug, Clone, Copy, Default)]
struct Name {
    fingerprint: u64,
    /// Where it is while it is held.
    slot: u32,
}

/// A policy over slots.
#[derive(Debug)]
pub(super) struct Slotted<A> {
    algorithm: A,
    /// The id of what is in each slot.
    held: Vec<u32>,
    names: Vec<Name>,
    free: Vec<u32>,
    /// The ids of what is remembered.
    remembered: ByFingerprint<u32>,
}

impl<A: Algorithm> Slotted<A> {
    pub(super) fn new(algorithm: A) -> Self {
        Self {
            algorithm,
            held: Vec::new(),
            names: Vec::new(),
            free: Vec::new(),
            remembered: ByFingerprint::default(),
        }
    }

    fn id(&self, slot: u32) -> u32 {
        if A::REMEMBERS { self.held[slot as usize] } else { slot }
    }

    /// Takes back the ids that were forgotten.
    fn collect(&mut self) {
        while let Some(id) = self.algorithm.forgotten() {
            let fingerprint = self.names[id as usize].fingerprint;
            if self.remembered.get(&fingerprint) == Some(&id) {
                self.remembered.remove(&fingerprint);
            }
            self.free.push(id);
        }
    }

    /// The number of fingerprints remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.remembered.len()
    }
}

impl<A: Algorithm> Policy for Slotted<A> {
    fn hit(&mut self, slot: u32) {
        let id = self.id(slot);
        self.algorithm.hit(id);
        self.collect();
    }

    fn miss(&mut self, fingerprint: u64) {
        if let Some(id) = self.remembered.get(&fingerprint) {
            self.algorithm.miss(*id);
        }
    }

    fn insert(&mut self, slot: u32, fingerprint: u64) {
        if !A::REMEMBERS {
            return self.algorithm.insert(slot, fingerprint);
        }
        let known = self.remembered.remove(&fingerprint);
        let id = known.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.names.push(Name::default());
            (self.names.len() - 1) as u32
        });
        self.names[id as usize] = Name { fingerprint, slot };
        if slot as usize >= self.held.len() {
            self.held.resize(slot as usize + 1, 0);
        }
        self.held[slot as usize] = id;
        self.algorithm.insert(id, fingerprint);
        self.collect();
    }

    fn evict(&mut self) -> Option<u32> {
        let id = self.algorithm.evict()?;
        if !A::REMEMBERS {
            return Some(id);
        }
        let Name { fingerprint, slot } = self.names[id as usize];
        self.remembered.insert(fingerprint, id);
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
