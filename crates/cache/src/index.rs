//! Where the entry of each key is: an open-addressing table that anybody reads without a lock while
//! one changes it.
//!
//! A cell is 4 bytes: 8 bits of the key's fingerprint and a slot. It only says where to look: whoever
//! finds a cell compares the key that is in the slot. So a reader that comes while cells move may
//! miss an entry that is there, and never takes another for it; who must know holds the lock of the
//! shard, under which nothing moves.
//!
//! Linear probing, and deletion that moves back what follows (D. Knuth, "The Art of Computer
//! Programming", volume 3, section 6.4, algorithms L and R), so that a table that changes for ever
//! stays as good as new.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The most slots that cells can tell apart.
pub(crate) const MOST_SLOTS: u32 = (1 << 24) - 1;

const EMPTY: u32 = 0;

/// The least cells of a table.
const LEAST: usize = 64;

/// Tables that can follow one another: from the least to twice the most slots.
const TABLES: usize = 20;

/// A map from fingerprints to slots. Several entries may have the same fingerprint.
#[derive(Debug)]
pub(crate) struct FingerprintIndex {
    /// Each is twice as large as the one before. Those before the current one are no longer used.
    tables: [OnceLock<Box<[AtomicU32]>>; TABLES],
    current: AtomicUsize,
    least: usize,
}

impl FingerprintIndex {
    /// An empty map that need not grow up to `expected` entries.
    pub(crate) fn new(expected: usize) -> Self {
        Self {
            tables: [const { OnceLock::new() }; TABLES],
            current: AtomicUsize::new(0),
            least: (expected.min(MOST_SLOTS as usize) / 3 * 4).max(LEAST),
        }
    }

    fn table(&self, number: usize) -> &[AtomicU32] {
        self.tables[number].get_or_init(|| {
            let cells = self.least << number;
            std::iter::repeat_with(|| AtomicU32::new(EMPTY)).take(cells).collect()
        })
    }

    fn current(&self) -> &[AtomicU32] {
        self.table(self.current.load(Ordering::Acquire))
    }

    /// What `look` finds in one of the slots that may be the one of `fingerprint`.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        fingerprint: u64,
        mut look: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let table = self.current();
        let mut at = home(fingerprint, table);
        for _ in 0..table.len() {
            let cell = table[at].load(Ordering::Acquire);
            if cell == EMPTY {
                return None;
            }
            if cell & !MOST_SLOTS == tag(fingerprint)
                && let Some(found) = look(slot(cell))
            {
                return Some(found);
            }
            at = next(at, table);
        }
        None
    }

    /// Adds a slot, which is filled already, to the `entries` that are there. One caller at a time.
    ///
    /// `fingerprints` tells the fingerprint of what is in a slot.
    pub(crate) fn insert(
        &self,
        fingerprint: u64,
        slot: u32,
        entries: usize,
        fingerprints: impl Fn(u32) -> u64,
    ) {
        let number = self.current.load(Ordering::Relaxed);
        let mut table = self.table(number);
        if entries >= table.len() / 5 * 4 && number + 1 < TABLES {
            let larger = self.table(number + 1);
            for cell in table {
                let cell = cell.load(Ordering::Relaxed);
                if cell != EMPTY {
                    push(larger, fingerprints(self::slot(cell)), cell);
                }
            }
            self.current.store(number + 1, Ordering::Release);
            table = larger;
        }
        push(table, fingerprint, tag(fingerprint) | (slot + 1));
    }

    /// Removes a slot, which is still filled; whether it was there. One caller at a time.
    pub(crate) fn remove(
        &self,
        fingerprint: u64,
        slot: u32,
        fingerprints: impl Fn(u32) -> u64,
    ) -> bool {
        let table = self.current();
        let mut hole = home(fingerprint, table);
        loop {
            match table[hole].load(Ordering::Relaxed) {
                EMPTY => return false,
                cell if self::slot(cell) == slot => break,
                _ => hole = next(hole, table),
            }
        }
        let mut at = next(hole, table);
        loop {
            let cell = table[at].load(Ordering::Relaxed);
            if cell == EMPTY {
                break;
            }
            let home = home(fingerprints(self::slot(cell)), table);
            if distance(home, at, table) >= distance(hole, at, table) {
                // It is in two places for a moment, so that nobody misses it.
                table[hole].store(cell, Ordering::Release);
                hole = at;
            }
            at = next(at, table);
        }
        table[hole].store(EMPTY, Ordering::Release);
        true
    }
}

/// Puts a cell into the first free place, of which there is one.
fn push(table: &[AtomicU32], fingerprint: u64, cell: u32) {
    let mut at = home(fingerprint, table);
    while table[at].load(Ordering::Relaxed) != EMPTY {
        at = next(at, table);
    }
    table[at].store(cell, Ordering::Release);
}

/// Where the cell of a fingerprint is when nothing is in its way.
fn home(fingerprint: u64, table: &[AtomicU32]) -> usize {
    (((fingerprint & 0xffff_ffff) * table.len() as u64) >> 32) as usize
}

fn tag(fingerprint: u64) -> u32 {
    (fingerprint >> 32) as u32 & !MOST_SLOTS
}

fn slot(cell: u32) -> u32 {
    (cell & MOST_SLOTS) - 1
}

fn next(at: usize, table: &[AtomicU32]) -> usize {
    if at + 1 == table.len() { 0 } else { at + 1 }
}

/// How far `at` is behind `from`.
fn distance(from: usize, at: usize, table: &[AtomicU32]) -> usize {
    if at >= from { at - from } else { at + table.len() - from }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_finds_what_a_map_finds(
            // Few homes and few tags, so that cells collide, wrap around and look alike.
            changes in prop::collection::vec((0u64..400, any::<bool>()), 1..600),
            crowding in prop::sample::select(vec![1u64, 40, 0xa3_0000]),
        ) {
            let fingerprint = |key: u64| ((key % 3) << 56) | (u64::from(u32::MAX) - key * crowding);
            let index = FingerprintIndex::new(0);
            let mut model: HashMap<u64, u32> = HashMap::new();
            let mut keys = Vec::new(); // by slot
            for (key, insert) in changes {
                let of = |slot: u32| fingerprint(keys[slot as usize]);
                if let Some(slot) = model.remove(&key) {
                    index.remove(fingerprint(key), slot, of);
                }
                if insert {
                    let slot = keys.len() as u32;
                    keys.push(key);
                    let of = |slot: u32| fingerprint(keys[slot as usize]);
                    index.insert(fingerprint(key), slot, model.len(), of);
                    model.insert(key, slot);
                }
                for key in 0..400 {
                    let look = |slot: u32| (keys[slot as usize] == key).then_some(slot);
                    prop_assert_eq!(index.find(fingerprint(key), look), model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn the_last_slot_can_be_told_from_an_empty_cell() {
        let index = FingerprintIndex::new(1);
        index.insert(u64::MAX, MOST_SLOTS - 1, 0, |_| u64::MAX);
        assert_eq!(index.find(u64::MAX, Some), Some(MOST_SLOTS - 1));
        assert_eq!(index.find(0, Some), None);
    }
}
