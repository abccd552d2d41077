//! Machines that still start, and are told to end: by a signal to the keeper, and by a command.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::counting::is_alive;
use sojourn_tests::slow::Hanging;
use sojourn_tests::{CountingMachine, Home, require, tool};
use std::process::{Child, Stdio};

/// The keepers of machines that may still start, and QEMUs, if these run.
fn processes(home: &Home) -> (Vec<i32>, Vec<i32>) {
    let dir = home.home().to_str().unwrap().to_owned();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let (mut keepers, mut qemus) = (Vec::new(), Vec::new());
    for entry in processes {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let args: Vec<&str> = command.split('\0').collect();
        if args.contains(&dir.as_str()) && args.contains(&"keep") {
            keepers.push(pid);
        } else if args.contains(&"-uuid") && command.contains(&format!("{dir}/machines/")) {
            qemus.push(pid);
        }
    }
    (keepers, qemus)
}

/// A resume of the suspended machine that waits for reads of the store's files with `held` in their path; where it
/// `has_qemu` by then, for those that come once QEMU is started.
fn resume_that_waits(
    home: &Home,
    machine: &CountingMachine<'_>,
    held: &'static str,
    has_qemu: bool,
) -> (Hanging, Child) {
    let hanging = Hanging::new(home.dir(), held);
    let (qemu, hold) = (home.path("qemu"), home.path("hold-read"));
    let hold = if has_qemu { format!("touch {}", hold.display()) } else { "true".into() };
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *-incoming*) {hold};; esac\nexec qemu-system-x86_64 \"$@\"\n"
    );
    tool::executable(&qemu, &script);
    if !has_qemu {
        hanging.hold_reads(true);
    }
    let resuming = home
        .command()
        .args(["vm", "resume", machine.name(), "--qemu"])
        .arg(&qemu)
        .envs(hanging.environment())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    machine.wait("read that hangs", || hanging.has_held_reads());
    assert_eq!(machine.show()["state"], "starting");
    (hanging, resuming)
}

/// What is so after a resume was ended: its processes have gone, it said why, and the machine goes on as if nobody had
/// tried.
fn assert_resumable(
    home: &Home,
    machine: &CountingMachine<'_>,
    hanging: &Hanging,
    resuming: Child,
) {
    let output = resuming.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("was ended while it started"), "{said}");
    hanging.hold_reads(false);
    let elsewhere = Home::made_in(&[], &["--store", home.home().join("store").to_str().unwrap()]);
    let listed = elsewhere.json(&["vm", "list"]);
    assert_eq!(listed[0]["state"], "suspended", "{listed}");
    let said = machine.console().len();
    machine.vm("resume");
    machine.wait_for_number_after(said);
    machine.numbers().assert_whole();
}

/// A machine that counted, and is suspended in the store.
fn suspended(home: &Home) -> CountingMachine<'_> {
    CountingMachine::image(home);
    let machine = CountingMachine::create(home, "work");
    machine.vm("start");
    machine.wait_for_numbers(2);
    machine.suspend();
    machine
}

#[test]
fn a_keeper_that_waits_for_its_claim_ends_by_a_signal_and_leaves_nothing() {
    require!("qemu-system-x86_64", "cc");
    let home = Home::new();
    let machine = suspended(&home);
    let (hanging, resuming) = resume_that_waits(&home, &machine, "refs/machine/", true);
    let (keepers, qemus) = processes(&home);
    assert_eq!((keepers.len(), qemus.len()), (1, 1), "QEMU has the state of the devices");
    // QEMU ends with its keeper, and is not asked itself.
    kill_process(Pid::from_raw(keepers[0]).unwrap(), Signal::TERM).unwrap();
    let running = [keepers, qemus].concat();
    machine.wait("end of keeper and QEMU", || !running.iter().any(|pid| is_alive(*pid)));
    assert_resumable(&home, &machine, &hanging, resuming);
}

#[test]
fn a_resume_that_waits_for_memory_is_ended_by_stop_force() {
    require!("qemu-system-x86_64", "cc");
    let home = Home::new();
    let machine = suspended(&home);
    let (hanging, resuming) = resume_that_waits(&home, &machine, "store/packs/", false);
    let (keepers, qemus) = processes(&home);
    let running = [keepers, qemus].concat();
    let stop = home.command().args(["vm", "stop", "work"]).output().unwrap();
    let said = String::from_utf8_lossy(&stop.stderr).into_owned();
    assert!(!stop.status.success() && said.contains("vm stop --force work"), "{said}");
    home.run(&["vm", "stop", "--force", "work"]);
    machine.wait("end of keeper and QEMU", || !running.iter().any(|pid| is_alive(*pid)));
    assert_resumable(&home, &machine, &hanging, resuming);
}
