//! CPU time of a hit and of a miss, by number of threads, and the memory of the index: `make
//! bench-cache`.
//!
//! `bench_cache [ENTRIES [POLICY]]`: a cache that would hold so many chunks of 64 KiB (262,144 unless
//! told otherwise) is filled with values that take no memory of their own. Then hits come in a Zipf
//! distribution (s = 0.99), evenly, and in runs of sixteen as from a guest that reads chunks in order;
//! and accesses of which every second one misses. The least of five runs counts, as others run too.
//!
//! Without a policy all that serve have their turns, each in a process of its own: what one of them gives
//! back to the allocator would be missing in the next one's memory.

#![allow(clippy::print_stdout, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a thread for each stream of accesses")]

use block::{Error, Result};
use bytes::Bytes;
use cache::{Cache, Config, Key, PolicyKind};
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Waker};

const CHUNK: usize = 64 << 10;
static VALUE: [u8; CHUNK] = [0; CHUNK];

/// Accesses of one thread in one run.
const ACCESSES: usize = 400_000;

/// CPU time of this thread, in nanoseconds.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Numbers that look random (G. Marsaglia: "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

fn key(number: u64) -> Key {
    let mut random = Random(number + 1);
    let mut key = [0; 32];
    for word in key.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    key
}

fn load(cache: &Cache, key: &Key) {
    let value = async { Ok(Bytes::from_static(&VALUE)) };
    let mut load = pin!(cache.get_or_load(key, value));
    // Another thread may be about to answer its own load.
    while load.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        std::thread::yield_now();
    }
}

/// The numbers of the keys that one thread asks for.
fn accesses(kind: &str, entries: u64, seed: u64) -> Vec<u32> {
    let mut random = Random(seed * 0x1234_5677 + 99);
    match kind {
        "zipf" => {
            let mut sum = 0.0;
            let weights: Vec<f64> = (1..=entries)
                .map(|rank| {
                    sum += (rank as f64).powf(-0.99);
                    sum
                })
                .collect();
            let draw = |_| {
                let at = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
                // Neighbours in rank are not neighbours in memory.
                let rank = weights.partition_point(|weight| *weight < at) as u64;
                (rank.wrapping_mul(0x9e37_79b1) % entries) as u32
            };
            (0..ACCESSES).map(draw).collect()
        }
        "runs of 16" => {
            let mut run = || vec![(random.next() % entries) as u32; 16];
            (0..ACCESSES / 16).flat_map(|_| run()).collect()
        }
        _ => (0..ACCESSES).map(|_| (random.next() % entries) as u32).collect(),
    }
}

/// Nanoseconds of CPU time per access.
fn measure(cache: &Cache, keys: &[Key], streams: &[Vec<u32>]) -> f64 {
    let run = |stream: &[u32]| {
        let start = cpu();
        for number in stream {
            let key = &keys[*number as usize];
            if cache.get(key).is_none() {
                load(cache, key);
            }
        }
        (cpu() - start) as f64 / stream.len() as f64
    };
    let once = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                streams.iter().map(|stream| scope.spawn(move || run(stream))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum::<f64>()
                / streams.len() as f64
        })
    };
    (0..5).map(|_| once()).fold(f64::MAX, f64::min)
}

/// Measures one policy.
fn bench(entries: u64, policy: PolicyKind) {
    let half = 2 * entries;
    let keys: Vec<Key> = (0..half).map(key).collect();
    let before = resident();
    // A little more room than all need together, as they do not spread evenly over shards.
    let cache =
        Cache::new(Config { capacity: (entries + entries / 16) * CHUNK as u64, policy, seed: 7 });
    keys[..entries as usize].iter().for_each(|key| load(&cache, key));
    let memory = (resident() - before) as f64 / cache.stats().entries as f64;
    for kind in ["zipf", "even", "runs of 16", "half missing"] {
        let among = if kind == "half missing" { half } else { entries };
        let streams: Vec<_> = (0..2).map(|seed| accesses(kind, among, seed)).collect();
        let [one, two] = [1, 2].map(|threads| measure(&cache, &keys, &streams[..threads]));
        println!("{:<12}{kind:>12}{one:>12.1}{two:>12.1}", policy.as_str());
    }
    // Since then as many have left and are remembered as the policy likes.
    let later = resident().saturating_sub(before) as f64 / cache.stats().entries as f64;
    println!("{:<12}{:>12}{memory:>12.1}{later:>12.1} bytes per entry", policy.as_str(), "");
}

fn main() -> Result<()> {
    let bad = |_| Error::invalid("usage: bench_cache [ENTRIES [POLICY]]");
    let mut words = std::env::args().skip(1);
    let entries = words.next().map_or(Ok(1 << 18), |n| n.parse::<u64>()).map_err(bad)?;
    if let Some(policy) = words.next() {
        bench(entries, policy.parse()?);
        return Ok(());
    }
    println!("{entries} entries; CPU ns per access, and memory beside the values' own");
    println!("{:<12}{:>12}{:>12}{:>12}", "policy", "accesses", "1 thread", "2 threads");
    let failed = |e| Error::io("running this benchmark for one policy", e);
    let this = std::env::current_exe().map_err(failed)?;
    for policy in PolicyKind::all().into_iter().filter(|policy| policy.serves()) {
        let mut one = Command::new(&this);
        let status = one.args([&entries.to_string(), policy.as_str()]).status().map_err(failed)?;
        if !status.success() {
            return Err(Error::internal(format!("{}: {status}", policy.as_str())));
        }
    }
    Ok(())
}
