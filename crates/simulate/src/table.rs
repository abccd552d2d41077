//! Dense ids for keys, in order of first appearance: open addressing, which is all that is needed
//! where nothing is ever removed.
//!
//! The table holds ids only; what key an id stands for is in a vector by id. Keys that are numbers of
//! blocks come in runs: sixteen neighbours hash to sixteen slots of one line of the processor's
//! cache, and their keys, as they mostly appeared together, are near each other too. Many keys are
//! looked up at a time, without a branch that depends on what is found, so that the memory is asked for
//! all of them at once.

use block::{Error, Result};

/// The most ids: the highest bit of a reference says that it is a write.
const MOST: usize = 1 << 31;

/// Keys that share a line of slots: a power of two.
const GROUP: u64 = 16;

/// Slots of an empty table: there may be many tables.
const LEAST: usize = 64;

const FREE: u32 = u32::MAX;

/// The most keys of [`IdTable::ids`].
pub(crate) const BATCH: usize = 256;

/// Ids for keys. Takes 16 to 32 bytes per key.
#[derive(Debug)]
pub(crate) struct IdTable {
    /// The ids: a power of two of slots, at most half of them taken.
    slots: Vec<u32>,
    /// The key of each id.
    keys: Vec<u64>,
    /// What a hash is shifted by to number a group of slots.
    shift: u32,
}

/// 2^64 over the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a hash of 64 bits is shifted by to number the groups of so many slots.
const fn shift(slots: usize) -> u32 {
    u64::BITS - (slots as u64 / GROUP).trailing_zeros()
}

/// Spreads a key over 64 bits.
pub(crate) const fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 32)).wrapping_mul(SPREAD);
    (key ^ (key >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl IdTable {
    pub(crate) fn new() -> Self {
        Self { slots: vec![FREE; LEAST], keys: Vec::new(), shift: shift(LEAST) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.keys.len() as u32
    }

    /// The slot where a key is looked for first.
    #[inline]
    fn home(&self, key: u64) -> usize {
        let number = key / GROUP;
        // The high bits of a product depend on all bits of its factors.
        let group = (number ^ (number >> 32)).wrapping_mul(SPREAD) >> self.shift;
        (group * GROUP + key % GROUP) as usize
    }

    /// The slot to try after this one: a group further, as a full group is followed by full ones, and
    /// one slot, so that all are tried. Keys that are far apart in equal steps all have their home in
    /// the same slot of a group.
    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + GROUP as usize + 1) & (self.slots.len() - 1)
    }

    /// The slot of a key: its own, or a free one.
    #[inline]
    fn place(&self, key: u64) -> usize {
        let mut at = self.home(key);
        loop {
            let id = self.slots[at];
            if id == FREE || self.keys[id as usize] == key {
                return at;
            }
            at = self.next(at);
        }
    }

    /// The id of a key, a new one when it is new.
    #[inline]
    pub(crate) fn id(&mut self, key: u64) -> Result<u32> {
        let at = self.place(key);
        match self.slots[at] {
            FREE => self.add(at, key),
            id => Ok(id),
        }
    }

    /// Replaces keys, [`BATCH`] at most, by their ids.
    pub(crate) fn ids(&mut self, keys: &mut [u64]) -> Result<()> {
        // Loops as short as can be, as the processor asks for the memory of only so many instructions at
        // a time.
        let mut places = [0; BATCH];
        for (key, place) in keys.iter().zip(&mut places) {
            *place = self.home(*key);
        }
        // What is in each key's slot: its id, that of another key, or none.
        let mut ids = [FREE; BATCH];
        for (id, place) in ids.iter_mut().zip(&places).take(keys.len()) {
            *id = self.slots[*place];
        }
        let mut owners = [0; BATCH];
        let last = self.keys.len().saturating_sub(1);
        for (owner, id) in owners.iter_mut().zip(&ids).take(keys.len()) {
            *owner = self.keys.get((*id as usize).min(last)).copied().unwrap_or(0);
        }
        let mut search = Search::default();
        for (index, key) in keys.iter().enumerate() {
            search.sort(index, ids[index], owners[index] == *key);
        }
        while search.left > 0 {
            for number in 0..std::mem::take(&mut search.left) {
                let index = usize::from(search.others[number]);
                places[index] = self.next(places[index]);
                let id = self.slots[places[index]];
                ids[index] = id;
                search.sort(index, id, self.keys.get(id as usize) == Some(&keys[index]));
            }
        }
        // In their order, as some may be new and the same.
        for (part, mut new) in search.new.into_iter().enumerate() {
            while new != 0 {
                let index = part * 64 + new.trailing_zeros() as usize;
                new &= new - 1;
                ids[index] = self.id(keys[index])?;
            }
        }
        keys.iter_mut().zip(ids).for_each(|(key, id)| *key = id.into());
        Ok(())
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.slots[self.place(key)] != FREE
    }

    fn add(&mut self, at: usize, key: u64) -> Result<u32> {
        if self.keys.len() >= MOST {
            return Err(Error::invalid(
                "the trace touches more than 2^31 blocks; use larger blocks or a sample",
            ));
        }
        let id = self.keys.len() as u32;
        self.slots[at] = id;
        self.keys.push(key);
        if self.keys.len() * 2 > self.slots.len() {
            self.grow();
        }
        Ok(id)
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        // The old ones first: all that they knew is in the keys.
        self.slots = Vec::new();
        self.slots = vec![FREE; slots];
        self.shift = shift(slots);
        for (id, key) in self.keys.iter().enumerate() {
            let mut at = self.home(*key);
            while self.slots[at] != FREE {
                at = self.next(at);
            }
            self.slots[at] = id as u32;
        }
    }
}

/// Keys of a batch that were not found at once, by their places in it.
struct Search {
    /// Those that stand in none of the slots that were looked at.
    others: [u8; BATCH],
    /// How many these are.
    left: usize,
    /// A bit for each key that has no id yet.
    new: [u64; BATCH / 64],
}

impl Default for Search {
    fn default() -> Self {
        Self { others: [0; BATCH], left: 0, new: [0; BATCH / 64] }
    }
}

impl Search {
    /// Says of a key what was found in its slot.
    #[inline]
    fn sort(&mut self, index: usize, id: u32, found: bool) {
        let none = id == FREE;
        self.new[index / 64] |= u64::from(none) << (index % 64);
        self.others[self.left] = index as u8;
        self.left += usize::from(!found & !none);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn keys_in_equal_steps_get_ids_like_all_others() {
        for step in [1, 15, 16, 17, 256, 1 << 20] {
            let mut table = IdTable::new();
            for pass in 0..2 {
                for number in 0..20_000 {
                    let id = table.id(number * step).ok();
                    assert_eq!(id, Some(number as u32), "step {step}, pass {pass}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// Many at a time as one by one: runs, strangers, and keys that meet in one slot.
        #[test]
        fn many_keys_at_a_time_get_the_ids_of_one_by_one(
            runs in prop::collection::vec((0u64..200, 0u64..4, 1usize..40), 1..400),
            sizes in prop::collection::vec(1usize..=BATCH, 1..20),
        ) {
            let run = |(start, kind, long): (u64, u64, usize)| {
                let step = [1, 16, 1 << 20, 0x9e37_79b9][kind as usize];
                (0..long as u64).map(move |number| (start + number) * step)
            };
            let keys: Vec<u64> = runs.into_iter().flat_map(run).collect();
            let (mut table, mut known) = (IdTable::new(), HashMap::new());
            let (mut rest, mut sizes) = (&keys[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                rest = later;
                let mut ids = now.to_vec();
                table.ids(&mut ids).unwrap();
                for (key, id) in now.iter().zip(ids) {
                    let next = known.len() as u64;
                    prop_assert_eq!(id, *known.entry(*key).or_insert(next));
                }
            }
        }
    }
}
