//! What the simulator says, against slow and plain simulations.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use cache::PolicyKind;
use proptest::prelude::*;
use simulate::shards::Shards;
use simulate::{
    Budget, Chunks, Costs, Curve, Law, ReferenceOptions, ReferenceStream, Sharing, SimulatedPolicy,
    TuningQuestion, run, run_sizes, tune, whole,
};
use std::collections::{HashMap, HashSet, VecDeque};
use trace::{Header, Memory, Op, Request, Sample, Source, TraceDisk};

/// Ids that are dense in order of their first appearance.
fn dense(keys: Vec<u32>) -> ReferenceStream {
    let mut ids = HashMap::new();
    let id = |key: &u32| {
        let next = ids.len() as u32;
        *ids.entry(*key).or_insert(next)
    };
    ReferenceStream::of_reads(keys.iter().map(id).collect())
}

fn stream() -> impl Strategy<Value = ReferenceStream> {
    let key = prop_oneof![3 => 0u32..6, 2 => 0u32..20, 1 => 0u32..60];
    prop::collection::vec(key, 1..400).prop_map(dense)
}

/// What policies differ on: popular blocks, runs, the same block several times in a row, reads and writes.
fn load() -> impl Strategy<Value = ReferenceStream> {
    let part = prop_oneof![
        4 => (0u32..8, 1u32..2, 1u32..3),
        4 => (0u32..90, 1u32..2, 1u32..8),
        2 => (0u32..90, 1u32..80, 1u32..2),
    ];
    let parts = prop::collection::vec((part, prop::bool::weighted(0.2)), 1..200);
    parts.prop_map(|parts| {
        let mut requests = Vec::new();
        for ((first, length, times), write) in parts {
            let op = if write { Op::Write } else { Op::Read };
            for block in
                (first..first + length).flat_map(|id| std::iter::repeat_n(id, times as usize))
            {
                let offset = u64::from(block) * 4096;
                requests.push(Request { op, offset, length: 4096, ..Request::default() });
            }
        }
        let options = ReferenceOptions { writes: true, ..ReferenceOptions::default() };
        ReferenceStream::read(&mut Memory::new(Header::default(), requests), &options).unwrap()
    })
}

/// Thousands of references to hundreds of blocks: some popular, some in runs, some never again.
fn long_load() -> impl Strategy<Value = ReferenceStream> {
    let part = prop_oneof![
        4 => (0u32..40, 1u32..3),
        3 => (0u32..700, 1u32..30),
        1 => (0u32..100_000, 1u32..200),
    ];
    let parts = prop::collection::vec((part, 1u32..3), 1..500);
    parts.prop_map(|parts| {
        let runs = parts.into_iter().flat_map(|((first, length), times)| {
            (0..times).flat_map(move |_| first..first + length)
        });
        dense(runs.collect())
    })
}

fn lru_hits(stream: &ReferenceStream, blocks: usize) -> u64 {
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
fn best_hits(stream: &ReferenceStream, blocks: usize) -> u64 {
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
fn asked_for(
    requests: &[Request],
    options: &ReferenceOptions,
    bases: [&str; 2],
) -> (Vec<(String, bool)>, [u64; 2]) {
    let mut written = HashSet::new();
    let mut clients: HashMap<(u32, u32), VecDeque<String>> = HashMap::new();
    let (mut asked, mut reads) = (Vec::new(), [0; 2]);
    for r in requests.iter().filter(|r| !matches!(r.op, Op::Flush | Op::Trim) && r.length > 0) {
        let write = r.op != Op::Read;
        let size = u64::from(options.per.unwrap_or(options.block));
        for place in r.offset / size..=(r.offset + u64::from(r.length) - 1) / size {
            let block = place * size / u64::from(options.block);
            let own = format!("{}/{}/{block}", r.client, r.disk);
            let of_disk = format!("own {}/{block}", r.disk);
            let mut private = false;
            let base = bases[r.disk as usize];
            let name = match options.sharing {
                Sharing::Base if !base.is_empty() => {
                    private = write || written.contains(&of_disk);
                    if write {
                        written.insert(of_disk.clone());
                    }
                    if private { of_disk } else { format!("{base}: {block}") }
                }
                Sharing::Disk | Sharing::Base => format!("{}/{block}", r.disk),
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
            if if write { options.writes } else { !hit && (!private || options.writes) } {
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
            let simulated = run(SimulatedPolicy::Kind(PolicyKind::Lru), blocks, &stream, false);
            prop_assert_eq!(simulated.hits, hits);
            let ratio = curve.hit_ratios(&[u64::from(blocks)])[0];
            prop_assert!((ratio - simulated.hit_ratio()).abs() < 1e-12);
        }
    }

    #[test]
    fn a_request_hits_when_all_its_blocks_do(
        stream in stream(), blocks in 1u32..24, lengths in prop::collection::vec(0usize..4, 1..400),
    ) {
        let mut ends: Vec<u32> = Vec::new();
        let (mut lru, mut expected, mut at) = (VecDeque::new(), 0, 0);
        let ids: Vec<u32> = stream.references().map(|(id, _)| id).collect();
        for length in lengths {
            let end = (at + length).min(ids.len());
            let mut all = true;
            for id in &ids[at..end] {
                all &= lru.contains(id);
                lru.retain(|other| other != id);
                lru.push_back(*id);
                if lru.len() > blocks as usize {
                    lru.pop_front();
                }
            }
            expected += u64::from(all);
            at = end;
            ends.push(end as u32);
        }
        let whole = whole(PolicyKind::Lru, blocks, 0, &stream, &ends);
        prop_assert_eq!((whole.cache, whole.below), (expected, 0));
    }

    #[test]
    fn the_best_is_beladys(stream in stream(), blocks in 1u32..24) {
        let outcome = run(SimulatedPolicy::Opt, blocks, &stream, false);
        prop_assert_eq!(outcome.hits, best_hits(&stream, blocks as usize));
    }

    #[test]
    fn no_policy_beats_the_best(stream in stream(), blocks in 1u32..24) {
        let best = run(SimulatedPolicy::Opt, blocks, &stream, false).hits;
        for kind in PolicyKind::all() {
            let outcome = run(SimulatedPolicy::Kind(kind), blocks, &stream, true);
            prop_assert!(outcome.hits <= best, "{} beats it", kind);
            prop_assert_eq!(outcome.hits + outcome.misses, stream.len() as u64);
            prop_assert_eq!(outcome.split(5).iter().sum::<u64>(), stream.len() as u64 - outcome.cold);
        }
    }

    /// Every policy: those that run at many sizes at once, and those that do not.
    #[test]
    fn many_sizes_at_once_are_each_size_by_itself(
        stream in load(), mut sizes in prop::collection::vec(1u32..90, 1..40), distances: bool,
        nothing in prop::bool::weighted(0.1),
    ) {
        if nothing {
            sizes.push(0);
        }
        let policies = PolicyKind::all().into_iter().map(SimulatedPolicy::Kind);
        for policy in policies.chain([SimulatedPolicy::Opt]) {
            let together = run_sizes(policy, &sizes, &stream, distances);
            prop_assert_eq!(together.len(), sizes.len());
            for (size, together) in sizes.iter().zip(together) {
                let alone = run(policy, *size, &stream, distances);
                prop_assert_eq!(together, alone, "{} with {} blocks", policy, size);
            }
        }
    }

    /// Windows and protected segments of all lengths, and sizes whose sketches differ, with many halvings.
    #[test]
    fn many_sizes_of_wtinylfu_are_each_size_by_itself(
        stream in long_load(), window in 0u32..=100, protected in 0u32..=100,
        sizes in prop::collection::vec(prop_oneof![1u32..8, 1u32..80, 60u32..600], 5..40),
        distances: bool,
    ) {
        let policy = format!(
            "wtinylfu:window={},protected={}",
            f64::from(window) / 100.0,
            f64::from(protected) / 100.0,
        );
        let policy: SimulatedPolicy = policy.parse().unwrap();
        let together = run_sizes(policy, &sizes, &stream, distances);
        prop_assert_eq!(together.len(), sizes.len());
        for (size, together) in sizes.iter().zip(together) {
            let alone = run(policy, *size, &stream, distances);
            prop_assert_eq!(together, alone, "{} with {} blocks", policy, size);
        }
    }

    #[test]
    fn requests_become_the_references_that_the_server_sees(
        requests in requests(), writes: bool, client in prop::option::of(1u32..8),
        sharing in prop::sample::select(vec![
            Sharing::Base, Sharing::Disk, Sharing::Image, Sharing::Private,
        ]),
        bases in prop::sample::select(vec![["", ""], ["a", "a"], ["a", ""], ["a", "b"]]),
        (block, per) in prop::sample::select(vec![
            (512u32, None), (4096, None), (131_072, None), (4096, Some(512)), (131_072, Some(4096)),
        ]),
    ) {
        let client = client.map(|blocks| (PolicyKind::Lru, blocks));
        let options = ReferenceOptions { block, chunks: None, per, writes, sharing, client, one_in: 1 };
        let disk = |base: &str| TraceDisk { base: base.to_owned(), ..TraceDisk::default() };
        let header = Header { disks: bases.map(disk).to_vec(), ..Header::default() };
        let mut source = Memory::new(header, requests.clone());
        let stream = ReferenceStream::read(&mut source, &options).unwrap();
        let mut ids = HashMap::new();
        let (asked, reads) = asked_for(&requests, &options, bases);
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

#[test]
fn a_stream_of_nothing_has_no_hits_at_any_size() {
    let stream = ReferenceStream::of_reads(Vec::new());
    let policies = PolicyKind::all().into_iter().map(SimulatedPolicy::Kind);
    for policy in policies.chain([SimulatedPolicy::Opt]) {
        for outcome in run_sizes(policy, &[1, 2, 3, 4, 5, 6], &stream, true) {
            assert_eq!((outcome.hits, outcome.misses), (0, 0), "{policy}");
        }
    }
}

#[test]
fn a_read_of_a_recording_is_a_look_up_in_each_chunk_that_it_touches() {
    let chunks = Chunks::new(120 << 10, Law { least: 8, mean: 24, most: 64 }).unwrap();
    let (_, second) = chunks.at(0);
    let disk = |base: &str| TraceDisk { base: base.to_owned(), ..TraceDisk::default() };
    let header = Header { disks: vec![disk("a"), disk("a"), disk("b")], ..Header::default() };
    let request = |disk, op, offset, length| Request {
        client: disk,
        disk,
        op,
        offset,
        length,
        ..Request::default()
    };
    let requests = vec![
        request(0, Op::Read, second - 4096, 8192), // two chunks
        request(1, Op::Read, second, 4096),        // the second, shared
        request(2, Op::Read, second, 4096),        // of another image
        request(0, Op::Write, second, 4096),
        request(0, Op::Read, second, 4096), // private: from the disk's own file
        request(0, Op::Read, second - 4096, 12_288), // both again, around it
    ];
    let options = ReferenceOptions { chunks: Some(chunks), ..ReferenceOptions::default() };
    let stream = ReferenceStream::read(&mut Memory::new(header, requests), &options).unwrap();
    let ids: Vec<u32> = stream.references().map(|(id, _)| id).collect();
    assert_eq!(ids, [0, 1, 1, 2, 0, 1]);
    assert_eq!((stream.block, stream.requests), (120 << 10, 6));
    let wrong = ReferenceOptions { writes: true, ..options };
    assert!(ReferenceStream::read(&mut Memory::new(Header::default(), vec![]), &wrong).is_err());
}

#[test]
fn a_sample_of_a_recording_gives_nearly_the_hit_ratio_of_all() {
    let mut state = 7u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    // Twenty disks of one image of 8 GiB, all of which read one of ten pieces of 64 KiB far more often than others.
    let pieces = 1u32 << 17;
    let disks = (0..20).map(|_| TraceDisk { base: "debian:1".into(), ..TraceDisk::default() });
    let header = Header { disks: disks.collect(), ..Header::default() };
    let mut piece = || {
        let among = if random() < 0.8 { pieces / 10 } else { pieces };
        (random() * f64::from(among)) as u64 * 7919 % u64::from(pieces)
    };
    let request = |at: u32| Request {
        client: at % 20,
        disk: at % 20,
        offset: piece() << 16,
        length: 16_384,
        ..Request::default()
    };
    let all: Vec<Request> = (0..400_000).map(request).collect();
    let chunks = Chunks::new(120 << 10, Law { least: 8, mean: 24, most: 64 }).unwrap();
    let options = ReferenceOptions { chunks: Some(chunks), ..ReferenceOptions::default() };
    let whole = || Memory::new(header.clone(), all.clone());
    let hit_ratio = |source: &mut dyn Source, room: u32| {
        let stream = ReferenceStream::read(source, &options).unwrap();
        run(SimulatedPolicy::Kind(PolicyKind::Lru), room, &stream, false).hit_ratio()
    };
    for room in [8000, 16_000, 32_000] {
        let exact = hit_ratio(&mut whole(), room);
        let mut sample = Sample::new(whole(), 8, 1 << 20).unwrap();
        let sampled = hit_ratio(&mut sample, room / 8);
        assert!((exact - sampled).abs() < 0.02, "{room} chunks: {exact:.3}, sampled {sampled:.3}");
    }
}

/// A load whose hit ratio grows slowly with size: a walk over blocks of very different popularity.
fn popular(references: u32, blocks: f64) -> ReferenceStream {
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
fn a_sample_of_fixed_size_gives_nearly_the_curve_of_all() {
    let stream = popular(400_000, 20_000.0);
    let exact = Curve::of(&stream);
    let sizes: Vec<u64> = (1..20).map(|step| step * 4000).collect();
    let worst = |samples: u32| {
        let mut shards = Shards::new(samples).unwrap();
        stream.references().for_each(|(id, _)| shards.reference(u64::from(id)));
        let estimate = shards.finish();
        assert_eq!(
            (estimate.references, estimate.samples),
            (400_000, samples.min(stream.blocks()))
        );
        let distinct = estimate.distinct as f64 / f64::from(stream.blocks());
        assert!((0.95..1.05).contains(&distinct), "{distinct} of the distinct blocks");
        let ratios = exact.hit_ratios(&sizes).into_iter().zip(estimate.hit_ratios(&sizes));
        ratios.map(|(exact, sampled)| (exact - sampled).abs()).fold(0.0, f64::max)
    };
    let (few, many, all) = (worst(2000), worst(16_000), worst(1 << 20));
    assert!(few < 0.03, "with 2000 blocks {few:.4} off");
    assert!(many < 0.01, "with 16000 blocks {many:.4} off");
    assert!(all < 0.001, "with all blocks {all:.4} off");
    assert!(Shards::new(10).is_err());
}

/// Two clients that each read the same blocks again and again, 64 KiB at a time.
fn looping(blocks: u64) -> Memory {
    let request = |at: u64| Request {
        client: (at % 2) as u32,
        disk: 0,
        offset: at / 2 % blocks * 65_536,
        length: 65_536,
        ..Request::default()
    };
    Memory::new(Header::default(), (0..blocks * 40).map(request).collect())
}

fn budget(memory: u64) -> Budget {
    Budget {
        memory,
        blocks: vec![4096, 65_536],
        shares: vec![0.0, 0.25, 0.5],
        options: ReferenceOptions::default(),
        costs: Costs { trip: 1e-3, trip_rate: 1e9, fetch: 10e-3, fetch_rate: 1e8 },
        one_in: 8,
        samples: 4,
    }
}

#[test]
fn memory_goes_to_the_clients_only_when_all_they_share_fits_beside() {
    // 32 MiB, which both clients read. With 128 MiB each can have all of it.
    let much = budget(144 << 20).spend(&mut looping(512)).unwrap();
    assert_eq!((much.clients, much.one_in, much.plain.client), (2, 8, 0));
    assert!(much.best.client >= 32 << 20, "{:?}", much.best);
    assert!(much.best.client_hit_ratio > 0.9 && much.saved > 0.5, "{much:?}");
    // With 40 MiB only the server can have it; what clients have is lost, as they loop over it.
    let little = budget(40 << 20).spend(&mut looping(512)).unwrap();
    assert_eq!(little.best.client, 0, "{:?}", little.best);
    assert!(little.best.server_hit_ratio > 0.9, "{:?}", little.best);
    // Requests are of whole blocks: those of 64 KiB cost nothing more.
    assert!(little.plans.iter().any(|plan| plan.block == 65_536));
}

#[test]
fn what_a_disk_wrote_itself_is_read_without_the_server_s_cache() {
    // Each block is written, and read again and again: far more than the memory holds.
    let blocks = 4096;
    let request = |at: u64| Request {
        op: if at < blocks { Op::Write } else { Op::Read },
        offset: at % blocks * 65_536,
        length: 65_536,
        ..Request::default()
    };
    let load = |base: &str| {
        let disk = TraceDisk { base: base.to_owned(), ..TraceDisk::default() };
        let header = Header { disks: vec![disk], ..Header::default() };
        Memory::new(header, (0..blocks * 5).map(request).collect())
    };
    let own = budget(24 << 20).spend(&mut load("debian:1")).unwrap();
    let trip = 1e-3 + 65_536.0 / 1e9;
    assert!((own.plain.seconds - trip).abs() < 1e-9, "{:?}", own.plain);
    let fetched = budget(24 << 20).spend(&mut load("")).unwrap();
    assert!(fetched.plain.seconds > 10e-3, "{:?}", fetched.plain);
}

#[test]
fn what_a_read_takes_is_the_same_whatever_other_blocks_are_tried() {
    let length = 1 << 20;
    let request =
        |at: u64| Request { offset: at * u64::from(length), length, ..Request::default() };
    let bytes = f64::from(length);
    // Nothing is read twice.
    let expected = 1e-3 + bytes / 1e9 + 10e-3 + bytes / 1e8;
    for blocks in [vec![4096], vec![4096, length]] {
        for one_in in [1, 8] {
            let mut source = Memory::new(Header::default(), (0..200).map(request).collect());
            let asked = Budget { blocks: blocks.clone(), one_in, ..budget(256 << 20) };
            let plain = asked.spend(&mut source).unwrap().plain;
            assert!(
                (plain.seconds - expected).abs() < 1e-9,
                "{blocks:?}, 1 in {one_in}: {plain:?}"
            );
        }
    }
}

#[test]
fn small_blocks_are_chosen_where_little_of_a_large_one_is_read() {
    let request =
        |at: u64| Request { offset: at * 7919 % 3000 * 65_536, length: 4096, ..Request::default() };
    let mut source = Memory::new(Header::default(), (0..90_000).map(request).collect());
    let spending = budget(24 << 20).spend(&mut source).unwrap();
    assert_eq!(spending.best.block, 4096, "{:?}", spending.best);
    assert!(spending.best.server_hit_ratio > 0.8, "{:?}", spending.best);
    let empty = budget(24 << 20).spend(&mut Memory::new(Header::default(), Vec::new()));
    assert!(empty.unwrap_err().message().contains("reads nothing"));
    assert!(budget(64 << 10).spend(&mut looping(4)).is_err());
}

#[test]
fn tuning_sees_a_loop_that_lru_loses() {
    let stream = dense((0..400_000u32).map(|at| at % 20_000).collect());
    let advice = tune(&stream, &TuningQuestion::new(16_384)).unwrap();
    assert!(advice.lru.hit_ratio < 0.02, "{:?}", advice.lru);
    assert!(advice.best().hit_ratio > 0.5, "{:?}", advice.best());
    assert!(advice.saved() > 0.5);
    assert_eq!((advice.one_in, advice.samples), (64, 8));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let read = |options: ReferenceOptions, request: Request| {
        let mut source = Memory::new(Header::default(), vec![request]);
        ReferenceStream::read(&mut source, &options).unwrap_err().to_string()
    };
    let request = Request { length: 1, ..Request::default() };
    assert!(
        read(ReferenceOptions { block: 5000, ..ReferenceOptions::default() }, request)
            .contains("power of two")
    );
    assert!(
        read(ReferenceOptions { one_in: 0, ..ReferenceOptions::default() }, request)
            .contains("one in 0")
    );
    let far = Request { offset: (1 << 62) - 1, ..request };
    assert!(read(ReferenceOptions::default(), far).contains("use larger blocks"));
    let empty = ReferenceStream::of_reads(Vec::new());
    assert!(tune(&empty, &TuningQuestion::new(100)).is_err());
    assert_eq!(run(SimulatedPolicy::Opt, 0, &dense(vec![1, 1]), false).hits, 0);
}

#[test]
fn a_disk_beyond_what_can_be_simulated_is_refused_and_never_taken_for_another() {
    let read = |disk| {
        let request = Request { disk, length: 4096, ..Request::default() };
        let mut source = Memory::new(Header::default(), vec![request]);
        ReferenceStream::read(&mut source, &ReferenceOptions::default())
    };
    assert_eq!(read((1 << 19) - 1).unwrap().len(), 1);
    assert!(read(1 << 19).unwrap_err().message().contains("disk 524288"));
}
