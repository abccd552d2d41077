//! Dense ids for keys, in order of first appearance: open addressing with linear probing, which is
//! all that is needed where nothing is ever removed.

use block::{Error, Result};

/// The most ids: the highest bit of a reference says that it is a write.
const MOST: usize = 1 << 31;

/// Ids for keys; no key may be `u64::MAX`.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<(u64, u32)>,
    len: u32,
}

const FREE: (u64, u32) = (u64::MAX, 0);

/// Spreads a key over 64 bits.
pub(crate) const fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key ^ (key >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { slots: vec![FREE; 1024], len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn place(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (mix(key) >> 32) as usize & mask;
        while self.slots[at].0 != key && self.slots[at] != FREE {
            at = (at + 1) & mask;
        }
        at
    }

    /// The id of a key, a new one when it is new.
    pub(crate) fn id(&mut self, key: u64) -> Result<u32> {
        let at = self.place(key);
        if self.slots[at] != FREE {
            return Ok(self.slots[at].1);
        }
        if self.len as usize >= MOST {
            return Err(Error::invalid(
                "the trace touches more than 2^31 blocks; use larger blocks or a sample",
            ));
        }
        let id = self.len;
        self.slots[at] = (key, id);
        self.len += 1;
        if self.len as usize * 4 > self.slots.len() * 3 {
            self.grow();
        }
        Ok(id)
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.slots[self.place(key)] != FREE
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![FREE; old.len() * 2];
        for slot in old.into_iter().filter(|slot| *slot != FREE) {
            let at = self.place(slot.0);
            self.slots[at] = slot;
        }
    }
}
