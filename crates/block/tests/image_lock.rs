//! The locks on images, against QEMU's own: virtual machines that have an image as their disk, and
//! QEMU's tools, which share it with others.

#![allow(clippy::unwrap_used, reason = "a test speaks by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use block::ErrorKind;
use block::image_lock::{Usage, lock, unlock};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How QEMU uses an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    /// The disk of a virtual machine, which nobody else may change.
    Guest { read_only: bool },
    /// With `qemu-io`, which denies nothing to others.
    Tool { read_only: bool },
}

const USERS: [User; 4] = [
    User::Guest { read_only: false },
    User::Guest { read_only: true },
    User::Tool { read_only: false },
    User::Tool { read_only: true },
];

impl User {
    fn command(self, image: &Path) -> Command {
        let image = image.display();
        let mut command = match self {
            Self::Guest { read_only } => {
                let mut command = Command::new("qemu-system-x86_64");
                let on = if read_only { "on" } else { "off" };
                command
                    .args(["-S", "-nodefaults", "-display", "none", "-accel", "tcg"])
                    .args(["-monitor", "stdio", "-device", "virtio-blk-pci,drive=d", "-drive"])
                    .arg(format!("if=none,id=d,format=raw,readonly={on},file={image}"));
                command
            }
            Self::Tool { read_only } => {
                let mut command = Command::new("qemu-io");
                command.args(["-f", "raw"]).args(read_only.then_some("-r")).arg(image.to_string());
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Opens the image, and has it open until this is dropped. `None` when a lock keeps it away.
    fn open(self, image: &Path) -> Option<Qemu> {
        let mut child = self.command(image).spawn().unwrap();
        // It answers once it has its image, or ends.
        let (question, answer) = match self {
            Self::Guest { .. } => ("info status\n", "VM status"),
            Self::Tool { .. } => ("length\n", "1 MiB"),
        };
        let _ = child.stdin.as_mut().unwrap().write_all(question.as_bytes());
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let answered = lines.any(|line| line.unwrap().contains(answer));
        if answered {
            return Some(Qemu(child));
        }
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("lock"), "{self:?}: {error}");
        None
    }
}

/// A QEMU that has an image open until it is dropped.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.stdin.as_mut().unwrap().write_all(b"quit\n");
        drop(self.0.stdin.take());
        // What it still says may be more than fits in the pipe.
        let _ = std::io::copy(self.0.stdout.as_mut().unwrap(), &mut std::io::sink());
        self.0.wait().unwrap();
    }
}

/// Whether QEMU is installed; says so if not, which fails a test in CI.
fn installed() -> bool {
    ["qemu-system-x86_64", "qemu-io"].iter().all(|name| {
        let found = Command::new(name).arg("--version").output().is_ok();
        if !found {
            assert!(std::env::var_os("CI").is_none(), "{name} must be installed in CI");
            eprintln!("skipped: {name} is not installed; scripts/setup test installs it");
        }
        found
    })
}

fn image(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    path
}

/// Whether we and QEMU may have an image at once. What denies nothing to others bears a writer.
fn together(user: User, usage: Usage) -> bool {
    let (denies, writes) = match user {
        User::Guest { read_only } => (true, !read_only),
        User::Tool { read_only } => (false, !read_only),
    };
    match usage {
        Usage::Read => !writes,
        Usage::Write => !writes && !denies,
        Usage::Exclusive | Usage::Around => false,
    }
}

#[test]
fn an_image_that_qemu_has_is_locked_for_us_as_for_another_qemu() {
    if !installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    for user in USERS {
        let qemu = user.open(&path).unwrap();
        for usage in [Usage::Read, Usage::Write, Usage::Exclusive, Usage::Around] {
            let file = File::open(&path).unwrap();
            let outcome = lock(&file, &path, usage).map_err(|e| e.kind());
            let expected = if together(user, usage) { Ok(()) } else { Err(ErrorKind::Conflict) };
            assert_eq!(outcome, expected, "{usage:?} beside {user:?}");
            // Closing it is not enough: a child of another test has it until its exec.
            unlock(&file);
        }
        drop(qemu);
        let file = File::open(&path).unwrap();
        lock(&file, &path, Usage::Exclusive).unwrap();
        unlock(&file);
    }
}

#[test]
fn an_image_that_we_have_is_locked_for_qemu() {
    if !installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    for usage in [Usage::Read, Usage::Write, Usage::Exclusive, Usage::Around] {
        let file = File::open(&path).unwrap();
        lock(&file, &path, usage).unwrap();
        for user in USERS {
            let opened = user.open(&path).is_some();
            // QEMU's tools bear whatever others do, but for one who denies it.
            let expected = match usage {
                Usage::Around => matches!(user, User::Tool { .. }),
                _ => together(user, usage),
            };
            assert_eq!(opened, expected, "{user:?} beside {usage:?}");
        }
        // A look without locks is always possible.
        let look = Command::new("qemu-img").args(["info", "-U"]).arg(&path).output().unwrap();
        assert!(look.status.success(), "{look:?}");
        unlock(&file);
        assert!(USERS[0].open(&path).is_some(), "after {usage:?}");
    }
}
