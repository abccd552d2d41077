//! How fast traces are read and written, in requests per second of processor time:
//! `cargo run --release -p trace --example bench_trace -- FILE…`
//!
//! Each file is read as it is, written in Sojourn's format to a temporary file, and that is read.
//! Before, what recording costs a request: on the thread that answers it, and beside.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use block::{Action, Answered, Observer, Span};
use std::path::Path;
use tokio::time::Instant;
use trace::record::{Collector, Recorder};
use trace::{Effort, Header, OpenTraceOptions, Request, TraceDisk, create, open};

/// Seconds of processor time that this process has used.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn read(path: &Path) -> (u64, u64, f64) {
    let before = cpu();
    let mut source = open(path, &OpenTraceOptions::default()).unwrap();
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

/// What recording adds to a request, in nanoseconds of processor time: on the way, where requests
/// are answered in batches of `batch`, and beside.
fn record(batch: usize) {
    const ROUNDS: usize = 50;
    const REQUESTS: usize = 65_536;
    const CONNECTIONS: usize = 8;
    let recorder = Recorder::new(0);
    let logs: Vec<_> =
        (0..CONNECTIONS).map(|n| recorder.log(format!("{n}"), TraceDisk::default())).collect();
    let mut collector = Collector::new(recorder, std::io::sink(), "sink", u64::MAX, "").unwrap();
    let requests: Vec<Answered> = (0..REQUESTS as u64)
        .map(|i| {
            let span = Span::between(mix(i) % 65_536 * 4096, mix(i) % 65_536 * 4096 + 4096);
            Answered { span, action: Action::Read, durable: false, failed: false }
        })
        .collect();
    let (mut noted, mut beside) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let before = cpu();
        let mut began = Instant::now();
        for (number, part) in requests.chunks(batch).enumerate() {
            // One look at the clock, which the server takes anyway.
            let now = Instant::now();
            logs[number % CONNECTIONS].answered(began, now - began, part);
            began = now;
        }
        noted += cpu() - before;
        let before = cpu();
        collector.pass().unwrap();
        beside += cpu() - before;
    }
    let before = cpu();
    let (_, requests, bytes) = collector.finish().unwrap();
    beside += cpu() - before;
    let each = |total: f64| total * 1e9 / requests as f64;
    println!(
        "recording in batches of {batch}: {:.0} ns on the way with a look at the clock for each \
         batch, {:.0} ns beside, {:.2} bytes",
        each(noted),
        each(beside),
        bytes as f64 / requests as f64
    );
}

/// Spreads a number.
fn mix(x: u64) -> u64 {
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn main() {
    [1, 16].into_iter().for_each(record);
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("trace.sjt");
    for path in std::env::args().skip(1) {
        let path = Path::new(&path);
        let name = path.file_name().unwrap().to_string_lossy();
        let size = |path: &Path| path.metadata().unwrap().len();
        let (requests, _, seconds) = read(path);
        line(&format!("{name}: read"), requests, seconds, size(path));
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        let mut source = open(path, &OpenTraceOptions::default()).unwrap();
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
