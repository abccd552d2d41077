//! The process of attached disks: what it remembers when it is killed, what reaches it while disks are in use,
//! and stores of every kind.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use sojourn_tests::attached::{Lab, MIB, Machine, read_all, until, write};
use sojourn_tests::{Client, Home, Link, S3, content};
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn a_lost_disk_is_kept_also_when_the_process_is_killed_in_the_middle_of_that() {
    let lab = Lab::new(101);
    let here = lab.machine();
    here.attach(&[]);
    here.hurry();
    let mut client = here.client();
    let mut mine = lab.image.clone();
    lab.link.cut();
    write(&mut client, &mut mine, 1 << 20, &content::random(7, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    lab.home.run(&["disk", "take", "alice", "--force"]);
    lab.link.mend();
    here.until("kept", |status| status["kept_as"] == "alice-kept-1");
    here.kill();
    // As after a kill between its two steps: the record has the new name, and the directory the old one.
    let disks = here.home().join("disks");
    std::fs::rename(disks.join("alice-kept-1"), disks.join("alice")).unwrap();
    let refused = here.fails(4, &here.attaching(&[]));
    assert!(refused.contains("alice") && !refused.contains("disk keep"), "{refused}");
    until("kept at last", || disks.join("alice-kept-1").exists());
    let socket = here.home().join("nbd.sock");
    content::assert_same("kept", &read_all(&mut Client::attach(&socket, "alice-kept-1")), &mine);
}

#[test]
fn a_disk_that_is_attached_again_while_it_is_given_up_stays_or_is_taken_again() {
    let lab = Lab::new(102);
    let here = lab.machine();
    let mut expected = lab.image.clone();
    here.attach(&["--up", "128KiB"]);
    here.hurry();
    let mut client = here.client();
    write(&mut client, &mut expected, 1 << 20, &content::random(3, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    here.run(&["detach", "alice", "--no-wait"]);
    assert_eq!(here.status()["detaching"], true);
    here.attach(&["--up", "0"]);
    assert_eq!(here.status()["detaching"], false);
    here.run(&["attach", "sync", "alice"]);
    for _ in 0..20 {
        let status = here.status();
        assert!(status["name"] == "alice", "it was given up: {status}\n{}", here.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Nothing has to go up: at any instant of the giving up.
    for round in 0..12 {
        here.run(&["detach", "alice", "--no-wait"]);
        std::thread::sleep(Duration::from_millis(round * 15));
        let mut client = here.client();
        content::assert_same(
            "attached again",
            &client.read(1 << 20, 1 << 20),
            &expected[1 << 20..2 << 20],
        );
        client.detach();
    }
    here.run(&["detach", "alice"]);
    content::assert_same("elsewhere", &read_all(&mut lab.machine().client()), &expected);
}

#[test]
fn a_pause_outlives_the_process_and_the_log_is_bounded() {
    let lab = Lab::new(103);
    let here = lab.machine();
    here.attach(&[]);
    here.hurry();
    here.attach(&[]);
    here.run(&["attach", "pause", "alice"]);
    here.kill();
    let mut client = here.client();
    let mut written = lab.image.clone();
    write(&mut client, &mut written, 1 << 20, &content::random(8, 1 << 20));
    assert_eq!(client.flush(), 0);
    let status = here.until("paused", |status| status["upload"]["state"] == "paused");
    assert_eq!(status["upload"]["behind_bytes"], 1 << 20);
    client.detach();
    let log = here.home().join("agent.log");
    let mut long = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut long, &[b'x'; (1 << 20) + 1]).unwrap();
    until("bounded", || std::fs::metadata(&log).is_ok_and(|log| log.len() < 1 << 20));
    assert!(std::fs::metadata(here.home().join("agent.log.1")).unwrap().len() > 1 << 20);
    // The process goes on in the new one.
    here.run(&["attach", "resume", "alice"]);
    here.run(&["attach", "sync", "alice"]);
    here.attach(&["--source", lab.medium("key").to_str().unwrap()]);
    until("logged", || here.log().contains("is asked for chunks"));
}

#[test]
fn a_key_that_is_added_while_the_disk_is_in_use_answers_and_is_hoarded_from() {
    let lab = Lab::new(104);
    let here = lab.machine();
    let key = lab.medium("key");
    let mut client = here.client();
    content::assert_same("before", &client.read(0, 1 << 20), &lab.image[..1 << 20]);
    // The client stays: nothing is started anew.
    here.attach(&["--source", key.to_str().unwrap()]);
    here.attach(&["--source", key.to_str().unwrap(), "--source", "/no/such/key"]);
    // How many bytes that gives: what is slow to come from it, as on a busy machine, is asked for over the link, too.
    let from_key = || {
        let view = here.json(&["attach", "status"]);
        let sources = view[0]["sources"].as_array().unwrap();
        let media: Vec<_> = sources.iter().filter(|source| source["kind"] == "media").collect();
        assert_eq!(media.len(), 1, "{view}");
        media[0]["bytes"].as_u64().unwrap()
    };
    lab.link.cut();
    content::assert_same("with the key alone", &read_all(&mut client), &lab.image);
    assert!(from_key() > 0);
    lab.link.mend();
    client.detach();
    // Nothing of it lies here: what is hoarded comes from the key, too, and stays when that is gone.
    here.run(&["detach", "alice"]);
    std::fs::remove_dir_all(here.home().join("pieces")).unwrap();
    here.kill();
    here.attach(&[]);
    here.run(&["attach", "hoard", "alice"]);
    assert!(from_key() > 0, "all came over the link");
    std::fs::rename(&key, lab.home.path("gone")).unwrap();
    lab.link.cut();
    here.kill();
    content::assert_same("neither key nor link", &read_all(&mut here.client()), &lab.image);
}

/// A home with the image `golden:1` and the disk `alice`, which nobody holds.
fn with_a_released_disk(home: &Home, image: &[u8]) {
    home.import("golden:1", image);
    home.disk("alice", "golden:1");
    home.run(&["disk", "release", "alice"]);
}

/// A machine that attaches disks of the store at `from`.
fn machine(from: String, environment: Vec<(&'static str, String)>) -> Machine {
    Machine {
        dir: tempfile::Builder::new().prefix("sj-").tempdir().unwrap(),
        from,
        certificates: PathBuf::from("/nowhere"),
        environment,
    }
}

#[test]
fn a_disk_of_an_encrypted_store_is_used_while_the_link_is_cut_with_the_key_alone() {
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str, byte: u8| {
        let path = keys.path().join(name);
        std::fs::write(&path, [byte; 32]).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (key("right", 7), key("wrong", 8));
    let lab = Lab::of(Home::made_with(&["--encrypt", "--key-file", &right]), 105);
    let mut here = lab.machine();
    here.environment = vec![("SOJOURN_KEY_FILE", right.clone())];
    let mut expected = lab.image.clone();
    here.attach(&[]);
    here.run(&["attach", "hoard", "alice"]);
    lab.link.cut();
    here.kill();
    let mut client = here.client();
    content::assert_same("without the link", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 4 << 20, &content::random(6, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    here.kill();
    // The key is not among what lies here.
    let slots = std::fs::read_to_string(here.home().join("key-slots.json")).unwrap();
    assert!(slots.contains("wrapped"), "{slots}");
    lab.link.mend();
    here.environment = vec![("SOJOURN_KEY_FILE", wrong)];
    assert!(!here.output(&here.attaching(&[])).status.success());
    here.environment = vec![("SOJOURN_KEY_FILE", right.clone())];
    here.run(&here.attaching(&[]));
    here.run(&["detach", "alice"]);
    let mut there = lab.machine();
    there.environment = vec![("SOJOURN_KEY_FILE", right)];
    content::assert_same("carried", &read_all(&mut there.client()), &expected);
}

#[test]
fn a_disk_of_a_directory_is_carried_from_one_machine_to_another() {
    let home = Home::new();
    let image = content::image(107, MIB);
    with_a_released_disk(&home, &image);
    let store = home.home().join("store").display().to_string();
    let (here, there) = (machine(store.clone(), Vec::new()), machine(store, Vec::new()));
    let mut expected = image.clone();
    let mut client = here.client();
    content::assert_same("attached", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 4 << 20, &content::random(6, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    there.fails(4, &there.attaching(&[]));
    here.run(&["detach", "alice"]);
    content::assert_same("carried", &read_all(&mut there.client()), &expected);
}

#[test]
fn a_disk_of_a_bucket_is_carried_and_used_while_the_bucket_is_away() {
    let Some(s3) = S3::start() else { return };
    let image = content::image(106, MIB);
    let home = Home::made_in(&s3.environment(None), &["--store", "s3://bucket/lab"]);
    with_a_released_disk(&home, &image);
    let link = Link::to(s3.address().parse().unwrap());
    let by_link = s3.environment(Some(&link.address().to_string()));
    let here = machine("s3://bucket/lab".into(), by_link.clone());
    let mut expected = image.clone();
    let mut client = here.client();
    content::assert_same("attached", &read_all(&mut client), &expected);
    client.detach();
    here.hurry();
    link.cut();
    let mut client = here.client();
    content::assert_same("away", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 4 << 20, &content::random(6, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    link.mend();
    here.run(&["detach", "alice"]);
    let there = machine("s3://bucket/lab".into(), by_link);
    content::assert_same("carried", &read_all(&mut there.client()), &expected);
}

#[test]
fn the_disk_of_a_suspension_that_is_here_only_is_neither_discarded_nor_given_up() {
    let home = Home::new();
    with_a_released_disk(&home, &content::image(108, MIB));
    let here = machine(home.home().join("store").display().to_string(), Vec::new());
    here.attach(&[]);
    let record = std::fs::read(here.home().join("disks/alice/disk.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let text = |name: &str| record["disk"][name].to_string().trim_matches('"').to_owned();
    let layer = &record["disk"]["layers"].as_array().unwrap().last().unwrap();
    let mark =
        format!("{}/{}/{layer}/{}/{}", text("uuid"), text("epoch"), text("size"), text("image"));
    let pending = here.home().join("machines/work/pending");
    std::fs::create_dir_all(&pending).unwrap();
    let verbs = [&["attach", "discard", "alice"][..], &["detach", "alice"]];
    for (version, code, told) in [(1, 4, "vm discard work"), (2, 10, "a newer sojourn made")] {
        let suspension = serde_json::json!({
            "version": version, "number": 1, "disk_mark": mark,
            "machine": { "version": 1, "name": "work", "disk": "alice" },
        });
        std::fs::write(pending.join("pending.json"), suspension.to_string()).unwrap();
        for verb in verbs {
            let refused = here.fails(code, verb);
            assert!(refused.contains(told), "{verb:?}: {refused}");
        }
        assert_eq!(here.status()["detaching"], false);
    }
    std::fs::remove_dir_all(pending).unwrap();
    for verb in verbs {
        here.run(verb);
    }
}
