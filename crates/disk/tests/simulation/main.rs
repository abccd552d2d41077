//! Deterministic simulation: whole lives of two servers' homes and their store on a simulated file system.
//! Disks, ephemeral ones too, are made, written, flushed, trimmed, grown, rolled back, rebased, committed,
//! reset, written back (and given up in the middle of that), released, taken by the other server, kept and removed, images imported and removed, garbage
//! collected, the store repaired; processes are killed at any call, syncs fail, room ends at any call and
//! comes back, and the power goes, which leaves any state that ext4 (with a journal and without), XFS or
//! btrfs may leave. What was answered as durable must be there. A seed decides everything, and takes the
//! same course each time.
//!
//! | module | concept |
//! |---|---|
//! | `life` | processes that begin and end, and what goes wrong with them |
//! | `guest` | what guests do with disks |
//! | `whole` | changes of a disk as a whole |
//! | `moves` | disks are made, opened, moved between servers, and removed |
//! | `stores` | what is done to the store |
//! | `check` | what has to hold whatever happened |
//! | `model` | what disks and images ought to hold |
//! | `killed` | one step whose process is killed at each of its calls |
//! | `lies` | a file system that lies, so that it shows what is found |
//!
//! `SIMULATION_SEED=17 cargo test -p disk --test simulation any_seed` replays one seed, and tells its
//! course with `SIMULATION_TOLD=1` and `-- --nocapture`;
//! `SIMULATION_SEEDS=10000` (or `make simulate`) runs so many.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)] // a test

mod check;
mod guest;
mod killed;
mod lies;
mod life;
mod model;
mod moves;
mod stores;
mod whole;

use block::fs::simulated::Nature;
use killed::Step;
use lies::{Lie, Manners};
use life::Life;
use std::time::{Duration, Instant};

/// Seeds that are run unless told otherwise.
const AT_LEAST: u64 = 300;

/// Runs what is simulated: in one thread, and with no real time in it.
fn simulated<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _inline = block::offload::Inline::on_this_thread();
    runtime.block_on(async {
        // From here on the clock stands at whole ticks, and no real time is in it.
        tokio::time::sleep(Duration::from_millis(1)).await;
        run.await
    })
}

/// Runs a life; gives its course as a number, or what went wrong.
fn live(seed: u64, manners: Manners) -> Result<u64, String> {
    simulated(Life::new(seed, manners).run())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn any_seed_keeps_what_was_answered_as_durable() {
    if let Some(seed) = number("SIMULATION_SEED") {
        live(seed, Manners::GOOD).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        return;
    }
    // Those of `make test` are always the same; more begin where the clock says, so that runs add up.
    let (first, seeds) = match number("SIMULATION_SEEDS") {
        None => (0, AT_LEAST),
        Some(seeds) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            (number("SIMULATION_FIRST").unwrap_or(now.unwrap().as_secs() * 1_000_000), seeds)
        }
    };
    let begun = Instant::now();
    let mut bad = Vec::new();
    for seed in first..first + seeds {
        if let Err(wrong) = live(seed, Manners::GOOD) {
            println!("{wrong}\nreplay with SIMULATION_SEED={seed}");
            bad.push(seed);
        }
    }
    println!("{seeds} seeds from {first} in {:?}", begun.elapsed());
    assert!(bad.is_empty(), "{} of {seeds} seeds end badly: {bad:?}", bad.len());
}

#[test]
fn a_seed_takes_the_same_course_each_time() {
    for seed in 0..10 {
        assert_eq!(live(seed, Manners::GOOD), live(seed, Manners::GOOD), "seed {seed}");
    }
}

/// The natures of a file system on which names can be exchanged, or cannot.
fn natures(exchanges: bool) -> impl Iterator<Item = Nature> {
    Nature::ALL.into_iter().filter(move |nature| exchanges || *nature != Nature::None)
}

#[test]
fn what_a_killed_snapshot_left_is_durable_once_the_disk_is_served() {
    let mut bad = Vec::new();
    for step in Step::ALL {
        for exchanges in [true, false] {
            for nature in natures(exchanges) {
                let manners = Manners { exchanges, ..Manners::GOOD };
                bad.extend(killed::everywhere(step, nature, manners));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_directory_that_is_not_synced_is_caught() {
    let manners = Manners { lie: Lie::NoDirectoryIsSynced, ..Manners::GOOD };
    let seed = (0..AT_LEAST).find(|seed| live(*seed, manners).is_err());
    println!("{manners:?}: seed {seed:?} ends badly");
    assert!(seed.is_some());
    for nature in Nature::ALL {
        assert!(!killed::everywhere(Step::Snapshot, nature, manners).is_empty(), "{nature:?}");
    }
}

#[test]
fn a_process_that_relies_on_the_names_of_another_is_caught() {
    let lie = Lie::NamesOfOthersAreNotSynced;
    for (step, exchanges) in [(Step::Snapshot, false), (Step::Keep, true), (Step::Keep, false)] {
        for nature in natures(exchanges) {
            let bad = killed::everywhere(step, nature, Manners { lie, exchanges });
            assert!(!bad.is_empty(), "{step:?}, {nature:?}, {exchanges}");
        }
    }
}
