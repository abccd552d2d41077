//! A part of the entries, with a policy of its own.
//!
//! Reading takes no lock: a hit copies the handle of a value and notes that it was used. Under the
//! lock the policy is told of these uses, and entries come and go. The policy knows of a slot
//! exactly while there is an entry in it.

use crate::index::{FingerprintIndex, MOST_SLOTS};
use crate::key::{Key, fingerprint};
use crate::policy::{Policy, PolicyKind};
use crate::recent::Recent;
use crate::slots::{SlotEntry, Slots};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};

/// The least that an entry is charged, so that small values cannot fill memory with bookkeeping.
pub(crate) const LEAST_CHARGE: u64 = 512;

/// What policies are told to expect of an entry's size, in bytes: the mean size of a chunk.
const TYPICAL_ENTRY: u64 = 64 << 10;

/// The most uses of an entry that the policy is told of at once: more make no difference to it.
pub(crate) const MOST_USES: u32 = 16;

/// Entries that leave under one hold of the lock when the capacity shrinks.
const STEP: usize = 64;

/// Entries up to a number of bytes.
pub(crate) struct Shard {
    seed: u64,
    index: FingerprintIndex,
    slots: Slots,
    recent: Recent,
    /// Hits that the policy will not be told of.
    untold: AtomicU64,
    state: Mutex<ShardState>,
}

/// What changes under the lock.
pub(crate) struct ShardState {
    capacity: u64,
    bytes: u64,
    entries: usize,
    evictions: u64,
    hits: u64,
    free: Vec<u32>,
    /// Slots that were ever used.
    used: u32,
    kind: PolicyKind,
    /// None before the first entry comes: most shards of a small cache never have one.
    policy: Option<Box<dyn Policy>>,
}

impl ShardState {
    /// The policy, which is built when it is first asked for.
    #[inline]
    fn policy(&mut self) -> &mut dyn Policy {
        let build = || self.kind.build(expected(self.capacity).max(self.entries as u32));
        &mut **self.policy.get_or_insert_with(build)
    }
}

/// What a shard holds, and what happened to it.
pub(crate) struct ShardCounters {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) evictions: u64,
    pub(crate) hits: u64,
}

/// What a value counts for.
pub(crate) fn charge(len: usize) -> u64 {
    (len as u64).max(LEAST_CHARGE)
}

/// How many entries are to be expected in so many bytes.
pub(crate) fn expected(capacity: u64) -> u32 {
    (capacity / TYPICAL_ENTRY).clamp(1, 1 << 20) as u32
}

impl Shard {
    pub(crate) fn new(capacity: u64, policy: PolicyKind, seed: u64) -> Self {
        Self {
            seed,
            index: FingerprintIndex::new(expected(capacity) as usize),
            slots: Slots::new(),
            recent: Recent::new(),
            untold: AtomicU64::new(0),
            state: Mutex::new(ShardState {
                capacity,
                bytes: 0,
                entries: 0,
                evictions: 0,
                hits: 0,
                free: Vec::new(),
                used: 0,
                kind: policy,
                policy: None,
            }),
        }
    }

    /// The value, as a use of it, without a lock: while others change the shard, what is there may
    /// be missed.
    #[inline]
    pub(crate) fn get(&self, key: &Key, fingerprint: u64) -> Option<Bytes> {
        let (value, first, slot) = self.index.find(fingerprint, |slot| {
            let (value, first) = self.slots.take_part(slot, key)?;
            Some((value, first, slot))
        })?;
        if first && !self.recent.push(slot) {
            self.tell(slot);
        }
        Some(value)
    }

    /// Tells the policy of all uses, now that no more can be noted; of none if the lock is taken.
    #[cold]
    fn tell(&self, slot: u32) {
        match self.state.try_lock() {
            Some(mut state) => {
                self.catch_up(&mut state);
                self.told(&mut state, slot);
            }
            None => {
                let uses = self.slots.take_uses(slot);
                self.untold.fetch_add(uses.into(), Ordering::Relaxed);
            }
        }
    }

    /// Tells the policy of the uses that were noted.
    fn catch_up(&self, state: &mut ShardState) {
        self.recent.drain(|slot| self.told(state, slot));
    }

    /// Tells the policy of the uses of one entry.
    fn told(&self, state: &mut ShardState, slot: u32) {
        // Uses are counted while their entry is there, and leave with it: there is one, or none is.
        let uses = self.slots.take_uses(slot);
        state.hits += u64::from(uses);
        for _ in 0..uses.min(MOST_USES) {
            state.policy().hit(slot);
        }
    }

    /// Whether it is there; no use of it, and without a lock.
    pub(crate) fn contains(&self, key: &Key, fingerprint: u64) -> bool {
        let look = |slot| self.slots.shows(slot, key).then_some(());
        self.index.find(fingerprint, look).is_some()
    }

    /// Keeps the shard from changing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ShardState> {
        self.state.lock()
    }

    /// Takes a value in, and lets others go to make room. One that is larger than the shard is not
    /// taken.
    pub(crate) fn insert(&self, state: &mut ShardState, key: &Key, fingerprint: u64, value: Bytes) {
        let charge = charge(value.len());
        if charge > state.capacity {
            return;
        }
        self.catch_up(state);
        let same = |slot| self.slots.shows(slot, key).then_some(slot);
        if let Some(slot) = self.index.find(fingerprint, same) {
            state.policy().remove(slot);
            self.vacate(state, slot);
        }
        state.policy().miss(fingerprint);
        while state.bytes + charge > state.capacity || state.entries >= MOST_SLOTS as usize {
            if !self.evict(state) {
                return;
            }
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.used += 1;
            state.used - 1
        });
        self.slots.fill(slot, SlotEntry { key: *key, value });
        self.index.insert(fingerprint, slot, state.entries, |slot| self.fingerprint(slot));
        state.bytes += charge;
        state.entries += 1;
        state.policy().insert(slot, fingerprint);
    }

    /// Lets the entry go that the policy chooses; false when there is none.
    fn evict(&self, state: &mut ShardState) -> bool {
        let fingerprints = |slot| self.fingerprint(slot);
        let Some(slot) = state.policy().evict(&fingerprints) else {
            return false;
        };
        self.vacate(state, slot);
        state.evictions += 1;
        true
    }

    /// Empties a slot that the policy dropped.
    fn vacate(&self, state: &mut ShardState, slot: u32) -> Option<SlotEntry> {
        let fingerprint = self.fingerprint(slot);
        self.index.remove(fingerprint, slot, |slot| self.fingerprint(slot));
        let (entry, uses) = self.slots.empty(slot)?;
        state.hits += u64::from(uses);
        state.bytes -= charge(entry.value.len());
        state.entries -= 1;
        state.free.push(slot);
        Some(entry)
    }

    /// The fingerprint of what is in a slot.
    fn fingerprint(&self, slot: u32) -> u64 {
        self.slots.peek(slot, |entry| fingerprint(self.seed, &entry.key)).unwrap_or_default()
    }

    /// Changes how much it may hold; what is too much leaves, a few entries at a time.
    pub(crate) fn resize(&self, capacity: u64) {
        loop {
            let mut state = self.state.lock();
            self.catch_up(&mut state);
            state.capacity = capacity;
            for _ in 0..STEP {
                if state.bytes <= capacity || !self.evict(&mut state) {
                    return;
                }
            }
        }
    }

    /// Begins anew with `policy`, which is told of the entries in the order in which the old one
    /// would have let them go. Those that do not belong here any more are returned in that order.
    pub(crate) fn rebuild(
        &self,
        policy: PolicyKind,
        belongs: impl Fn(u64) -> bool,
    ) -> Vec<(SlotEntry, u64)> {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        let mut order = Vec::with_capacity(state.entries);
        if let Some(mut old) = state.policy.take() {
            order.extend(std::iter::from_fn(|| old.evict(&|slot| self.fingerprint(slot))));
        }
        state.kind = policy;
        let mut others = Vec::new();
        for slot in order {
            let fingerprint = self.fingerprint(slot);
            if belongs(fingerprint) {
                state.policy().insert(slot, fingerprint);
            } else if let Some(entry) = self.vacate(&mut state, slot) {
                others.push((entry, fingerprint));
            }
        }
        others
    }

    /// What it holds, and what happened so far.
    pub(crate) fn counters(&self) -> ShardCounters {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        ShardCounters {
            bytes: state.bytes,
            entries: state.entries as u64,
            evictions: state.evictions,
            hits: state.hits + self.untold.load(Ordering::Relaxed),
        }
    }
}
