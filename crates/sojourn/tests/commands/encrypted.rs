//! Encrypted stores through the command line.

use crate::common::{Done, Lab, MIB, content};
use std::process::{Command, Stdio};

/// Runs a command without a terminal to ask, with these variables.
fn run(lab: &Lab, line: &str, variables: &[(&str, &str)]) -> Done {
    let command = lab.command(line.split_whitespace());
    let mut alone = Command::new("setsid");
    alone.arg(command.get_program()).args(command.get_args());
    alone.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    for name in ["SOJOURN_PASSPHRASE", "SOJOURN_NEW_PASSPHRASE", "SOJOURN_KEY_FILE", "SOJOURN_LOG"]
    {
        alone.env_remove(name);
    }
    alone.envs(variables.iter().copied());
    Done::from(alone.output().unwrap())
}

/// Whether any file below a directory, or its name, has these bytes.
fn shows(directory: &std::path::Path, what: &str) -> bool {
    std::fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        let named = path.file_name().unwrap().to_string_lossy().contains(what);
        let holds = || {
            let bytes = std::fs::read(&path).unwrap();
            bytes.windows(what.len()).any(|window| window == what.as_bytes())
        };
        named || if path.is_dir() { shows(&path, what) } else { holds() }
    })
}

#[test]
fn a_passphrase_opens_a_store_whose_names_nobody_else_reads() {
    let lab = Lab::empty();
    run(&lab, "init --encrypt", &[]).fails(2, &["no terminal", "SOJOURN_PASSPHRASE", "--key-file"]);
    assert!(!lab.home().exists(), "nothing was made");
    let right = [("SOJOURN_PASSPHRASE", "open sesame")];
    run(&lab, "init --encrypt", &right).ok();
    let bytes = content(2 * MIB, 1);
    lab.file("golden.raw", &bytes);
    run(&lab, "image import golden.raw payroll", &right).ok();
    run(&lab, "disk create director --from payroll", &right).ok();
    assert!(run(&lab, "image list", &right).ok().contains("payroll:1"));
    run(&lab, "image list", &[]).fails(9, &["encrypted", "SOJOURN_PASSPHRASE", "--key-file"]);
    run(&lab, "image list", &[("SOJOURN_PASSPHRASE", "open barley")])
        .fails(9, &["wrong passphrase", "first"]);
    run(&lab, "image export payroll out.raw", &right).ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == bytes);
    for name in ["payroll", "director", "golden.raw", "sesame"] {
        assert!(!shows(&lab.home().join("store"), name), "{name}");
    }
}

#[test]
fn a_key_file_is_remembered_and_keys_come_and_go() {
    let lab = Lab::empty();
    lab.file("short.key", &[1; 31]);
    run(&lab, "--key-file short.key init --encrypt", &[]).fails(2, &["short.key", "31 bytes"]);
    lab.file("a.key", &content(4096, 1)[..64]);
    lab.file("b.key", &content(4096, 2)[..64]);
    run(&lab, "--key-file a.key init --encrypt", &[]).ok();
    // The configuration names it.
    run(&lab, "image list", &[]).ok();
    run(&lab, "--key-file b.key image list", &[]).fails(9, &["wrong key file"]);

    let new = [("SOJOURN_NEW_PASSPHRASE", "one")];
    run(&lab, "store key add bob", &new).ok();
    run(&lab, "image list", &[("SOJOURN_PASSPHRASE", "one")]).ok();
    run(&lab, "store key add bob", &new).fails(4, &["bob"]);
    run(&lab, "store key rotate bob", &[("SOJOURN_NEW_PASSPHRASE", "two")]).ok();
    run(&lab, "image list", &[("SOJOURN_PASSPHRASE", "one")]).fails(9, &["wrong passphrase"]);
    run(&lab, "image list", &[("SOJOURN_PASSPHRASE", "two")]).ok();

    // A variable does not turn a key file into a passphrase.
    run(&lab, "store key rotate first", &new).fails(2, &["first", "--new-key-file"]);
    run(&lab, "store key rotate first --new-key-file b.key", &new).ok();
    run(&lab, "image list", &[]).fails(9, &["wrong key file"]);
    let b = [("SOJOURN_KEY_FILE", "b.key")];
    let slots = run(&lab, "--json store key list", &b).json();
    let shown: Vec<_> = slots
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| (slot["name"].as_str().unwrap(), slot["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, [("first", "key-file"), ("bob", "passphrase")]);
    run(&lab, "store key remove bob", &b).ok();
    run(&lab, "store key remove first", &b).fails(2, &["last"]);
    run(&lab, "store key remove nobody", &b).fails(3, &["nobody", "first"]);
}

#[test]
fn a_second_home_joins_an_encrypted_store_only_with_its_key() {
    let (one, two) = (Lab::empty(), Lab::empty());
    let right = [("SOJOURN_PASSPHRASE", "open sesame")];
    run(&one, "init --encrypt", &right).ok();
    let join = format!("init --store {}", one.home().join("store").display());
    run(&two, &join, &[]).fails(9, &["encrypted"]);
    run(&two, &join, &right).ok();
    run(&two, "image list", &right).ok();
}

#[test]
fn a_store_in_clear_has_no_keys_and_is_not_taken_for_an_encrypted_one() {
    let lab = Lab::new();
    run(&lab, "store key list", &[]).fails(10, &["not encrypted", "--encrypt"]);
    let other = Lab::empty();
    let line = format!("init --encrypt --store {}", lab.home().join("store").display());
    run(&other, &line, &[("SOJOURN_PASSPHRASE", "x")]).fails(4, &["not encrypted"]);
    // Somebody may answer in the place of one that is.
    run(&lab, "image list", &[]).ok();
    let config = lab.home().join("sojourn.toml");
    let settings = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("key_file = \"store.key\"\n{settings}")).unwrap();
    run(&lab, "image list", &[]).fails(9, &["not encrypted", "store.key"]);
}
