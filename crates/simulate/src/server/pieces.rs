//! The piece cache: what came from the store is kept on the server's disk, in pieces of 128 KiB.

use super::load::PlacedChunk;
use cache::policy::lru::Lru;
use cache::policy::{Algorithm, Room};
use std::collections::HashMap;

/// Bytes of a piece.
pub(super) const PIECE: u64 = 128 << 10;

/// The pieces that are kept, and those on their way.
pub(super) struct SimulatedPieces {
    limit: usize,
    ids: HashMap<(u64, u64), u32>,
    kept: Lru,
    /// By piece: whether it is on its way.
    coming: Vec<bool>,
}

/// What a load needs of the store.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoreFetch {
    /// Bytes that the store gives.
    pub(super) bytes: u64,
    /// Where they begin.
    pub(super) offset: u64,
    /// The pieces that come.
    pub(super) coming: Vec<u32>,
    /// Those that are on their way already.
    pub(super) awaited: Vec<u32>,
}

impl SimulatedPieces {
    /// Keeps so many bytes; 0 keeps nothing.
    pub(super) fn new(bytes: u64) -> Self {
        let limit = usize::try_from(bytes / PIECE).unwrap_or(usize::MAX);
        let entries = u32::try_from(limit).unwrap_or(u32::MAX);
        Self {
            limit,
            ids: HashMap::new(),
            kept: Lru::new(Room::simulated(entries, 0)),
            coming: Vec::new(),
        }
    }

    /// A load of this range: what has to come from the store.
    pub(super) fn load(&mut self, range: PlacedChunk) -> StoreFetch {
        if self.limit == 0 {
            let (offset, bytes) = (range.offset, range.bytes);
            return StoreFetch { bytes, offset, ..StoreFetch::default() };
        }
        let mut fetch = StoreFetch::default();
        let mut missing = None;
        for number in range.offset / PIECE..range.end().div_ceil(PIECE) {
            let next = self.ids.len() as u32;
            let id = *self.ids.entry((range.base, number)).or_insert(next);
            if id == next {
                self.coming.push(false);
            }
            if self.kept.holds(id) {
                self.kept.hit(id);
                if self.coming[id as usize] {
                    fetch.awaited.push(id);
                }
                continue;
            }
            if self.kept.len() >= self.limit {
                self.kept.evict();
            }
            self.kept.insert(id, 0);
            self.coming[id as usize] = true;
            fetch.coming.push(id);
            // What lies between two that are missing comes with them.
            let first = missing.map_or(number, |(first, _)| first);
            missing = Some((first, number));
        }
        fetch.bytes = missing.map_or(0, |(first, last)| (last - first + 1) * PIECE);
        fetch.offset = missing.map_or(0, |(first, _)| first * PIECE);
        fetch
    }

    /// The pieces of a load came.
    pub(super) fn came(&mut self, pieces: &[u32]) {
        pieces.iter().for_each(|id| self.coming[*id as usize] = false);
    }

    /// Whether one of these is still on its way.
    pub(super) fn any_coming(&self, pieces: &[u32]) -> bool {
        pieces.iter().any(|id| self.coming[*id as usize])
    }
}
