//! The simulator's speed: see docs/simulate.md and `scripts/bench-simulate`, which calls this.
//!
//! `bench_simulate TRACE BLOCKS`: requests per second of CPU time of every policy at one size, once
//! the trace is read, one reference per request of 4 KiB. The best of five runs counts, as others
//! run too.
//!
//! `bench_simulate TRACE BLOCKS[,BLOCKS...] POLICY`: reads the trace, runs one policy at all of these sizes
//! and ends; for whoever measures the whole process. Prints references, distinct blocks, the most
//! memory that the process ever had in bytes, and the hit ratios.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use block::{Error, Result};
use cache::PolicyKind;
use simulate::{Curve, ReferenceOptions, ReferenceStream, SimulatedPolicy, run, run_sizes};
use std::path::Path;

/// A file of `/proc/self`.
fn own(file: &str) -> Result<String> {
    let path = format!("/proc/self/{file}");
    std::fs::read_to_string(&path).map_err(|e| Error::io(path, e))
}

/// CPU time of this process' only thread, in seconds.
fn cpu() -> Result<f64> {
    let text = own("schedstat")?;
    let nanoseconds = text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
    Ok(nanoseconds.unwrap_or(0) as f64 / 1e9)
}

/// The most memory that this process ever had, in bytes.
fn peak() -> Result<u64> {
    let text = own("status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) << 10)
}

/// The least CPU time of five runs.
fn measure(mut work: impl FnMut()) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = cpu()?;
        work();
        best = best.min(cpu()? - start);
    }
    Ok(best)
}

fn read(trace: &str) -> Result<ReferenceStream> {
    let mut source = trace::open(Path::new(trace), &trace::OpenTraceOptions::default())?;
    ReferenceStream::read(&mut *source, &ReferenceOptions::default())
}

fn number(text: &str) -> Result<u32> {
    text.parse().map_err(|_| Error::invalid("BLOCKS is not a number"))
}

/// Every policy, once the trace is read.
fn every(trace: &str, blocks: u32) -> Result<()> {
    let mut stream = ReferenceStream::default();
    let mut failed = None;
    let reading = measure(|| match read(trace) {
        Ok(read) => stream = read,
        Err(error) => failed = Some(error),
    })?;
    failed.map_or(Ok(()), Err)?;
    let millions = stream.len() as f64 / 1e6;
    println!("{} references to {} blocks, cache of {blocks}", stream.len(), stream.blocks());
    println!("{:<16} {:>8} {:>10}", "", "hit %", "M/CPU-s");
    println!("{:<16} {:>8} {:>10.1}", "read and remap", "", millions / reading);
    let policies =
        PolicyKind::all().into_iter().map(SimulatedPolicy::Kind).chain([SimulatedPolicy::Opt]);
    for policy in policies {
        let mut ratio = 0.0;
        let time = measure(|| ratio = run(policy, blocks, &stream, false).hit_ratio())?;
        println!("{:<16} {:>8.2} {:>10.1}", policy.to_string(), ratio * 100.0, millions / time);
    }
    let mut ratio = 0.0;
    let sizes = [u64::from(blocks)];
    let time = measure(|| ratio = Curve::of(&stream).hit_ratios(&sizes)[0])?;
    println!("{:<16} {:>8.2} {:>10.1}", "LRU, all sizes", ratio * 100.0, millions / time);
    let time = measure(|| ratio = Curve::of(&stream.sample(100)).hit_ratios(&sizes)[0])?;
    println!("{:<16} {:>8.2} {:>10.1}", "one in 100", ratio * 100.0, millions / time);
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [trace, blocks] => every(trace, number(blocks)?),
        [trace, sizes, policy] => {
            let policy: SimulatedPolicy = policy.parse()?;
            let sizes = sizes.split(',').map(number).collect::<Result<Vec<u32>>>()?;
            let stream = read(trace)?;
            let outcomes = run_sizes(policy, &sizes, &stream, false);
            let hits: Vec<String> =
                outcomes.iter().map(|outcome| outcome.hit_ratio().to_string()).collect();
            println!("{} {} {} {}", stream.len(), stream.blocks(), peak()?, hits.join(" "));
            Ok(())
        }
        _ => Err(Error::invalid("usage: bench_simulate TRACE BLOCKS [POLICY]")),
    }
}
