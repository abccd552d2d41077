//! Dense ids for keys, in order of first appearance: open addressing, which is all that is needed
//! where nothing is ever removed.
//!
//! The table holds ids only; what key an id stands for is in a vector by id. Keys that are numbers of
//! blocks come in runs: sixteen neighbours hash to sixteen slots of one line of the processor's
//! cache, and their keys, as they mostly appeared together, are near each other too. Many keys are
//! looked up at a time, so that the memory is asked for all of them at once.

use block::{Error, Result};

/// The most ids: the highest bit of a reference says that it is a write.
const MOST: usize = 1 << 31;

/// Keys that share a line of slots: a power of two.
const GROUP: u64 = 16;

/// Slots of an empty table.
const LEAST: usize = 1024;

const FREE: u32 = u32::MAX;

/// The most keys of [`Table::ids`].
pub(crate) const BATCH: usize = 256;

/// Ids for keys. Takes 16 to 32 bytes per key.
#[derive(Debug)]
pub(crate) struct Table {
    /// The ids: a power of two of slots, at most half of them taken.
    slots: Vec<u32>,
    /// The key of each id.
    keys: Vec<u64>,
}

/// Spreads a key over 64 bits.
pub(crate) const fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key ^ (key >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { slots: vec![FREE; LEAST], keys: Vec::new() }
    }

    pub(crate) fn len(&self) -> u32 {
        self.keys.len() as u32
    }

    /// The slot where a key is looked for first.
    #[inline]
    fn home(&self, key: u64) -> usize {
        let group = (mix(key / GROUP) >> 32) * GROUP;
        (group | (key % GROUP)) as usize & (self.slots.len() - 1)
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
        // A guess at each id, right or the id of another key: two loops that wait for nothing.
        let mut guesses = [0u32; BATCH];
        for (key, guess) in keys.iter().zip(&mut guesses) {
            *guess = self.slots[self.home(*key)];
        }
        let mut right = [false; BATCH];
        for ((key, guess), right) in keys.iter().zip(&guesses).zip(&mut right) {
            *right = self.keys.get(*guess as usize) == Some(key);
        }
        for ((key, guess), right) in keys.iter_mut().zip(guesses).zip(right) {
            let id = if right { guess } else { self.id(*key)? };
            *key = u64::from(id);
        }
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
        for (id, key) in self.keys.iter().enumerate() {
            let mut at = self.home(*key);
            while self.slots[at] != FREE {
                at = self.next(at);
            }
            self.slots[at] = id as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_equal_steps_get_ids_like_all_others() {
        for step in [1, 15, 16, 17, 256, 1 << 20] {
            let mut table = Table::new();
            for pass in 0..2 {
                for number in 0..20_000 {
                    let id = table.id(number * step).ok();
                    assert_eq!(id, Some(number as u32), "step {step}, pass {pass}");
                }
            }
        }
    }
}
