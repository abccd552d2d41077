//! iSCSI with initiators that nobody here wrote: libiscsi's conformance tests, its tools, and QEMU's driver.

#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::expect_used, reason = "a failed step is a failed test")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sojourn_tests::home::free_port;
use sojourn_tests::tool::{attempt, shell, shell_fails};
use sojourn_tests::{Home, Initiator, Server, content, require};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MIB: usize = 64;
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A home with the disk `alice`, and a server of it with these options; its port.
fn serve(home: &Home, more: &[&str]) -> (Server, String) {
    let address = free_port().to_string();
    let mut options = vec!["--iscsi", address.as_str()];
    options.extend(more);
    (home.serve_with(&options), address)
}

fn lab() -> Home {
    let home = Home::new();
    home.import("golden:1", &content::image(1, MIB));
    home.disk("alice", "golden");
    home
}

/// `$U` is the disk, `$P` the portal.
fn environment(address: &str) -> [(&'static str, String); 2] {
    [
        ("P", format!("iscsi://{address}")),
        ("U", format!("iscsi://{address}/iqn.2026-11.io.sojourn:alice/0")),
    ]
}

fn run(home: &Home, address: &str, script: &str) -> String {
    let [(p, portal), (u, disk)] = environment(address);
    shell(home.dir(), &[(p, &portal), (u, &disk)], script)
}

fn fails(home: &Home, address: &str, script: &str) -> String {
    let [(p, portal), (u, disk)] = environment(address);
    shell_fails(home.dir(), &[(p, &portal), (u, &disk)], script)
}

#[test]
fn conformance_tests_pass_and_few_are_skipped() {
    require!("iscsi-test-cu");
    let home = lab();
    let (server, address) = serve(&home, &[]);
    let [_, (u, disk)] = environment(&address);
    let script = "iscsi-test-cu -d -n -t ALL $U 2>&1";
    let log = attempt(home.dir(), &[(u, &disk)], script).unwrap_or_else(|failed| failed);
    let tests = log
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("tests "))
        .unwrap_or_else(|| panic!("no summary:\n{log}"));
    let numbers: Vec<u32> = tests.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [total, ran, passed, failed, ..] = numbers[..] else { panic!("{tests}") };
    // A skipped test counts as passed there.
    let skipped = log.matches("[SKIPPED]").count();
    println!("iscsi-test-cu: {passed} of {total} passed, {skipped} messages of skipped ones");
    assert!(total >= 230 && ran == total, "{tests}");
    // One asks for the status from a block on and wants to be told that from another one on, unless physical
    // blocks are logical ones.
    let known = log.matches("Test UnmapSingle had failures").count();
    assert!(failed as usize == known && passed + failed == total, "{log}");
    assert!(skipped <= 60, "{skipped} skipped:\n{log}");
    server.stop();
}

#[test]
fn qemu_and_libiscsi_see_the_disk_that_nbd_clients_see() {
    require!("iscsi-ls", "iscsi-inq", "qemu-img", "qemu-io", "nbdcopy");
    let home = lab();
    let (server, address) = serve(&home, &[]);
    let list = run(&home, &address, "iscsi-ls $P");
    for target in ["iqn.2026-11.io.sojourn:alice ", "iqn.2026-11.io.sojourn:golden:1 "] {
        assert!(list.contains(target), "{list}");
    }
    content::write_sparse(&home.path("golden.raw"), &content::image(1, MIB));
    run(&home, &address, "qemu-img compare -f raw -F raw golden.raw $U");
    run(
        &home,
        &address,
        "qemu-io -f raw -c 'write -P 7 1M 3M' -c 'write -z -u 8M 1M' -c 'discard 12M 1M' -c flush \
         -c 'read -P 7 1M 3M' -c 'read -P 0 8M 1M' -c 'read -P 0 12M 1M' $U",
    );
    // A client that leaves is gone in a moment.
    run(&home, &address, "qemu-img convert -f raw -O raw $U out.raw");
    let told = &home.json(&["status"])["iscsi"];
    assert!(told["written_bytes"].as_u64() >= Some(3 << 20), "{told}");
    assert!(told["read_bytes"].as_u64() >= Some((MIB as u64) << 20), "{told}");
    assert_eq!(told["logins_refused"], 0, "{told}");
    let uri = server.uri("alice");
    shell(home.dir(), &[("N", &uri)], "nbdcopy \"$N\" nbd.raw; cmp out.raw nbd.raw");
    server.stop();
}

#[test]
fn whoever_can_connect_by_nbd_can_connect_by_iscsi() {
    let home = lab();
    let socket = home.path("nbd.sock");
    for _ in 0..10 {
        let address = free_port();
        let mut server = home.command();
        server.args(["serve", "--iscsi", &address.to_string(), "--nbd"]);
        server.arg(format!("unix:{}", socket.display()));
        let mut server = server.spawn().expect("sojourn");
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() && Instant::now() < end {
            assert!(server.try_wait().expect("server").is_none(), "the server ended");
        }
        let connected = TcpStream::connect(address);
        server.kill().and_then(|()| server.wait()).expect("server");
        connected.expect("iSCSI");
    }
}

#[test]
fn a_disk_that_an_nbd_client_has_is_refused() {
    require!("iscsi-inq", "qemu-img");
    let home = lab();
    let (server, address) = serve(&home, &[]);
    let client = sojourn_tests::client::Client::attach(server.socket(), "alice");
    fails(&home, &address, "iscsi-inq $U");
    assert!(server.log().contains("iSCSI login refused"), "the log says why");
    client.detach();
    run(&home, &address, "iscsi-inq $U");
    server.stop();
}

#[test]
fn who_does_not_know_the_secret_gets_nothing() {
    require!("iscsi-ls", "iscsi-inq");
    let home = lab();
    let secrets = home.path("chap");
    std::fs::write(&secrets, "bob:correct horse\nbetty:battery staple:server:another secret\n")
        .expect("secrets");
    std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(0o600)).expect("mode");
    let path = secrets.to_str().expect("path");
    let (server, address) = serve(&home, &["--iscsi-chap", path]);
    fails(&home, &address, "iscsi-inq $U");
    fails(&home, &address, "iscsi-ls $P");
    let disk = "iqn.2026-11.io.sojourn:alice/0";
    let url = |login: &str, end: &str| format!("'iscsi://{login}@{address}{end}'");
    fails(&home, &address, &format!("iscsi-inq {}", url("bob%wrong horse!!", &format!("/{disk}"))));
    fails(&home, &address, &format!("iscsi-inq {}", url("eve%correct horse", &format!("/{disk}"))));
    let good = url("bob%correct horse", &format!("/{disk}"));
    run(&home, &address, &format!("iscsi-inq {good}"));
    let mutual = format!("/{disk}?target_user=server&target_password=another secret");
    run(&home, &address, &format!("iscsi-inq {}", url("betty%battery staple", &mutual)));
    let wrong = format!("/{disk}?target_user=server&target_password=yet another one");
    fails(&home, &address, &format!("iscsi-inq {}", url("betty%battery staple", &wrong)));
    server.stop();
}

#[test]
fn an_address_that_others_reach_needs_a_secret() {
    let home = lab();
    let port = free_port().port();
    let refused = home.fails(9, &["serve", "--iscsi", &format!("0.0.0.0:{port}")]);
    assert!(refused.contains("--iscsi-chap"), "{refused}");
}

#[test]
fn what_was_flushed_is_there_after_the_server_was_killed() {
    require!("qemu-io");
    let home = lab();
    for round in 0..5u32 {
        let (server, address) = serve(&home, &[]);
        let first = 1 + round * 4;
        // Each flush is answered before the next write begins; then writes go on until the kill.
        let wrote = format!(
            "qemu-io -f raw -c 'write -P {p} {first}M 2M' -c flush -c 'write -f -P {q} {more}M 1M' $U",
            p = 10 + round,
            q = 100 + round,
            more = first + 2,
        );
        run(&home, &address, &wrote);
        let busy = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let [_, (u, disk)] = environment(&address);
                let script = "for i in $(seq 200); do timeout 20 qemu-io -f raw -c 'write -P 3 40M 4M' \
                              $U || exit 1; done";
                attempt(home.dir(), &[(u, &disk)], script)
            });
            while !server.log().contains("iSCSI session begins") {
                std::thread::yield_now();
            }
            server.kill();
            load.join().expect("load")
        });
        assert!(busy.is_err(), "the load was cut off");
        let (server, address) = serve(&home, &[]);
        for past in 0..=round {
            let first = 1 + past * 4;
            let check = format!(
                "qemu-io -f raw -c 'read -P {p} {first}M 2M' -c 'read -P {q} {more}M 1M' $U | tee check; \
                 ! grep -q -i verification check",
                p = 10 + past,
                q = 100 + past,
                more = first + 2,
            );
            run(&home, &address, &check);
        }
        server.stop();
    }
}

/// The status of a command that a reservation keeps out.
const CONFLICT: u8 = 0x18;

#[test]
fn reservations_outlive_a_killed_server_where_initiators_want_that() {
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const CLEAR: u8 = 3;
    const WRITE_EXCLUSIVE: u8 = 1;
    let home = lab();
    let portal = free_port();
    let serve = || home.serve_with(&["--iscsi", &portal.to_string()]);
    let log_in = |name: &str| Initiator::log_in(portal, name, "alice").expect("login");
    for kept in [true, false] {
        let server = serve();
        let (mut one, mut other) = (log_in("one"), log_in("other"));
        assert_eq!(one.reserve(REGISTER, 0, 0, 0xa1, kept), 0);
        assert_eq!(one.reserve(RESERVE, WRITE_EXCLUSIVE, 0xa1, 0, kept), 0);
        assert_eq!((one.write_block(0, 1), other.write_block(0, 2)), (0, CONFLICT));
        server.kill();
        let server = serve();
        // In the other order: neither session has to be there for the other one's sake.
        let mut other = log_in("other");
        assert_eq!(other.write_block(0, 2), if kept { CONFLICT } else { 0 }, "kept: {kept}");
        let mut one = log_in("one");
        assert_eq!(one.write_block(0, 1), 0);
        if kept {
            assert_eq!(one.reserve(CLEAR, 0, 0xa1, 0, kept), 0);
            assert_eq!(
                other.command(&[0; 6], &[], 0).status,
                0,
                "who is not registered is not told"
            );
            assert_eq!(other.write_block(0, 2), 0);
        }
        server.kill();
        let server = serve();
        assert_eq!(log_in("other").write_block(0, 2), 0, "nothing is left");
        server.stop();
    }
}

#[test]
fn two_thousand_logins_that_are_never_finished_harm_nobody() {
    require!("qemu-io");
    const HALF_OPEN: usize = 2000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("limit");
    let home = lab();
    let portal = free_port();
    let server = home.serve_with(&["--iscsi", &portal.to_string()]);
    let mut session = Initiator::log_in(portal, "one", "alice").expect("login");
    let mut half_open = Vec::new();
    for number in 0..HALF_OPEN {
        half_open.push(TcpStream::connect(portal).expect("connection"));
        if number % 100 == 0 {
            assert_eq!(session.write_block(0, 1), 0, "beside {number} half-open logins");
        }
    }
    run(&home, &portal.to_string(), "qemu-io -f raw -c 'write -P 7 1M 1M' -c 'read -P 7 1M 1M' $U");
    assert_eq!(session.write_block(0, 2), 0);
    drop(half_open);
    server.stop();
}

#[test]
fn the_limit_on_a_clients_speed_holds_for_what_it_does_by_nbd_and_iscsi_together() {
    const PER_SECOND: u32 = 20;
    const REQUESTS: u32 = 30;
    let home = lab();
    let config = format!("[limits]\nclient_iops = {PER_SECOND}\n");
    std::fs::write(home.home().join("sojourn.toml"), config).expect("configuration");
    let (portal, nbd) = (free_port(), free_port());
    let server = home.serve_with(&["--iscsi", &portal.to_string(), "--nbd", &nbd.to_string()]);
    let mut by_nbd = sojourn_tests::Client::attach_tcp(nbd, "alice");
    let mut by_iscsi = Initiator::log_in(portal, "one", "alice").expect("login");
    let begin = Instant::now();
    // In turns: with a limit of its own neither would have to wait for more than half of the time.
    for number in 0..REQUESTS / 2 {
        assert_eq!(by_nbd.write(1 << 20, &[1; 4096]), 0);
        assert_eq!(by_iscsi.write_block(number as u8, 1), 0);
    }
    // Less what may be taken at once after a pause, and the last one.
    let least = Duration::from_secs(1) * (REQUESTS - 4) / PER_SECOND;
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    by_nbd.detach();
    drop(by_iscsi);
    server.stop();
}

#[test]
fn an_initiator_whose_commands_are_polled_for_reads_what_it_wrote() {
    let home = lab();
    std::fs::write(home.home().join("sojourn.toml"), "[serve]\nbusy_poll_us = 1000\n")
        .expect("configuration");
    let portal = free_port();
    let server = home.serve_with(&["--iscsi", &portal.to_string()]);
    let mut initiator = Initiator::log_in(portal, "one", "alice").expect("login");
    // On a single processor nobody is looked for.
    let polled_for = std::thread::available_parallelism().map_or(1, usize::from) > 1;
    let end = Instant::now() + PATIENCE;
    loop {
        for number in 0..=255 {
            assert_eq!(initiator.write_block(number, number), 0);
            let read = initiator.command(&[0x28, 0, 0, 0, 0, number, 0, 0, 1, 0], &[], 512);
            assert_eq!((read.status, read.data), (0, vec![number; 512]));
        }
        let found = home.json(&["status"])["iscsi"]["busy_polled"].as_u64().expect("a number");
        if found > 0 || !polled_for {
            break;
        }
        assert!(Instant::now() < end, "no command is looked for");
    }
    drop(initiator);
    server.stop();
}
