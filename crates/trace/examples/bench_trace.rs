//! How fast traces are read and written, in requests per second of processor time:
//! `cargo run --release -p trace --example bench_trace -- FILE…`
//!
//! Each file is read as it is, written in Sojourn's format to a temporary file, and that is read.
//! Before, what recording costs a request: on the thread that answers it, and beside.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use block::{Attempt, Device, Memory, Span};
use std::path::Path;
use trace::record::{Collector, Recorded, Recorder};
use trace::{Disk, Effort, Header, OpenOptions, Request, create, open};

/// Seconds of processor time that this process has used.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn read(path: &Path) -> (u64, u64, f64) {
    let before = cpu();
    let mut source = open(path, &OpenOptions::default()).unwrap();
    let (mut batch, mut requests, mut sum) = (Vec::new(), 0, 0u64);
    while source.read(&mut batch).unwrap() {
        requests += batch.len() as u64;
        sum = batch.iter().fold(sum, |sum: u64, r| sum.wrapping_add(r.offset ^ r.time));
    }
    (requests, sum, cpu() - before)
}

fn line(what: &str, requests: u64, seconds: f64, bytes: u64) {
    let speed = requests as f64 / seconds / 1e6;
    let size = bytes as f64 / requests as f64;
    println!("{what:<40} {requests:>10} requests {speed:>8.1} M/CPU-s {size:>6.2} bytes each");
}

fn write(path: &Path, requests: &[Request], effort: Effort) -> f64 {
    let before = cpu();
    let mut writer = create(path, Header::default(), effort).unwrap();
    requests.iter().for_each(|r| writer.push(r).unwrap());
    writer.finish().unwrap();
    cpu() - before
}

/// What recording adds to a request, in nanoseconds of processor time.
fn record() {
    const ROUNDS: u64 = 50;
    const REQUESTS: u64 = 50_000;
    let reads = |device: &dyn Device| {
        let mut buffer = [0; 4096];
        let before = cpu();
        for i in 0..REQUESTS {
            let place = mix(i) % 256 * 4096;
            let span = Span::within(place, 4096, 1 << 20).unwrap();
            assert!(device.try_read(span, &mut buffer).unwrap() == Attempt::Done);
        }
        (cpu() - before) * 1e9
    };
    let plain = Memory::new(1 << 20);
    let recorder = Recorder::new();
    let device = Recorded::new(Memory::new(1 << 20), &recorder, "c", &Disk::default());
    let mut collector = Collector::new(recorder, std::io::sink(), "sink", u64::MAX, "").unwrap();
    let (mut alone, mut noted, mut beside) = (0.0, 0.0, 0.0);
    for _ in 0..ROUNDS {
        alone += reads(&plain);
        noted += reads(&device);
        let before = cpu();
        collector.pass().unwrap();
        beside += (cpu() - before) * 1e9;
    }
    let before = cpu();
    let (_, requests, _) = collector.finish().unwrap();
    beside += (cpu() - before) * 1e9;
    let each = |total: f64| total / requests as f64;
    println!(
        "recording: {:.0} ns on the way, {:.0} ns beside, over {:.0} ns",
        each(noted - alone),
        each(beside),
        each(alone)
    );
}

/// Spreads a number.
fn mix(x: u64) -> u64 {
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn main() {
    record();
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("trace.sjt");
    for path in std::env::args().skip(1) {
        let path = Path::new(&path);
        let name = path.file_name().unwrap().to_string_lossy();
        let size = |path: &Path| path.metadata().unwrap().len();
        let (requests, _, seconds) = read(path);
        line(&format!("{name}: read"), requests, seconds, size(path));
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        let mut source = open(path, &OpenOptions::default()).unwrap();
        while source.read(&mut batch).unwrap() {
            all.extend_from_slice(&batch);
        }
        // Long enough to measure: the same again and again, later.
        let span = all.last().map_or(0, |r| r.time + 1);
        let one = all.clone();
        let mut round = 0;
        while all.len() < 4_000_000 && !one.is_empty() {
            round += 1;
            all.extend(one.iter().map(|r| Request { time: r.time + round * span, ..*r }));
        }
        for (effort, how) in [(Effort::Low, "low"), (Effort::Normal, "normal")] {
            let seconds = write(&ours, &all, effort);
            line(&format!("{name}: write, {how}"), all.len() as u64, seconds, size(&ours));
            let (requests, _, seconds) = read(&ours);
            line(&format!("{name}: read ours, {how}"), requests, seconds, size(&ours));
        }
    }
}
