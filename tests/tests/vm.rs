//! Machines that travel, with a guest that needs a second to boot: what `sojourn vm` promises to whoever uses one
//! machine from two homes, and when things go wrong. Real operating systems are in `guest.rs`.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::counting::{is_alive, numbers};
use sojourn_tests::{CountingMachine, Home, Link, S3, SmallFileSystem, require, tool};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Two homes on one store, which has the image of the counting guest.
fn two_homes() -> (Home, Home) {
    let here = Home::new();
    let store = here.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    CountingMachine::image(&here);
    (here, there)
}

#[test]
fn a_keeper_without_a_file_descriptor_for_a_connection_keeps_its_guest() {
    require!("qemu-system-x86_64");
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    let (keeper, qemu) = machine.processes();
    let limit = |limit| prlimit(Pid::from_raw(keeper), Resource::Nofile, limit).unwrap();
    let before = limit(Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) });
    let socket = here.home().join("machines/work/keeper.sock");
    let caller = std::os::unix::net::UnixStream::connect(socket).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    limit(before);
    drop(caller);
    assert_eq!(machine.processes(), (keeper, qemu));
    machine.wait_for_numbers(1);
}

#[test]
fn what_a_machine_elsewhere_runs_from_is_not_removed() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::create(&here, "work");
    machine.vm("start");
    machine.wait_for_numbers(3);
    assert_eq!(machine.vm("checkpoint")["parcel"], "work@1");
    machine.wait_for_numbers(1);
    assert!(here.fails(4, &["vm", "remove", "work@1"]).contains("work@1 is in use"));
    assert_eq!(machine.suspend()["parcel"], "work@2");
    // As one text: it may have been stopped in the middle of a line.
    let mut told = machine.console();
    let moved = CountingMachine::of(&there, "work");
    assert_eq!(moved.vm("resume")["parcel"], "work@2");
    moved.wait_for_numbers(2);

    let refused = here.fails(4, &["vm", "remove", "work@2"]);
    assert!(
        refused.contains("work@2 is in use") && refused.contains("vm suspend work"),
        "{refused}"
    );
    here.fails(4, &["vm", "remove", "--lost", "work@2"]);
    here.fails(4, &["vm", "remove", "work"]);
    assert_eq!(machine.show()["state"], "elsewhere");
    assert_eq!(machine.show()["parcels"].as_array().unwrap().len(), 2, "nothing was removed");
    // What nobody needs goes, while the machine runs.
    here.run(&["vm", "remove", "work@1"]);
    here.run(&["gc", "--grace", "0s"]);

    moved.wait_for_numbers(2);
    assert_eq!(moved.suspend()["parcel"], "work@3");
    told.push_str(&moved.console());
    assert_eq!(machine.show()["state"], "suspended");
    here.run(&["vm", "remove", "work@2"]);
    here.run(&["gc", "--grace", "0s"]);
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
    told.push_str(&machine.console()[said..]);
    numbers(&told).assert_whole();
}

#[test]
fn the_snapshots_and_the_disk_of_a_suspended_machine_stay_with_it() {
    require!("qemu-system-x86_64");
    let (here, _) = two_homes();
    let machine = CountingMachine::create(&here, "work");
    machine.vm("start");
    for number in 1..=2 {
        machine.wait_for_numbers(1);
        assert_eq!(machine.vm("checkpoint")["parcel"], format!("work@{number}"));
    }
    machine.suspend();
    let refused = here.fails(4, &["disk", "remove", "work-disk@vm-work-2"]);
    assert!(refused.contains("vm remove work@2"), "{refused}");
    assert!(here.fails(4, &["disk", "remove", "work-disk"]).contains("vm remove work"));
    // The machine is suspended, and its disk released.
    here.run(&["disk", "take", "work-disk"]);
    here.fails(4, &["disk", "remove", "work-disk"]);
    here.run(&["disk", "snapshot", "work-disk", "mine"]);
    here.run(&["disk", "snapshot", "work-disk", "mine-too"]);
    let pruned = here.run(&["disk", "prune", "work-disk", "--keep", "1"]);
    assert!(pruned.contains("@mine ") && !pruned.contains("vm-work"), "{pruned}");
    here.run(&["vm", "rollback", "work@1"]);
    here.run(&["vm", "resume", "work@1"]);
    machine.wait_for_numbers(1);
    here.run(&["vm", "stop", "--force", "work"]);
    here.run(&["vm", "remove", "work"]);
    here.run(&["disk", "remove", "work-disk"]);
}

#[test]
fn a_machine_of_the_same_name_elsewhere_is_another_one_and_keeps_its_disk() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::create(&here, "work");
    there.disk("other-disk", "counter");
    there.run(&["vm", "create", "work", "--disk", "other-disk", "--memory", "32M"]);
    machine.vm("start");
    machine.wait_for_numbers(1);
    assert_eq!(machine.suspend()["parcel"], "work@1");
    for verb in ["resume", "rollback"] {
        let refused = there.fails(4, &["vm", verb, "work"]);
        assert!(refused.contains("another machine") && refused.contains("vm clone"), "{refused}");
    }
    there.fails(3, &["vm", "discard", "work"]);
    there.fails(3, &["disk", "show", "work-disk"]);
    let other = CountingMachine::of(&there, "work");
    other.vm("start");
    other.wait_for_numbers(1);
    let kept = std::fs::read_to_string(there.home().join("machines/work/machine.json")).unwrap();
    assert!(kept.contains("other-disk"), "{kept}");
}

#[test]
fn a_disk_that_was_taken_for_a_machine_which_does_not_come_to_run_is_given_up() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.suspend();
    // A QEMU that has all that it is asked for, and goes on with nothing.
    let qemu = there.path("qemu");
    let script =
        "#!/bin/sh\ncase \"$*\" in *-incoming*) exit 7;; esac\nexec qemu-system-x86_64 \"$@\"\n";
    tool::executable(&qemu, script);
    let told = there.fails(6, &["vm", "resume", "work", "--qemu", qemu.to_str().unwrap()]);
    assert!(told.contains("exit status: 7"), "{told}");
    there.fails(3, &["disk", "show", "work-disk"]);
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
}

#[test]
fn who_comes_while_a_keeper_ends_waits_for_that() {
    require!("qemu-system-x86_64");
    use rustix::process::{Pid, Signal, kill_process};
    let (here, _) = two_homes();
    let machine = CountingMachine::create(&here, "work");
    for verb in [&["stop"][..], &["stop", "--force"], &["start"], &["rollback"]] {
        if machine.show()["state"] != "running" {
            here.run(&["vm", "start", "--fresh", "work"]);
        }
        machine.vm("checkpoint");
        // It writes its disk: what was stored is not what it would go on from.
        machine.wait_for_numbers(2);
        let (keeper, qemu) = machine.processes();
        let signal = |to: i32, signal| kill_process(Pid::from_raw(to).unwrap(), signal).unwrap();
        signal(keeper, Signal::STOP);
        signal(qemu, Signal::KILL);
        let asked = here.command().arg("vm").args(verb).arg("work").stderr(Stdio::piped()).spawn();
        std::thread::sleep(Duration::from_millis(300));
        signal(keeper, Signal::CONT);
        let done = asked.unwrap().wait_with_output().unwrap();
        assert!(done.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    here.fails(4, &["vm", "stop", "work"]);
}

#[test]
fn a_suspended_machine_that_boots_afresh_takes_its_disk_again() {
    require!("qemu-system-x86_64");
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.suspend();
    here.fails(3, &["disk", "show", "work-disk"]);
    let boot = ["vm", "start", "--fresh", "work"];
    // Where it does not come to run, its disk is given up again.
    let qemu = here.home().join("qemu-without-disks");
    let script =
        "#!/bin/sh\ncase \"$*\" in *blockdev*) exit 1 ;; esac\nexec qemu-system-x86_64 \"$@\"\n";
    tool::executable(&qemu, script);
    let failed = here.command().args(boot).arg("--qemu").arg(&qemu).output().unwrap();
    let told = String::from_utf8_lossy(&failed.stderr);
    assert!(told.contains("QEMU ended by itself"), "{told}");
    here.fails(3, &["disk", "show", "work-disk"]);
    let said = machine.console().len();
    here.run(&boot);
    machine.wait_for_number_after(said);
}

#[test]
fn of_two_who_resume_a_machine_at_once_one_does() {
    require!("qemu-system-x86_64");
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.suspend();
    let said = machine.console().len();
    let verbs = [["vm", "resume", "work"], ["vm", "start", "--fresh"], ["vm", "resume", "work"]];
    let tried: Vec<_> = verbs
        .iter()
        .map(|verb| {
            let mut command = here.command();
            command.args(verb).stdout(Stdio::piped()).stderr(Stdio::piped());
            if verb[1] == "start" {
                command.arg("work");
            }
            command.spawn().unwrap()
        })
        .collect();
    let done: Vec<_> = tried.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let won = done.iter().filter(|output| output.status.success()).count();
    assert_eq!(won, 1, "{done:?}");
    assert!(done.iter().all(|output| matches!(output.status.code(), Some(0 | 4))), "{done:?}");
    machine.wait_for("TICK", said);
    machine.wait_for_numbers(2);
    // From its start or from where it was: one machine, counting without a gap.
    let numbers = numbers(&machine.console()[said..]);
    let first = numbers.0[0];
    assert!(numbers.0.iter().copied().eq(first..=numbers.last()), "{numbers:?}");
}

#[test]
fn a_suspension_that_hangs_can_be_ended_and_leaves_the_parcel_before() {
    require!("qemu-system-x86_64");
    use rustix::process::{Pid, Signal, kill_process};
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    assert_eq!(machine.vm("checkpoint")["parcel"], "work@1");
    machine.wait_for_numbers(1);
    let server = here.json(&["status"])["pid"].as_i64().unwrap() as i32;
    let server = Pid::from_raw(server).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    let suspend = ["vm", "suspend", "work"];
    let suspending = here.command().args(suspend).stderr(Stdio::null()).spawn().unwrap();
    machine.wait("suspension", || machine.show()["state"] == "busy");
    assert!(here.fails(4, &["vm", "checkpoint", "work"]).contains("is being made"));
    here.run(&["vm", "stop", "--force", "work"]);
    assert_eq!(suspending.wait_with_output().unwrap().status.code(), Some(4));
    kill_process(server, Signal::CONT).unwrap();
    machine.wait("end of the machine", || machine.show()["state"] == "suspended");
    assert_eq!(machine.show()["parcels"].as_array().unwrap().len(), 1);
    here.run(&["vm", "rollback", "work"]);
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
}

/// Resumes machines all at once; each command must succeed.
fn resume_all(home: &Home, names: &[String]) {
    let resume = |name| {
        let mut command = home.command();
        command.args(["vm", "resume", name]).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let resuming: Vec<_> = names.iter().map(|name| resume(name)).collect();
    for child in resuming {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// The number in the second sector of a disk.
fn number_on_disk(home: &Home, disk: &str) -> u32 {
    // It was released, perhaps.
    let _ = home.command().args(["disk", "take", disk]).output();
    let read = "qemu-img dd -f raw -O raw bs=512 count=2 if=$uri of=sectors";
    home.run(&["serve", "--export", disk, "--run", read]);
    let sectors = std::fs::read(home.path("sectors")).unwrap();
    u32::from_le_bytes(sectors[512..516].try_into().unwrap())
}

fn stored_bytes(home: &Home) -> u64 {
    home.json(&["store", "stats"])["pack_bytes"].as_u64().unwrap()
}

#[test]
fn eight_clones_of_a_parcel_count_on_at_once_each_on_its_own() {
    require!("qemu-system-x86_64", "qemu-img");
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.type_in("!");
    machine.suspend();
    // As one text with what each of them says: it may have been stopped in the middle of a line.
    let first = machine.console();
    let before = stored_bytes(&here);
    let names: Vec<String> = (1..=8).map(|number| format!("clone{number}")).collect();
    for name in &names {
        let spec = here.json(&["vm", "clone", "work", name]);
        assert_eq!(spec["disk"], *name);
    }
    assert_eq!(stored_bytes(&here), before, "clones share what they do not change");
    here.fails(4, &["vm", "clone", "work", "clone1"]);
    here.fails(3, &["vm", "clone", "work@9", "other"]);
    here.fails(3, &["disk", "show", "other"]);
    let macs: std::collections::BTreeSet<String> =
        names.iter().map(|name| here.json(&["vm", "show", name])["mac"].to_string()).collect();
    assert_eq!(macs.len(), 8);
    let kept = here.json(&["vm", "clone", "work@1", "kept", "--disk", "kept-disk", "--keep-mac"]);
    assert_eq!(kept["mac"], machine.show()["mac"]);
    // What they were made of may go.
    here.run(&["vm", "remove", "work"]);
    here.run(&["disk", "take", "work-disk"]);
    here.run(&["disk", "remove", "work-disk"]);
    here.run(&["gc", "--grace", "0s"]);

    let clones: Vec<_> = names.iter().map(|name| CountingMachine::of(&here, name)).collect();
    resume_all(&here, &names);
    clones.iter().enumerate().for_each(|(more, clone)| clone.wait_for_numbers(more + 1));
    for clone in &clones {
        clone.suspend();
        let all = numbers(&format!("{first}{}", clone.console()));
        all.assert_whole();
        let on_disk = number_on_disk(&here, clone.name());
        // It may have been stopped between writing a number and saying it.
        assert!([0, 1].contains(&(on_disk - all.last())), "{on_disk} {}", all.last());
        assert_eq!(clone.show()["parcels"].as_array().unwrap().len(), 2);
    }
    resume_all(&here, &names[..2]);
    clones[..2].iter().for_each(|clone| clone.wait_for_numbers(1));
}

/// How often a machine goes back to one of its parcels.
const GOES_BACK: usize = 20;

#[test]
fn a_machine_goes_on_from_any_of_its_parcels_wherever_it_is() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    // What it said until each of its parcels.
    let mut last = Vec::new();
    for parcel in 1..=5 {
        machine.wait_for_numbers(1);
        assert_eq!(machine.suspend()["parcel"], format!("work@{parcel}"));
        last.push(machine.numbers().last());
        machine.vm("resume");
    }
    machine.suspend();
    let mut seed = 20_261_130_u32;
    let mut at = &here;
    for turn in 0..GOES_BACK {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (seed >> 16) as usize % last.len();
        let parcel = format!("work@{}", number + 1);
        if turn % 4 == 3 {
            // What it did here is given up with its disk.
            at.run(&["vm", "rollback", &parcel]);
            at.run(&["disk", "release", "work-disk"]);
            at = if std::ptr::eq(at, &here) { &there } else { &here };
        }
        let machine = CountingMachine::of(at, "work");
        at.run(&["vm", "rollback", &parcel]);
        let said = machine.console().len();
        at.run(&["vm", "resume", &parcel]);
        machine.wait_for_number_after(said);
        let first = numbers(&machine.console()[said..]).0[0];
        // The line that was being said at that moment ends here.
        let expected = last[number] + 1;
        assert!((expected..=expected + 1).contains(&first), "{parcel}: {first}, not {expected}");
        at.run(&["vm", "stop", "--force", "work"]);
    }
}

#[test]
fn what_a_machine_did_since_its_parcel_is_thrown_away() {
    require!("qemu-system-x86_64", "qemu-img");
    let (here, _) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    here.fails(3, &["vm", "discard", "work"]);
    assert_eq!(machine.show()["state"], "running", "there was nothing to go back to");
    let before = machine.numbers().last();
    machine.vm("checkpoint");
    let kept = machine.numbers().last();
    machine.wait_for_numbers(5);
    machine.vm("discard");
    assert_eq!(machine.show()["state"], "suspended");
    assert!(number_on_disk(&here, "work-disk") <= kept + 1);
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
    let again = numbers(&machine.console()[said..]);
    assert!((before..=kept + 2).contains(&again.0[0]), "{before} {kept} {again:?}");
    // A machine that does not run, too.
    machine.wait_for_numbers(2);
    machine.kill_keeper();
    assert!(here.fails(4, &["vm", "resume", "work"]).contains("vm rollback work@1"));
    machine.vm("discard");
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
}

#[test]
fn a_terminal_joins_a_guest_and_is_as_it_was_when_it_leaves() {
    require!("qemu-system-x86_64", "script", "stty");
    let (here, _) = two_homes();
    here.fails(3, &["vm", "console", "work"]);
    let machine = CountingMachine::create(&here, "work");
    assert!(here.fails(4, &["vm", "console", "work"]).contains("does not run here"));
    machine.vm("start");
    machine.wait_for_numbers(1);
    let session = |then: &str| {
        let sojourn = sojourn_tests::tool::sojourn();
        let console =
            format!("{} --home {} vm console work", sojourn.display(), here.home().display());
        let line = format!("stty -a > before; {console}; echo left $?; stty -a > after; {then}");
        let mut command = Command::new("script");
        command.args(["-qfc", &line, "/dev/null"]).current_dir(here.dir());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = Shown::of(child.stdout.take().unwrap());
        (child.stdin.take().unwrap(), out, child)
    };
    let unchanged = || {
        let read = |name: &str| std::fs::read_to_string(here.path(name)).unwrap();
        assert_eq!(read("before"), read("after"), "the terminal is not as it was");
    };
    let (mut keys, shown, mut child) = session("true");
    shown.wait_for("TICK");
    // Keys that a terminal would take for itself reach the guest.
    keys.write_all(b"ab\x03\x04").unwrap();
    for answer in ["[a]", "[b]", "[\x03]", "[\x04]"] {
        shown.wait_for(answer);
    }
    keys.write_all(b"\x1d").unwrap();
    shown.wait_for("left 0");
    child.wait().unwrap();
    unchanged();
    assert_eq!(machine.show()["state"], "running");
    // The guest ends under it, with nobody at the keyboard.
    let (_keys, shown, mut child) = session("true");
    shown.wait_for("TICK");
    here.run(&["vm", "stop", "--force", "work"]);
    shown.wait_for("left 0");
    child.wait().unwrap();
    unchanged();
    drop(machine);
}

/// What a program prints, as it comes.
struct Shown(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Shown {
    fn of(mut out: std::process::ChildStdout) -> Self {
        let shown = Self(std::sync::Arc::default());
        let all = std::sync::Arc::clone(&shown.0);
        std::thread::spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(len @ 1..) = out.read(&mut buf) {
                all.lock().unwrap().extend_from_slice(&buf[..len]);
            }
        });
        shown
    }

    fn wait_for(&self, what: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let shown = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
            if shown.contains(what) {
                return;
            }
            assert!(Instant::now() < end, "no {what:?} in {shown:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_suspension_returns_before_it_is_in_the_store_and_goes_up_behind() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::create(&here, "work");
    assert!(here.fails(4, &["vm", "suspend", "work"]).contains("does not run here"));
    machine.vm("start");
    machine.type_in("!");
    machine.wait_for_numbers(2);
    let kept = machine.vm("suspend");
    assert_eq!(kept["parcel"], "work@1");
    assert!(kept["left_bytes"].as_u64().unwrap() > 256 << 10, "{kept}");
    assert!(kept["paused_seconds"].as_f64() <= kept["kept_seconds"].as_f64(), "{kept}");
    let stored = machine.suspend();
    assert_eq!((&stored["parcel"], &stored["released"]), (&"work@1".into(), &true.into()));
    assert!(machine.show().get("pending").is_none());
    assert!(!here.home().join("machines/work/pending").exists());
    // Whoever asks once more, when nothing is left to wait for, is told the same.
    for again in [machine.suspend(), machine.vm("suspend")] {
        assert_eq!((&again["parcel"], &again["released"]), (&"work@1".into(), &true.into()));
    }
    let said = here.run(&["vm", "suspend", "--wait", "work"]);
    assert_eq!(said.trim(), "work@1 is in the store; its disk is released");
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    moved.wait_for_numbers(2);
    assert!(here.fails(4, &["vm", "suspend", "work"]).contains("suspend it there"));
    // A line may have been cut by the suspension: its end was said there.
    let said = machine.console() + &moved.console();
    numbers(&said).assert_whole();
}

#[test]
fn a_machine_goes_on_here_from_what_is_not_in_the_store() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    assert_eq!(machine.suspend()["parcel"], "work@1");
    let said = machine.console().len();
    machine.vm("resume");
    machine.type_in("!");
    machine.wait_for_number_after(said);
    assert_eq!(machine.vm("suspend")["parcel"], "work@2");
    // At once: it may be going up, or be done.
    machine.vm("resume");
    machine.wait_for_numbers(3);
    machine.vm("suspend");
    machine.vm("resume");
    machine.wait_for_numbers(3);
    let stored = machine.suspend();
    machine.numbers().assert_whole();
    let moved = CountingMachine::of(&there, "work");
    assert_eq!(moved.vm("resume")["parcel"], stored["parcel"]);
    moved.wait_for_numbers(2);
    numbers(&(machine.console() + &moved.console())).assert_whole();
    for home in [&here, &there] {
        let report = home.json(&["verify"]);
        assert_eq!(report["faults"].as_array().map(Vec::len), Some(0), "{report}");
    }
}

#[test]
fn what_was_not_in_the_store_when_its_keeper_was_killed_goes_up_later() {
    require!("qemu-system-x86_64");
    use rustix::process::{Pid, Signal, kill_process};
    let (here, there) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.suspend();
    let mut told = machine.console();
    let mut at = [&here, &there].into_iter().cycle();
    at.next();
    // Killed at any instant of it: a little later each time.
    for round in 0..6u64 {
        let home = at.next().unwrap();
        let moved = CountingMachine::of(home, "work");
        let said = moved.console().len();
        moved.vm("resume");
        moved.type_in("!");
        moved.wait_for_number_after(said);
        let keeper = moved.show()["running"]["keeper"].as_i64().unwrap() as i32;
        let kept = moved.vm("suspend");
        std::thread::sleep(Duration::from_millis(15 * round));
        // It may be done already.
        let _ = kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL);
        moved.wait("end of the keeper", || !is_alive(keeper));
        told.push_str(&moved.console()[said..]);
        numbers(&told).assert_whole();
        let view = moved.show();
        assert_eq!(view["state"], "suspended", "{view}");
        if view.get("pending").is_some() {
            assert_eq!(view["pending"]["keeper"], serde_json::Value::Null, "{view}");
            assert!(home.fails(4, &["vm", "rollback", "work"]).contains("--wait work"));
            assert!(home.fails(4, &["vm", "start", "--fresh", "work"]).contains("vm resume work"));
            assert_eq!(moved.suspend()["parcel"], kept["parcel"]);
        } else {
            let _ = home.command().args(["disk", "release", "work-disk"]).output();
        }
        assert_eq!(moved.show()["parcels"].as_array().unwrap().len() as u64, round + 2);
    }
    // Nothing was sent twice: what nobody needs is not even one page.
    let stats = here.json(&["gc", "--grace", "0s", "--stale", "0s"]);
    assert!(stats["found"]["bytes"].as_u64() < Some(4096), "{stats}");
    assert!(here.json(&["store", "stats"])["garbage_bytes"].as_u64() < Some(4096));
}

#[test]
fn a_machine_that_is_on_a_medium_goes_on_without_its_bytes_coming_over_the_link() {
    require!("qemu-system-x86_64");
    let Some(s3) = S3::start() else { return };
    let here = CountingMachine::home_in(&s3);
    let machine = CountingMachine::create(&here, "work");
    machine.vm("start");
    machine.wait_for_numbers(3);
    machine.suspend();
    let key = here.path("key");
    let at = key.to_str().unwrap();
    std::fs::create_dir(&key).unwrap();
    let written = here.json(&["media", "write", at, "work"]);
    assert_eq!(written["images"][0]["version"], "work@1");
    assert_eq!(written["images"][0]["missing_bytes"], 0);
    here.json(&["media", "verify", at]);
    let listed = here.json(&["media", "list", at]);
    assert_eq!(listed[0]["kind"], "machine");
    assert_eq!(
        (&listed[0]["maps_present"], &listed[0]["present"]),
        (&listed[0]["maps"], &listed[0]["chunks"])
    );

    // What it says elsewhere until there is a number, and the bytes until then.
    let resume = |sources: &str| {
        let link = Link::to(s3.address().parse().unwrap());
        let address = link.address().to_string();
        let there = Home::made_in(&s3.environment(Some(&address)), &["--store", "s3://bucket/lab"]);
        let config = there.home().join("sojourn.toml");
        let rest = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("sources = [{sources}]\n{rest}")).unwrap();
        let before = link.down() + link.up();
        let moved = CountingMachine::of(&there, "work");
        moved.vm("resume");
        moved.wait_for_numbers(1);
        let bytes = link.down() + link.up() - before;
        let told = moved.console();
        moved.suspend();
        (bytes, told)
    };
    let (with, told) = resume(&format!("{at:?}"));
    numbers(&(machine.console() + &told)).assert_whole();
    here.json(&["media", "write", at, "--refresh"]);
    assert_eq!(here.json(&["media", "list", at])[0]["version"], "work@2");
    let (without, _) = resume("");
    eprintln!("{with} bytes with the key, {without} without");
    // A map that is read slowly from the key comes over the link instead, as on a machine that has much to do.
    assert!(with * 10 < without * 9, "{with} bytes came with the key, {without} without");
    here.run(&["media", "remove", at, "work"]);
    here.fails(3, &["media", "list", at]);
}

#[test]
fn a_guest_whose_disk_finds_no_room_waits_and_goes_on_when_there_is_some() {
    require!("qemu-system-x86_64");
    let here = "a_guest_whose_disk_finds_no_room_waits_and_goes_on_when_there_is_some";
    let Some(small) = SmallFileSystem::mount(here, 256) else { return };
    let home = Home::within(small.path());
    CountingMachine::image(&home);
    let machine = CountingMachine::started(&home, "work");
    machine.suspend();
    // A sixteenth of a file system is not for disks: more than what is left.
    std::fs::write(small.path().join("other"), vec![1; 40 << 20]).unwrap();
    let found = rustix::fs::statvfs(small.path()).unwrap();
    let used = (found.f_blocks - found.f_bfree) * found.f_frsize;
    small.resize((used >> 20) as u32 + 1);
    machine.vm("resume");
    let state = || machine.show()["running"]["state"].clone();
    machine.wait("guest that waits", || state() == "waiting for room");
    small.resize(256);
    machine.wait_for_numbers(3);
    assert_eq!(state(), "running");
    machine.numbers().assert_whole();
    machine.suspend();
    machine.vm("resume");
    machine.wait_for_numbers(1);
    machine.numbers().assert_whole();
}

#[test]
fn whoever_comes_back_to_a_host_that_lost_the_disk_is_told_so_and_goes_on_there() {
    require!("qemu-system-x86_64");
    let (here, there) = two_homes();
    let machine = CountingMachine::started(&here, "work");
    machine.vm("checkpoint");
    machine.wait_for_numbers(2);
    // The host goes down; the other one does not wait for it.
    machine.kill_keeper();
    here.run(&["drain", "--timeout", "30"]);
    there.run(&["disk", "take", "--force", "work-disk"]);
    let moved = CountingMachine::of(&there, "work");
    moved.vm("resume");
    moved.wait_for_numbers(2);
    moved.suspend();
    let last = moved.numbers().last();

    let told = here.fails(5, &["vm", "resume", "work"]);
    assert!(told.contains("was taken from this server"), "{told}");
    assert!(told.contains("sojourn disk remove work-disk"), "{told}");
    here.run(&["disk", "remove", "work-disk"]);
    let said = machine.console().len();
    assert_eq!(machine.vm("resume")["parcel"], "work@2");
    machine.wait_for_number_after(said);
    let numbers = numbers(&machine.console()[said..]);
    // A line may have been cut by the suspension.
    assert!((last + 1..=last + 2).contains(&numbers.0[0]), "{last} {numbers:?}");
}
