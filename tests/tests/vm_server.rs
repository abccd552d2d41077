//! The server that the machines of a home share: who starts it, who ends it, and a machine that loses it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::counting::is_alive;
use sojourn_tests::{Client, CountingMachine, Home, require, tool};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::process::Command;
use std::time::{Duration, Instant};

/// The process of a home's server.
fn server(home: &Home) -> i32 {
    home.json(&["status"])["pid"].as_i64().unwrap() as i32
}

#[test]
fn machines_share_a_server_which_takes_others_until_the_last_of_them_has_ended() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let [one, two, three] =
        ["one", "two", "three"].map(|name| CountingMachine::create_from(&home, name, "idle"));
    one.vm("start");
    let pid = server(&home);
    two.vm("start");
    home.run(&["vm", "stop", "--force", "one"]);
    three.vm("start");
    assert_eq!(server(&home), pid);
    home.run(&["vm", "stop", "--force", "two"]);
    assert_eq!(server(&home), pid);
    home.run(&["vm", "stop", "--force", "three"]);
    three.wait("end of the server", || !is_alive(pid));
}

#[test]
fn a_server_whose_keeper_was_killed_is_used_and_ended_by_the_next_one() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let machine = CountingMachine::create_from(&home, "work", "idle");
    machine.vm("start");
    let pid = server(&home);
    machine.kill_keeper();
    machine.vm("start");
    assert_eq!(server(&home), pid);
    home.run(&["vm", "stop", "--force", "work"]);
    machine.wait("end of the server", || !is_alive(pid));
}

/// The process of a server that a keeper of the home has started, whether or not it answers; with that keeper.
fn started(home: &Home) -> Option<(i32, i32)> {
    let dir = home.home().to_str().unwrap().as_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found = processes.filter_map(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let args: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        if !(args.contains(&dir) && args.contains(&&b"serve"[..])) {
            return None;
        }
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some((entry.file_name().to_str()?.parse().ok()?, parent.trim().parse().ok()?))
    });
    found.next()
}

#[test]
fn a_server_whose_keeper_was_killed_before_it_came_up_is_ended_by_the_next_one() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let machine = CountingMachine::create_from(&home, "work", "idle");
    let kill = |pid, signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    let mut starting = home.command().args(["vm", "start", "work"]).spawn().unwrap();
    let found = Cell::new(None);
    machine.wait("server that comes up", || {
        found.set(started(&home));
        found.get().is_some()
    });
    let (pid, keeper) = found.get().unwrap();
    // It answers nobody before its keeper is gone.
    kill(pid, Signal::STOP);
    let noted = home.home().join("vm-server");
    let is_noted = || std::fs::metadata(&noted).is_ok_and(|noted| noted.len() > 0);
    let end = Instant::now() + Duration::from_secs(30);
    while !is_noted() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    // In this order: the kernel hangs up on a stopped process whose session loses its last parent.
    kill(pid, Signal::CONT);
    kill(keeper, Signal::KILL);
    assert!(!starting.wait().unwrap().success());
    machine.wait("server", || home.json(&["status"])["pid"] == pid);
    machine.vm("start");
    assert_eq!(server(&home), pid);
    home.run(&["vm", "stop", "--force", "work"]);
    machine.wait("end of the server", || !is_alive(pid));
}

#[test]
fn a_server_that_others_use_takes_the_next_machine_which_ends_it_when_they_have_gone() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    home.disk("other", "idle");
    let machine = CountingMachine::create_from(&home, "work", "idle");
    machine.vm("start");
    let pid = server(&home);
    let mut client = Client::attach(&home.home().join("nbd.sock"), "other");
    for _ in 0..2 {
        home.run(&["vm", "stop", "--force", "work"]);
        assert!(machine.vm("start").is_object());
        assert_eq!(server(&home), pid);
        client.read(0, 4096);
    }
    client.detach();
    home.run(&["vm", "stop", "--force", "work"]);
    machine.wait("end of the server", || !is_alive(pid));
}

#[test]
fn a_server_that_somebody_else_started_stays() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let machine = CountingMachine::create_from(&home, "work", "idle");
    let socket = format!("unix:{}", home.home().join("nbd.sock").display());
    let mut serving = home.serve_with(&["--nbd", &socket]);
    machine.vm("start");
    home.run(&["vm", "stop", "--force", "work"]);
    serving.assert_alive();
    machine.vm("start");
}

#[test]
fn a_machine_whose_server_finds_the_home_taken_waits_and_has_one_started_again() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::idle_image(&home);
    let machine = CountingMachine::create_from(&home, "work", "idle");
    let lock = home.home().join("lock");
    let lock = OpenOptions::new().create(true).append(true).open(lock).unwrap();
    lock.try_lock().unwrap();
    std::thread::scope(|threads| {
        let starting = threads.spawn(|| machine.vm("start"));
        let log = home.home().join("machines/work/serve.log");
        machine
            .wait("server that loses", || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0));
        lock.unlock().unwrap();
        assert_eq!(starting.join().unwrap()["name"], "work");
    });
}

#[test]
fn machines_whose_server_crashes_go_on_by_another_one_that_they_share() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::image(&home);
    let machines = ["one", "two"].map(|name| CountingMachine::create(&home, name));
    for machine in &machines {
        machine.vm("start");
        machine.wait_for_numbers(2);
    }
    let mut servers = vec![server(&home)];
    for _ in 0..2 {
        kill_process(Pid::from_raw(servers[servers.len() - 1]).unwrap(), Signal::KILL).unwrap();
        for machine in &machines {
            // Each number was written to the disk, and flushed, before the next one is said.
            machine.wait_for_numbers(3);
        }
        let next = server(&home);
        assert!(!servers.contains(&next));
        servers.push(next);
    }
    let [one, two] = machines;
    one.suspend();
    one.vm("resume");
    one.wait_for_numbers(2);
    for machine in [&one, &two] {
        machine.numbers().assert_whole();
        home.run(&["vm", "stop", "--force", machine.name()]);
    }
    two.wait("end of the servers", || !servers.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_machine_gets_another_server_after_an_upgrade() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::image(&home);
    let machine = CountingMachine::create(&home, "work");
    let program = home.path("sojourn");
    let install = || std::fs::copy(tool::sojourn(), &program).unwrap();
    install();
    let mut start = Command::new(&program);
    start.arg("--home").arg(home.home()).args(["vm", "start", "work"]).env("PATH", tool::path());
    assert!(start.status().unwrap().success());
    machine.wait_for_numbers(2);
    // As packages do: the processes that run keep a file without a name.
    std::fs::remove_file(&program).unwrap();
    install();
    kill_process(Pid::from_raw(server(&home)).unwrap(), Signal::KILL).unwrap();
    machine.wait_for_numbers(3);
    machine.numbers().assert_whole();
    home.run(&["vm", "stop", "--force", "work"]);
}

#[test]
fn a_machine_that_lost_its_server_ends_when_it_is_told_to() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    CountingMachine::image(&home);
    let machine = CountingMachine::create(&home, "work");
    machine.vm("start");
    machine.wait_for_numbers(2);
    kill_process(Pid::from_raw(server(&home)).unwrap(), Signal::KILL).unwrap();
    // Another one finds the home taken.
    let lock = home.home().join("lock");
    let lock = OpenOptions::new().create(true).append(true).open(lock).unwrap();
    machine.wait("end of the server", || lock.try_lock().is_ok());
    // The guest writes each number, and waits for that.
    let last = Cell::new((machine.numbers().last(), Instant::now()));
    machine.wait("guest that waits", || {
        let now = machine.numbers().last();
        if last.get().0 != now {
            last.set((now, Instant::now()));
        }
        // A host that is busy keeps it from the next one for a while, too.
        last.get().1.elapsed() > Duration::from_secs(10)
    });
    let begun = Instant::now();
    home.run(&["vm", "stop", "--force", "work"]);
    // QEMU waits for five minutes; it was given up after two.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
