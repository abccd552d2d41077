//! No room left in the middle of things: the guest gets ENOSPC, the daemon lives, nothing that was
//! there is lost, and all goes on when there is room again.

#![allow(clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::client::{ENOSPC, NO_HOLE, WRITE_ZEROES};
use sojourn_tests::{Client, Home, Server, SmallFileSystem, content};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn an_import_that_finds_no_room_leaves_no_image_and_succeeds_later() {
    let here = "an_import_that_finds_no_room_leaves_no_image_and_succeeds_later";
    let Some(small) = SmallFileSystem::mount(here, 24) else { return };
    let home = Home::within(small.path());
    let first = content::image(51, 16);
    home.import("first:1", &first);
    let second = content::random(52, 40 << 20);
    std::fs::write(home.path("second.raw"), &second).unwrap();
    let message = home.fails(8, &["image", "import", "second.raw", "second:1"]);
    assert!(message.contains("full") && message.contains("room"), "{message}");
    home.fails(3, &["image", "show", "second:1"]);
    home.run(&["image", "verify", "first:1"]);

    small.resize(128);
    home.run(&["image", "import", "second.raw", "second:1"]);
    home.run(&["image", "export", "second:1", "out.raw"]);
    content::assert_same("second", &std::fs::read(home.path("out.raw")).unwrap(), &second);
}

#[test]
fn a_guest_gets_enospc_and_the_disk_goes_on_when_there_is_room() {
    let here = "a_guest_gets_enospc_and_the_disk_goes_on_when_there_is_room";
    let Some(small) = SmallFileSystem::mount(here, 48) else { return };
    let home = Home::within(small.path());
    let image = content::image(53, 64);
    home.import("golden", &image);
    home.disk("d", "golden");
    home.disk("other", "golden");
    let mut server = serve_with_reserve(&home);
    let mut client = Client::attach(server.socket(), "d");
    let data = |index: u64| content::random(5300 + index, 1 << 20);
    let mut written = 0;
    let error = loop {
        let error = client.write(written << 20, &data(written));
        if error != 0 || written == 60 {
            break error;
        }
        written += 1;
    };
    assert_eq!(error, ENOSPC, "after {written} MiB");
    assert!(written > 4, "{written} MiB");
    server.assert_alive();
    // What was answered is there, what was not written is the image's, and others can read.
    let check = |client: &mut Client, written: u64| {
        for index in 0..written {
            content::assert_same("written", &client.read(index << 20, 1 << 20), &data(index));
        }
        let rest = (written as usize + 1) << 20;
        content::assert_same(
            "not written",
            &client.read(rest as u64, 1 << 20),
            &image[rest..][..1 << 20],
        );
    };
    check(&mut client, written);
    let mut other = Client::attach(server.socket(), "other");
    content::assert_same("other", &other.read(0, 8 << 20), &image[..8 << 20]);
    other.detach();

    small.resize(256);
    for index in written..60 {
        assert_eq!(client.write(index << 20, &data(index)), 0, "with room again");
    }
    assert_eq!(client.flush(), 0);
    check(&mut client, 60);
    client.detach();
    server.stop();
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    check(&mut client, 60);
    client.detach();
    server.stop();
}

/// Bytes that are left in the file system of `path`.
fn free(path: &Path) -> u64 {
    let found = rustix::fs::statvfs(path).expect("file system");
    found.f_bavail * found.f_frsize
}

/// Where room is kept in a home for the records of its disks and of its store.
const RESERVES: [&str; 2] = ["disks/.reserve", "store/reserve#0"];

/// Starts a server, and waits until it has taken the room that it keeps for records, which it does behind its
/// start: what is free then stays free.
fn serve_with_reserve(home: &Home) -> Server {
    let server = home.serve();
    let file_system = rustix::fs::statvfs(home.home()).expect("file system");
    let whole = file_system.f_blocks * file_system.f_frsize / 64;
    let end = Instant::now() + Duration::from_secs(60);
    for path in RESERVES.map(|reserve| home.home().join(reserve)) {
        while std::fs::metadata(&path).map_or(0, |found| found.blocks() * 512) < whole {
            assert!(Instant::now() < end, "no room is kept in {}", path.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    server
}

/// Takes all that is left in the file system of `path`, in a file `name` of somebody else's.
fn fill(path: &Path, name: &str) {
    let mut file = std::fs::File::create(path.join(name)).expect("file");
    let piece = content::random(77, 1 << 20);
    let mut length = piece.len();
    while length >= 512 {
        // Down to the last block.
        if file.write_all(&piece[..length]).is_err() {
            length /= 2;
        }
    }
    file.sync_all().expect("sync");
    assert!(free(path) < 64 << 10, "{}", free(path));
}

/// Everything that frees room, and what has to be written for it, on a full file system; `disk` holds
/// nearly all of it.
fn everything_is_freed(home: &Home, small: &SmallFileSystem, disk: &str) {
    home.run(&["gc", "--dry-run"]);
    home.run(&["gc", "--grace", "0s"]);
    home.run(&["disk", "list"]);
    let before = free(small.path());
    home.run(&["disk", "reset", disk]);
    assert!(free(small.path()) > before + (40 << 20), "{before}: {}", free(small.path()));
}

#[test]
fn a_home_that_its_disk_filled_keeps_what_was_answered_and_can_be_emptied() {
    let here = "a_home_that_its_disk_filled_keeps_what_was_answered_and_can_be_emptied";
    let Some(small) = SmallFileSystem::mount(here, 96) else { return };
    let home = Home::within(small.path());
    home.import("golden", &content::image(61, 8));
    home.import("other", &content::image(62, 4));
    home.run(&["disk", "create", "d", "--from", "golden", "--size", "2GiB"]);
    let server = serve_with_reserve(&home);
    let mut client = Client::attach(server.socket(), "d");
    let data = |index: u64| content::random(6100 + index, 1 << 20);
    // Scattered, so that the map is large.
    let place = |index: u64| (index * 17 % 2000) << 20;
    let full = (0..96).find(|index| client.write(place(*index), &data(*index)) != 0);
    let written = full.expect("it never filled up");
    assert!(written > 40, "{written} MiB");
    assert_eq!(client.write(place(written), &data(written)), ENOSPC);
    // A sixteenth stays, but for what the map and the records have grown by.
    let left = free(small.path());
    assert!(left >= (96 << 20) / 16 - (512 << 10), "{left}");
    assert_eq!(client.flush(), 0);
    client.detach();
    server.stop();

    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    for index in 0..written {
        content::assert_same("written", &client.read(place(index), 1 << 20), &data(index));
    }
    client.detach();
    everything_is_freed(&home, &small, "d");
    server.stop();
    home.run(&["image", "remove", "other:1"]);
    home.run(&["disk", "remove", "d"]);
}

#[test]
fn a_home_that_somebody_else_filled_keeps_what_was_answered_and_can_be_emptied() {
    let here = "a_home_that_somebody_else_filled_keeps_what_was_answered_and_can_be_emptied";
    let Some(small) = SmallFileSystem::mount(here, 96) else { return };
    let home = Home::within(small.path());
    let image = content::image(63, 8);
    home.import("golden", &image);
    home.import("other", &content::image(64, 4));
    home.run(&["disk", "create", "d", "--from", "golden", "--size", "2GiB"]);
    home.disk("second", "golden");
    let server = serve_with_reserve(&home);
    let mut client = Client::attach(server.socket(), "d");
    let data = |index: u64| content::random(6300 + index, 1 << 20);
    let place = |index: u64| (index * 17 % 2000) << 20;
    for index in 0..50 {
        assert_eq!(client.write(place(index), &data(index)), 0);
    }
    fill(small.path(), "foreign");
    assert_eq!(client.write(place(60), &data(60)), ENOSPC);
    assert_eq!(client.flush(), 0);
    client.detach();
    server.stop();

    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    for index in 0..50 {
        content::assert_same("written", &client.read(place(index), 1 << 20), &data(index));
    }
    client.detach();
    home.run(&["disk", "remove", "second"]);
    home.run(&["image", "remove", "other:1"]);
    everything_is_freed(&home, &small, "d");
    server.stop();
    home.run(&["disk", "remove", "d"]);
}

#[test]
fn a_server_starts_and_serves_reads_without_room_for_its_lease() {
    let here = "a_server_starts_and_serves_reads_without_room_for_its_lease";
    let Some(small) = SmallFileSystem::mount(here, 96) else { return };
    let home = Home::within(small.path());
    let image = content::image(65, 8);
    home.import("golden", &image);
    home.disk("d", "golden");
    let written = content::random(6500, 1 << 20);
    let server = serve_with_reserve(&home);
    let mut client = Client::attach(server.socket(), "d");
    assert_eq!(client.write(0, &written), 0);
    assert_eq!(client.flush(), 0);
    client.detach();
    server.stop();

    // No room, and none that is kept for records.
    fill(small.path(), "foreign");
    for reserve in RESERVES {
        std::fs::remove_file(home.home().join(reserve)).expect(reserve);
    }
    fill(small.path(), "more");
    let mut server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    content::assert_same("written", &client.read(0, 1 << 20), &written);
    content::assert_same("the image", &client.read(1 << 20, 7 << 20), &image[1 << 20..]);
    client.detach();
    server.assert_alive();
    assert!(server.log().contains("no lease: the store is full"), "{}", server.log());
    std::fs::remove_file(small.path().join("more")).expect("file");
    server.stop();
}

#[test]
fn zeroes_that_find_no_room_take_none() {
    let here = "zeroes_that_find_no_room_take_none";
    let Some(small) = SmallFileSystem::mount(here, 96) else { return };
    let home = Home::within(small.path());
    home.import("golden", &content::image(66, 8));
    home.run(&["disk", "create", "d", "--from", "golden", "--size", "2GiB"]);
    let server = serve_with_reserve(&home);
    let mut client = Client::attach(server.socket(), "d");
    assert_eq!(client.write(0, &[7; 4096]), 0);
    assert_eq!(client.flush(), 0);
    let before = free(small.path());
    // The map and the records may have grown.
    let slack = 512 << 10;
    for _ in 0..2 {
        assert_eq!(client.request_with(NO_HOLE, WRITE_ZEROES, 0, 2 << 30), ENOSPC);
        let left = free(small.path());
        assert!(left + slack >= before, "{before}: {left}");
    }
    // Nor is what was there zeroed, and others find room.
    assert_eq!(client.read(0, 4096), [7; 4096]);
    let data = content::random(6600, 1 << 20);
    assert_eq!(client.write(1 << 30, &data), 0);
    assert_eq!(client.flush(), 0);
    content::assert_same("written", &client.read(1 << 30, 1 << 20), &data);
    client.detach();
    home.run(&["disk", "reset", "d"]);
    let left = free(small.path());
    assert!(left + slack >= before, "after the reset: {before}: {left}");
    server.stop();
}
