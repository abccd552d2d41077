//! Two servers on one store: a disk goes from one to the other, released or taken by force.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "leases run out in real time")]

use sojourn_tests::slow::Hanging;
use sojourn_tests::{Client, Home, Server, content, require};
use std::time::{Duration, Instant};

const MIB: usize = 16;

/// Seconds a server is waited for where its disks are only taken by force.
const SHORT: u32 = 3;
/// Where its disks must be its own while it is at work, however long it gets no turn.
const LASTING: u32 = 15;

/// Another home on the store of `home`, whose server is waited for that many seconds.
fn beside(home: &Home, lease: u32) -> Home {
    let other = Home::new();
    let store = home.path("home").join("store");
    let config = other.path("home").join("sojourn.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let lease = format!("[serve]\nlease_seconds = {lease}\n");
    std::fs::write(config, format!("store = {store:?}\n{lease}{}", keep(&text))).unwrap();
    other
}

/// The tables of a configuration that a test does not set itself.
fn keep(text: &str) -> String {
    let set = |line: &&str| !line.starts_with("store") && !line.starts_with("[serve]");
    text.lines().filter(set).map(|line| format!("{line}\n")).collect()
}

fn lease(home: &Home, seconds: u32) {
    let config = home.path("home").join("sojourn.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(config, text.replace("[serve]", &format!("[serve]\nlease_seconds = {seconds}")))
        .unwrap();
}

fn read_all(client: &mut Client) -> Vec<u8> {
    (0..client.size >> 20).flat_map(|part| client.read(part << 20, 1 << 20)).collect()
}

/// Writes until the server has noticed that the disk was taken from it.
fn until_it_fails(client: &mut Client, server: &Server) {
    let end = Instant::now() + Duration::from_secs(60);
    while client.write(5 << 20, &[0x55; 4096]) == 0 {
        assert!(Instant::now() < end, "the guest goes on writing\n{}", server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_disk_goes_on_with_every_byte_on_another_server() {
    let here = Home::new();
    let mut expected = content::image(71, MIB);
    here.import("golden", &expected);
    here.disk("alice", "golden");
    let there = beside(&here, SHORT);
    let serving = (here.serve(), there.serve());
    let mut client = Client::attach(serving.0.socket(), "alice");
    assert_eq!(client.write(3 << 20, &[0x33; 8192]), 0);
    expected[3 << 20..][..8192].fill(0x33);
    assert!(here.fails(4, &["disk", "release", "alice"]).contains("in use"));
    client.detach();
    there.fails(4, &["disk", "take", "alice"]);
    here.run(&["disk", "release", "alice"]);
    let listed = there.json(&["disk", "list", "--elsewhere"]);
    assert_eq!((&listed[0]["name"], &listed[0]["holder"]), (&"alice".into(), &().into()));

    there.run(&["disk", "take", "alice"]);
    let mut client = Client::attach(serving.1.socket(), "alice");
    content::assert_same("moved", &read_all(&mut client), &expected);
    client.detach();
    here.fails(3, &["disk", "show", "alice"]);
    serving.0.stop();
    serving.1.stop();
}

#[test]
fn a_disk_that_was_published_under_its_guest_goes_on_in_that_state_when_its_server_dies() {
    let here = Home::new();
    lease(&here, SHORT);
    let mut expected = content::image(73, MIB);
    here.import("golden", &expected);
    here.disk("alice", "golden");
    let there = beside(&here, SHORT);
    let server = here.serve();
    let mut client = Client::attach(server.socket(), "alice");
    assert_eq!(client.write(3 << 20, &[0x33; 8192]), 0);
    let published = here.json(&["disk", "publish", "alice"]);
    assert_eq!(published["bytes"], 8192, "{published}");
    let again = here.json(&["disk", "publish", "alice"]);
    assert_eq!(again["bytes"], 0, "{again}");
    expected[3 << 20..][..8192].fill(0x33);
    // It is no snapshot, and the guest goes on.
    assert_eq!(here.json(&["disk", "show", "alice"])["snapshots"], serde_json::json!([]));
    assert_eq!(client.write(4 << 20, &[0x44; 4096]), 0);
    drop(client);
    server.kill();

    there.run(&["disk", "take", "--force", "alice"]);
    let server = there.serve();
    let mut client = Client::attach(server.socket(), "alice");
    content::assert_same("published", &read_all(&mut client), &expected);
    client.detach();
    server.stop();
    here.fails(5, &["disk", "publish", "alice"]);
}

#[test]
fn a_server_whose_disk_was_taken_publishes_nothing_and_fails_its_guest() {
    let here = Home::new();
    lease(&here, SHORT);
    let image = content::image(72, MIB);
    here.import("golden", &image);
    here.disk("alice", "golden");
    let there = beside(&here, SHORT);
    let server = here.serve();
    let mut client = Client::attach(server.socket(), "alice");
    assert_eq!(client.write(3 << 20, &[0x33; 4096]), 0);
    here.run(&["disk", "snapshot", "alice", "good"]);
    assert_eq!(client.write(4 << 20, &[0x44; 4096]), 0);
    assert_eq!(client.flush(), 0);
    there.run(&["disk", "take", "--force", "alice"]);

    here.fails(5, &["disk", "snapshot", "alice", "late"]);
    until_it_fails(&mut client, &server);
    drop(client);
    let mut expected = image.clone();
    expected[3 << 20..][..4096].fill(0x33);
    let other = there.serve();
    let mut client = Client::attach(other.socket(), "alice");
    content::assert_same("taken", &read_all(&mut client), &expected);
    client.detach();
    other.stop();
    server.kill();

    // What the first one had written is not lost.
    here.run(&["disk", "keep", "alice", "mine"]);
    expected[4 << 20..][..4096].fill(0x44);
    let server = here.serve();
    let mut client = Client::attach(server.socket(), "mine");
    let mut found = read_all(&mut client);
    found[5 << 20..][..4096].copy_from_slice(&expected[5 << 20..][..4096]);
    content::assert_same("kept", &found, &expected);
    client.detach();
    server.stop();
}

#[test]
fn disks_of_a_server_that_died_are_taken_when_its_lease_ran_out() {
    let here = Home::new();
    lease(&here, LASTING);
    here.import("golden", &content::image(73, MIB));
    here.disk("alice", "golden");
    let there = beside(&here, LASTING);
    let server = here.serve();
    there.fails(4, &["disk", "take", "alice"]);
    server.kill();
    let end = Instant::now() + Duration::from_secs(60);
    let taken = || there.command().args(["disk", "take", "alice"]).output().unwrap();
    while !taken().status.success() {
        assert!(Instant::now() < end, "the lease does not run out");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(here.fails(5, &["disk", "snapshot", "alice", "late"]).contains("taken"));
}

/// Attaches as a client that looks for its disk at two servers: as soon as one has it.
fn attach_when_it_is_there(server: &Server, disk: &str) -> (Client, Duration) {
    let began = Instant::now();
    loop {
        if let Ok(client) = Client::try_attach(server.socket(), disk) {
            return (client, began.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not taken over\n{}", server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_client_of_a_written_through_disk_finds_every_answered_write_at_the_other_server() {
    let here = Home::new();
    lease(&here, LASTING);
    let mut expected = content::image(75, MIB);
    here.import("golden", &expected);
    here.run(&["disk", "create", "alice", "--from", "golden", "--write-through"]);
    assert_eq!(here.json(&["disk", "show", "alice"])["mode"], "write-through");
    let there = beside(&here, LASTING);
    let (first, second) = (here.serve(), there.serve());
    let mut client = Client::attach(first.socket(), "alice");
    assert_eq!(client.write(3 << 20, &[0x33; 8192]), 0);
    assert!(Client::try_attach(second.socket(), "alice").is_err(), "its server is at work");
    assert_eq!(client.write(4 << 20, &[0x44; 4096]), 0);
    // Not flushed: a kernel that has its answer does not send it again.
    first.kill();
    let (mut client, _) = attach_when_it_is_there(&second, "alice");
    expected[3 << 20..][..8192].fill(0x33);
    expected[4 << 20..][..4096].fill(0x44);
    content::assert_same("taken over", &read_all(&mut client), &expected);
    assert_eq!(client.write(5 << 20, &[0x55; 4096]), 0);
    expected[5 << 20..][..4096].fill(0x55);

    // The first one is back, and leaves the disk where it is until the other one is lost.
    let first = here.serve();
    assert!(Client::try_attach(first.socket(), "alice").is_err(), "the other is at work");
    drop(client);
    second.kill();
    let (mut client, _) = attach_when_it_is_there(&first, "alice");
    content::assert_same("taken back", &read_all(&mut client), &expected);
    client.detach();
    first.stop();
}

#[test]
fn a_store_that_hangs_for_one_disk_holds_up_neither_that_disk_nor_the_others() {
    require!("cc");
    let here = Home::new();
    lease(&here, SHORT);
    here.import("golden", &content::image(74, MIB));
    let [hung, second, third] = ["alice", "bob", "carol"];
    [hung, second, third].iter().for_each(|disk| here.disk(disk, "golden"));
    let there = beside(&here, SHORT);
    let record = "refs/disk/alice/";
    let hanging = Hanging::new(here.dir(), record);
    let server = here.serve_in(&hanging.environment(), &[]);
    let mut clients = [hung, second, third].map(|disk| Client::attach(server.socket(), disk));
    hanging.hold_reads(true);
    let end = Instant::now() + Duration::from_secs(60);
    while server.descriptors(record) == 0 {
        assert!(Instant::now() < end, "the store is not asked\n{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }

    // One after the other, so that the store was asked more than once meanwhile.
    for (disk, client) in [second, third].into_iter().zip(&mut clients[1..]) {
        there.run(&["disk", "take", "--force", disk]);
        until_it_fails(client, &server);
    }
    assert_eq!(server.descriptors(record), 1, "it is asked about {hung} a second time");
    let mut another = Client::attach(server.socket(), hung);
    assert_eq!(another.write(3 << 20, &[0x33; 4096]), 0);
    assert_eq!(another.flush(), 0);
    assert_eq!(clients[0].read(3 << 20, 4096), [0x33; 4096]);
    another.detach();

    there.run(&["disk", "take", "--force", hung]);
    hanging.hold_reads(false);
    until_it_fails(&mut clients[0], &server);
    server.kill();
}
