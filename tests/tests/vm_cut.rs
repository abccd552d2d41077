//! Machines whose store is behind a link that is cut while the guest needs memory from there.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::counting::numbers;
use sojourn_tests::{CountingMachine, Home, Link, S3, require};

#[test]
fn a_guest_that_waits_for_memory_over_a_cut_link_is_not_suspended_and_goes_on_when_it_is_mended() {
    require!("qemu-system-x86_64");
    let Some(s3) = S3::start() else { return };
    let here = CountingMachine::home_in(&s3);
    let machine = CountingMachine::started(&here, "work");
    // Memory that nothing but more noise touches.
    machine.type_in("!");
    machine.wait_for_numbers(1);
    machine.suspend();

    let link = Link::to(s3.address().parse().unwrap());
    let address = link.address().to_string();
    let there = Home::made_in(&s3.environment(Some(&address)), &["--store", "s3://bucket/lab"]);
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    moved.wait_for_numbers(2);
    link.cut();
    let console = moved.press("!");
    let state = || moved.show()["running"]["state"].clone();
    moved.wait("guest that waits", || state() == "waiting for memory");
    for _ in 0..2 {
        let said = there.fails(6, &["vm", "suspend", "work"]);
        assert!(said.contains("runs on as it was") && said.contains("mend the link"), "{said}");
    }
    assert!(moved.show().get("pending").is_none());
    link.mend();
    moved.wait_for("[!]", 0);
    drop(console);
    moved.wait_for_numbers(2);
    assert_eq!(state(), "running");
    assert_eq!(moved.suspend()["parcel"], "work@2");
    // A line may have been cut by the suspension: its end was said there.
    let said = machine.console() + &moved.console();
    let before = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(before);
    numbers(&(said + &machine.console()[before..])).assert_whole();
}
