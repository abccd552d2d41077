//! What a resume asks of a store behind a thin link, and in which order.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::counting::numbers;
use sojourn_tests::{CountingMachine, Home, Link, S3, require};
use std::collections::BTreeMap;

/// Bytes in a second: 1 Mb/s.
const THIN: u32 = 125_000;
/// What the guest's noise takes, in bytes: it does not compress.
const NOISE: u64 = 256 << 10;

/// The ranges of each pack that were asked for in some HTTP requests, in their order: how many bytes each has.
fn asked_of_packs(said: &str) -> BTreeMap<String, Vec<u64>> {
    let range = |request: &str| {
        let (pack, rest) = request.strip_prefix("bucket/lab/packs/")?.split_once(' ')?;
        let rest = rest.to_ascii_lowercase();
        let (_, range) = rest.split_once("range: bytes=")?;
        let (start, rest) = range.split_once('-')?;
        let end = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((pack.to_owned(), end.parse::<u64>().ok()? + 1 - start.parse::<u64>().ok()?))
    };
    let mut asked: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (pack, bytes) in said.split("GET /").skip(1).filter_map(range) {
        asked.entry(pack).or_default().push(bytes);
    }
    asked
}

#[test]
fn what_the_last_resume_read_is_asked_for_behind_the_state_of_the_devices() {
    require!("qemu-system-x86_64");
    let Some(s3) = S3::start() else { return };
    let here = CountingMachine::home_in(&s3);
    let machine = CountingMachine::started(&here, "work");
    machine.suspend();
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
    // Memory that a resume has touched, and is about to fetch ahead next time.
    machine.type_in("!");
    machine.wait_for_numbers(1);
    machine.suspend();

    let link = Link::thin(s3.address().parse().unwrap(), THIN);
    let there = Home::made_in(
        &s3.environment(Some(&link.address().to_string())),
        &["--store", "s3://bucket/lab"],
    );
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    let noise = || {
        let all = asked_of_packs(&link.said()).into_values();
        all.into_iter().find(|ranges| ranges.iter().sum::<u64>() > NOISE)
    };
    moved.wait("fetching ahead", || noise().is_some());
    // All of it is in one pack, and the guest touches none of the noise.
    let first = noise().unwrap()[0];
    assert!(first < NOISE / 2, "the state is asked for alone, and not {first} bytes");
    moved.wait_for_numbers(1);
    // A line may have been cut by the suspension: its end was said there.
    numbers(&(machine.console() + &moved.console())).assert_whole();
}
