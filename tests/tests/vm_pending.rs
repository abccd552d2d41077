//! Machines whose suspension is on one host only, and not in the store yet: what may not happen to it, and what
//! becomes of it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use rustix::process::Signal;
use sojourn_tests::attached::Machine;
use sojourn_tests::slow::Hanging;
use sojourn_tests::{Client, CountingMachine, Home, require, tool};
use std::path::PathBuf;
use tempfile::TempDir;

/// A home in which nothing goes up while reads of what was kept are held.
struct SlowHome {
    hanging: Hanging,
    home: Home,
    _dir: TempDir,
}

impl SlowHome {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hanging = Hanging::new(dir.path(), "pending/state");
        let home = Home::made_in(&hanging.environment(), &[]);
        Self { hanging, home, _dir: dir }
    }

    /// A machine that runs, and whose guest stands still.
    fn idle_machine(&self) -> CountingMachine<'_> {
        CountingMachine::idle_image(&self.home);
        let machine = CountingMachine::create_from(&self.home, "work", "idle");
        machine.vm("start");
        machine
    }

    /// The same, suspended on this host only.
    fn idle_machine_suspended_here(&self) -> CountingMachine<'_> {
        let machine = self.idle_machine();
        self.suspend_here_only(&machine);
        machine
    }

    /// Suspends a machine, whose keeper is killed before anything is in the store.
    fn suspend_here_only(&self, machine: &CountingMachine<'_>) {
        self.suspend_and_kill(machine);
        assert!(machine.show()["parcels"].as_array().unwrap().is_empty());
    }

    /// The same of a machine that may have parcels.
    fn suspend_and_kill(&self, machine: &CountingMachine<'_>) {
        let processes = machine.processes();
        self.hanging.hold_reads(true);
        machine.vm("suspend");
        machine.end_keeper(processes, Signal::KILL);
        self.hanging.hold_reads(false);
    }
}

/// The note that the disk of a machine is still to be released.
fn unreleased(machine: &CountingMachine<'_>) -> PathBuf {
    machine.pending().with_file_name("unreleased")
}

#[test]
fn a_suspension_stays_when_what_went_on_from_it_ends_and_nobody_asked_for_that() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    for signal in [Signal::TERM, Signal::KILL] {
        assert_eq!(machine.vm("resume")["parcel"], "work@1");
        let (keeper, qemu) = machine.processes();
        // The host goes down; QEMU is killed, and the keeper ends.
        match signal {
            Signal::TERM => machine.end_keeper((keeper, qemu), Signal::TERM),
            _ => machine.end_keeper((qemu, keeper), signal),
        }
        assert!(machine.pending().join("pending.json").exists(), "{signal:?}\n{}", machine.logs());
    }
    machine.vm("resume");
    slow.home.run(&["vm", "stop", "--force", "work"]);
    assert!(!machine.pending().exists(), "somebody asked for that");
}

#[test]
fn a_first_suspension_can_be_thrown_away() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    CountingMachine::image(&slow.home);
    let machine = CountingMachine::create(&slow.home, "work");
    machine.vm("start");
    machine.wait_for_numbers(2);
    slow.suspend_here_only(&machine);
    for boot in [&["vm", "start", "work"][..], &["vm", "start", "--fresh", "work"]] {
        assert!(slow.home.fails(4, boot).contains("vm discard work"));
    }
    let done = slow.home.run(&["vm", "discard", "work"]);
    assert!(done.contains("vm start work"), "{done}");
    assert!(!machine.pending().exists());
    slow.home.fails(3, &["vm", "discard", "work"]);
    let said = machine.console().len();
    machine.vm("start");
    machine.wait_for_number_after(said);
    assert_eq!(sojourn_tests::counting::numbers(&machine.console()[said..]).0[0], 1);
}

#[test]
fn a_machine_that_another_home_has_is_not_suspended_and_runs_on() {
    require!("qemu-system-x86_64");
    let here = Home::new();
    let store = here.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    CountingMachine::idle_image(&here);
    let machine = CountingMachine::create_from(&here, "work", "idle");
    machine.vm("start");
    machine.vm("checkpoint");
    there.run(&["disk", "take", "--force", "work-disk"]);
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    let refused = here.fails(5, &["vm", "suspend", "work"]);
    assert!(refused.contains("taken over by another home"), "{refused}");
    assert_eq!(machine.show()["running"]["state"], "running");
    assert!(!machine.pending().exists());
}

#[test]
fn a_suspension_goes_up_though_its_session_was_taken_for_dead_in_the_middle() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    slow.hanging.hold_reads(true);
    machine.vm("suspend");
    // The host sleeps for more than a day, and a collection by another one removes the pins that nobody renews.
    let snapshots = slow.home.home().join("store/refs/snapshot");
    machine.wait("snapshot", || std::fs::read_dir(&snapshots).is_ok_and(|found| found.count() > 0));
    let pins = slow.home.home().join("store/pins");
    machine.wait("pin", || std::fs::read_dir(&pins).is_ok_and(|found| found.count() > 0));
    for pin in std::fs::read_dir(&pins).unwrap() {
        let _ = std::fs::remove_file(pin.unwrap().path());
    }
    slow.hanging.hold_reads(false);
    machine.wait("parcel", || machine.show()["parcels"].as_array().unwrap().len() == 1);
    let log = std::fs::read_to_string(machine.pending().with_file_name("keeper.log")).unwrap();
    assert!(log.contains("its place in the store was given up"), "{log}");
}

#[test]
fn a_keeper_that_boots_finds_a_suspension_that_was_made_since_and_leaves_it() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    // As of whoever looked before the machine was suspended.
    let keep = ["vm", "keep", "work", "--qemu", "qemu-system-x86_64"];
    let refused = slow.home.fails(4, &keep);
    assert!(refused.contains("suspended here as work@1"), "{refused}");
    assert!(machine.pending().join("pending.json").exists(), "{}", machine.logs());
    assert_eq!(machine.vm("resume")["parcel"], "work@1");
}

#[test]
fn whoever_cannot_go_on_is_told_why_of_the_suspension_and_of_the_parcel() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    // What was kept goes while it is tried.
    let qemu = slow.home.path("qemu");
    let script = format!("#!/bin/sh\nrm -r {}\nexit 7\n", machine.pending().display());
    tool::executable(&qemu, &script);
    let told = slow.home.fails(3, &["vm", "resume", "work", "--qemu", qemu.to_str().unwrap()]);
    assert!(told.contains("never suspended") && told.contains("exit status: 7"), "{told}");
}

#[test]
fn the_disk_of_a_suspension_that_is_here_only_stays_as_it_is() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let home = &slow.home;
    CountingMachine::image(home);
    let machine = CountingMachine::create(home, "work");
    home.run(&["disk", "snapshot", "work-disk", "mine"]);
    machine.vm("start");
    machine.wait_for_numbers(2);
    slow.suspend_here_only(&machine);
    for verb in [
        &["reset", "work-disk"][..],
        &["rollback", "work-disk", "mine"],
        &["rebase", "work-disk", "counter"],
        &["grow", "work-disk", "8M"],
        &["release", "work-disk"],
        &["remove", "work-disk"],
    ] {
        let refused = home.fails(4, &[&["disk"], verb].concat());
        assert!(refused.contains("vm discard work"), "{verb:?}: {refused}");
    }
    let store = home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    let refused = there.fails(4, &["disk", "remove", "--lost", "work-disk"]);
    assert!(refused.contains("vm remove --lost work"), "{refused}");
    // What does not change it is not refused.
    home.run(&["disk", "snapshot", "work-disk", "mine-too"]);
    let suspended = machine.numbers();
    machine.vm("resume");
    machine.wait_for_numbers(2);
    machine.numbers().assert_whole();
    assert!(machine.numbers().last() > suspended.last());
    home.run(&["vm", "stop", "--force", "work"]);
    home.run(&["disk", "reset", "work-disk"]);
}

#[test]
fn what_nothing_sends_goes_up_when_somebody_looks_at_the_machines_of_the_home() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    assert!(machine.show()["pending"]["keeper"].is_null(), "showing one machine changes nothing");
    // It goes up behind the command, and not before that has looked.
    slow.hanging.hold_reads(true);
    let listed = slow.home.command().args(["vm", "list"]).output().unwrap();
    slow.hanging.hold_reads(false);
    let (out, err) = sojourn_tests::tool::texts(&listed);
    assert!(out.contains("to go up") && err.contains("work@1 was suspended here"), "{out}{err}");
    machine.wait("parcel", || machine.show().get("pending").is_none());
    let parcels = machine.show()["parcels"].clone();
    assert_eq!(parcels[0]["parcel"], "work@1");
    machine.wait("end of the keeper", || {
        let shown = slow.home.json(&["disk", "list"]);
        !shown.to_string().contains("work-disk")
    });
    let listed = slow.home.command().args(["vm", "list"]).output().unwrap();
    assert!(listed.stderr.is_empty(), "{listed:?}");
}

#[test]
fn a_suspension_whose_disk_was_written_is_not_sent_and_why_is_shown() {
    require!("qemu-system-x86_64", "qemu-img", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    // The server that its keeper started has the disk.
    slow.home.run(&["drain", "--timeout", "30"]);
    std::fs::write(slow.home.path("sector"), [7; 4096]).unwrap();
    let write = "qemu-img convert -n -f raw -O raw sector $uri";
    slow.home.run(&["serve", "--export", "work-disk", "--run", write]);
    // The same, however quick the keeper is that gives it up.
    for _ in 0..3 {
        for verb in [&["vm", "suspend", "--wait", "work"][..], &["vm", "suspend", "work"]] {
            assert!(slow.home.fails(4, verb).contains("was written"));
        }
    }
    let shown = machine.show()["pending"].clone();
    assert!(shown["error"].as_str().unwrap().contains("was written"), "{shown}");
    assert!(slow.home.run(&["vm", "list"]).contains("cannot go up"));
    slow.home.run(&["vm", "discard", "work"]);
    assert!(machine.show().get("pending").is_none());
}

#[test]
fn a_host_that_lost_the_disk_of_its_suspension_gives_both_up_and_has_the_machine_again() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    machine.vm("checkpoint");
    slow.suspend_and_kill(&machine);
    slow.home.run(&["drain", "--timeout", "30"]);
    let store = slow.home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    there.run(&["disk", "take", "--force", "work-disk"]);
    let moved = CountingMachine::of(&there, "work");
    assert_eq!(moved.vm("resume")["parcel"], "work@1");
    assert_eq!(moved.suspend()["parcel"], "work@2");
    let told = slow.home.fails(5, &["vm", "discard", "work"]);
    assert!(told.contains("disk remove work-disk"), "{told}");
    slow.home.run(&["disk", "remove", "work-disk"]);
    slow.home.run(&["vm", "discard", "work"]);
    assert!(!machine.pending().exists());
    assert_eq!(machine.vm("resume")["parcel"], "work@2");
}

#[test]
fn a_suspension_whose_disk_another_home_took_is_given_up_with_the_same_exit_code_each_time() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    slow.home.run(&["drain", "--timeout", "30"]);
    let store = slow.home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    there.run(&["disk", "take", "--force", "work-disk"]);
    for _ in 0..3 {
        for verb in [&["vm", "suspend", "--wait", "work"][..], &["vm", "suspend", "work"]] {
            slow.home.fails(5, verb);
        }
    }
    assert!(machine.pending().join("pending.json").exists());
}

#[test]
fn a_suspension_that_is_in_the_store_already_is_not_given_up_for_what_became_of_its_disk() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    let (here, kept) = (machine.pending(), slow.home.path("kept"));
    std::fs::create_dir(&kept).unwrap();
    for file in std::fs::read_dir(&here).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), kept.join(file.file_name())).unwrap();
    }
    assert_eq!(machine.suspend()["parcel"], "work@1");
    machine.wait("end of the keeper", || !here.exists());
    // As when the host goes down after the parcel has its name; the disk has been released.
    std::fs::rename(&kept, &here).unwrap();
    assert_eq!(machine.suspend()["parcel"], "work@1");
    assert!(!here.exists());
    assert_eq!(machine.show()["parcels"].as_array().unwrap().len(), 1);
    assert_eq!(machine.vm("resume")["parcel"], "work@1");
}

#[test]
fn a_disk_that_a_killed_keeper_did_not_release_is_released_when_somebody_looks_at_the_machines() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    let processes = machine.processes();
    slow.hanging.hold_reads(true);
    machine.vm("suspend");
    // The disk is not released while somebody uses it.
    let client = Client::attach(&slow.home.home().join("nbd.sock"), "work-disk");
    slow.hanging.hold_reads(false);
    machine.wait("parcel", || !machine.pending().exists());
    machine.end_keeper(processes, Signal::KILL);
    client.detach();
    let store = slow.home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    let refused = there.fails(4, &["vm", "resume", "work"]);
    assert!(refused.contains("vm list") && refused.contains("disk release work-disk"), "{refused}");
    let listed = slow.home.command().args(["vm", "list"]).output().unwrap();
    let (_, err) = sojourn_tests::tool::texts(&listed);
    assert!(err.contains("work@1 is in the store and nothing released its disk"), "{err}");
    machine.wait("end of the keeper", || !unreleased(&machine).exists());
    assert!(slow.home.run(&["vm", "list"]).contains("work"));
    let moved = CountingMachine::of(&there, "work");
    assert_eq!(moved.vm("resume")["parcel"], "work@1");
}

#[test]
fn a_disk_that_is_to_be_released_and_was_written_since_stays_here() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    assert_eq!(machine.suspend()["parcel"], "work@1");
    machine.wait("end of the keeper", || !unreleased(&machine).exists());
    // As when a keeper is killed when that alone was left, and somebody boots the machine by hand.
    std::fs::write(unreleased(&machine), "work@1").unwrap();
    slow.home.run(&["disk", "take", "work-disk"]);
    slow.home.run(&["vm", "resume", "work"]);
    assert!(!unreleased(&machine).exists(), "a machine that runs keeps its disk");
    slow.home.run(&["vm", "stop", "--force", "work"]);
    let server = slow.home.serve();
    let mut client = Client::attach(server.socket(), "work-disk");
    client.write(0, &[7; 4096]);
    client.flush();
    client.detach();
    std::fs::write(unreleased(&machine), "work@1").unwrap();
    slow.home.run(&["vm", "list"]);
    machine.wait("end of the keeper", || !unreleased(&machine).exists());
    assert_eq!(slow.home.json(&["disk", "show", "work-disk"])["name"], "work-disk");
}

#[test]
fn a_machine_whose_keeper_was_killed_while_it_ran_is_not_said_to_be_in_the_store() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let machine = CountingMachine::create_from(&home, "work", "idle");
    machine.vm("start");
    assert_eq!(machine.vm("checkpoint")["parcel"], "work@1");
    // The guest writes nothing to its disk, and what it has in its memory is lost.
    machine.kill_keeper();
    assert!(home.fails(4, &["vm", "suspend", "work"]).contains("does not run here"));
    home.run(&["vm", "discard", "work"]);
    let said = home.run(&["vm", "suspend", "work"]);
    assert!(said.contains("work@1 is in the store"), "{said}");
}

#[test]
fn what_somebody_had_end_goes_up_when_it_is_asked_for_and_not_before() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    slow.hanging.hold_reads(true);
    machine.vm("suspend");
    let told = slow.home.run(&["vm", "stop", "--sending", "work"]);
    assert!(told.contains("vm suspend work"), "{told}");
    slow.hanging.hold_reads(false);
    for _ in 0..2 {
        let listed = slow.home.command().args(["vm", "list"]).output().unwrap();
        let (out, err) = sojourn_tests::tool::texts(&listed);
        assert!(out.contains("stopped") && err.is_empty(), "{out}{err}");
        let shown = machine.show()["pending"].clone();
        assert_eq!((&shown["stopped"], &shown["keeper"]), (&true.into(), &().into()), "{shown}");
    }
    assert_eq!(machine.suspend()["parcel"], "work@1");
}

#[test]
fn what_a_silent_host_has_not_sent_is_left_behind_by_nobody_who_was_not_told_that_it_is_lost() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    assert_eq!(machine.vm("checkpoint")["parcel"], "work@1");
    slow.hanging.hold_reads(true);
    assert_eq!(machine.vm("suspend")["parcel"], "work@2");
    // The last keeper has the server of the home end, which promises nobody to come back.
    slow.home.run(&["vm", "stop", "--force", "work"]);
    slow.hanging.hold_reads(false);
    machine.wait("end of the server", || slow.home.json(&["status"])["running"] == false);
    let store = slow.home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    for verb in ["resume", "rollback", "discard"] {
        let refused = there.fails(4, &["vm", verb, "work"]);
        assert!(refused.contains("has fallen silent") && refused.contains("--lost"), "{refused}");
    }
    there.fails(3, &["disk", "show", "work-disk"]);
    assert_eq!(machine.suspend()["parcel"], "work@2");

    // A host that is gone for good.
    assert_eq!(machine.vm("resume")["parcel"], "work@2");
    slow.suspend_and_kill(&machine);
    slow.home.run(&["drain", "--timeout", "30"]);
    let moved = CountingMachine::of(&there, "work");
    there.fails(4, &["vm", "resume", "work"]);
    assert_eq!(there.json(&["vm", "resume", "--lost", "work"])["parcel"], "work@2");
    assert_eq!(moved.show()["state"], "running");
    slow.home.fails(5, &["vm", "suspend", "--wait", "work"]);
}

#[test]
fn the_disk_of_a_machine_whose_host_is_only_offline_is_taken_by_force_alone() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    // Its server promises nobody to come back.
    slow.home.run(&["drain", "--timeout", "30"]);
    let store = slow.home.home().join("store").display().to_string();
    let there = Home::made_with(&["--store", &store]);
    let dir = tempfile::Builder::new().prefix("sj-").tempdir().unwrap();
    let (certificates, environment) = (PathBuf::new(), Vec::new());
    let laptop = Machine { dir, from: store.clone(), certificates, environment };
    for refused in [
        there.fails(4, &["disk", "take", "work-disk"]),
        laptop.fails(4, &["attach", "work-disk", "--from", &store]),
    ] {
        assert!(refused.contains("machine \"work\""), "{refused}");
        assert!(refused.contains("vm resume work") && refused.contains("--force"), "{refused}");
    }
    assert_eq!(machine.vm("resume")["parcel"], "work@1");
    assert_eq!(machine.show()["state"], "running");
}

#[test]
fn what_nothing_sends_stays_when_somebody_has_it_end_before_it_is_sent_again() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine_suspended_here();
    for _ in 0..2 {
        let told = slow.home.run(&["vm", "stop", "--force", "work"]);
        assert!(told.contains("vm suspend work"), "{told}");
        assert!(slow.home.run(&["vm", "list"]).contains("stopped"));
        assert_eq!(machine.show()["pending"]["stopped"], true);
    }
    machine.vm("resume");
    // Neither of them is meant for a machine that has gone on.
    slow.home.fails(4, &["vm", "stop", "--sending", "work"]);
    let refused = slow.home.fails(3, &["vm", "discard", "work"]);
    assert!(refused.contains("nothing to go back to"), "{refused}");
    assert_eq!(machine.show()["state"], "running");
    let told = slow.home.run(&["vm", "stop", "--force", "work"]);
    assert!(told.contains("has stopped"), "{told}");
    slow.home.fails(4, &["vm", "stop", "--force", "work"]);
}

#[test]
fn a_discard_that_cannot_put_the_disk_back_leaves_the_suspension_as_it_was() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    machine.suspend();
    machine.vm("resume");
    slow.suspend_and_kill(&machine);
    // The server that its keeper started has the disk.
    let client = Client::attach(&slow.home.home().join("nbd.sock"), "work-disk");
    let refused = slow.home.fails(4, &["vm", "discard", "work"]);
    assert!(refused.contains("work-disk"), "{refused}");
    assert!(machine.pending().join("pending.json").exists(), "{}", machine.logs());
    assert!(!machine.pending().with_file_name("pending.aside").exists());
    client.detach();
    assert_eq!(machine.vm("resume")["parcel"], "work@2");
    let done = slow.home.run(&["vm", "discard", "work"]);
    assert!(done.contains("work@1"), "{done}");
    assert_eq!(machine.vm("resume")["parcel"], "work@1");
}

#[test]
fn a_discard_that_fails_leaves_a_suspension_that_went_up_to_be_sent() {
    require!("qemu-system-x86_64", "cc");
    let slow = SlowHome::new();
    let machine = slow.idle_machine();
    machine.suspend();
    machine.vm("resume");
    slow.hanging.hold_reads(true);
    machine.vm("suspend");
    let client = Client::attach(&slow.home.home().join("nbd.sock"), "work-disk");
    slow.home.fails(4, &["vm", "discard", "work"]);
    slow.hanging.hold_reads(false);
    client.detach();
    let shown = machine.show()["pending"].clone();
    assert!(shown.is_object() && shown.get("stopped").is_none(), "{shown}");
    slow.home.run(&["vm", "list"]);
    machine.wait("parcel", || machine.show()["parcels"].as_array().is_some_and(|p| p.len() == 2));
}

/// Has the store of a home away while a suspension of its machine is sent, as one that is not mounted; then there are
/// so many parcels.
fn is_sent_when_the_store_is_back(home: &Home, machine: &CountingMachine<'_>, parcels: usize) {
    let (store, away) = (home.home().join("store"), home.path("away"));
    std::fs::rename(&store, &away).unwrap();
    machine.vm("suspend");
    let told = home.fails(3, &["vm", "suspend", "--wait", "work"]);
    assert!(told.contains("tried again"), "{told}");
    assert!(machine.pending().join("pending.json").exists(), "{}", machine.logs());
    // Who tries to store something there makes directories.
    machine.wait("place of the store", || {
        let _ = std::fs::remove_dir_all(&store);
        std::fs::rename(&away, &store).is_ok()
    });
    machine.wait("parcel", || {
        machine.show()["parcels"].as_array().is_some_and(|found| found.len() == parcels)
    });
}

#[test]
fn what_could_not_be_stored_is_tried_again_and_whoever_waits_is_told() {
    require!("qemu-system-x86_64");
    let here = Home::new();
    CountingMachine::idle_image(&here);
    let machine = CountingMachine::create_from(&here, "work", "idle");
    machine.vm("start");
    machine.suspend();
    machine.vm("resume");
    is_sent_when_the_store_is_back(&here, &machine, 2);
}

#[test]
fn a_first_suspension_does_not_go_below_the_mount_point_of_a_store_that_is_not_mounted() {
    require!("qemu-system-x86_64");
    let here = Home::new();
    CountingMachine::idle_image(&here);
    let machine = CountingMachine::create_from(&here, "work", "idle");
    machine.vm("start");
    is_sent_when_the_store_is_back(&here, &machine, 1);
}
