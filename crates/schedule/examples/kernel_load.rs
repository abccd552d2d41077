//! The simulator beside the kernel: `kernel/test` gives both the same load, request by request.
//!
//! `kernel_load LAYOUT REQUESTS SCHEDULER...`: writes where the seed's million files lie on the seed's
//! disk to the file LAYOUT, for `kernel/load.c`, and prints a line for each scheduler: its name, mean
//! response, 99th percentile, sectors per millisecond, and mean service, in the form of that program.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use block::{Error, Result};
use schedule::load::layout::Layout;
use schedule::load::surge::{Habits, Surge};
use schedule::simulation::{SimulationSetup, run};
use schedule::{Profile, scheduler};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;

/// The files of the seed's load.
const FILES: u32 = 1_000_000;

/// Where they lie, and what the processes do, follow from these.
const LAYOUT_SEED: u64 = 42;
const LOAD_SEED: u64 = 1;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, requests, schedulers @ ..] = arguments.as_slice() else {
        return Err(Error::invalid("usage: kernel_load LAYOUT REQUESTS SCHEDULER..."));
    };
    let requests: u64 = requests
        .parse()
        .map_err(|_| Error::invalid(format!("{requests} is no number of requests")))?;
    let profile = Profile::named("cheetah-15k4")?;
    let layout = Arc::new(Layout::new(profile.sectors()?, FILES, LAYOUT_SEED)?);
    let mut out = BufWriter::new(File::create(path).map_err(|e| Error::io(path, e))?);
    layout.write_to(&mut out).and_then(|()| out.flush()).map_err(|e| Error::io(path, e))?;
    for name in schedulers {
        let outcome = run(SimulationSetup {
            model: profile.model()?,
            believed: None,
            shadow: None,
            scheduler: scheduler::make(name)?,
            load: Box::new(Surge::new(layout.clone(), Habits::default(), LOAD_SEED)),
            outstanding: 2,
            requests,
            warm_up: requests / 10,
            seed: LOAD_SEED,
            samples: false,
        })?;
        println!(
            "{name} response {:.2} p99 {:.2} sectors/ms {:.2} service {:.3}",
            outcome.response.mean_ms(),
            outcome.response.quantile_ms(0.99),
            outcome.sectors_per_ms(),
            outcome.service.mean_ms()
        );
    }
    Ok(())
}
