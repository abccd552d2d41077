//! Media, indexed trees and other sources in place of a store that cannot be had.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests of real processes

use serde_json::Value;
use sojourn_tests::client::READ;
use sojourn_tests::slow::Hanging;
use sojourn_tests::{Client, Home, Server, content, tool};
use std::io::Read;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;

/// An image of files one behind the other, each of some random length.
fn image(seed: u64, mib: usize) -> Vec<u8> {
    content::random(seed, mib * MIB)
}

fn packs(home: &Home) -> PathBuf {
    home.home().join("store/packs")
}

/// Cuts the store off, as if its link were cut: no pack can be read.
fn cut_off(home: &Home) -> Vec<(PathBuf, PathBuf)> {
    let away = home.path("away");
    std::fs::create_dir_all(&away).unwrap();
    let mut moved = Vec::new();
    for file in files(&packs(home)) {
        let to = away.join(file.file_name().unwrap());
        std::fs::rename(&file, &to).unwrap();
        moved.push((file, to));
    }
    assert!(!moved.is_empty());
    moved
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}

/// Reads all of an export and checks it.
fn read_all(server: &Server, export: &str, expected: &[u8]) {
    let mut client = Client::attach(server.socket(), export);
    for at in (0..expected.len()).step_by(MIB) {
        let len = MIB.min(expected.len() - at);
        content::assert_same(export, &client.read(at as u64, len), &expected[at..at + len]);
    }
    client.detach();
}

/// Reads what may not be there.
fn try_read(client: &mut Client, offset: u64, length: usize) -> Option<Vec<u8>> {
    (client.request(READ, offset, length as u32, &[]) == 0).then(|| {
        let mut data = vec![0; length];
        client.stream().read_exact(&mut data).unwrap();
        data
    })
}

/// What `status` says of the source of this kind.
fn source(home: &Home, kind: &str) -> Value {
    let status = home.json(&["status"]);
    let sources = status["sources"].as_array().unwrap();
    sources.iter().find(|source| source["kind"] == kind).cloned().unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn with_a_medium_a_server_whose_store_lost_its_packs_serves_everything() {
    let home = Home::new();
    let bytes = image(1, 12);
    home.import("debian", &bytes);
    home.disk("alice", "debian");
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    let written = home.json(&["media", "write", &text(&key), "debian", "alice"]);
    assert_eq!(written["images"][0]["missing_bytes"], 0);
    assert_eq!(home.json(&["media", "write", &text(&key), "debian"])["written_chunks"], 0);
    let listed = home.json(&["media", "list", &text(&key)]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let moved = cut_off(&home);
    home.fails(3, &["image", "export", "debian", "out.raw"]);
    let server = home.serve_with(&["--source", &text(&key)]);
    read_all(&server, "alice", &bytes);
    let media = source(&home, "media");
    assert!(media["plain_bytes"].as_u64().unwrap() >= bytes.len() as u64, "{media}");
    let mut client = Client::attach(server.socket(), "alice");
    assert_eq!(client.write(4096, &[7; 4096]), 0);
    assert_eq!(client.flush(), 0);
    assert_eq!(client.read(4096, 4096), [7; 4096]);
    client.detach();
    server.stop();
    // And the store is healed by it.
    home.fails(7, &["repair", "--dry-run"]);
    let report = home.json(&["repair", "--from", &text(&key)]);
    assert_eq!(report["left"].as_array().unwrap().len(), 0, "{report}");
    assert!(moved.iter().all(|(was, _)| was.exists()) || report["rewritten"][0].is_object());
    home.run(&["verify", "--deep"]);
    home.run(&["media", "verify", &text(&key)]);
    home.run(&["media", "remove", &text(&key), "alice"]);
    home.run(&["media", "remove", &text(&key), "debian"]);
    assert!(files(&key).is_empty());
    home.fails(3, &["media", "list", &text(&key)]);
}

#[test]
fn a_store_that_lost_its_maps_is_read_and_healed_by_a_medium() {
    let home = Home::new();
    let bytes = image(5, 6);
    home.import("debian", &bytes);
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    assert_eq!(home.json(&["media", "write", &text(&key), "debian"])["written_maps"], 2);
    for kind in ["segments", "manifests"] {
        files(&home.home().join("store").join(kind))
            .iter()
            .for_each(|file| std::fs::remove_file(file).unwrap());
    }
    home.fails(3, &["image", "export", "debian", "out.raw"]);
    let server = home.serve_with(&["--source", &text(&key)]);
    read_all(&server, "debian:1", &bytes);
    server.stop();
    home.fails(7, &["repair", "--dry-run"]);
    let report = home.json(&["repair", "--from", &text(&key)]);
    assert_eq!(report["restored"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["left"].as_array().unwrap().len(), 0, "{report}");
    home.run(&["verify", "--deep"]);
    home.run(&["image", "export", "debian", "out.raw"]);
    content::assert_same("healed", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
}

#[test]
fn a_command_asks_media_for_maps_as_a_server_does() {
    let home = Home::new();
    let bytes = image(6, 6);
    home.import("debian", &bytes);
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    home.run(&["media", "write", &text(&key), "debian"]);
    for kind in ["segments", "manifests"] {
        files(&home.home().join("store").join(kind))
            .iter()
            .for_each(|file| std::fs::remove_file(file).unwrap());
    }
    home.fails(3, &["image", "export", "debian", "out.raw"]);
    let config = home.home().join("sojourn.toml");
    let rest = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("sources = [{:?}]\n{rest}", text(&key))).unwrap();
    home.run(&["image", "export", "debian", "out.raw"]);
    content::assert_same("export", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
    // What the store itself has is what a verification is about.
    home.fails(7, &["verify"]);
    // A medium that is gone is no trouble for what needs none.
    std::fs::rename(&key, home.path("elsewhere")).unwrap();
    home.run(&["image", "list"]);
}

#[test]
fn a_damaged_medium_gives_no_wrong_byte_and_what_it_lacks_comes_from_the_store() {
    let home = Home::new();
    let bytes = image(2, 12);
    home.import("debian", &bytes);
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    home.run(&["media", "write", &text(&key), "debian"]);
    for file in files(&key).iter().filter(|file| file.extension().unwrap() == "pck") {
        let mut damaged = std::fs::read(file).unwrap();
        (0..damaged.len()).step_by(200_000).for_each(|at| damaged[at] ^= 1);
        std::fs::write(file, damaged).unwrap();
    }
    home.fails(7, &["media", "verify", &text(&key)]);
    let server = home.serve_with(&["--source", &text(&key)]);
    read_all(&server, "debian:1", &bytes);
    server.stop();
    let dropped = home.json(&["media", "verify", "--drop-damaged", &text(&key)]);
    assert_eq!(dropped["dropped"], true);
    assert!(home.json(&["media", "write", &text(&key), "--refresh"])["written_chunks"] != 0);
    home.run(&["media", "verify", &text(&key)]);
}

#[test]
fn while_the_store_hangs_a_medium_answers() {
    let test = "while_the_store_hangs_a_medium_answers";
    if !tool::have(test, &["cc"]) {
        return;
    }
    let home = Home::new();
    let bytes = image(3, 4);
    home.import("debian", &bytes);
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    home.run(&["media", "write", &text(&key), "debian"]);
    let hanging = Hanging::new(home.dir(), "store/packs");
    let server = home.serve_in(&hanging.environment(), &["--source", &text(&key)]);
    // The map is read before.
    let mut client = Client::attach(server.socket(), "debian:1");
    content::assert_same("first", &client.read(0, 4096), &bytes[..4096]);
    client.detach();
    hanging.hold_reads(true);
    read_all(&server, "debian:1", &bytes);
    hanging.hold_reads(false);
    server.stop();
}

#[test]
fn a_medium_of_the_version_before_answers_most_of_a_rebuilt_image() {
    let home = Home::new();
    let old = image(4, 16);
    home.import("debian", &old);
    let key = home.path("key");
    std::fs::create_dir(&key).unwrap();
    home.run(&["media", "write", &text(&key), "debian"]);
    // Everything is elsewhere, and a part is new.
    let mut new = content::random(99, 300 << 10);
    new.extend_from_slice(&old[..7 * MIB]);
    new.extend(content::random(98, 200 << 10));
    new.extend_from_slice(&old[7 * MIB..]);
    new.truncate(new.len() / 512 * 512);
    home.import("debian", &new);
    // The packs of the old version are away; those of the new one hold what is new.
    cut_off(&home);
    let copy = home.path("away");
    let server = home.serve_with(&["--source", &text(&key)]);
    let mut client = Client::attach(server.socket(), "debian:2");
    let mut answered = 0;
    for at in (0..new.len()).step_by(64 << 10) {
        let len = (64 << 10).min(new.len() - at);
        if let Some(got) = try_read(&mut client, at as u64, len) {
            content::assert_same("debian:2", &got, &new[at..at + len]);
            answered += len;
        }
    }
    assert!(answered * 4 >= new.len() * 3, "{answered} of {}", new.len());
    server.stop();
    // With the packs back all of it is right, and a refresh writes what is new and no more.
    for file in files(&copy) {
        let to = packs(&home).join(file.file_name().unwrap());
        std::fs::rename(&file, to).unwrap();
    }
    let written = home.json(&["media", "write", &text(&key), "--refresh"]);
    let (fresh, kept) =
        (written["written_bytes"].as_u64().unwrap(), written["kept_bytes"].as_u64().unwrap());
    assert!(fresh * 4 < kept, "{written}");
}

#[test]
fn an_indexed_tree_and_an_indexed_image_answer_for_the_store() {
    let home = Home::new();
    // Files of an image, page by page, as a file system lays them out; and the files themselves.
    let tree = home.path("tree");
    std::fs::create_dir_all(tree.join("lib")).unwrap();
    let mut bytes = Vec::new();
    for number in 0..24u64 {
        let file = content::random(100 + number, 100_000 + 37_011 * number as usize);
        std::fs::write(tree.join(format!("lib/{number}")), &file).unwrap();
        bytes.extend_from_slice(&file);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
    }
    home.import("debian", &bytes);
    let raw = home.path("old.raw");
    std::fs::write(&raw, &bytes).unwrap();
    cut_off(&home);
    // The server leaves out what is not indexed, and says why.
    let server = home.serve_with(&["--source", &text(&tree)]);
    assert!(server.log().contains("sojourn media index"), "{}", server.log());
    server.stop();
    let report = home.json(&["media", "index", &text(&tree)]);
    assert_eq!((&report["read_files"], &report["kept_files"]), (&24.into(), &0.into()));
    let again = home.json(&["media", "index", &text(&tree)]);
    assert_eq!((&again["read_files"], &again["kept_files"]), (&0.into(), &24.into()));
    let server = home.serve_with(&["--source", &text(&tree)]);
    let mut client = Client::attach(server.socket(), "debian:1");
    let mut answered = 0;
    for at in (0..bytes.len()).step_by(4096) {
        if let Some(got) = try_read(&mut client, at as u64, 4096) {
            content::assert_same("tree", &got, &bytes[at..at + 4096]);
            answered += 4096;
        }
    }
    assert!(answered * 4 >= bytes.len() * 3, "{answered} of {}", bytes.len());
    assert!(source(&home, "tree")["had"].as_u64().unwrap() > 0);
    server.stop();
    home.run(&["media", "index", &text(&raw)]);
    let server = home.serve_with(&["--source", &text(&raw)]);
    read_all(&server, "debian:1", &bytes);
    assert!(source(&home, "image")["had"].as_u64().unwrap() > 0);
    server.stop();
    home.fails(3, &["media", "index", "nowhere"]);
}
