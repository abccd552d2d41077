//! `sojourn store`: checking a place, copying to another store, publishing.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use common::Lab;

#[test]
fn a_directory_can_be_trusted_with_a_store_and_is_left_as_it_was() {
    let (lab, _) = Lab::with_image();
    let before = common::listing(&lab.home().join("store"));
    let report = lab.json("store check --rounds 2");
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["findings"].as_array().unwrap().len() >= 8);
    assert_eq!(common::listing(&lab.home().join("store")), before);
    let text = lab.line("store check --rounds 1 home/store").ok();
    assert!(text.contains("one creator wins") && !text.contains("FAILED"), "{text}");
    lab.line("store check nowhere").fails(3, &["nowhere"]);
    lab.line("store check ftp://x").fails(10, &["ftp", "s3://"]);
}

#[test]
fn images_are_copied_once_into_a_store_with_another_key() {
    let (lab, golden) = Lab::with_image();
    let other = Lab::empty();
    std::fs::write(other.path("key"), [7; 32]).unwrap();
    other.line("--key-file key init --encrypt").ok();
    let (from, to) = (lab.home().join("store"), other.home().join("store"));
    let line = format!("store copy {} {} --to-key-file key", from.display(), to.display());
    let copied = other.json(&line);
    assert_eq!(copied[0]["image"], "debian:1");
    assert!(copied[0]["outcome"]["made"]["new_chunks"].as_u64().unwrap() > 0, "{copied}");
    assert_eq!(other.json(&format!("{line} debian"))[0]["outcome"], "present");
    other.line("--key-file key image export debian out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == golden);
    // Another version of the same name is not overwritten.
    lab.file("second.raw", &common::content(common::MIB, 9));
    lab.line("image remove debian:1").ok();
    lab.line("image import second.raw debian:1").ok();
    other.line(&line).fails(4, &["debian:1"]);
    other.line(&format!("{line} nobody:1")).fails(3, &["nobody:1"]);
    other.line(&format!("store copy {} nowhere", from.display())).fails(3, &["nowhere"]);
}

#[test]
fn publishing_lists_every_object() {
    let (lab, _) = Lab::with_image();
    let store = lab.home().join("store");
    let objects = common::listing(&store).len();
    for _ in 0..2 {
        assert_eq!(lab.json("store publish")["objects"], objects);
    }
    let text = std::fs::read_to_string(store.join("listing")).unwrap();
    assert!(text.starts_with("sojourn-listing 1 ") && text.contains(" refs/image/debian:1/"));
}
