//! Boot lists: recorded by a server, kept with the image, used by the next version.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests of real processes

use sojourn_tests::attached::{Lab, until};
use sojourn_tests::{Client, Home, Server, content};
use std::time::{Duration, Instant};

/// A boot is over after 8 seconds of quiet.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads 8 KiB at each of these MiB.
fn boot(client: &mut Client, image: &[u8], places: impl Iterator<Item = usize>) {
    for mib in places {
        for part in 0..8 {
            let at = (mib << 20) + (part << 17);
            let bytes = client.read(at as u64, 8192);
            content::assert_same("read", &bytes, &image[at..at + 8192]);
        }
    }
}

/// The boot list of debian's newest version, when it has more than so many chunks.
fn recorded(home: &Home, server: &Server, more_than: u64) -> serde_json::Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let list = home.json(&["image", "show", "debian"])["boot_list"].clone();
        if list["chunks"].as_u64().is_some_and(|chunks| chunks > more_than) {
            return list;
        }
        assert!(Instant::now() < end, "no boot was recorded\n{}", server.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_second_boot_adds_what_the_first_one_did_not_read() {
    let home = Home::new();
    let image = content::random(9, 16 << 20);
    home.import("debian", &image);
    home.disk("alice", "debian");
    let mut lists = Vec::new();
    for (places, more_than) in [([2, 5, 9, 3, 10, 6], 0), ([5, 13, 2, 14, 10, 9], 16)] {
        let server = home.serve();
        let mut client = Client::attach(server.socket(), "alice");
        boot(&mut client, &image, places.into_iter());
        recorded(&home, &server, more_than.max(lists.last().map_or(0, |(count, _)| *count)));
        server.stop();
        let ranges = home.run(&["image", "boot-list", "export", "debian", "-"]);
        lists.push((ranges.lines().count() as u64, ranges));
    }
    let (first, second) = (&lists[0].1, &lists[1].1);
    assert!(second.starts_with(first.as_str()), "{first}\n{second}");
    let place = |line: &str| line.split(' ').next().unwrap().parse::<usize>().unwrap() >> 20;
    let added: Vec<usize> = second[first.len()..].lines().map(place).collect();
    assert!(!added.is_empty() && added.iter().all(|mib| (12..=14).contains(mib)), "{added:?}");
}

#[test]
fn a_boot_is_recorded_and_its_list_goes_to_the_next_version() {
    let home = Home::new();
    let image = content::image(7, 16);
    home.import("debian", &image);
    assert!(home.json(&["image", "show", "debian"])["boot_list"].is_null());
    let none = home.fails(3, &["image", "boot-list", "show", "debian"]);
    assert!(none.contains("boot-list record"), "{none}");
    home.disk("alice", "debian");
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "alice");
    boot(&mut client, &image, [3, 0, 8].into_iter());
    let list = recorded(&home, &server, 0);
    assert!(list["chunks"].as_u64().unwrap() >= 16, "{list}");
    assert_eq!(list["chunks"], list["present_chunks"], "{list}");
    let ranges = home.run(&["image", "boot-list", "export", "debian", "-"]);
    let first = ranges.lines().next().unwrap();
    let (offset, length) = first.split_once(' ').unwrap();
    let (offset, length): (u64, u64) = (offset.parse().unwrap(), length.parse().unwrap());
    assert!(offset <= 3 << 20 && offset + length > 3 << 20, "in the order of the reads: {first}");
    server.stop();

    // The same image, moved by some blocks, with a new part before it.
    let rebuilt = [content::random(99, 1 << 20), image.clone()].concat();
    let path = home.path("rebuilt.raw");
    content::write_sparse(&path, &rebuilt);
    let path = path.to_string_lossy().into_owned();
    home.run(&["image", "import", &path, "debian", "--boot-list", "debian:1"]);
    let next = home.json(&["image", "boot-list", "show", "debian:2"]);
    let (all, here) = (next["chunks"].as_u64().unwrap(), next["present_chunks"].as_u64().unwrap());
    assert!(all == list["chunks"].as_u64().unwrap() && here * 10 >= all * 8, "{next}");

    // A disk of it boots from its list, and what it reads is right.
    home.disk("bob", "debian:2");
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "bob");
    boot(&mut client, &rebuilt, 0..17);
    server.stop();
}

#[test]
fn a_list_of_ranges_is_checked_and_may_be_any_file() {
    let home = Home::new();
    home.import("debian", &content::image(3, 8));
    std::fs::write(home.path("boot.txt"), "# mine\n0 4096\n3145728 131072\n").unwrap();
    let set = home.json(&["image", "boot-list", "record", "debian", "boot.txt"]);
    assert!(set["chunks"].as_u64().unwrap() >= 2, "{set}");
    std::fs::write(home.path("long.txt"), "0 4096\n8388608 1\n").unwrap();
    let wrong = home.fails(2, &["image", "boot-list", "record", "debian", "long.txt"]);
    assert!(wrong.contains("long.txt") && wrong.contains("line 2"), "{wrong}");
    let neither = home.fails(3, &["image", "boot-list", "record", "debian", "nothing"]);
    assert!(neither.contains("nothing"), "{neither}");
}

#[test]
fn a_whole_list_gets_a_copy_and_boots_go_on_without_it() {
    let home = Home::new();
    let image = content::random(5, 32 << 20);
    home.import("debian", &image);
    let ranges: String = (0..16).rev().map(|n| format!("{} 4096\n", n << 21)).collect();
    std::fs::write(home.path("boot.txt"), ranges).unwrap();
    let packs = || -> Vec<_> {
        let entries = std::fs::read_dir(home.home().join("store/packs")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let own = packs();
    let set = home.json(&["image", "boot-list", "record", "debian", "boot.txt"]);
    let (stored, copied) = (set["stored_bytes"].as_u64(), set["copy_stored_bytes"].as_u64());
    assert!(copied.is_some() && copied == stored, "{set}");
    let shown = home.run(&["image", "show", "debian"]);
    assert!(shown.contains("once more side by side in"), "{shown}");
    assert_eq!(home.json(&["store", "stats"])["boot_copies"]["stored_bytes"].as_u64(), copied);
    home.run(&["verify"]);
    let copy = packs().into_iter().find(|pack| !own.contains(pack)).expect("a pack of its own");
    let sound = std::fs::read(&copy).unwrap();
    home.disk("alice", "debian");
    for damaged in [false, true] {
        if damaged {
            let mut bytes = std::fs::read(&copy).unwrap();
            (100..bytes.len() - 8192).step_by(10_000).for_each(|at| bytes[at] ^= 1);
            std::fs::remove_file(&copy).unwrap();
            std::fs::write(&copy, bytes).unwrap();
        }
        let server = home.serve();
        let mut client = Client::attach(server.socket(), "alice");
        boot(&mut client, &image, (0..16).map(|n| n * 2));
        server.stop();
    }
    let verified = home.fails(7, &["verify"]);
    assert!(verified.contains("packs/"), "{verified}");
    home.run(&["image", "verify", "debian"]);
    // The image has all that the copy had.
    let repaired = home.json(&["repair"]);
    assert_eq!(repaired["restored"].as_array().unwrap().len(), 1, "{repaired}");
    assert!(std::fs::read(&copy).unwrap() == sound, "{repaired}");
    home.run(&["verify"]);
    assert_eq!(
        home.json(&["image", "show", "debian"])["boot_list"]["copy_stored_bytes"],
        set["copy_stored_bytes"]
    );
    // Another list, and the copy is garbage.
    std::fs::write(home.path("short.txt"), "0 4096\n").unwrap();
    let set = home.json(&["image", "boot-list", "record", "debian", "short.txt"]);
    assert!(set["copy_stored_bytes"].is_null(), "one place is not worth a copy: {set}");
}

#[test]
fn a_list_that_was_left_without_a_copy_gets_one_at_a_boot() {
    let home = Home::new();
    let image = content::random(6, 32 << 20);
    home.import("debian", &image);
    let ranges: String = (0..16).rev().map(|n| format!("{} 4096\n", n << 21)).collect();
    std::fs::write(home.path("boot.txt"), ranges).unwrap();
    // As a server leaves it that is stopped while it makes the copy.
    let config = home.home().join("sojourn.toml");
    let before = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, "[serve]\nboot_copies = false\n").unwrap();
    let set = home.json(&["image", "boot-list", "record", "debian", "boot.txt"]);
    assert!(set["copy_stored_bytes"].is_null(), "{set}");
    std::fs::write(&config, before).unwrap();
    home.disk("alice", "debian");
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "alice");
    boot(&mut client, &image, (0..16).map(|n| n * 2));
    let end = Instant::now() + PATIENCE;
    while home.json(&["image", "show", "debian"])["boot_list"]["copy_stored_bytes"].is_null() {
        assert!(Instant::now() < end, "no copy was made\n{}", server.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    server.stop();
    home.run(&["verify"]);
}

#[test]
fn a_list_comes_over_the_link_once_its_disk_is_attached_and_not_again_for_its_guest() {
    let lab = Lab::new(94);
    std::fs::write(lab.home.path("boot.txt"), "0 6291456\n").unwrap();
    let boot = lab.home.path("boot.txt").to_string_lossy().into_owned();
    let set = lab.home.json(&["image", "boot-list", "record", "golden:1", &boot]);
    let stored = set["stored_bytes"].as_u64().unwrap();
    let here = lab.machine();
    let socket = here.attach(&[]);
    until("loaded without a guest", || lab.link.down() >= stored);
    let mut client = Client::attach(&socket, "alice");
    // Backwards, so that nothing is read ahead.
    for at in (0..96).rev().map(|part| part << 16) {
        let bytes = client.read(at as u64, 1 << 16);
        content::assert_same("listed", &bytes, &lab.image[at..at + (1 << 16)]);
    }
    let came = lab.link.down();
    assert!(came < stored * 3 / 2, "{came} bytes came for a list of {stored}\n{}", here.log());
}
