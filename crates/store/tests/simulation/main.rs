//! Deterministic simulation: importers, committers, removers, collections, verifications and
//! readers on one store, on one thread and in simulated time, with faults of the network and
//! crashes at any request; and (`losses`) objects that are deleted, damaged and brought back between
//! collections and repairs. A seed decides everything, and takes the same course each time.
//!
//! `SIMULATION_SEED=17 cargo test -p store --test simulation any_seed` replays one seed, and tells
//! its course with `SIMULATION_TOLD=1` and `-- --nocapture`;
//! `SIMULATION_SEEDS=10000` (or `make simulate`) runs so many.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)] // a test

mod actors;
mod losses;
mod model;
mod remote;

use actors::Life;
use remote::Lie;
use std::time::{Duration, Instant};

/// Seeds that are run at the least, and for how long more are run.
const AT_LEAST: u64 = 1000;
const FOR: Duration = Duration::from_secs(30);

/// Runs a life; gives its course as a number, or what went wrong.
fn live(seed: u64, lie: Lie) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _inline = block::offload::Inline::on_this_thread();
    runtime.block_on(async {
        // From here on the clock stands at whole ticks, and no real time is in it.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Life::new(seed, lie).run().await
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs a life in which objects are lost, damaged and brought back.
fn lose(seed: u64) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _inline = block::offload::Inline::on_this_thread();
    runtime.block_on(losses::Life::new(seed).run())
}

#[test]
fn any_seed_loses_nothing_and_leaves_no_garbage() {
    seeds(|seed| live(seed, Lie::None));
}

#[test]
fn what_a_name_needs_and_any_pack_holds_is_never_lost_in_any_seed() {
    seeds(lose);
}

/// Runs as many seeds as the environment says.
fn seeds(live: impl Fn(u64) -> Result<u64, String>) {
    if let Some(seed) = number("SIMULATION_SEED") {
        live(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        return;
    }
    let (seeds, limit) = match number("SIMULATION_SEEDS") {
        Some(seeds) => (seeds, Duration::MAX),
        None => (AT_LEAST, FOR),
    };
    // Each run begins where the clock says, so that runs add up.
    let first =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
            * 1_000_000;
    let begun = Instant::now();
    let mut done = 0;
    while done < seeds || (limit != Duration::MAX && begun.elapsed() < limit) {
        let seed = first + done;
        live(seed).unwrap_or_else(|wrong| {
            panic!("{wrong}\nreplay with SIMULATION_SEED={seed}");
        });
        done += 1;
    }
    println!("{done} seeds from {first} in {:?}", begun.elapsed());
}

#[test]
fn a_seed_takes_the_same_course_each_time() {
    for seed in 0..20 {
        let course = live(seed, Lie::None).unwrap();
        assert_eq!(live(seed, Lie::None).unwrap(), course, "seed {seed}");
        assert_eq!(lose(seed).unwrap(), lose(seed).unwrap(), "seed {seed}");
    }
}

/// How many of a number of seeds end badly.
fn caught(lie: Lie) -> usize {
    let found = (0..6000).find(|seed| live(*seed, lie).is_err());
    println!("{lie:?} is caught by seed {found:?}");
    usize::from(found.is_some())
}

#[test]
fn a_collection_that_does_not_see_pins_is_caught() {
    assert_eq!(caught(Lie::NoPins), 1);
}

#[test]
fn a_collection_that_does_not_look_at_the_names_again_is_caught() {
    assert_eq!(caught(Lie::OldNames), 1);
}

#[test]
fn an_importer_that_relies_on_what_was_condemned_is_caught() {
    assert_eq!(caught(Lie::NothingCondemned), 1);
}
