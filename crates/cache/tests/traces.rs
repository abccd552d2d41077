//! The policies on real desktop traces: the hit ratios are known to a hundredth of a point, most
//! of them from implementations that nobody here wrote.
//!
//! Three clients (the traces P3, P6 and P12 of the ARC paper: N. Megiddo, D. Modha, "ARC: A
//! Self-Tuning, Low Overhead Replacement Cache", FAST 2003), each behind an LRU cache of 1 MiB of
//! its own, share a server cache of 4 KiB blocks; their references are interleaved in proportion to
//! their lengths, 16 at a time. The traces are not part of this repository: the test looks for them
//! in `$SOJOURN_SHARED/traces/arc`, or `../shared` beside the workspace.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use cache::PolicyKind;
use cache::policy::{Algorithm, Lru, Room, Visitor};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Trace, and what to add to its sectors so that its partition starts on a block.
const CLIENTS: [(&str, u64); 3] = [("P3", 0), ("P6", 4), ("P12", 7)];
const CLIENT_BLOCKS: u32 = 256;

/// Policy, by how much it may differ, and the hit ratios in percent at [`SIZES`]. Those that must
/// agree to the last digit have one definition; the bounds of S3-FIFO's history, the sketch of
/// W-TinyLFU and the histogram of MQ are left to whoever writes them.
const EXPECTED: [(&str, f64, [f64; 4]); 15] = [
    ("lru", 0.0051, [9.83, 35.81, 60.34, 73.52]),
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

/// The references that reach the server, with dense ids; and how many ids there are, and how many
/// references the clients made.
fn server_references(dir: &Path) -> (Vec<u32>, usize, usize) {
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
    (server, ids.len(), total)
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
    let Some(dir) = traces() else {
        eprintln!("skipped: no traces/arc in $SOJOURN_SHARED or ../shared");
        return;
    };
    let (references, ids, total) = server_references(&dir);
    println!("{total} references, {} reach the server, {ids} blocks", references.len());
    for (policy, tolerance, expected) in EXPECTED {
        let policy: PolicyKind = policy.parse().unwrap();
        for (mib, expected) in SIZES.into_iter().zip(expected) {
            let capacity = mib * 256;
            let room = Room::simulated(capacity, ids as u32);
            let got = policy.visit(room, HitPercent { capacity, references: &references });
            println!("{policy} {mib} MiB: {got:.3} ({expected})");
            let difference = (got - expected).abs();
            assert!(difference < tolerance, "{policy} at {mib} MiB: {got:.3}, not {expected}");
        }
    }
}
