//! Requests per second of CPU time of every policy, on a trace: see docs/simulate.md.
//!
//! `bench_simulate TRACE BLOCKS`: reads the trace, one reference per request of 4 KiB, and
//! runs each policy once at a size. The best of three runs counts, as others run too.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use cache::PolicyKind;
use simulate::{Curve, Options, Policy, Stream, run};
use std::path::Path;

/// CPU time of this process' only thread, in seconds.
fn cpu() -> block::Result<f64> {
    let path = "/proc/self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|e| block::Error::io(path, e))?;
    let nanoseconds = text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
    Ok(nanoseconds.unwrap_or(0) as f64 / 1e9)
}

/// The least CPU time of three runs.
fn measure(mut work: impl FnMut()) -> block::Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = cpu()?;
        work();
        best = best.min(cpu()? - start);
    }
    Ok(best)
}

fn main() -> block::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, trace, blocks] = arguments.as_slice() else {
        return Err(block::Error::invalid("usage: bench_simulate TRACE BLOCKS"));
    };
    let blocks: u32 =
        blocks.parse().map_err(|_| block::Error::invalid("BLOCKS is not a number"))?;
    let start = cpu()?;
    let mut source = trace::open(Path::new(trace), &trace::OpenOptions::default())?;
    let stream = Stream::read(&mut *source, &Options::default())?;
    let reading = cpu()? - start;
    let millions = stream.len() as f64 / 1e6;
    println!("{} references to {} blocks, cache of {blocks}", stream.len(), stream.blocks());
    println!("{:<16} {:>8} {:>10}", "", "hit %", "M/CPU-s");
    println!("{:<16} {:>8} {:>10.1}", "read and remap", "", millions / reading);
    let policies = PolicyKind::all().into_iter().map(Policy::Kind).chain([Policy::Opt]);
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
