//! What the cache would do with half or twice its memory, or with another policy: small caches of
//! names alone follow a sample of its accesses (C. Waldspurger, T. Saemundsson, I. Ahmad, N. Park:
//! "Cache Modeling and Optimization using Miniature Simulations", USENIX ATC 2017).
//!
//! A key is in the sample or it is not, by bits of its fingerprint; a cache that holds one in 64 of
//! the keys in one in 64 of the memory has the hit ratio of the whole, but for chance. Accesses to
//! the sample go to a bounded list, and are dealt with elsewhere and later; when more come than that
//! takes until then, the rest is not seen.

use crate::policy::{Policy, PolicyKind};
use crate::shard::{MOST_USES, charge, expected};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

/// Accesses that the list takes until they are dealt with.
const LIST: usize = 16_384;

/// A small cache should have room for so many bytes, about a thousand chunks, so that chance does
/// not rule; but one in eight keys is the most.
const SMALL: u64 = 64 << 20;
const OFTEN: u64 = 8;

/// One key in so many is in the sample, and of a cache that is so large that the small ones would
/// have room for more than so many bytes, fewer are.
const RARELY: u64 = 64;
const ENOUGH: u64 = 256 << 20;

/// The fewest keys that a sample can have: 16 bits tell.
const FEWEST: u64 = 1 << 14;

/// The least accesses of which anything is told.
const LEAST: u64 = 1000;

/// When so many were counted, they count half from then on: what is told is of late.
const WINDOW: u64 = 1 << 17;

/// A policy has to be better by so many hits in a thousand to be called better.
const WORTH: f64 = 0.005;

/// Sizes that are followed, in halves of the cache's own.
const SIZES: [u64; 3] = [1, 2, 4];

/// What sizes and policies would give, by the accesses of late.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// One in so many keys is in the sample.
    pub one_in: u64,
    /// Accesses to the sample that were followed since the settings last changed.
    pub followed: u64,
    /// Hit ratios of the policy in use.
    pub now: HitRatios,
    /// The policy that would have the most hits with the memory that there is; the one in use unless
    /// another is better by at least half a point.
    pub best: PolicyKind,
    /// Hit ratios of every policy that serves, the one in use among them.
    pub policies: Vec<HitRatios>,
}

/// Hits of all accesses, 0 to 1, under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HitRatios {
    /// The policy.
    pub policy: PolicyKind,
    /// With half the memory.
    pub half: f64,
    /// With the memory that there is.
    pub same: f64,
    /// With twice the memory.
    pub double: f64,
}

/// Takes the accesses to a sample of the keys down.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Keys of which 16 bits of the fingerprint are below this are in the sample.
    below: AtomicU32,
    list: Mutex<Vec<ForecastAccess>>,
}

/// Accesses to one key, one right after the other.
#[derive(Debug, Clone, Copy)]
struct ForecastAccess {
    fingerprint: u64,
    charge: u32,
    count: u32,
}

impl Sampler {
    /// Notes an access if its key is in the sample. Never waits.
    #[inline]
    pub(crate) fn note(&self, fingerprint: u64, len: usize) {
        // Shards and tables go by other bits.
        if ((fingerprint >> 40) & 0xffff) < u64::from(self.below.load(Ordering::Relaxed)) {
            self.push(fingerprint, len);
        }
    }

    #[inline(never)]
    fn push(&self, fingerprint: u64, len: usize) {
        let Some(mut list) = self.list.try_lock() else {
            return;
        };
        if let Some(last) = list.last_mut()
            && last.fingerprint == fingerprint
            && last.count < u32::MAX
        {
            last.count += 1;
        } else if list.len() < LIST {
            let charge = charge(len).min(u32::MAX.into()) as u32;
            list.push(ForecastAccess { fingerprint, charge, count: 1 });
        }
    }

    /// From now on one in so many keys is in the sample.
    fn start(&self, one_in: u64) {
        self.below.store((65_536 / one_in) as u32, Ordering::Relaxed);
        *self.list.lock() = Vec::with_capacity(LIST);
    }

    /// Takes what was noted, and leaves an empty list with room.
    fn take(&self) -> Vec<ForecastAccess> {
        std::mem::replace(&mut *self.list.lock(), Vec::with_capacity(LIST))
    }
}

/// The small caches that follow one cache.
pub(crate) struct Ghosts {
    settings: (u64, PolicyKind),
    one_in: u64,
    followed: u64,
    /// Ghosts of each policy, one of each size; the policy in use comes first.
    policies: Vec<(PolicyKind, [Ghost; 3])>,
}

impl Ghosts {
    /// For a cache with these settings.
    pub(crate) fn new(capacity: u64, policy: PolicyKind) -> Self {
        let one_in = (capacity / SMALL).clamp(OFTEN, RARELY).max(capacity / ENOUGH);
        let one_in = one_in.min(FEWEST).next_power_of_two();
        let others = PolicyKind::all().into_iter();
        let others = others.filter(|other| other.serves() && other.as_str() != policy.as_str());
        let sizes = |policy: PolicyKind| {
            let small = policy.in_miniature(one_in as u32);
            SIZES.map(|n| Ghost::new(capacity / 2 * n / one_in, small))
        };
        Self {
            settings: (capacity, policy),
            one_in,
            followed: 0,
            policies: std::iter::once(policy).chain(others).map(|p| (p, sizes(p))).collect(),
        }
    }

    /// Whether they follow a cache with these settings.
    pub(crate) fn are_of(&self, capacity: u64, policy: PolicyKind) -> bool {
        self.settings == (capacity, policy)
    }

    /// Has the sampler note what they follow.
    pub(crate) fn start(&self, sampler: &Sampler) {
        sampler.start(self.one_in);
    }

    /// Deals with what was noted.
    pub(crate) fn catch_up(&mut self, sampler: &Sampler) {
        let accesses = sampler.take();
        self.followed += accesses.iter().map(|access| u64::from(access.count)).sum::<u64>();
        for ghost in self.policies.iter_mut().flat_map(|(_, sizes)| sizes) {
            accesses.iter().for_each(|access| ghost.access(access));
        }
    }

    /// What they tell; `None` before there was enough.
    pub(crate) fn forecast(&self) -> Option<Forecast> {
        if self.followed < LEAST {
            return None;
        }
        let ratios = |(policy, sizes): &(PolicyKind, [Ghost; 3])| {
            let [half, same, double] = sizes.each_ref().map(Ghost::hit_ratio);
            HitRatios { policy: *policy, half, same, double }
        };
        let policies: Vec<HitRatios> = self.policies.iter().map(ratios).collect();
        let now = policies.first()?.clone();
        let best = policies.iter().max_by(|a, b| a.same.total_cmp(&b.same))?;
        let best = if best.same >= now.same + WORTH { best.policy } else { now.policy };
        Some(Forecast { one_in: self.one_in, followed: self.followed, now, best, policies })
    }
}

/// Passes a fingerprint, which is a hash already, through.
#[derive(Debug, Default, Clone, Copy)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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
type ByFingerprint<T> = HashMap<u64, T, BuildHasherDefault<IdentityHasher>>;

/// A cache that has names and no values.
struct Ghost {
    capacity: u64,
    bytes: u64,
    policy: Box<dyn Policy>,
    slots: ByFingerprint<u32>,
    /// Fingerprint and charge of what is in each slot.
    entries: Vec<(u64, u32)>,
    free: Vec<u32>,
    hits: u64,
    accesses: u64,
}

impl Ghost {
    fn new(capacity: u64, policy: PolicyKind) -> Self {
        Self {
            capacity,
            bytes: 0,
            policy: policy.build(expected(capacity)),
            slots: ByFingerprint::default(),
            entries: Vec::new(),
            free: Vec::new(),
            hits: 0,
            accesses: 0,
        }
    }

    fn access(&mut self, access: &ForecastAccess) {
        self.accesses += u64::from(access.count);
        let mut hits = access.count;
        if !self.slots.contains_key(&access.fingerprint) {
            self.insert(access);
            hits -= 1;
        }
        if let Some(slot) = self.slots.get(&access.fingerprint) {
            self.hits += u64::from(hits);
            (0..hits.min(MOST_USES)).for_each(|_| self.policy.hit(*slot));
        }
        if self.accesses > WINDOW {
            self.accesses /= 2;
            self.hits /= 2;
        }
    }

    fn insert(&mut self, access: &ForecastAccess) {
        let charge = u64::from(access.charge);
        if charge > self.capacity {
            return;
        }
        self.policy.miss(access.fingerprint);
        while self.bytes + charge > self.capacity {
            let fingerprints = |slot: u32| self.entries[slot as usize].0;
            let Some(slot) = self.policy.evict(&fingerprints) else {
                return;
            };
            let (fingerprint, charge) = self.entries[slot as usize];
            self.slots.remove(&fingerprint);
            self.bytes -= u64::from(charge);
            self.free.push(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, 0));
            self.entries.len() as u32 - 1
        });
        self.entries[slot as usize] = (access.fingerprint, access.charge);
        self.slots.insert(access.fingerprint, slot);
        self.bytes += charge;
        self.policy.insert(slot, access.fingerprint);
    }

    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.accesses.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// Has the ghosts of a cache of 1 GiB see accesses to chunks of 64 KiB.
    fn follow(policy: PolicyKind, accesses: impl Iterator<Item = u64>) -> Ghosts {
        let mut ghosts = Ghosts::new(1 << 30, policy);
        let sampler = Sampler::default();
        ghosts.start(&sampler);
        for (number, key) in accesses.enumerate() {
            sampler.note(spread(key), 64 << 10);
            if number % 10_000 == 0 {
                ghosts.catch_up(&sampler);
            }
        }
        ghosts.catch_up(&sampler);
        ghosts
    }

    #[test]
    fn a_loop_over_more_than_there_is_room_for_tells_what_memory_and_policy_would_give() {
        // LRU keeps nothing of a loop over 24,000 chunks in room for 16,384, and all with twice that.
        let ghosts = follow(PolicyKind::Lru, (0..10 * 24_000).map(|at| at % 24_000));
        let forecast = ghosts.forecast().unwrap();
        assert_eq!((forecast.one_in, forecast.now.policy), (16, PolicyKind::Lru));
        assert!(forecast.now.half < 0.01 && forecast.now.same < 0.01, "{forecast:?}");
        assert!(forecast.now.double > 0.88, "{forecast:?}");
        assert_eq!(forecast.policies.len(), 10);
        let best = forecast.policies.iter().find(|ratios| ratios.policy == forecast.best).unwrap();
        assert!(best.same > 0.5 && best.half < best.same, "{forecast:?}");
    }

    #[test]
    fn the_policy_in_use_is_the_best_when_all_are_alike() {
        for policy in [PolicyKind::Lru, PolicyKind::FMPQ, "fmpq:lifetime=8".parse().unwrap()] {
            let forecast = follow(policy, (0..100_000).map(|at| at % 1000)).forecast().unwrap();
            assert_eq!((forecast.best, forecast.policies.len()), (policy, 10));
            assert!(forecast.now.half > 0.95, "{forecast:?}");
        }
    }

    #[test]
    fn nothing_is_told_of_a_few_accesses_and_a_list_that_is_full_takes_no_more() {
        let ghosts = follow(PolicyKind::Lru, 0..LEAST);
        assert_eq!(ghosts.forecast(), None);
        let sampler = Sampler::default();
        sampler.note(0, 1);
        assert_eq!(sampler.take().len(), 0, "nobody follows yet");
        ghosts.start(&sampler);
        (0..100 * LIST as u64).for_each(|key| sampler.note(spread(key), 1));
        assert_eq!(sampler.take().len(), LIST);
        (0..100).for_each(|_| sampler.note(0, 1));
        let list = sampler.take();
        assert_eq!((list.len(), list[0].count, list[0].charge), (1, 100, 512));
    }
}
