//! The entries by number: each has a lock of its own, which is held only to copy a handle.
//!
//! Slots do not move and are not freed, so that they are reached without a lock.

use crate::key::Key;
use bytes::Bytes;
use parking_lot::RwLock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots that are made at once.
const LEAF: u32 = 128;

/// Lists of leaves: the first has one, each further one has room for twice as many as the one before,
/// and together they have room for all that an index can tell apart.
const LISTS: usize = 18;

/// A key and its value.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    pub(crate) key: Key,
    pub(crate) value: Bytes,
}

#[derive(Debug, Default)]
struct CacheSlot {
    /// Uses of the entry that the policy was not told yet.
    uses: AtomicU32,
    entry: RwLock<Option<SlotEntry>>,
}

/// Numbered places for entries.
#[derive(Debug)]
pub(crate) struct Slots {
    lists: [OnceLock<Box<[Leaf]>>; LISTS],
}

type Leaf = OnceLock<Box<[CacheSlot]>>;

fn many<T: Default>(count: u32) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(count as usize).collect()
}

impl Slots {
    pub(crate) const fn new() -> Self {
        Self { lists: [const { OnceLock::new() }; LISTS] }
    }

    fn at(&self, slot: u32) -> &CacheSlot {
        let number = slot / LEAF + 1;
        let (list, first) = (number.ilog2(), 1 << number.ilog2());
        let leaves = self.lists[list as usize].get_or_init(|| many(first));
        let slots = leaves[(number - first) as usize].get_or_init(|| many(LEAF));
        &slots[(slot % LEAF) as usize]
    }

    /// The value of `key` if that is in `slot`, as a use of it; and whether it is the first use since
    /// [`take_uses`](Self::take_uses). Never waits: `None` also while the slot is being changed.
    #[inline]
    pub(crate) fn take_part(&self, slot: u32, key: &Key) -> Option<(Bytes, bool)> {
        let slot = self.at(slot);
        let guard = slot.entry.try_read()?;
        let entry = guard.as_ref().filter(|entry| entry.key == *key)?;
        let value = entry.value.clone();
        // Under the guard, so that it counts for no other entry.
        let before = slot.uses.fetch_add(1, Ordering::Relaxed);
        // Once more when nobody took the first into account for very long.
        Some((value, before & (FULL - 1) == 0))
    }

    /// Whether `key` is in `slot`; no use of it, and never waits.
    pub(crate) fn shows(&self, slot: u32, key: &Key) -> bool {
        let guard = self.at(slot).entry.try_read();
        guard.is_some_and(|entry| entry.as_ref().is_some_and(|entry| entry.key == *key))
    }

    /// What `look` makes of the entry in `slot`.
    pub(crate) fn peek<T>(&self, slot: u32, look: impl FnOnce(&SlotEntry) -> T) -> Option<T> {
        self.at(slot).entry.read().as_ref().map(look)
    }

    /// How often the entry in `slot` was used since this was asked for last.
    pub(crate) fn take_uses(&self, slot: u32) -> u32 {
        self.at(slot).uses.swap(0, Ordering::Relaxed)
    }

    /// Fills `slot`, which is empty.
    pub(crate) fn fill(&self, slot: u32, entry: SlotEntry) {
        *self.at(slot).entry.write() = Some(entry);
    }

    /// Empties `slot`; returns what was in it, and how often it was used since that was asked for.
    pub(crate) fn empty(&self, slot: u32) -> Option<(SlotEntry, u32)> {
        let slot = self.at(slot);
        let mut entry = slot.entry.write();
        let uses = slot.uses.swap(0, Ordering::Relaxed);
        entry.take().map(|entry| (entry, uses))
    }
}

/// Uses after which the first is reported once more.
const FULL: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::MOST_SLOTS;

    #[test]
    fn every_slot_has_a_place_of_its_own_up_to_the_last() {
        let slots = Slots::new();
        let entry =
            |slot: u32| SlotEntry { key: [slot as u8; 32], value: Bytes::from(slot.to_string()) };
        let some = (0..2000).chain([1 << 16, 1 << 20, MOST_SLOTS - 1]);
        some.clone().for_each(|slot| slots.fill(slot, entry(slot)));
        for slot in some {
            let (value, first) = slots.take_part(slot, &[slot as u8; 32]).unwrap();
            assert!(value == slot.to_string() && first);
            assert!(!slots.shows(slot, &[(slot as u8).wrapping_add(1); 32]));
            assert_eq!(slots.empty(slot).unwrap().1, 1);
        }
        assert!(slots.empty(7).is_none() && !slots.shows(7, &[7; 32]));
    }
}
