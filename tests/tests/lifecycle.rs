//! A disk's life beside its guest: snapshots under load, rollback, commit, rebase, growth.

#![allow(clippy::disallowed_methods, reason = "threads are looked at while real clients come")]

use sojourn_tests::slow::Hanging;
use sojourn_tests::{Client, Home, Server, content, require, tool::shell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const MIB: usize = 16;

fn read_all(client: &mut Client) -> Vec<u8> {
    (0..client.size >> 20).flat_map(|part| client.read(part << 20, 1 << 20)).collect()
}

fn assert_disk(home: &Home, disk: &str, expected: &[u8]) {
    let server = home.serve();
    let mut client = Client::attach(server.socket(), disk);
    content::assert_same(disk, &read_all(&mut client), expected);
    client.detach();
    server.stop();
}

#[test]
fn a_snapshot_holds_the_moment_it_was_taken_while_the_guest_writes_on() {
    let home = Home::new();
    let mut expected = content::image(61, MIB);
    home.import("golden:1", &expected);
    home.disk("d", "golden");
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    let mut moments = Vec::new();
    for round in 0..3u64 {
        for index in 0..20 {
            let data = content::random(round * 100 + index, 12 << 10);
            let at = ((round * 31 + index * 7919) % 4000) as usize * 4096 + 512 * index as usize;
            assert_eq!(client.write(at as u64, &data), 0);
            expected[at..at + data.len()].copy_from_slice(&data);
        }
        // The guest stays attached; the command goes through the server.
        home.run(&["disk", "snapshot", "d", &format!("s{round}")]);
        moments.push(expected.clone());
        assert_eq!(client.write(8 << 20, &[round as u8; 4096]), 0);
        expected[8 << 20..][..4096].fill(round as u8);
        content::assert_same("attached", &read_all(&mut client), &expected);
    }
    home.fails(4, &["disk", "rollback", "d", "s0"]); // while a guest is attached
    client.detach();
    server.stop();
    assert_disk(&home, "d", &expected);
    for (round, moment) in moments.iter().enumerate() {
        home.run(&["disk", "rollback", "d", &format!("s{round}")]);
        assert_disk(&home, "d", moment);
    }
}

#[test]
fn snapshots_under_load_disturb_no_write() {
    require!("fio");
    let home = Home::new();
    home.import("golden", &content::image(62, 64));
    home.disk("d", "golden");
    let server = home.serve();
    let binary = sojourn_tests::tool::sojourn();
    let env = [("U", server.uri("d")), ("SOJOURN", binary.to_string_lossy().into_owned())];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    shell(
        home.dir(),
        &env,
        r#"
        fio --output=fio.txt --ioengine=nbd --uri="$U" --thread --name=job --rw=randwrite --bs=4k \
            --iodepth=32 --size=48m --rate_iops=6000 --verify=crc32c --verify_fatal=1 &
        sleep 0.3
        for n in 1 2 3 4; do "$SOJOURN" --home home disk snapshot d s$n; sleep 0.2; done
        wait $! || { cat fio.txt; exit 1; }"#,
    );
    server.stop();
}

#[test]
fn a_commit_becomes_a_version_that_new_disks_and_rebased_ones_stand_on() {
    let home = Home::new();
    let image = content::image(63, MIB);
    home.import("golden:1", &image);
    home.disk("builder", "golden:1");
    home.disk("user", "golden:1");
    let server = home.serve();
    let mut expected = image.clone();
    let mut builder = Client::attach(server.socket(), "builder");
    let patch = content::random(64, 1 << 20);
    assert_eq!(builder.write(5 << 20, &patch), 0);
    expected[5 << 20..][..1 << 20].copy_from_slice(&patch);
    builder.detach();
    let mut user = Client::attach(server.socket(), "user");
    assert_eq!(user.write(9 << 20, &[0x99; 8192]), 0);
    user.detach();
    home.run(&["disk", "commit", "builder", "golden:2"]);
    server.stop();

    home.run(&["image", "verify", "golden:2"]);
    home.run(&["image", "export", "golden:2", "two.raw"]);
    content::assert_same("golden:2", &std::fs::read(home.path("two.raw")).unwrap(), &expected);
    home.run(&["image", "export", "golden:1", "one.raw"]);
    content::assert_same("golden:1", &std::fs::read(home.path("one.raw")).unwrap(), &image);
    home.disk("new", "golden");
    assert_disk(&home, "new", &expected);

    home.run(&["disk", "rebase", "user", "golden:2"]);
    expected[9 << 20..][..8192].fill(0x99);
    assert_disk(&home, "user", &expected);
}

#[test]
fn a_rebase_that_would_lose_changes_is_refused_until_told() {
    let home = Home::new();
    let mut image = content::image(65, MIB);
    home.import("golden:1", &image);
    home.disk("d", "golden:1");
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    assert_eq!(client.write(3 << 20, &[1; 4096]), 0);
    client.detach();
    server.stop();
    image[(3 << 20) + 100] ^= 0xff;
    image[11 << 20] ^= 0xff;
    home.import("golden:2", &image);
    home.fails(4, &["disk", "rebase", "d", "golden:2"]);
    home.run(&["disk", "rebase", "d", "golden:2", "--keep-mine"]);
    image[3 << 20..][..4096].fill(1);
    assert_disk(&home, "d", &image);
    home.run(&["disk", "reset", "d"]);
}

#[test]
fn a_larger_disk_reads_zeroes_behind_its_image() {
    let home = Home::new();
    let mut expected = content::image(66, MIB);
    home.import("golden", &expected);
    let size = ((MIB + 4) << 20).to_string();
    home.run(&["disk", "create", "d", "--from", "golden", "--size", &size]);
    expected.resize((MIB + 4) << 20, 0);
    assert_disk(&home, "d", &expected);
    home.run(&["disk", "grow", "d", &((MIB + 8) << 20).to_string()]);
    expected.resize((MIB + 8) << 20, 0);
    assert_disk(&home, "d", &expected);
    home.fails(2, &["disk", "grow", "d", "1M"]);
}

#[test]
fn one_command_makes_as_many_disks_as_are_named_beside_a_server_and_without_one() {
    let home = Home::new();
    let image = content::image(64, 1);
    home.import("golden", &image);
    let numbered = |first: usize, last: usize| -> Vec<String> {
        (first..=last).map(|number| format!("pc{number:03}")).collect()
    };
    let create = |names: &[String]| -> Vec<String> {
        let verb = ["disk", "create", "--from", "golden"].map(str::to_owned);
        verb.into_iter().chain(names.iter().cloned()).collect()
    };
    let made = home.json(&refs(&create(&numbered(1, 250))));
    assert_eq!(made.as_array().unwrap().len(), 250);
    assert_eq!((&made[0]["name"], &made[249]["image"]), (&"pc001".into(), &"golden:1".into()));
    let server = home.serve();
    // Two are there already: the others are made all the same.
    let said = home.fails(4, &refs(&create(&numbered(249, 260))));
    assert!(said.contains("2 of 12 disks were not made: pc249: "), "{said}");
    let mut client = Client::attach(server.socket(), "pc260");
    content::assert_same("pc260", &read_all(&mut client), &image);
    client.detach();
    server.stop();
    assert_eq!(home.json(&["disk", "list"]).as_array().unwrap().len(), 260);
}

fn refs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn hundreds_of_disks_that_are_opened_and_closed_at_once_take_few_threads() {
    require!("cc");
    const DISKS: usize = 400;
    let home = Home::new();
    home.import("golden", &content::image(65, 4));
    let hanging = Hanging::new(home.dir(), "nothing").with_syncs_of("/disks/");
    let server = home.serve_in(&hanging.environment(), &[]);
    for index in 0..DISKS {
        home.disk(&format!("d{index}"), "golden");
    }
    let most = std::thread::scope(|scope| {
        let socket = server.socket();
        let clients: Vec<_> = (0..DISKS)
            .map(|index| {
                scope.spawn(move || {
                    let mut client = Client::attach(socket, &format!("d{index}"));
                    assert_eq!(client.write(4096, &[7; 4096]), 0);
                    client
                })
            })
            .collect();
        let mut most = 0;
        while !clients.iter().all(|client| client.is_finished()) {
            most = most.max(server.threads());
            std::thread::sleep(Duration::from_millis(5));
        }
        clients.into_iter().for_each(|client| client.join().expect("a client").detach());
        most
    });
    let closing = threads_while_closing(server, &hanging);
    println!("{most} threads, {closing} while they are closed");
    assert!(most < 120 && closing < 120, "{most} threads, {closing} while they are closed");
}

/// Stops a server with many open disks that have something to sync; gives the most threads it had
/// meanwhile. Where syncs hang, several disks must be closed at the same time.
fn threads_while_closing(mut server: Server, hanging: &Hanging) -> usize {
    hanging.hold_syncs(true);
    server.ask_to_stop();
    let end = Instant::now() + Duration::from_secs(120);
    let mut most = 0;
    loop {
        let files = hanging.held_syncs();
        let disk = |path: &std::path::PathBuf| {
            let mut parts = path.iter().skip_while(|part| *part != "disks").skip(1);
            parts.next().map(|disk| disk.to_owned())
        };
        let disks: BTreeSet<_> = files.iter().filter_map(disk).collect();
        most = most.max(server.threads());
        if disks.len() >= 8 {
            break;
        }
        assert!(
            Instant::now() < end && !server.has_ended(),
            "only {disks:?} are closed at a time: {files:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    hanging.hold_syncs(false);
    let end = Instant::now() + Duration::from_secs(120);
    while !server.has_ended() {
        assert!(Instant::now() < end, "it does not stop");
        most = most.max(server.threads());
        std::thread::sleep(Duration::from_millis(5));
    }
    server.ended();
    most
}

#[test]
fn a_disk_whose_image_is_gone_or_is_another_one_by_now_is_not_said_to_be_as_its_image() {
    let home = Home::new();
    for version in [1, 2] {
        home.import(&format!("golden:{version}"), &content::image(version, 8));
    }
    home.disk("alice", "golden:1");
    assert_eq!(home.json(&["disk", "show", "alice"])["unchanged"], true);
    // Another home takes the disk, and nothing of the store uses the image any more.
    let store = home.home().join("store");
    let there = Home::made_with(&["--store", store.to_str().unwrap()]);
    there.run(&["disk", "take", "--force", "alice"]);
    there.run(&["disk", "rebase", "alice", "golden:2"]);
    there.run(&["image", "remove", "golden:1"]);
    let kept = home.json(&["disk", "keep", "alice", "bob"]);
    assert_eq!((&kept["unchanged"], &kept["over_image"]), (&false.into(), &false.into()), "{kept}");
    home.import("golden:1", &content::image(3, 8));
    for shown in [home.json(&["disk", "show", "bob"]), home.json(&["disk", "list"])[0].clone()] {
        assert_eq!(
            (&shown["image"], &shown["unchanged"]),
            (&"golden:1".into(), &false.into()),
            "{shown}"
        );
    }
    assert_eq!(there.json(&["disk", "show", "alice"])["over_image"], true);
}
