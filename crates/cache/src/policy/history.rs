//! What left the cache, and how often it had been used: the history queue of FMPQ.

use super::list::{Links, List};
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

/// A first-in first-out queue of fingerprints with counts, of bounded length.
#[derive(Debug)]
pub(super) struct History {
    nodes: Vec<Node>,
    links: Links,
    order: List,
    free: List,
    index: ByFingerprint<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    fingerprint: u64,
    count: u32,
}

impl History {
    /// Room for `entries` entries; grows when asked to keep more.
    pub(super) fn new(entries: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(entries),
            links: Links::new(entries as u32),
            order: List::EMPTY,
            free: List::EMPTY,
            index: ByFingerprint::with_capacity_and_hasher(entries, Default::default()),
        }
    }

    /// Remembers `count` for what has this fingerprint, and forgets the oldest beyond `limit`.
    pub(super) fn remember(&mut self, fingerprint: u64, count: u32, limit: usize) {
        self.recall(fingerprint);
        while self.index.len() >= limit {
            let Some(oldest) = self.order.head() else { return };
            self.recall(self.nodes[oldest as usize].fingerprint);
        }
        let entry = Node { fingerprint, count };
        let node = match self.free.head() {
            Some(node) => {
                self.free.remove(&mut self.links, node);
                self.nodes[node as usize] = entry;
                node
            }
            None => {
                self.nodes.push(entry);
                (self.nodes.len() - 1) as u32
            }
        };
        self.order.push_tail(&mut self.links, node);
        self.index.insert(fingerprint, node);
    }

    /// The count remembered for this fingerprint; it is forgotten thereby.
    pub(super) fn recall(&mut self, fingerprint: u64) -> Option<u32> {
        let node = self.index.remove(&fingerprint)?;
        self.order.remove(&mut self.links, node);
        self.free.push_tail(&mut self.links, node);
        Some(self.nodes[node as usize].count)
    }

    /// The number of fingerprints remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }
}
