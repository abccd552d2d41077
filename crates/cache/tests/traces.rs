//! The policies on real desktop traces: the hit ratios are known to a hundredth of a point, most
//! of them from implementations that nobody here wrote.
//!
//! Three clients (the traces P3, P6 and P12 of the ARC paper: N. Megiddo, D. Modha, "ARC: A
//! Self-Tuning, Low Overhead Replacement Cache", FAST 2003), each behind an LRU cache of 1 MiB of
//! its own, share a server cache of 4 KiB blocks; their references are interleaved in proportion to
//! their lengths, 16 at a time. The traces are not part of this repository: the test looks for them
//! in `$SOJOURN_SHARED/traces/arc`, or `../shared` beside the workspace.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test speaks

use bytes::Bytes;
use cache::policy::{Algorithm, Lru, Room, Visitor};
use cache::{Cache, Config, Key, PolicyKind};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

/// Trace, and what to add to its sectors so that its partition starts on a block.
const CLIENTS: [(&str, u64); 3] = [("P3", 0), ("P6", 4), ("P12", 7)];
const CLIENT_BLOCKS: u32 = 256;

/// Policy, by how much it may differ, and the hit ratios in percent at [`SIZES`]. Those that must
/// agree to the last digit have one definition, or are ours alone (the duel); the bounds of S3-FIFO's
/// history, the sketch of W-TinyLFU and the histogram of MQ are left to whoever writes them.
const EXPECTED: [(&str, f64, [f64; 4]); 16] = [
    ("lru", 0.0051, [9.83, 35.81, 60.34, 73.52]),
    ("duel", 0.0051, [32.32, 49.73, 64.88, 75.23]),
    ("fbr", 0.0051, [16.65, 34.07, 61.42, 74.83]),
    ("twoq", 0.0051, [30.03, 47.48, 63.09, 73.50]),
    ("arc", 0.0051, [33.57, 49.79, 64.89, 75.38]),
    ("lirs", 0.0051, [33.83, 50.48, 65.20, 74.70]),
    ("s3fifo:promote=2", 0.4, [35.16, 50.27, 65.28, 75.52]),
    ("s3fifo", 0.45, [34.79, 50.25, 65.52, 75.90]),
    ("sieve", 0.0051, [15.25, 28.39, 42.17, 70.38]),
    ("wtinylfu", 0.6, [37.01, 51.02, 63.38, 72.61]),
    ("mq", 0.5, [36.26, 50.60, 65.29, 75.69]),
    ("fmpq:lifetime=1,history=4", 0.0051, [33.92, 49.31, 65.42, 75.63]),
    ("fmpq:history=0.5", 0.0051, [35.15, 51.51, 65.81, 75.79]),
    ("fmpq:history=1", 0.0051, [37.25, 51.76, 65.95, 75.88]),
    ("fmpq", 0.0051, [37.80, 51.37, 65.81, 75.87]),
    ("fmpq:lifetime=16,history=4", 0.0051, [36.59, 50.05, 64.23, 75.17]),
];

/// MiB of server cache.
const SIZES: [u32; 4] = [64, 128, 256, 512];

fn traces() -> Option<PathBuf> {
    let shared = std::env::var_os("SOJOURN_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let dir = shared.join("traces/arc");
    dir.join("P3.lis.zst").exists().then_some(dir)
}

/// The 4 KiB blocks that a trace touches, in order.
fn blocks(path: &Path, shift: u64) -> Vec<u64> {
    let file = std::fs::File::open(path).unwrap();
    let mut blocks = Vec::new();
    for line in BufReader::new(zstd::Decoder::new(file).unwrap()).lines() {
        let line = line.unwrap();
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap());
        let (start, count) = (fields.next().unwrap() + shift, fields.next().unwrap());
        blocks.extend(start / 8..(start + count).div_ceil(8));
    }
    blocks
}

/// One access; whether it was a hit.
fn access(cache: &mut impl Algorithm, capacity: u32, block: u32) -> bool {
    if cache.holds(block) {
        cache.hit(block);
        return true;
    }
    cache.miss(block);
    if cache.len() == capacity as usize {
        cache.evict().unwrap();
    }
    // Well spread, as a cache's fingerprints are.
    cache.insert(block, u64::from(block).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    false
}

/// The references that reach the server, with dense ids; and how many ids there are. `None`, and a
/// message, when the traces are absent.
fn server_references() -> Option<(&'static [u32], usize)> {
    static READ: OnceLock<(Vec<u32>, usize)> = OnceLock::new();
    let Some(dir) = traces() else {
        eprintln!("skipped: no traces/arc in $SOJOURN_SHARED or ../shared");
        return None;
    };
    let (references, ids) = READ.get_or_init(|| read(&dir));
    Some((references, *ids))
}

fn read(dir: &Path) -> (Vec<u32>, usize) {
    let mut ids = std::collections::HashMap::new();
    let mut streams: Vec<Vec<u32>> = Vec::new();
    for (client, (name, shift)) in CLIENTS.iter().enumerate() {
        let stream = blocks(&dir.join(format!("{name}.lis.zst")), *shift)
            .into_iter()
            .map(|block| {
                let next = ids.len() as u32;
                *ids.entry((client, block)).or_insert(next)
            })
            .collect();
        streams.push(stream);
    }
    let mut clients: Vec<_> = CLIENTS
        .iter()
        .map(|_| Lru::new(Room::simulated(CLIENT_BLOCKS, ids.len() as u32)))
        .collect();
    let total: usize = streams.iter().map(Vec::len).sum();
    let mut at = vec![0; streams.len()];
    let mut server = Vec::with_capacity(total);
    let mut done = 0;
    while done < total {
        // Whoever is furthest behind in proportion goes on.
        let behind = |client: &usize| at[*client] as f64 / streams[*client].len() as f64;
        let client = (0..streams.len()).min_by(|a, b| behind(a).total_cmp(&behind(b))).unwrap();
        let stream = &streams[client];
        let end = (at[client] + 16).min(stream.len());
        for block in &stream[at[client]..end] {
            if !access(&mut clients[client], CLIENT_BLOCKS, *block) {
                server.push(*block);
            }
        }
        done += end - at[client];
        at[client] = end;
    }
    println!("{total} references, {} reach the server, {} blocks", server.len(), ids.len());
    (server, ids.len())
}

struct HitPercent<'a> {
    capacity: u32,
    references: &'a [u32],
}

impl Visitor for HitPercent<'_> {
    type Output = f64;

    fn visit<A: Algorithm + 'static>(self, mut cache: A) -> f64 {
        let hit = |block: &&u32| access(&mut cache, self.capacity, **block);
        let hits = self.references.iter().filter(hit).count();
        hits as f64 * 100.0 / self.references.len() as f64
    }
}

#[test]
fn real_traces_give_the_known_hit_ratios() {
    let Some((references, ids)) = server_references() else { return };
    for (policy, tolerance, expected) in EXPECTED {
        let policy: PolicyKind = policy.parse().unwrap();
        for (mib, expected) in SIZES.into_iter().zip(expected) {
            let capacity = mib * 256;
            let room = Room::simulated(capacity, ids as u32);
            let got = policy.visit(room, HitPercent { capacity, references });
            println!("{policy} {mib} MiB: {got:.3} ({expected})");
            let difference = (got - expected).abs();
            assert!(difference < tolerance, "{policy} at {mib} MiB: {got:.3}, not {expected}");
        }
    }
}

/// The value of every key: a chunk as large as they are on average.
static CHUNK: [u8; 64 << 10] = [0; 64 << 10];

fn key(block: u32) -> Key {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&block.to_le_bytes());
    key
}

fn access_real(cache: &Cache, block: u32) {
    let key = key(block);
    if cache.get(&key).is_none() {
        let mut load = pin!(cache.get_or_load(&key, async { Ok(Bytes::from_static(&CHUNK)) }));
        let mut context = Context::from_waker(Waker::noop());
        // Another thread may be about to answer its own load.
        while load.as_mut().poll(&mut context).is_pending() {
            std::thread::yield_now();
        }
    }
}

/// The hit ratio in percent of a real cache for as many chunks, that threads use in turns.
fn real_hit_percent(policy: PolicyKind, entries: u64, references: &[u32], threads: u32) -> f64 {
    let capacity = entries * CHUNK.len() as u64;
    let cache = Cache::new(Config { capacity, policy, seed: 11 });
    let turns = references.chunks(16);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || {
            while let Some(turn) = turns.clone().nth(next.fetch_add(1, Ordering::Relaxed)) {
                turn.iter().for_each(|block| access_real(&cache, *block));
            }
        };
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let stats = cache.stats();
    assert_eq!(stats.hits + stats.misses, references.len() as u64);
    stats.hits as f64 * 100.0 / references.len() as f64
}

/// The most points of hits that a cache may lose against its policy, which has one lock and is told
/// of each hit at once.
const LOSS: f64 = 0.3;

#[test]
#[allow(clippy::disallowed_methods)] // threads are what is tested
fn shards_and_hits_without_a_lock_cost_at_most_three_tenths_of_a_point() {
    let Some((references, ids)) = server_references() else { return };
    let references = &references[..references.len() / 3];
    for policy in PolicyKind::all().into_iter().filter(|policy| policy.serves()) {
        let entries = 65_536;
        let room = Room::simulated(entries, ids as u32);
        let exact = policy.visit(room, HitPercent { capacity: entries, references });
        let got = real_hit_percent(policy, entries.into(), references, 3);
        println!("{policy}: {got:.3}, exact {exact:.3}");
        assert!(got > exact - LOSS, "{policy}: {got:.3}, not {exact:.3}");
    }
}

/// The most points by which a forecast may be wrong, from one key in 64.
const ERROR: f64 = 2.5;

#[test]
fn forecasts_from_a_sample_are_near_what_half_and_twice_the_memory_and_other_policies_give() {
    let Some((references, _)) = server_references() else { return };
    let capacity = 65_536 * CHUNK.len() as u64;
    let cache = Cache::new(Config { capacity, policy: PolicyKind::FMPQ, seed: 11 });
    cache.follow();
    for some in references.chunks(200_000) {
        some.iter().for_each(|block| access_real(&cache, *block));
        cache.follow();
    }
    let forecast = cache.forecast().unwrap();
    assert_eq!((forecast.one_in, forecast.policies.len()), (64, 10));
    println!("{} of {} followed", forecast.followed, references.len());
    for ratios in &forecast.policies {
        let name = ratios.policy.to_string();
        let (_, _, expected) = EXPECTED.iter().find(|(policy, ..)| *policy == name).unwrap();
        let got = [ratios.half, ratios.same, ratios.double].map(|ratio| ratio * 100.0);
        println!("{name}: {got:.2?}, exactly {:?}", &expected[1..]);
        for (got, expected) in got.iter().zip(&expected[1..]) {
            assert!((got - expected).abs() < ERROR, "{name}: {got:.2}, not {expected}");
        }
    }
    assert_eq!(forecast.best, PolicyKind::FMPQ);
}
