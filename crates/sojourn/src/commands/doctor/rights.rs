//! Who else may read the home, its keys and its secrets.

use super::finding::Finding;
use super::patient::Patient;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most files of a directory that are looked at.
const MOST: usize = 10_000;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    if !patient.has_home {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let home = patient.home.dir();
    for dir in [home.to_owned(), patient.home.disks()] {
        if let Ok(metadata) = dir.metadata()
            && metadata.mode() & 0o077 != 0
        {
            findings.push(Finding::trouble(
                format!(
                    "other users may look into {} ({:04o})",
                    dir.display(),
                    metadata.mode() & 0o7777
                ),
                "private blocks of disks, and the sockets of the server, are in it",
                format!("chmod 700 {}", dir.display()),
            ));
        }
    }
    findings.extend(owner(patient));
    let tls = patient.home.resolve(Path::new(&patient.config.tls.dir));
    let mut secrets: Vec<(PathBuf, &str)> =
        keys_below(&tls).into_iter().map(|path| (path, "key")).collect();
    let configured = [
        (patient.config.key_file.as_deref(), "key of the store"),
        (patient.config.serve.iscsi_chap.as_deref(), "file of secrets"),
    ];
    for (path, what) in configured {
        let Some(path) = path.map(|path| patient.home.resolve(Path::new(path))) else { continue };
        if path.exists() {
            secrets.push((path, what));
        } else {
            findings.push(Finding::trouble(
                format!("the {what} {} is not there", path.display()),
                "sojourn.toml names it, and nothing that needs it works",
                "put it back from a copy, or name another one",
            ));
        }
    }
    let open = secrets.iter().filter_map(|(path, what)| exposed(path, what));
    findings.extend(open);
    if tls.join("ca-key.pem").exists() && patient.config.serve.tls.to_string() != "off" {
        findings.push(Finding::advice(
            format!("{} is on the server", tls.join("ca-key.pem").display()),
            "whoever breaks into the server can make certificates that it trusts; it does without that file",
            "move it to where certificates are made, and keep a copy",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!(
            "the home and {} keys and secrets are their owner's alone",
            secrets.len()
        )));
    }
    findings
}

/// Whether the one who asks is the one whose home it is.
fn owner(patient: &Patient) -> Option<Finding> {
    let metadata = patient.home.dir().metadata().ok()?;
    let us = rustix::process::geteuid().as_raw();
    (metadata.uid() != us).then(|| {
        Finding::advice(
            format!("the home is of user {}, and this is user {us}", metadata.uid()),
            "what this user may not read is not looked at",
            format!("sudo -u '#{}' sojourn doctor", metadata.uid()),
        )
    })
}

/// The keys in a directory of certificates, and in its clients' directories.
fn keys_below(tls: &Path) -> Vec<PathBuf> {
    let clients = files_of(&tls.join("clients"));
    let all = files_of(tls).into_iter().chain(clients.iter().flat_map(|client| files_of(client)));
    all.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("-key.pem"))
    })
    .collect()
}

fn files_of(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .take(MOST)
        .map(|entry| entry.path())
        .collect()
}

fn exposed(path: &Path, what: &str) -> Option<Finding> {
    let metadata: Metadata = path.metadata().ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    // A file of root's may be given to the group of the server.
    let others = metadata.mode() & if ours { 0o077 } else { 0o007 };
    (others != 0).then(|| {
        Finding::danger(
            format!(
                "other users may read the {what} {} ({:04o})",
                path.display(),
                metadata.mode() & 0o7777
            ),
            "whoever has it is taken for its owner, and a server refuses it",
            format!(
                "chmod 600 {}; who may have read it already has it: make another one",
                path.display()
            ),
        )
    })
}
