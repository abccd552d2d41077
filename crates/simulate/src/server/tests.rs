use super::*;
use crate::{Chunks, Law};
use model::{CentreKind, Demand, ProfileCentre};
use proptest::prelude::*;
use trace::{Op, Request};

const LAW: Law = Law { least: 8, mean: 24, most: 64 };
const MS: u64 = 1_000_000;

fn chunks() -> Chunks {
    Chunks::new(120 << 10, LAW).unwrap()
}

/// A processor that takes 0.1 ms for each request, and a disk that takes so many ms for a miss.
fn profile(miss_ms: f64) -> Profile {
    let centre = |name: &str, request, miss| ProfileCentre {
        name: name.to_owned(),
        kind: CentreKind::Queue,
        request: Demand::constant(request).unwrap(),
        miss: Demand::constant(miss).unwrap(),
        piece: 0.0,
    };
    let centres = vec![centre("cpu", 1e-4, 0.0), centre("disk", 0.0, miss_ms * 1e-3)];
    Profile { name: "test".to_owned(), centres }
}

/// Clients that each read these places, one after the other.
fn load(clients: u32, places: &[u64]) -> ServerLoad {
    let cuts = chunks();
    let mut load = ServerLoad::new(cuts.clone());
    for (step, offset) in places.iter().enumerate() {
        for client in 0..clients {
            let (time, length) = (step as u64 * MS, 4096);
            let request = Request { client, time, offset: *offset, length, ..Request::default() };
            load.push(&request, &[cuts.at(*offset).0]).unwrap();
        }
    }
    load
}

/// One cache that holds all that is read, and nothing ahead.
fn one_cache() -> ServerSetup {
    ServerSetup {
        memory: 1 << 40,
        policy: PolicyKind::Lru,
        pieces: 0,
        read_ahead: 0,
        loads: 64,
        boot_list: false,
    }
}

fn crowd(clients: u32) -> Crowd {
    let pace = ClientPace::Pause(0);
    Crowd { clients, private: false, stagger: 0, pace, until: None, warm_up: 0 }
}

/// Places far from each other.
fn apart(count: u64) -> Vec<u64> {
    (0..count).map(|n| n << 20).collect()
}

#[test]
fn clients_in_step_share_every_load_and_unrelated_ones_do_not() {
    let (profile, load) = (profile(5.0), load(1, &apart(100)));
    let alone = serve(&profile, &load, &one_cache(), &crowd(1)).unwrap();
    assert_eq!((alone.answers, alone.misses, alone.store_loads), (100, 100, 100));
    assert!((alone.seconds - 100.0 * 5.1e-3).abs() < 1e-6, "{alone:?}");
    let herd = serve(&profile, &load, &one_cache(), &crowd(6)).unwrap();
    assert_eq!((herd.answers, herd.store_loads), (600, 100), "{herd:?}");
    assert!(herd.throughput > 5.0 * alone.throughput, "{herd:?}");
    let own = Crowd { private: true, ..crowd(6) };
    let own = serve(&profile, &load, &one_cache(), &own).unwrap();
    assert_eq!(own.store_loads, 600);
    assert!(own.throughput < 1.05 * 200.0, "the disk is the bottleneck: {own:?}");
}

#[test]
fn who_comes_later_finds_what_was_read() {
    let later = Crowd { stagger: 1000 * MS, ..crowd(3) };
    let seen = serve(&profile(5.0), &load(1, &apart(50)), &one_cache(), &later).unwrap();
    assert_eq!((seen.hits, seen.misses, seen.shared), (100, 50, 0));
}

#[test]
fn what_left_the_cache_comes_from_the_pieces() {
    let places: Vec<u64> = apart(50).into_iter().chain(apart(50)).collect();
    let load = load(1, &places);
    let setup = ServerSetup { memory: 1 << 20, ..one_cache() };
    let without = serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap();
    assert_eq!((without.misses, without.store_loads), (100, 100));
    let setup = ServerSetup { pieces: 1 << 30, ..setup };
    let with = serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap();
    assert_eq!((with.misses, with.store_loads), (100, 50));
    assert!(with.seconds < without.seconds * 0.55, "{with:?}");
    assert_eq!(with.store_bytes % pieces::PIECE, 0);
    let setup = ServerSetup { pieces: 1 << 20, ..setup };
    assert_eq!(serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap().store_loads, 100);
}

#[test]
fn a_load_that_needs_a_piece_on_its_way_waits_for_it() {
    // Chunks are cut elsewhere than pieces: neighbours need the same piece.
    let cuts = chunks();
    let second = cuts.at(0).1;
    let mut load = ServerLoad::new(cuts);
    for (client, offset) in [(0, 0), (1, second)] {
        let request = Request { client, offset, length: 4096, ..Request::default() };
        load.push(&request, &[chunks().at(offset).0]).unwrap();
    }
    let setup = ServerSetup { pieces: 1 << 30, ..one_cache() };
    let seen = serve(&profile(5.0), &load, &setup, &crowd(2)).unwrap();
    assert_eq!((seen.answers, seen.misses), (2, 2));
    assert!(seen.response >= 5e-3, "{seen:?}");
}

#[test]
fn every_piece_that_comes_takes_its_time() {
    let load = load(1, &apart(50));
    let setup = ServerSetup { pieces: 1 << 30, ..one_cache() };
    let free = serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap();
    let mut profile = profile(5.0);
    profile.centres.push(ProfileCentre {
        name: "piece cache".to_owned(),
        kind: CentreKind::Delay,
        request: Demand::default(),
        miss: Demand::default(),
        piece: 1e-3,
    });
    let kept = serve(&profile, &load, &setup, &crowd(1)).unwrap();
    let pieces = (kept.store_bytes / pieces::PIECE) as f64;
    assert!(pieces >= 50.0 && kept.store_bytes == free.store_bytes);
    assert!((kept.seconds - free.seconds - pieces * 1e-3).abs() < 1e-6, "{free:?} {kept:?}");
    // Without a piece cache there are none.
    let none = serve(&profile, &load, &one_cache(), &crowd(1)).unwrap();
    assert!((none.seconds - 50.0 * 5.1e-3).abs() < 1e-6, "{none:?}");
}

#[test]
fn neighbours_that_are_asked_for_at_the_same_time_come_in_one_request() {
    let cuts = chunks();
    let second = cuts.at(0).1;
    for (apart, requests) in [(second, 1), (second + (1 << 20), 2)] {
        let mut load = ServerLoad::new(chunks());
        for (client, offset) in [(0, 0), (1, apart)] {
            let request = Request { client, offset, length: 4096, ..Request::default() };
            load.push(&request, &[cuts.at(offset).0]).unwrap();
        }
        let seen = serve(&profile(5.0), &load, &one_cache(), &crowd(2)).unwrap();
        assert_eq!((seen.answers, seen.loads, seen.store_loads), (2, 2, requests), "{seen:?}");
        let arm = 5e-3 * requests as f64;
        assert!((seen.seconds - arm).abs() < 3e-4, "{seen:?}");
    }
}

#[test]
fn reading_in_order_is_ahead_of_the_client() {
    let places: Vec<u64> = (0..2048).map(|n| n * 4096).collect();
    let load = load(1, &places);
    let slow = serve(&profile(5.0), &load, &one_cache(), &crowd(1)).unwrap();
    let setup = ServerSetup { read_ahead: 2 << 20, ..one_cache() };
    let ahead = serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap();
    assert!(ahead.seconds < slow.seconds * 0.8, "{slow:?} {ahead:?}");
    assert!(ahead.loads < slow.loads / 2, "long requests: {slow:?} {ahead:?}");
}

#[test]
fn a_boot_list_brings_what_the_first_client_is_about_to_read() {
    let load = load(1, &apart(200));
    let setup = ServerSetup { boot_list: true, ..one_cache() };
    let seen = serve(&profile(5.0), &load, &setup, &crowd(1)).unwrap();
    let cold = serve(&profile(5.0), &load, &one_cache(), &crowd(1)).unwrap();
    assert!(seen.seconds < cold.seconds * 0.5, "{cold:?} {seen:?}");
    assert!(seen.loads < 100, "side by side: {seen:?}");
}

#[test]
fn writes_and_private_blocks_never_wait_for_the_store() {
    let cuts = chunks();
    let mut load = ServerLoad::new(cuts);
    for op in [Op::Write, Op::Read, Op::Flush] {
        let length = if op == Op::Flush { 0 } else { 4096 };
        load.push(&Request { op, length, ..Request::default() }, &[]).unwrap();
    }
    let seen = serve(&profile(5.0), &load, &one_cache(), &crowd(1)).unwrap();
    assert_eq!((seen.answers, seen.loads), (2, 0));
    assert!((seen.response - 1e-4).abs() < 1e-9);
}

#[test]
fn pauses_are_those_of_the_trace_after_the_answer() {
    let load = load(1, &apart(11));
    let seen =
        serve(&profile(5.0), &load, &one_cache(), &Crowd { pace: ClientPace::Trace, ..crowd(1) })
            .unwrap();
    assert!((seen.seconds - (10.0 * 1e-3 + 11.0 * 5.1e-3)).abs() < 1e-6, "{seen:?}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let (profile, load) = (profile(5.0), load(1, &apart(3)));
    assert!(serve(&profile, &load, &one_cache(), &crowd(0)).is_err());
    assert!(serve(&profile, &ServerLoad::new(chunks()), &one_cache(), &crowd(1)).is_err());
    let small = ServerSetup { memory: 4096, ..one_cache() };
    let error = serve(&profile, &load, &small, &crowd(1)).unwrap_err();
    assert!(error.message().contains("does not hold a chunk"), "{error}");
}

/// Unrelated clients on a cache that holds all, and on one that holds nothing: the exact solution of a
/// network, which takes service for exponential, is no better, and its bounds hold.
#[test]
fn unrelated_clients_get_what_arithmetic_says() {
    let mut random = 7u64;
    let mut draw = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) << 20
    };
    let cuts = chunks();
    let mut load = ServerLoad::new(cuts.clone());
    for step in 0..400u64 {
        for client in 0..16 {
            let (offset, time) = (draw() % (1 << 40), step);
            let request = Request { client, time, offset, length: 4096, ..Request::default() };
            load.push(&request, &[cuts.at(offset).0]).unwrap();
        }
    }
    let profile = profile(5.0);
    for clients in [1, 2, 4, 16] {
        let setup = ServerSetup { memory: 1 << 20, ..one_cache() };
        let seen = serve(&profile, &load, &setup, &crowd(clients)).unwrap();
        let hit = seen.hit_ratio();
        let exact = profile.network(4096, hit, 0.0).unwrap().solve(clients).unwrap();
        let off = seen.throughput / exact.throughput - 1.0;
        // Service that is always as long is met a little sooner.
        assert!((-0.01..0.06).contains(&off), "{clients}: {off} {seen:?} {exact:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_request_is_answered_once_whatever_the_server(
        places in prop::collection::vec((0u32..4, 0u64..256, 1u32..80, any::<bool>()), 1..120),
        clients in 1u32..9, memory in 1u64..40, pieces in 0u64..40, ahead in 0u64..8,
        loads in 0usize..9, boot_list: bool, private: bool,
    ) {
        let cuts = chunks();
        let mut load = ServerLoad::new(cuts.clone());
        let mut by_client = [0u64; 4];
        for (client, place, pages, read) in &places {
            let (offset, length) = (place * 65536, pages * 4096);
            let op = if *read { Op::Read } else { Op::Write };
            let request = Request { client: *client, op, offset, length, ..Request::default() };
            let mut keys = Vec::new();
            let mut at = offset;
            while *read && at < request.end() {
                let (key, next) = cuts.at(at);
                keys.push(key);
                at = next;
            }
            load.push(&request, &keys).unwrap();
            by_client[*client as usize] += 1;
        }
        let asked: Vec<u64> = load.scripts.iter().map(|script| script.steps.len() as u64).collect();
        let expected: u64 = (0..clients as usize).map(|n| asked[n % asked.len()]).sum();
        let setup = ServerSetup {
            memory: (memory + 1) << 18, pieces: pieces << 17, read_ahead: ahead << 17, loads, boot_list,
            policy: PolicyKind::default(),
        };
        let crowd = Crowd { private, ..crowd(clients) };
        let seen = serve(&profile(5.0), &load, &setup, &crowd).unwrap();
        prop_assert_eq!(seen.answers, expected);
        prop_assert!(seen.shared <= seen.misses && seen.store_loads <= seen.loads);
        prop_assert!(seen.utilisation.iter().all(|used| (0.0..=1.0 + 1e-9).contains(used)));
    }
}
