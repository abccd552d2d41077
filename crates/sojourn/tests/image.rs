//! Images through the command line: in, listed, out again, checked, removed.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test speaks by panicking

mod common;

use common::{Lab, MIB, content, have};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn an_image_comes_out_as_it_went_in() {
    let (lab, golden) = Lab::with_image();
    let out = lab.line("image export debian out.raw").ok();
    assert!(out.contains("debian:1"), "{out}");
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    lab.line("image verify debian").ok();
}

#[test]
fn versions_get_numbers_or_tags_and_the_newest_is_found_by_name() {
    let (lab, _) = Lab::with_image();
    lab.file("second.raw", &content(8 * MIB, 2));
    lab.line("image import second.raw debian").ok();
    lab.line("image import second.raw debian:stable").ok();
    let list = lab.json("image list");
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|v| v["image"].as_str().unwrap()).collect();
    assert_eq!(names, ["debian:1", "debian:2", "debian:stable"]);
    let first = lab.json("image show debian:1");
    assert_eq!(first["size"], 8 * MIB);
    assert_eq!(first["source"], "golden.raw");
    assert!(first["stored_bytes"].as_u64().unwrap() > 0);
    assert_eq!(lab.json("image show debian")["manifest"], list[2]["manifest"]);
    let text = lab.line("image list").ok();
    assert!(text.starts_with("IMAGE") && text.contains("8 MiB"), "{text}");
}

#[test]
fn importing_the_same_again_stores_nothing_new() {
    let (lab, _) = Lab::with_image();
    let again = lab.json("image import golden.raw other");
    assert_eq!(again["stats"]["new_chunks"], 0);
    assert_eq!(again["manifest"], lab.json("image show debian")["manifest"]);
}

#[test]
fn an_image_is_taken_from_standard_input() {
    let lab = Lab::new();
    let golden = content(3 * MIB, 5);
    let mut child =
        lab.command(["image", "import", "-", "piped"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&golden).unwrap();
    assert!(child.wait().unwrap().success());
    lab.line("image export piped:1 out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
}

#[test]
fn qcow2_comes_in_and_goes_out() {
    if !have("qemu-img") {
        return;
    }
    let (lab, golden) = Lab::with_image();
    lab.line("image export debian out.qcow2").ok();
    let qemu = |args: &[&str]| {
        let status = Command::new("qemu-img").args(args).current_dir(lab.path("")).output();
        assert!(status.unwrap().status.success(), "{args:?}");
    };
    qemu(&["check", "-q", "out.qcow2"]);
    qemu(&["compare", "-q", "-f", "raw", "-F", "qcow2", "golden.raw", "out.qcow2"]);
    let back = lab.json("image import out.qcow2 back");
    assert_eq!(back["manifest"], lab.json("image show debian")["manifest"]);
    lab.line("image export back --format raw out.img").ok();
    assert!(std::fs::read(lab.path("out.img")).unwrap() == golden);
}

#[test]
fn an_image_travels_over_nbd() {
    let (lab, golden) = Lab::with_image();
    let server = lab.serve(&[]);
    lab.run(["image", "import", &server.uri("debian"), "copy"]).ok();
    lab.line("disk create target --from debian").ok();
    lab.file("other.raw", &content(8 * MIB, 9));
    lab.line("image import other.raw other").ok();
    lab.run(["image", "export", "other", &server.uri("target")]).ok();
    lab.run(["image", "import", &server.uri("target"), "back"]).ok();
    assert_eq!(server.stop(), 0);
    let manifest = |name: &str| lab.json(&format!("image show {name}"))["manifest"].clone();
    assert_eq!(manifest("copy"), manifest("debian"));
    assert_eq!(manifest("back"), manifest("other"));
    lab.line("image export copy copy.raw").ok();
    assert!(std::fs::read(lab.path("copy.raw")).unwrap() == golden);
}

#[test]
fn an_export_replaces_a_file_only_when_told() {
    let (lab, golden) = Lab::with_image();
    lab.file("out.raw", b"precious");
    lab.line("image export debian out.raw").fails(4, &["out.raw", "--force"]);
    assert_eq!(std::fs::read(lab.path("out.raw")).unwrap(), b"precious");
    lab.line("image export debian out.raw --force").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
}

#[test]
fn a_version_with_a_disk_on_it_is_not_removed() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("image remove debian:1").fails(4, &["debian:1", "disk alice"]);
    assert_eq!(lab.json("image show debian:1")["used_by"][0], "disk alice");
    lab.line("disk remove alice").ok();
    lab.line("image remove debian:1").ok();
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 0);
    lab.line("image show debian:1").fails(3, &["debian:1", "image list"]);
}

#[test]
fn damage_in_the_store_is_found_and_named() {
    let (lab, _) = Lab::with_image();
    let packs = common::listing(&lab.home().join("store/packs"));
    let (pack, len) = packs.first().unwrap();
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[*len as usize / 3] ^= 1;
    std::fs::write(pack, bytes).unwrap();
    let done = lab.line("image verify debian");
    assert!(done.stdout.contains("1 damaged"), "{}", done.stdout);
    done.fails(7, &["debian:1", "packs/"]);
    lab.line("image export debian out.raw").fails(7, &["packs/"]);
    assert!(!lab.path("out.raw").exists(), "a damaged image was exported");
    let left = common::listing(&lab.path("")).into_iter().any(|(p, _)| {
        p.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".partial"))
    });
    assert!(!left, "a partial file was left");
}

#[test]
fn a_damaged_version_is_listed_with_its_error_and_hides_no_other() {
    let (lab, _) = Lab::with_image();
    for name in ["debian:2", "other:1"] {
        lab.run(["image", "import", "golden.raw", name]).ok();
    }
    let record = lab.home().join("store/refs/image/debian:2/00000000000000000001");
    std::fs::write(record, b"garbage").unwrap();
    let list = lab.json("image list");
    let rows: Vec<_> =
        list.as_array().unwrap().iter().map(|v| (&v["image"], &v["error"])).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].0 == "debian:1" && rows[0].1.is_null(), "{list}");
    assert!(rows[1].0 == "other:1" && rows[1].1.is_null(), "{list}");
    assert!(rows[2].0 == "debian:2" && rows[2].1.as_str().unwrap().contains("debian:2"), "{list}");
    assert!(lab.line("image list").ok().contains("damaged"));
    // Nobody can tell whether the damaged one is the newest.
    lab.line("image show debian").fails(7, &["debian:2", "backup"]);
    lab.line("disk create a --from debian").fails(7, &["debian:2"]);
    lab.line("disk create a --from debian:1").ok();
    lab.line("disk create b --from other").ok();
    assert_eq!(lab.json("image import golden.raw debian")["image"], "debian:3");
}
