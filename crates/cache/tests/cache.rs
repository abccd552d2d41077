//! What the cache promises to its users.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use block::{Error, ErrorKind};
use bytes::Bytes;
use cache::{Cache, Config, Key, PolicyKind};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

fn cache(capacity: u64, policy: PolicyKind) -> Cache {
    Cache::new(Config { capacity, policy, seed: 7 })
}

fn key(number: u64) -> Key {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[24..].copy_from_slice(&number.to_le_bytes());
    key
}

async fn put(cache: &Cache, number: u64, value: Bytes) {
    cache.get_or_load(&key(number), async { Ok(value) }).await.unwrap();
}

#[tokio::test]
async fn a_value_is_loaded_once_and_then_held() {
    let cache = cache(1 << 20, PolicyKind::Lru);
    assert_eq!(cache.get(&key(1)), None);
    let value = cache.get_or_load(&key(1), async { Ok(Bytes::from_static(b"one")) }).await.unwrap();
    assert_eq!(value, "one");
    assert_eq!(cache.get(&key(1)).unwrap(), "one");
    let again = cache.get_or_load(&key(1), async { panic!("loaded again") }).await.unwrap();
    assert_eq!(again, "one");
    assert!(cache.contains(&key(1)) && !cache.contains(&key(2)));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.loads), (2, 1, 1));
    assert_eq!((stats.entries, stats.bytes, stats.capacity), (1, 512, 1 << 20));
}

#[tokio::test]
async fn a_hundred_simultaneous_callers_share_one_load() {
    let cache = Arc::new(cache(1 << 20, PolicyKind::FMPQ));
    let loads = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..100 {
        let (cache, loads, gate) = (Arc::clone(&cache), Arc::clone(&loads), Arc::clone(&gate));
        callers.spawn(async move {
            let load = async {
                loads.fetch_add(1, Ordering::Relaxed);
                let _pass = gate.acquire().await;
                Ok(Bytes::from(vec![9; 65536]))
            };
            cache.get_or_load(&key(5), load).await.unwrap()
        });
    }
    while cache.stats().misses < 100 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    while let Some(value) = callers.join_next().await {
        assert_eq!(value.unwrap(), vec![9; 65536]);
    }
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.loads), (0, 100, 1));
}

#[tokio::test]
async fn when_the_caller_that_loads_is_cancelled_another_takes_over() {
    let cache = Arc::new(cache(1 << 20, PolicyKind::Lru));
    let mut first = JoinSet::new();
    let shared = Arc::clone(&cache);
    first.spawn(async move { shared.get_or_load(&key(1), std::future::pending()).await });
    let mut second = JoinSet::new();
    while cache.stats().loads < 1 {
        tokio::task::yield_now().await;
    }
    let shared = Arc::clone(&cache);
    second.spawn(async move {
        shared.get_or_load(&key(1), async { Ok(Bytes::from_static(b"second")) }).await
    });
    while cache.stats().misses < 2 {
        tokio::task::yield_now().await;
    }
    first.shutdown().await;
    assert_eq!(second.join_next().await.unwrap().unwrap().unwrap(), "second");
    assert_eq!(cache.stats().loads, 2);
    assert!(cache.contains(&key(1)));
}

#[tokio::test]
async fn a_failed_load_is_told_to_all_who_wait_and_not_remembered() {
    let cache = Arc::new(cache(1 << 20, PolicyKind::Lru));
    let gate = Arc::new(Semaphore::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (cache, gate) = (Arc::clone(&cache), Arc::clone(&gate));
        callers.spawn(async move {
            let load = async {
                let _pass = gate.acquire().await;
                Err(Error::unavailable("pack 7: the store does not answer"))
            };
            cache.get_or_load(&key(1), load).await
        });
    }
    while cache.stats().misses < 10 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    while let Some(result) = callers.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.message(), "pack 7: the store does not answer");
    }
    assert_eq!(cache.stats().loads, 1);
    put(&cache, 1, Bytes::from_static(b"now")).await;
    assert_eq!(cache.get(&key(1)).unwrap(), "now");
}

#[tokio::test]
async fn a_bad_place_of_one_caller_does_not_fail_another_that_has_a_good_one() {
    for failure in [Error::corrupt("pack 7 is damaged"), Error::not_found("pack 7 is gone")] {
        let cache = cache(1 << 20, PolicyKind::Lru);
        let mut failure = Some(failure);
        let kind = failure.as_ref().unwrap().kind();
        let key = key(1);
        let bad = cache.get_or_load(&key, async {
            tokio::task::yield_now().await;
            Err(failure.take().unwrap())
        });
        let good = cache.get_or_load(&key, async { Ok(Bytes::from_static(b"good")) });
        let (bad, good) = tokio::join!(biased; bad, good);
        assert_eq!(bad.unwrap_err().kind(), kind);
        assert_eq!(good.unwrap(), "good");
        assert_eq!(cache.get(&key).unwrap(), "good");
    }
}

#[tokio::test]
async fn a_value_larger_than_the_cache_is_given_but_not_held() {
    let cache = cache(100_000, PolicyKind::Lru);
    put(&cache, 1, Bytes::from(vec![1; 60_000])).await;
    let value = cache.get_or_load(&key(2), async { Ok(Bytes::from(vec![2; 100_001])) }).await;
    assert_eq!(value.unwrap().len(), 100_001);
    assert!(!cache.contains(&key(2)) && cache.contains(&key(1)));
}

#[tokio::test]
async fn a_cache_of_no_capacity_holds_nothing_and_still_loads() {
    let cache = cache(0, PolicyKind::FMPQ);
    put(&cache, 1, Bytes::from_static(b"x")).await;
    put(&cache, 2, Bytes::new()).await;
    assert_eq!(cache.get(&key(1)), None);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.loads), (0, 0, 2));
}

#[tokio::test]
async fn a_large_cache_is_filled_through_all_its_shards() {
    let cache = cache(1 << 30, PolicyKind::FMPQ);
    let value = Bytes::from(vec![0; 65536]);
    for number in 0..32_768 {
        put(&cache, number, value.clone()).await;
    }
    let stats = cache.stats();
    assert_eq!(stats.entries + stats.evictions, 32_768);
    assert!(stats.bytes <= 1 << 30 && stats.bytes > (1 << 30) / 10 * 9, "{stats:?}");
}

#[test]
fn futures_of_the_cache_can_move_between_threads() {
    fn is_send(_: impl Send) {}
    let cache = cache(0, PolicyKind::Lru);
    is_send(cache.get_or_load(&key(1), async { Ok(Bytes::new()) }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn it_never_exceeds_its_capacity_and_never_mixes_values(
        capacity in 0u64..40_000,
        policy in prop::sample::select(PolicyKind::all().to_vec()),
        accesses in prop::collection::vec((0u64..40, 0usize..6000), 1..300),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let cache = cache(capacity, policy);
            let mut current = HashMap::new();
            for (number, len) in accesses {
                let fresh = Bytes::from(vec![number as u8; len]);
                let held = cache.contains(&key(number));
                let value = cache.get_or_load(&key(number), async { Ok(fresh.clone()) }).await.unwrap();
                let expected = if held { &current[&number] } else { &fresh };
                assert_eq!(&value, expected);
                current.insert(number, value);
                let stats = cache.stats();
                assert!(stats.bytes <= capacity, "{stats:?}");
                assert!(stats.loads == stats.misses);
            }
        });
    }
}
