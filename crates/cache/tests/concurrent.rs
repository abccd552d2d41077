//! The cache under many threads, while its settings change.

#![allow(clippy::unwrap_used)] // a test speaks by panicking
#![allow(clippy::disallowed_methods)] // threads are what is tested

use bytes::Bytes;
use cache::{Cache, Config, Key, PolicyKind};
use proptest::prelude::*;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

const CHUNK: usize = 64 << 10;
const KEYS: u64 = 20_000;

/// Where every value is a part of: no two of them begin alike.
static POOL: [u8; CHUNK + 8 * KEYS as usize] = {
    let mut pool = [0; CHUNK + 8 * KEYS as usize];
    let mut number = 0;
    while number < KEYS as usize {
        let bytes = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut at = 0;
        while at < 8 {
            pool[8 * number + at] = bytes[at];
            at += 1;
        }
        number += 1;
    }
    pool
};

fn key(number: u64) -> Key {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[24..].copy_from_slice(&number.to_le_bytes());
    key
}

fn value(number: u64) -> Bytes {
    let start = 8 * number as usize;
    Bytes::from_static(&POOL[start..start + CHUNK])
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20
}

/// An access whose load does not have to wait; whether it was loaded.
fn access(cache: &Cache, number: u64) -> bool {
    let mut loaded = false;
    let key = key(number);
    let found = cache.get(&key).unwrap_or_else(|| {
        let load = async {
            loaded = true;
            Ok(value(number))
        };
        let mut access = pin!(cache.get_or_load(&key, load));
        loop {
            // Another thread may be about to answer its own load.
            match access.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(found) => return found.unwrap(),
                Poll::Pending => std::thread::yield_now(),
            }
        }
    });
    assert!(found.len() == CHUNK && found[..8] == value(number)[..8], "another key's value");
    loaded
}

fn fill(cache: &Cache, number: u64) {
    let _loaded: bool = access(cache, number);
}

/// Everything that is held is found, and the numbers agree.
fn check(cache: &Cache, capacity: u64) {
    let stats = cache.stats();
    let held = (0..KEYS).filter(|number| cache.contains(&key(*number))).count() as u64;
    assert_eq!(stats.entries, held, "{stats:?}");
    assert_eq!(stats.bytes, held * CHUNK as u64);
    assert!(stats.bytes <= capacity && stats.capacity == capacity, "{stats:?}");
}

fn settings() -> impl Strategy<Value = (u64, PolicyKind)> {
    let serving: Vec<_> = PolicyKind::all().into_iter().filter(|kind| kind.serves()).collect();
    // One shard, two, and four.
    let size = prop::sample::select(vec![0, 10, 200, 511, 700, 1024u64]);
    (size.prop_map(|mib| mib << 20), prop::sample::select(serving))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn readers_get_their_own_values_while_size_and_policy_change(
        first in settings(),
        changes in prop::collection::vec(settings(), 1..8),
        seed in 1u64..u64::MAX,
    ) {
        let (capacity, policy) = first;
        let cache = Cache::new(Config { capacity, policy, seed });
        let (done, accesses, loads) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (cache, done, accesses, loads) = (&cache, &done, &accesses, &loads);
                scope.spawn(move || {
                    let mut state = seed.rotate_left(thread) | 1;
                    while !done.load(Ordering::Relaxed) {
                        // A few keys are hot.
                        let among = if random(&mut state).is_multiple_of(2) { 50 } else { KEYS };
                        let number = random(&mut state) % among;
                        accesses.fetch_add(1, Ordering::Relaxed);
                        loads.fetch_add(access(cache, number).into(), Ordering::Relaxed);
                    }
                });
            }
            for (capacity, policy) in &changes {
                let before = accesses.load(Ordering::Relaxed);
                while accesses.load(Ordering::Relaxed) < before + 5_000 {
                    std::thread::yield_now();
                }
                cache.change(*capacity, *policy);
            }
            done.store(true, Ordering::Relaxed);
        });
        let (capacity, policy) = changes[changes.len() - 1];
        prop_assert_eq!(cache.policy(), policy);
        check(&cache, capacity);
        let stats = cache.stats();
        prop_assert_eq!(stats.hits + stats.misses, accesses.into_inner());
        prop_assert_eq!(stats.loads, loads.into_inner());
        (0..KEYS).for_each(|number| fill(&cache, number));
        check(&cache, capacity);
    }
}

#[test]
fn entries_stay_when_the_policy_or_the_number_of_shards_changes() {
    let mib = |mib: u64| mib << 20;
    let cache = Cache::new(Config { capacity: mib(200), policy: PolicyKind::Lru, seed: 3 });
    (0..2000).for_each(|number| fill(&cache, number));
    let policies = PolicyKind::all().into_iter().filter(|kind| kind.serves());
    let sizes = [1024, 300, 4096, 200, 20_000, 512, 900, 150].map(mib);
    for (policy, size) in policies.zip(sizes.into_iter().cycle()) {
        cache.change(size, policy);
        assert_eq!(cache.stats().entries, 2000, "{policy} {size}");
        assert!((0..2000).all(|number| cache.get(&key(number)).is_some()));
        check(&cache, size);
    }
}

#[test]
fn what_was_used_last_stays_when_a_cache_shrinks_or_changes_its_policy() {
    let capacity = |entries: u64| entries * CHUNK as u64;
    let cache = Cache::new(Config { capacity: capacity(1000), policy: PolicyKind::Lru, seed: 3 });
    (0..1000).for_each(|number| fill(&cache, number));
    (0..100).for_each(|number| fill(&cache, number));
    cache.change(capacity(1000), PolicyKind::Fifo);
    cache.change(capacity(1000), PolicyKind::Lru);
    cache.change(capacity(200), PolicyKind::Lru);
    assert_eq!(cache.stats().evictions, 800);
    assert!((0..100).chain(900..1000).all(|number| cache.contains(&key(number))));
    cache.change(capacity(1000), PolicyKind::Lru);
    (100..900).for_each(|number| fill(&cache, number));
    assert_eq!(cache.stats().entries, 1000);
}

#[test]
fn of_two_changes_at_a_time_neither_undoes_the_other() {
    let cache = Cache::new(Config { capacity: 0, policy: PolicyKind::Lru, seed: 3 });
    let (sizes, policies) = ([1 << 20, 64 << 20, 700 << 20], [PolicyKind::Fifo, PolicyKind::Lru]);
    for round in 0..60 {
        let (size, policy) = (sizes[round % 3], policies[round % 2]);
        std::thread::scope(|scope| {
            scope.spawn(|| cache.change(size, None));
            scope.spawn(|| cache.change(None, policy));
        });
        assert_eq!((cache.capacity(), cache.policy()), (size, policy), "round {round}");
    }
}
