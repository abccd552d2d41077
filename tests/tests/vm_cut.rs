//! Machines whose store is behind a link that is cut while the guest needs memory from there.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::counting::{is_alive, numbers};
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
    there.run(&["vm", "resume", "--no-fill", "work"]);
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

#[test]
fn a_machine_whose_memory_has_come_behind_it_needs_no_link_for_memory_any_more() {
    require!("qemu-system-x86_64");
    let Some(s3) = S3::start() else { return };
    let here = CountingMachine::home_in(&s3);
    let machine = CountingMachine::started(&here, "work");
    // Memory that nothing but more noise touches.
    machine.type_in("!");
    machine.suspend();

    let link = Link::to(s3.address().parse().unwrap());
    let address = link.address().to_string();
    let there = Home::made_in(&s3.environment(Some(&address)), &["--store", "s3://bucket/lab"]);
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    moved.wait("memory", || moved.show()["running"]["memory_here"] == true);
    link.cut();
    moved.type_in("!");
    moved.wait_for_numbers(2);
    link.mend();
    moved.suspend();
}

#[test]
fn a_machine_that_was_suspended_over_a_cut_link_goes_on_though_its_server_is_gone_and_the_link_too()
{
    require!("qemu-system-x86_64");
    let Some(s3) = S3::start() else { return };
    drop(CountingMachine::home_in(&s3));
    let link = Link::to(s3.address().parse().unwrap());
    let address = link.address().to_string();
    let home = Home::made_in(&s3.environment(Some(&address)), &["--store", "s3://bucket/lab"]);
    let machine = CountingMachine::started(&home, "work");
    link.cut();
    assert_eq!(machine.vm("suspend")["parcel"], "work@1");
    // It can be looked at while it waits to go up.
    let pending = machine.show()["pending"].clone();
    assert!(pending["left_bytes"].as_u64().unwrap() > 0, "{pending}");
    assert_eq!(machine.show()["state"], "suspended");

    // The host goes down, and comes up.
    let servers = std::fs::read_to_string(home.home().join("vm-server")).unwrap();
    let server = servers.split_whitespace().next().unwrap().parse().unwrap();
    let keeper = pending["keeper"].as_i64().unwrap() as i32;
    for process in [keeper, server] {
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
        machine.wait("end of the process", || !is_alive(process));
    }
    machine.vm("resume");
    machine.wait_for_numbers(2);
    link.mend();
    machine.suspend();
    machine.vm("resume");
    machine.wait_for_numbers(1);
    machine.numbers().assert_whole();
}
