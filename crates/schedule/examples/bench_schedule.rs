//! The simulator's speed, and that of a plan: `make bench-schedule`.
//!
//! `bench_schedule [FILES]`: simulated requests per second of CPU time with 50 processes of the
//! seed's load with O_DIRECT on the seed's disk, and the time of one plan of the static-optimal
//! table. The best of five counts, as others run too. The layout is made before.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use block::{Error, Result};
use schedule::load::layout::Layout;
use schedule::load::surge::{Habits, Surge};
use schedule::optimal::Planner;
use schedule::simulation::{SimulationSetup, run};
use schedule::{Profile, Random, scheduler};
use std::sync::Arc;

/// Requests of a run.
const REQUESTS: u64 = 400_000;

/// Plans that are timed together.
const PLANS: u32 = 20_000;

/// CPU time of this process' only thread, in seconds.
fn cpu() -> Result<f64> {
    let path = "/proc/self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let nanoseconds = text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
    Ok(nanoseconds.unwrap_or(0) as f64 / 1e9)
}

/// The least CPU time of five runs.
fn measure(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = cpu()?;
        work()?;
        best = best.min(cpu()? - start);
    }
    Ok(best)
}

fn main() -> Result<()> {
    let files = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let profile = Profile::named("cheetah-15k4")?;
    let layout = Arc::new(Layout::new(profile.sectors()?, files, 42)?);
    println!("{:<28} {:>16}", "scheduler", "requests/CPU-s");
    for name in
        ["fcfs", "hit-clook", "cats", "cats:read-delay=never", "table", "deadline", "hit-satf"]
    {
        let seconds = measure(|| {
            let outcome = run(SimulationSetup {
                model: profile.model()?,
                believed: None,
                shadow: None,
                scheduler: scheduler::make(name)?,
                load: Box::new(Surge::new(layout.clone(), Habits::default(), 1)),
                outstanding: 2,
                requests: REQUESTS,
                warm_up: REQUESTS / 10,
                seed: 1,
                samples: false,
            })?;
            std::hint::black_box(outcome.response.count());
            Ok(())
        })?;
        println!("{name:<28} {:>16.0}", REQUESTS as f64 / seconds);
    }
    let mut random = Random::new(1);
    let (mut planner, mut moves) = (Planner::default(), Vec::new());
    let queues: Vec<(u64, Vec<u64>)> = (0..100)
        .map(|_| {
            let mut positions: Vec<u64> = (0..50).map(|_| random.below(143_374_744)).collect();
            positions.sort_unstable();
            (random.below(143_374_744), positions)
        })
        .collect();
    let seconds = measure(|| {
        for i in 0..PLANS {
            let (head, positions) = &queues[i as usize % queues.len()];
            std::hint::black_box(planner.plan(*head, positions, &mut moves));
        }
        Ok(())
    })?;
    println!("one plan of 50 requests: {:.2} us", seconds / f64::from(PLANS) * 1e6);
    Ok(())
}
