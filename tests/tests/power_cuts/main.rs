//! The power is cut while a load runs, on real file systems: the disk that the home is on is recorded
//! request by request, put together as it may be after a power cut at random points of the record, and
//! everything must be there that was promised up to that point.
//!
//! The file system is the kernel's own, on a loop device over a file of ours that keeps the record
//! ([`recorder`]). That needs root, FUSE and loop devices; where they are missing the tests are skipped.
//!
//! `CUTS` is the number of cuts for each file system (`make test-cuts`), `CUTS_SEED` what the load and
//! the cuts follow from; `--include-ignored` tries ext4 without a journal, too. The load's threads and the
//! kernel's writeback run as they like, so a seed gives the same load, and not quite the same record. What a
//! failed cut left is kept, and named.

#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "it tells what was done")]

mod check;
mod cut;
mod dice;
mod dying;
mod file_system;
mod history;
mod ledger;
mod load;
mod namespace;
mod recorder;
mod writer;

use cut::Cuts;
use dice::Dice;
use dying::Dying;
use file_system::{FileSystem, Loop};
use ledger::Ledger;
use load::Load;
use recorder::{Event, RecordedDisk};
use sojourn_tests::{Home, tool};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

/// Bytes of the recorded disk.
const SIZE: u64 = 512 << 20;
/// Failed cuts of which the disk is kept.
const KEPT: usize = 3;

#[test]
fn a_power_cut_on_ext4_loses_nothing_that_was_flushed() {
    cut_power(FileSystem::Ext4, "a_power_cut_on_ext4_loses_nothing_that_was_flushed");
}

#[test]
#[ignore = "the kernel's fsync does not write all that a file is found by: docs/shadow-format.md"]
fn a_power_cut_on_ext4_without_a_journal_loses_nothing_that_was_flushed() {
    let test = "a_power_cut_on_ext4_without_a_journal_loses_nothing_that_was_flushed";
    cut_power(FileSystem::Ext4WithoutJournal, test);
}

#[test]
fn a_power_cut_on_xfs_loses_nothing_that_was_flushed() {
    cut_power(FileSystem::Xfs, "a_power_cut_on_xfs_loses_nothing_that_was_flushed");
}

#[test]
fn a_power_cut_on_btrfs_loses_nothing_that_was_flushed() {
    cut_power(FileSystem::Btrfs, "a_power_cut_on_btrfs_loses_nothing_that_was_flushed");
}

fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}

fn cut_power(file_system: FileSystem, test: &str) {
    let [make, check] = file_system.tools();
    if !tool::have(test, &[make, check, "mount", "losetup", "unshare", "cc", "xfs_io"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return tool::skip(test, "recording a disk needs root and FUSE");
    }
    if !file_system.is_known() {
        return tool::skip(test, &format!("the kernel has no {file_system:?}"));
    }
    if !namespace::is_our_own() {
        return match namespace::is_allowed() {
            true => namespace::run_again(test),
            false => tool::skip(test, "mounts of its own are not allowed"),
        };
    }
    let (cuts, seed) = (number("CUTS", 12), number("CUTS_SEED", 1));
    println!("{file_system:?}: CUTS={cuts} CUTS_SEED={seed}");
    let place = Place::new();
    let Some((ledger, events, begin)) = record(file_system, &place, test, seed, 8 + cuts / 20)
    else {
        return;
    };
    let count = |which: fn(&Event) -> bool| events.iter().filter(|event| which(event)).count();
    println!(
        "{file_system:?}: {} writes, {} holes, {} flushes",
        count(|event| matches!(event, Event::Write { .. })),
        count(|event| matches!(event, Event::Zeroes { .. })),
        count(|event| matches!(event, Event::Flush)),
    );
    cut(file_system, &place, &ledger, events, begin, cuts, seed);
}

/// Where the recorded disk, its states and its mount point are: in memory, if possible.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("sj-cuts-").tempdir_in(parent).unwrap();
        let place = Self { dir };
        std::fs::create_dir(place.path("recorder")).unwrap();
        std::fs::create_dir(place.path("mounted")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Records a load of `rounds` lives of servers. Gives what it made, the record, and the position at
/// which the load began; `None`, with a message, where no disk can be recorded.
fn record(
    file_system: FileSystem,
    place: &Place,
    test: &str,
    seed: u64,
    rounds: u64,
) -> Option<(Ledger, Vec<Event>, usize)> {
    let began = Instant::now();
    let (base, live) = (place.path("base"), place.path("live"));
    let file = std::fs::File::create(&base).unwrap();
    file.set_len(SIZE).unwrap();
    file_system.make(&base);
    cut::copy_sparse(&base, &live);
    let live = OpenOptions::new().read(true).write(true).open(live).unwrap();
    let disk = RecordedDisk::mount(live, &place.path("recorder"));
    let Some(device) = Loop::new(disk.file()) else {
        tool::skip(test, "there is no loop device to be had");
        return None;
    };
    let mounted = file_system.mount(device.device(), &place.path("mounted")).unwrap();
    let home = Home::within(&place.path("mounted"));
    let dying = Dying::new(home.dir());
    let record = disk.record().clone();
    let mut load = Load::prepare(&home, &record, device.device(), &dying, seed);
    let begin = record.position();
    // What servers get to before they die is a matter of time: on a busy machine there are more of them.
    let is_load = |load: &Load| load.count("servers killed") > 1 && load.count("disk snapshot") > 0;
    (0..rounds * 10).any(|round| {
        load.round();
        round + 1 >= rounds && is_load(&load)
    });
    println!(
        "{file_system:?}: recorded in {:.0} s: {}",
        began.elapsed().as_secs_f64(),
        load.summary()
    );
    assert!(is_load(&load), "that was no load");
    let ledger = std::mem::take(&mut load.ledger);
    mounted.unmount().unwrap();
    drop(device);
    disk.end();
    std::fs::remove_file(place.path("live")).unwrap();
    Some((ledger, record.take(), begin))
}

/// Cuts the power at `cuts` points from `begin` on, and checks what is there.
fn cut(
    file_system: FileSystem,
    place: &Place,
    ledger: &Ledger,
    events: Vec<Event>,
    begin: usize,
    cuts: u64,
    seed: u64,
) {
    let began = Instant::now();
    let mut dice = Dice::new(seed, 5);
    let span = (events.len() - begin) as u64;
    let mut positions: Vec<usize> =
        (0..cuts).map(|_| begin + dice.below(span + 1) as usize).collect();
    positions.sort_unstable();
    let mut states = Cuts::new(&place.path("base"), events, file_system);
    let mut failed = Vec::new();
    for (index, position) in positions.into_iter().enumerate() {
        let image = place.path("image");
        let choice = |purpose| Dice::new(seed.wrapping_add(index as u64), purpose);
        let cut = states.image_at(position, &mut choice(6), position, &image);
        let check = || {
            let at = place.path("mounted");
            check::image(file_system, &image, &at, ledger, position, &mut choice(7))
        };
        if let Err(error) = check() {
            let mut text = format!("cut {index}, after {position} events; {cut}: {error}");
            if failed.len() < KEPT {
                let missed = states.missed(position, || choice(6), &image, || check().is_err());
                states.image_at(position, &mut choice(6), position, &image);
                let kept = std::env::temp_dir().join(format!("cut-{file_system:?}-{seed}-{index}"));
                cut::copy_sparse(&image, &kept);
                text.push_str(&format!("\n{missed}\nthe disk is kept: {}", kept.display()));
            }
            println!("{text}");
            failed.push(text);
        }
    }
    println!(
        "{file_system:?}: {cuts} power cuts checked in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    assert!(failed.is_empty(), "{} of {cuts} power cuts:\n{}", failed.len(), failed.join("\n"));
}
