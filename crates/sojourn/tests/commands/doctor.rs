//! `sojourn doctor`, on homes that are broken in one way each.

use crate::common::Lab;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// What a check found, as pairs of the level and what.
fn found(lab: &Lab, check: &str) -> Vec<(String, String)> {
    let done = lab.line("--json doctor");
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", done.stderr));
    let findings = report["findings"].as_array().unwrap();
    for finding in findings {
        let good = finding["level"] == "ok";
        assert_eq!(finding["why"].is_null(), good, "{finding}");
        assert_eq!(finding["remedy"].is_null(), good, "{finding}");
    }
    let bad = ["trouble", "danger"];
    let is_bad = findings.iter().any(|finding| bad.contains(&finding["level"].as_str().unwrap()));
    assert_eq!(done.code, if is_bad { 6 } else { 0 }, "{}", done.stderr);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = findings.iter().filter(|finding| finding["check"] == check);
    of.map(|finding| (text(&finding["level"]), text(&finding["what"]))).collect()
}

/// Fails unless a check found something of this level with these words in it.
#[track_caller]
fn finds(lab: &Lab, check: &str, level: &str, words: &[&str]) {
    let found = found(lab, check);
    let is =
        |(of, what): &(String, String)| of == level && words.iter().all(|word| what.contains(word));
    assert!(found.iter().any(is), "no {level} with {words:?} in {found:?}");
}

/// Fails unless a check found nothing wrong.
#[track_caller]
fn is_fine(lab: &Lab, check: &str) {
    let found = found(lab, check);
    assert!(
        !found.is_empty() && found.iter().all(|(level, _)| level == "ok"),
        "{check}: {found:?}"
    );
}

fn configure(lab: &Lab, text: &str) {
    fs::write(lab.home().join("sojourn.toml"), text).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_home_is_missed() {
    finds(&Lab::empty(), "configuration", "trouble", &["no home at"]);
}

#[test]
fn a_new_home_and_its_server_are_fine() {
    let (lab, _) = Lab::with_image();
    for check in ["configuration", "rights", "exposure", "server", "store", "clock"] {
        is_fine(&lab, check);
    }
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&[]);
    is_fine(&lab, "server");
    is_fine(&lab, "leases");
    assert!(found(&lab, "server")[0].1.contains(&server.pid().to_string()));
    assert_eq!(server.stop(), 0);
    is_fine(&lab, "server");
}

#[test]
fn mistakes_of_the_configuration_are_told_with_their_lines() {
    let lab = Lab::new();
    configure(&lab, "[cache]\nsise = 1\npolicy = \"magic\"\n");
    finds(&lab, "configuration", "trouble", &["line 2", "sise"]);
    finds(&lab, "configuration", "trouble", &["line 3", "magic"]);
    fs::write(lab.home().join("sojourn.toml"), [0xff, 0xfe]).unwrap();
    finds(&lab, "configuration", "trouble", &["UTF-8"]);
    configure(&lab, "cache.size = \"9000TiB\"\n");
    finds(&lab, "configuration", "trouble", &["is more than this machine's"]);
}

#[test]
fn homes_and_keys_that_others_read_are_told() {
    let lab = Lab::new();
    chmod(&lab.home(), 0o755);
    finds(&lab, "rights", "trouble", &["look into"]);
    chmod(&lab.home(), 0o700);
    configure(&lab, "key_file = \"key\"\n");
    finds(&lab, "rights", "trouble", &["key", "is not there"]);
    fs::write(lab.home().join("key"), [7; 32]).unwrap();
    chmod(&lab.home().join("key"), 0o644);
    finds(&lab, "rights", "danger", &["key of the store", "0644"]);
    chmod(&lab.home().join("key"), 0o600);
    is_fine(&lab, "rights");
    for line in ["cert ca", "cert server localhost", "cert client alice"] {
        lab.line(line).ok();
    }
    is_fine(&lab, "rights");
    for key in ["tls/server-key.pem", "tls/clients/alice/client-key.pem"] {
        chmod(&lab.home().join(key), 0o640);
        finds(&lab, "rights", "danger", &[key]);
        chmod(&lab.home().join(key), 0o600);
    }
}

#[test]
fn certificates_that_end_or_are_missing_are_told() {
    let lab = Lab::new();
    configure(
        &lab,
        "access = [{ certificate = \"*\", write = [\"*\"] }]\n[serve]\nnbd = [\"0.0.0.0:1\"]\ntls = \"required\"\n",
    );
    finds(&lab, "certificates", "trouble", &["server-cert.pem"]);
    lab.line("cert ca").ok();
    lab.line("cert server localhost").ok();
    is_fine(&lab, "certificates");
    lab.line("cert client alice --days 3").ok();
    finds(&lab, "certificates", "trouble", &["alice/client-cert.pem", "ends in"]);
    lab.line("cert client bob --days 30").ok();
    finds(&lab, "certificates", "advice", &["bob/client-cert.pem", "ends in"]);
    fs::write(lab.home().join("tls/server-cert.pem"), "nonsense").unwrap();
    finds(&lab, "certificates", "trouble", &["server-cert.pem is no certificate"]);
}

#[test]
fn addresses_that_others_reach_are_told() {
    let lab = Lab::new();
    configure(&lab, "[serve]\nnbd = [\"0.0.0.0:1\"]\ninsecure = true\n");
    finds(&lab, "exposure", "danger", &["0.0.0.0:1"]);
    configure(&lab, "[serve]\nnbd = [\"127.0.0.1:1\"]\n");
    finds(&lab, "exposure", "advice", &["every user of this machine"]);
    configure(&lab, "[serve]\nnbd = [\"unix:nbd.sock\"]\n");
    is_fine(&lab, "exposure");
}

#[test]
fn a_store_that_is_gone_or_damaged_is_told() {
    let (lab, _) = Lab::with_image();
    let store = lab.home().join("store");
    fs::write(store.join("store.json"), "{}").unwrap();
    finds(&lab, "store", "trouble", &["cannot be opened"]);
    fs::rename(&store, lab.path("away")).unwrap();
    finds(&lab, "store", "trouble", &["cannot be opened"]);
}

#[test]
fn what_a_killed_server_left_is_told() {
    let lab = Lab::new();
    drop(UnixListener::bind(lab.home().join("control.sock")).unwrap());
    finds(&lab, "server", "advice", &["control.sock"]);
}

#[test]
fn a_server_that_answers_nobody_is_told() {
    let lab = Lab::new();
    let lock = lab.home().join("lock");
    let file = fs::File::create(&lock).unwrap();
    file.lock().unwrap();
    finds(&lab, "server", "trouble", &[&std::process::id().to_string(), "answers nobody"]);
    drop(file);
    is_fine(&lab, "server");
    // It takes the connection, and says nothing.
    let _listener = UnixListener::bind(lab.home().join("control.sock")).unwrap();
    finds(&lab, "server", "trouble", &["does not answer"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_all_connections_that_it_may_have_is_not_said_to_answer_nobody() {
    let (lab, _) = Lab::with_image();
    configure(&lab, "[limits]\nconnections = 1\n");
    let server = lab.serve(&[]);
    let one = server.attach("debian").await.unwrap();
    tokio::task::block_in_place(|| {
        finds(&lab, "server", "trouble", &["closes new connections", "limits.connections is 1"]);
    });
    one.close().await;
    assert_eq!(tokio::task::block_in_place(|| server.stop()), 0);
}

#[test]
fn a_home_in_memory_is_told() {
    let shared = Path::new("/dev/shm");
    let is_memory = fs::read_to_string("/proc/mounts").unwrap().contains(" /dev/shm tmpfs");
    if !is_memory {
        return;
    }
    let dir = tempfile::tempdir_in(shared).unwrap();
    let home = dir.path().join("home");
    let run = |args: &[&str]| {
        std::process::Command::new(crate::common::BINARY)
            .arg("--home")
            .arg(&home)
            .args(args)
            .output()
            .unwrap()
    };
    assert!(run(&["init"]).status.success());
    let said = String::from_utf8(run(&["doctor"]).stdout).unwrap();
    assert!(said.contains("danger   file system: the home is on tmpfs"), "{said}");
}
