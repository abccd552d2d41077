//! The policies on real desktop traces: the hit ratios are known to a hundredth of a point.
//!
//! Three clients (the traces P3, P6 and P12 of the ARC paper: N. Megiddo, D. Modha, "ARC: A
//! Self-Tuning, Low Overhead Replacement Cache", FAST 2003), each behind an LRU cache of 1 MiB of
//! its own, share a server cache of 4 KiB blocks; their references are interleaved in proportion to
//! their lengths, 16 at a time. The traces are not part of this repository: the test looks for them
//! in `$SOJOURN_SHARED/traces/arc`, or `../shared` beside the workspace.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use cache::policy::{Fmpq, Lru, Policy, fmpq};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Trace, and what to add to its sectors so that its partition starts on a block.
const CLIENTS: [(&str, u64); 3] = [("P3", 0), ("P6", 4), ("P12", 7)];
const CLIENT_BLOCKS: usize = 256;
const NONE: u32 = u32::MAX;

/// MiB of server cache, and the hit ratios in percent: LRU, FMPQ with 8 queues, lifetime 4, history 2.
const EXPECTED: [(usize, f64, f64); 4] =
    [(64, 9.83, 37.80), (128, 35.81, 51.37), (256, 60.34, 65.81), (512, 73.52, 75.87)];

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

/// A cache of blocks with dense ids.
struct Sim<P> {
    policy: P,
    capacity: usize,
    slot_of: Vec<u32>,
    block_in: Vec<u32>,
}

impl<P: Policy> Sim<P> {
    fn new(policy: P, capacity: usize, ids: usize) -> Self {
        Self { policy, capacity, slot_of: vec![NONE; ids], block_in: Vec::new() }
    }

    fn access(&mut self, block: u32) -> bool {
        let slot = self.slot_of[block as usize];
        if slot != NONE {
            self.policy.hit(slot);
            return true;
        }
        let slot = if self.block_in.len() < self.capacity {
            self.block_in.push(block);
            self.block_in.len() as u32 - 1
        } else {
            let slot = self.policy.evict().unwrap();
            self.slot_of[self.block_in[slot as usize] as usize] = NONE;
            self.block_in[slot as usize] = block;
            slot
        };
        self.slot_of[block as usize] = slot;
        // Well spread, as a cache's fingerprints are.
        self.policy.insert(slot, u64::from(block).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        false
    }
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
        .map(|_| Sim::new(Lru::new(CLIENT_BLOCKS as u32), CLIENT_BLOCKS, ids.len()))
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
            if !clients[client].access(*block) {
                server.push(*block);
            }
        }
        done += end - at[client];
        at[client] = end;
    }
    (server, ids.len(), total)
}

fn hit_percent(policy: impl Policy, capacity: usize, references: &[u32], ids: usize) -> f64 {
    let mut cache = Sim::new(policy, capacity, ids);
    let hits = references.iter().filter(|block| cache.access(**block)).count();
    hits as f64 * 100.0 / references.len() as f64
}

#[test]
fn real_traces_give_the_known_hit_ratios() {
    let Some(dir) = traces() else {
        eprintln!("skipped: no traces/arc in $SOJOURN_SHARED or ../shared");
        return;
    };
    let (references, ids, total) = server_references(&dir);
    println!("{total} references, {} reach the server, {ids} blocks", references.len());
    for (mib, lru, fmpq) in EXPECTED {
        let entries = mib * 256;
        let got_lru = hit_percent(Lru::new(entries as u32), entries, &references, ids);
        let parameters = fmpq::Parameters::default();
        let got_fmpq =
            hit_percent(Fmpq::new(entries as u32, parameters), entries, &references, ids);
        println!("{mib} MiB: LRU {got_lru:.2} ({lru}), FMPQ {got_fmpq:.2} ({fmpq})");
        assert!((got_lru - lru).abs() < 0.0051, "LRU at {mib} MiB: {got_lru:.3}, not {lru}");
        assert!((got_fmpq - fmpq).abs() < 0.05, "FMPQ at {mib} MiB: {got_fmpq:.3}, not {fmpq}");
    }
}
