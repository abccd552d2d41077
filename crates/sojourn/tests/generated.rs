//! What the program says of itself: help, completions, manual pages.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test speaks by panicking

mod common;

use common::{BINARY, Lab};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = Lab::empty().run(["completions", shell]).ok();
        assert!(script.contains("rollback") && script.contains("sojourn"), "{shell}");
    }
}

#[test]
fn manual_pages_exist_for_every_verb() {
    let lab = Lab::empty();
    lab.line("man man1").ok();
    for page in ["sojourn.1", "sojourn-serve.1", "sojourn-image-import.1", "sojourn-disk-rebase.1"]
    {
        let text = std::fs::read_to_string(lab.path("man1").join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains("sojourn"), "{page}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        Command::new(BINARY).args(["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut one = [0; 1];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut one).unwrap();
    drop(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_home_the_remedy_is_named() {
    let lab = Lab::empty();
    for line in ["image list", "disk list", "status", "serve"] {
        lab.line(line).fails(3, &["init", "home"]);
    }
    assert!(!lab.home().exists(), "a failed command made a home");
}

#[test]
fn a_home_is_made_once() {
    let lab = Lab::empty();
    assert!(lab.line("init").ok().contains("ready"));
    lab.line("init").fails(4, &["sojourn.toml", "--home"]);
}

#[test]
fn a_store_that_this_build_cannot_open_makes_no_home() {
    let lab = Lab::empty();
    lab.line("init --store ftp://host/store").fails(10, &["ftp://host/store"]);
    assert!(!lab.home().exists());
}

#[test]
fn a_store_can_be_shared_by_two_homes() {
    let lab = Lab::empty();
    let first = lab.json("init --store shared");
    assert_eq!(first["new_store"], true);
    let second = Lab::empty();
    let store = lab.path("shared");
    let again =
        second.run(["--json".as_ref(), "init".as_ref(), "--store".as_ref(), store.as_os_str()]);
    assert_eq!(again.json()["new_store"], false);
    lab.file("a.raw", &common::content(common::MIB, 1));
    lab.line("image import a.raw a").ok();
    assert_eq!(second.json("image list")[0]["image"], "a:1");
}
