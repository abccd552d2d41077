//! One lock's worth of entries.

use crate::concurrent::Key;
use crate::flight::Flights;
use crate::policy::slotted::ByFingerprint;
use crate::policy::{Policy, PolicyKind};
use bytes::Bytes;

/// The least that an entry is charged, so that small values cannot fill memory with bookkeeping.
pub(crate) const LEAST_CHARGE: u64 = 512;

/// What policies are told to expect of an entry's size, in bytes: the mean size of a chunk.
const TYPICAL_ENTRY: u64 = 64 << 10;

/// Entries up to a number of bytes, and the loads that are under way for others.
pub(crate) struct Shard {
    capacity: u64,
    bytes: u64,
    evictions: u64,
    index: ByFingerprint<u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    policy: Box<dyn Policy>,
    pub(crate) flights: Flights,
}

struct Slot {
    key: Key,
    fingerprint: u64,
    value: Bytes,
}

impl Slot {
    fn charge(&self) -> u64 {
        charge(&self.value)
    }
}

fn charge(value: &Bytes) -> u64 {
    (value.len() as u64).max(LEAST_CHARGE)
}

impl Shard {
    pub(crate) fn new(capacity: u64, policy: PolicyKind) -> Self {
        // Tables grow to what is really held: a large cache costs nothing before it fills.
        let expected = (capacity / TYPICAL_ENTRY).clamp(1, 1 << 20) as u32;
        Self {
            capacity,
            bytes: 0,
            evictions: 0,
            index: ByFingerprint::default(),
            slots: Vec::new(),
            free: Vec::new(),
            policy: policy.build(expected),
            flights: Flights::default(),
        }
    }

    fn find(&self, key: &Key, fingerprint: u64) -> Option<(u32, &Slot)> {
        let slot = *self.index.get(&fingerprint)?;
        let found = self.slots[slot as usize].as_ref()?;
        (found.key == *key).then_some((slot, found))
    }

    /// The value, as an access.
    pub(crate) fn get(&mut self, key: &Key, fingerprint: u64) -> Option<Bytes> {
        let (slot, found) = self.find(key, fingerprint)?;
        let value = found.value.clone();
        self.policy.hit(slot);
        Some(value)
    }

    /// Whether it is there; no access.
    pub(crate) fn contains(&self, key: &Key, fingerprint: u64) -> bool {
        self.find(key, fingerprint).is_some()
    }

    /// Takes a value in, and lets others go to make room. One that is larger than the shard is not
    /// taken.
    pub(crate) fn insert(&mut self, key: &Key, fingerprint: u64, value: Bytes) {
        let charge = charge(&value);
        if charge > self.capacity {
            return;
        }
        // The same key again, or (once in 2^64) another key of the same fingerprint.
        if let Some(slot) = self.index.get(&fingerprint).copied() {
            self.policy.remove(slot);
            self.vacate(slot);
        }
        self.policy.miss(fingerprint);
        while self.bytes + charge > self.capacity {
            let Some(slot) = self.policy.evict() else { return };
            self.vacate(slot);
            self.evictions += 1;
        }
        let entry = Some(Slot { key: *key, fingerprint, value });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                (self.slots.len() - 1) as u32
            }
        };
        self.bytes += charge;
        self.index.insert(fingerprint, slot);
        self.policy.insert(slot, fingerprint);
    }

    /// Empties a slot that the policy dropped.
    fn vacate(&mut self, slot: u32) {
        if let Some(old) = self.slots[slot as usize].take() {
            self.bytes -= old.charge();
            self.index.remove(&old.fingerprint);
            self.free.push(slot);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entries(&self) -> u64 {
        self.index.len() as u64
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }
}
