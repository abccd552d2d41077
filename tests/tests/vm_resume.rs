//! What a resume asks of a store behind a thin link, and in which order.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::counting::numbers;
use sojourn_tests::{CountingMachine, Home, Link, S3, require};
use std::collections::BTreeMap;

/// Bytes in a second: 1 Mb/s.
const THIN: u32 = 125_000;
/// What the guest's noise takes, in bytes: it does not compress.
const NOISE: u64 = 256 << 10;

/// The bytes of each pack that were asked for by range in some HTTP requests.
fn asked_of_packs(said: &str) -> BTreeMap<String, u64> {
    let range = |request: &str| {
        let (pack, rest) = request.strip_prefix("bucket/lab/packs/")?.split_once(' ')?;
        let rest = rest.to_ascii_lowercase();
        let (_, range) = rest.split_once("range: bytes=")?;
        let (start, rest) = range.split_once('-')?;
        let end = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((pack.to_owned(), end.parse::<u64>().ok()? + 1 - start.parse::<u64>().ok()?))
    };
    let mut asked = BTreeMap::new();
    for (pack, bytes) in said.split("GET /").skip(1).filter_map(range) {
        *asked.entry(pack).or_default() += bytes;
    }
    asked
}

#[test]
fn what_the_last_resume_read_is_not_asked_for_before_the_guest_runs() {
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
    let noise = || asked_of_packs(&link.said()).into_iter().find(|(_, bytes)| *bytes > NOISE);
    moved.wait("fetching ahead", || noise().is_some());
    let (pack, _) = noise().unwrap();
    // The machine's claim is made when all is there that the guest needs to run, and before it does.
    let said = link.said();
    let (before, _) = said.split_once("PUT /bucket/lab/refs/machine/").expect("a claim");
    let bytes = asked_of_packs(before).remove(&pack).unwrap_or_default();
    assert!(bytes > 0, "the state of the devices is in it");
    assert!(bytes < NOISE / 2, "{bytes} bytes were asked for before the guest ran");
    moved.wait_for_numbers(1);
    // A line may have been cut by the suspension: its end was said there.
    numbers(&(machine.console() + &moved.console())).assert_whole();
}
