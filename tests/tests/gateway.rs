//! The gateway between two homes: a disk is carried to a client's home and back, over a server that is
//! killed meanwhile; and curl, which nobody here wrote.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::attached::{furnish, read_all};
use sojourn_tests::counting::numbers;
use sojourn_tests::home::free_port;
use sojourn_tests::tool::shell;
use sojourn_tests::{Client, CountingMachine, Home, Server, content, require};
use std::net::SocketAddr;
use std::path::Path;

const MIB: usize = 16;

/// A server's home, whose store is encrypted if there is a key, with the disk `alice` released.
fn lab(key: Option<&Path>) -> (Home, Vec<u8>) {
    let home = match key {
        Some(key) => Home::made_with(&["--encrypt", "--key-file", key.to_str().unwrap()]),
        None => Home::new(),
    };
    let bytes = content::image(41, MIB);
    let rule = "{ certificate = \"*\", write = [\"{name}\"], read = [\"golden:*\"] }";
    furnish(&home, &bytes, rule);
    home.disk("bob", "golden:1");
    (home, bytes)
}

fn serve(home: &Home, at: SocketAddr) -> Server {
    home.serve_with(&["--gateway", &at.to_string()])
}

/// Alice's own home, whose store is the gateway.
fn laptop(server: &Home, at: SocketAddr, key: Option<&Path>) -> Home {
    let certificates = server.path("home/tls/clients/alice");
    let url = format!(
        "gateway+https://localhost:{}?tls-certificates={}",
        at.port(),
        certificates.display()
    );
    match key {
        Some(key) => Home::made_with(&["--store", &url, "--key-file", key.to_str().unwrap()]),
        None => Home::made_with(&["--store", &url]),
    }
}

fn carried(key: Option<&Path>) {
    let (home, mut expected) = lab(key);
    let at = free_port();
    let serving = serve(&home, at);
    let laptop = laptop(&home, at, key);
    assert!(laptop.fails(3, &["disk", "take", "bob"]).contains("bob"), "it is not hers to see");
    laptop.run(&["disk", "take", "alice"]);
    let here = laptop.serve();
    let mut guest = Client::attach(here.socket(), "alice");
    assert_eq!(read_all(&mut guest), expected);
    assert_eq!(guest.write(3 << 20, &content::random(5, 1 << 20)), 0);
    expected[3 << 20..][..1 << 20].copy_from_slice(&content::random(5, 1 << 20));
    assert_eq!(guest.flush(), 0);
    laptop.run(&["disk", "snapshot", "alice", "one"]);
    // The server is killed and comes back; the guest and the laptop go on.
    serving.kill();
    assert_eq!(guest.write(0, &[9; 4096]), 0);
    expected[..4096].fill(9);
    assert_eq!(guest.flush(), 0);
    let serving = serve(&home, at);
    guest.detach();
    laptop.run(&["disk", "release", "alice"]);
    here.stop();
    home.run(&["disk", "take", "alice"]);
    let mut back = Client::attach(serving.socket(), "alice");
    content::assert_same("the disk", &read_all(&mut back), &expected);
    back.detach();
    assert!(home.run(&["disk", "show", "alice"]).contains("one"));
    let did = &home.json(&["status"])["gateway"];
    assert!(did["written"].as_u64().unwrap() > 0, "{did}");
    serving.stop();
    home.run(&["verify"]);
}

#[test]
fn a_disk_is_carried_to_another_home_and_back_over_a_server_that_is_killed() {
    carried(None);
}

#[test]
fn a_disk_of_an_encrypted_store_is_carried_by_who_has_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, content::random(77, 64)).unwrap();
    carried(Some(&key));
}

#[test]
fn a_machine_goes_on_on_another_laptop_and_what_it_was_stays_at_the_server() {
    require!("qemu-system-x86_64");
    let home = Home::new();
    let rule = "{ certificate = \"alice\", write = [\"work\", \"work-*\"], read = [\"counter\"] }";
    furnish(&home, &content::image(41, 1), rule);
    CountingMachine::image(&home);
    let at = free_port();
    let serving = serve(&home, at);
    let (office, bus) = (laptop(&home, at, None), laptop(&home, at, None));
    let left = CountingMachine::started(&office, "work");
    left.suspend();
    let moved = CountingMachine::of(&bus, "work");
    moved.vm("resume");
    moved.wait_for_numbers(2);
    moved.suspend();
    numbers(&(left.console() + &moved.console())).assert_whole();
    // Whoever broke into a laptop does away with nothing that the machine was.
    let refused = bus.fails(9, &["vm", "remove", "work@1"]);
    assert!(refused.contains("at the server"), "{refused}");
    let end = left.console().len();
    left.vm("resume");
    left.wait_for_number_after(end);
    left.suspend();
    let listed = home.json(&["vm", "list"]);
    assert_eq!(listed[0]["parcels"].as_array().map(Vec::len), Some(3), "{listed}");
    serving.stop();
    home.run(&["verify"]);
}

#[test]
fn a_server_ends_though_its_store_is_away() {
    let (home, _) = lab(None);
    let at = free_port();
    let serving = serve(&home, at);
    let laptop = laptop(&home, at, None);
    laptop.run(&["disk", "take", "alice"]);
    let here = laptop.serve();
    // Whoever was served has a server that is not starting any more.
    Client::attach(here.socket(), "alice").detach();
    serving.kill();
    // Its last word to the store is not worth the patience that its readers have.
    here.stop();
}

/// The commands of a page of the documentation that begin with curl.
fn commands(page: &str) -> Vec<String> {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page));
    let text = text.unwrap();
    text.lines().filter(|line| line.starts_with("curl ")).map(str::to_owned).collect()
}

#[test]
fn the_documented_curl_commands_work() {
    require!("curl");
    let (home, _) = lab(None);
    let at = free_port();
    let serving = serve(&home, at);
    let gateway = format!("https://localhost:{}", at.port());
    let certificates = home.path("home/tls/clients/alice");
    let commands = commands("gateway.md");
    assert!(commands.len() >= 5);
    for command in commands {
        let command = command.replace("curl ", "curl --silent --show-error --fail ");
        let said =
            shell(&certificates, &[("GATEWAY", &gateway)], &format!("{command} | head -c 300"));
        assert!(!said.is_empty(), "{command}");
        assert!(!said.contains("bob"), "{said}");
    }
    serving.stop();
}
