//! What the simulator says, against slow and plain simulations.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use cache::PolicyKind;
use proptest::prelude::*;
use simulate::{Curve, Options, Policy, Question, Sharing, Stream, run, tune};
use std::collections::{HashMap, HashSet, VecDeque};
use trace::{Header, Memory, Op, Request};

/// Ids that are dense in order of their first appearance.
fn dense(keys: Vec<u32>) -> Stream {
    let mut ids = HashMap::new();
    let id = |key: &u32| {
        let next = ids.len() as u32;
        *ids.entry(*key).or_insert(next)
    };
    Stream::of_reads(keys.iter().map(id).collect())
}

fn stream() -> impl Strategy<Value = Stream> {
    let key = prop_oneof![3 => 0u32..6, 2 => 0u32..20, 1 => 0u32..60];
    prop::collection::vec(key, 1..400).prop_map(dense)
}

fn lru_hits(stream: &Stream, blocks: usize) -> u64 {
    let mut order = VecDeque::new();
    let mut hits = 0;
    for (id, _) in stream.references() {
        if let Some(at) = order.iter().position(|other| *other == id) {
            order.remove(at);
            hits += 1;
        } else if order.len() == blocks {
            order.pop_front();
        }
        order.push_back(id);
    }
    hits
}

/// Belady's rule, looking ahead at every eviction.
fn best_hits(stream: &Stream, blocks: usize) -> u64 {
    let ids: Vec<u32> = stream.references().map(|(id, _)| id).collect();
    let mut held: Vec<u32> = Vec::new();
    let mut hits = 0;
    for (at, id) in ids.iter().enumerate() {
        if held.contains(id) {
            hits += 1;
            continue;
        }
        if held.len() == blocks {
            let next = |held: &u32| ids[at + 1..].iter().position(|id| id == held);
            let far = |held: &u32| next(held).unwrap_or(usize::MAX);
            let victim = (0..blocks).max_by_key(|slot| far(&held[*slot])).unwrap();
            held.remove(victim);
        }
        held.push(*id);
    }
    hits
}

/// Requests of two clients of two disks.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let op = prop::sample::select(Op::ALL.to_vec());
    let request = (0u32..2, 0u32..2, op, 0u64..60_000, 0u32..20_000).prop_map(
        |(client, disk, op, offset, length)| {
            let length = if op == Op::Flush { 0 } else { length };
            Request { client, disk, op, offset, length, ..Request::default() }
        },
    );
    prop::collection::vec(request, 1..200)
}

/// The names of the blocks that the server's cache is asked for, and whether to write; the clients'
/// reads, and how many their own caches answer.
fn asked_for(requests: &[Request], options: &Options) -> (Vec<(String, bool)>, [u64; 2]) {
    let mut written = HashSet::new();
    let mut clients: HashMap<(u32, u32), VecDeque<String>> = HashMap::new();
    let (mut asked, mut reads) = (Vec::new(), [0; 2]);
    for r in requests.iter().filter(|r| !matches!(r.op, Op::Flush | Op::Trim) && r.length > 0) {
        let write = r.op != Op::Read;
        let size = u64::from(options.per.unwrap_or(options.block));
        for place in r.offset / size..=(r.offset + u64::from(r.length) - 1) / size {
            let block = place * size / u64::from(options.block);
            let own = format!("{}/{}/{block}", r.client, r.disk);
            let name = match options.sharing {
                Sharing::Disk => format!("{}/{block}", r.disk),
                Sharing::Private => own,
                Sharing::Image if write || written.contains(&own) => {
                    written.insert(own.clone());
                    own
                }
                Sharing::Image => format!("{block}"),
            };
            let mut hit = false;
            if let Some((_, blocks)) = options.client {
                let cache = clients.entry((r.client, r.disk)).or_default();
                hit = cache.contains(&name);
                cache.retain(|other| *other != name);
                cache.push_back(name.clone());
                if cache.len() > blocks as usize {
                    cache.pop_front();
                }
            }
            if !write {
                reads[0] += 1;
                reads[1] += u64::from(hit);
            }
            if if write { options.writes } else { !hit } {
                asked.push((name, write));
            }
        }
    }
    (asked, reads)
}

proptest! {
    #[test]
    fn the_curve_is_lru_at_every_size(stream in stream()) {
        let curve = Curve::of(&stream);
        for blocks in 1..40u32 {
            let hits = lru_hits(&stream, blocks as usize);
            prop_assert_eq!(curve.hits(blocks), hits);
            let simulated = run(Policy::Kind(PolicyKind::Lru), blocks, &stream, false);
            prop_assert_eq!(simulated.hits, hits);
            let ratio = curve.hit_ratios(&[u64::from(blocks)])[0];
            prop_assert!((ratio - simulated.hit_ratio()).abs() < 1e-12);
        }
    }

    #[test]
    fn the_best_is_beladys(stream in stream(), blocks in 1u32..24) {
        let outcome = run(Policy::Opt, blocks, &stream, false);
        prop_assert_eq!(outcome.hits, best_hits(&stream, blocks as usize));
    }

    #[test]
    fn no_policy_beats_the_best(stream in stream(), blocks in 1u32..24) {
        let best = run(Policy::Opt, blocks, &stream, false).hits;
        for kind in PolicyKind::all() {
            let outcome = run(Policy::Kind(kind), blocks, &stream, true);
            prop_assert!(outcome.hits <= best, "{} beats it", kind);
            prop_assert_eq!(outcome.hits + outcome.misses, stream.len() as u64);
            prop_assert_eq!(outcome.split(5).iter().sum::<u64>(), stream.len() as u64 - outcome.cold);
        }
    }

    #[test]
    fn requests_become_the_references_that_the_server_sees(
        requests in requests(), writes: bool, client in prop::option::of(1u32..8),
        sharing in prop::sample::select(vec![Sharing::Disk, Sharing::Image, Sharing::Private]),
        (block, per) in prop::sample::select(vec![
            (512u32, None), (4096, None), (131_072, None), (4096, Some(512)), (131_072, Some(4096)),
        ]),
    ) {
        let client = client.map(|blocks| (PolicyKind::Lru, blocks));
        let options = Options { block, per, writes, sharing, client, one_in: 1 };
        let mut source = Memory::new(Header::default(), requests.clone());
        let stream = Stream::read(&mut source, &options).unwrap();
        let mut ids = HashMap::new();
        let (asked, reads) = asked_for(&requests, &options);
        prop_assert_eq!([stream.client_reads, stream.client_hits], reads);
        let expected: Vec<(u32, bool)> = asked
            .into_iter()
            .map(|(name, write)| {
                let next = ids.len() as u32;
                (*ids.entry(name).or_insert(next), write)
            })
            .collect();
        prop_assert_eq!(stream.references().collect::<Vec<_>>(), expected);
        prop_assert_eq!(stream.blocks() as usize, ids.len());
        prop_assert_eq!(stream.requests, requests.len() as u64);
    }
}

/// A load whose hit ratio grows slowly with size: a walk over blocks of very different popularity.
fn popular(references: u32, blocks: f64) -> Stream {
    let mut state = 7u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    dense((0..references).map(|_| (blocks.powf(random()) * 16.0 * random()) as u32).collect())
}

#[test]
fn a_sample_gives_nearly_the_curve_of_all() {
    let stream = popular(400_000, 20_000.0);
    let sizes: Vec<u64> = (1..20).map(|step| step * 4000).collect();
    let exact = Curve::of(&stream).hit_ratios(&sizes);
    let sampled = Curve::of(&stream.sample(16)).hit_ratios(&sizes);
    for ((size, exact), sampled) in sizes.iter().zip(exact).zip(sampled) {
        assert!((exact - sampled).abs() < 0.02, "{size} blocks: {exact:.3}, sampled {sampled:.3}");
    }
}

#[test]
fn tuning_sees_a_loop_that_lru_loses() {
    let stream = dense((0..400_000u32).map(|at| at % 20_000).collect());
    let advice = tune(&stream, &Question::new(16_000)).unwrap();
    assert!(advice.lru.hit_ratio < 0.02, "{:?}", advice.lru);
    assert!(advice.best().hit_ratio > 0.5, "{:?}", advice.best());
    assert!(advice.saved() > 0.5);
    assert_eq!((advice.one_in, advice.samples), (64, 4));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let read = |options: Options, request: Request| {
        let mut source = Memory::new(Header::default(), vec![request]);
        Stream::read(&mut source, &options).unwrap_err().to_string()
    };
    let request = Request { length: 1, ..Request::default() };
    assert!(read(Options { block: 5000, ..Options::default() }, request).contains("power of two"));
    assert!(read(Options { one_in: 0, ..Options::default() }, request).contains("one in 0"));
    let far = Request { offset: (1 << 62) - 1, ..request };
    assert!(read(Options::default(), far).contains("use larger blocks"));
    let empty = Stream::of_reads(Vec::new());
    assert!(tune(&empty, &Question::new(100)).is_err());
    assert_eq!(run(Policy::Opt, 0, &dense(vec![1, 1]), false).hits, 0);
}
