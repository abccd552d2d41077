//! Keepers are started, and waited for until they can be asked.

use super::super::disks;
use super::super::folder::MachineFolder;
use super::super::requests::ASKS;
use super::super::wire::{self, KeeperReply, KeeperRequest};
use ::vm::Parcel;
use block::{Error, ErrorKind, Result};
use engine::Home;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

/// How often a keeper that comes up is looked for.
const STEP: Duration = Duration::from_millis(10);

/// What becomes of memory that a guest does not touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum MemoryFill {
    /// It is fetched behind the guest, where what is read from the store is kept on this host.
    Behind,
    /// It stays in the store.
    Never,
}

impl MemoryFill {
    /// That of a resume which may say `--no-fill`.
    pub(in super::super) fn unless(no_fill: bool) -> Self {
        if no_fill { Self::Never } else { Self::Behind }
    }
}

/// What a keeper is started for.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum KeepFor<'a> {
    /// To boot the machine.
    Boot,
    /// To go on with a parcel.
    Parcel(&'a Parcel, MemoryFill),
    /// To go on with what was kept here.
    Pending(MemoryFill),
    /// To send what was kept here.
    Upload,
}

/// Starts a keeper, and waits until its machine runs, or what was kept goes up.
///
/// # Errors
/// The keeper's own.
pub(in super::super) async fn spawn(
    home: &Home,
    folder: &MachineFolder,
    qemu: &Path,
    what: KeepFor<'_>,
) -> Result<KeeperReply> {
    let began = Instant::now();
    folder.make_directory()?;
    let log = folder.log();
    let said = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let mut command = disks::program(home, &log)?;
    command.args(["vm", "keep", folder.name(), "--qemu"]).arg(qemu);
    match what {
        KeepFor::Boot => {}
        KeepFor::Parcel(parcel, _) => {
            let parcel = serde_json::to_string(parcel)
                .map_err(|e| Error::internal("a parcel cannot be written").with_source(e))?;
            command.args(["--parcel", &parcel]);
        }
        KeepFor::Pending(_) => drop(command.arg("--pending")),
        KeepFor::Upload => drop(command.arg("--upload")),
    }
    if let KeepFor::Parcel(_, MemoryFill::Never) | KeepFor::Pending(MemoryFill::Never) = what {
        command.arg("--no-fill");
    }
    let mut child = command.spawn().map_err(|e| Error::io("cannot start a keeper", e))?;
    loop {
        match wire::call(folder, &KeeperRequest::Status).await {
            Ok(Some(KeeperReply::Status(mut status))) if status.keeper == child.id() => {
                status.started_seconds = began.elapsed().as_secs_f64();
                return Ok(KeeperReply::Status(status));
            }
            Ok(Some(KeeperReply::Uploading(view))) if view.keeper == Some(child.id()) => {
                return Ok(KeeperReply::Uploading(view));
            }
            // One that ends meanwhile goes away before it answers.
            Err(e) if e.kind() == ErrorKind::Unavailable => {}
            other => drop(other?),
        }
        if let Ok(Some(status)) = child.try_wait() {
            if status.success() {
                // All that was left was done at once.
                return Ok(KeeperReply::Stopped);
            }
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Err(Error::new(ErrorKind::of_exit_code(code), last_line(&log, said)));
        }
        sleep(STEP).await;
    }
}

/// Starts a keeper that sends what was kept, and waits for a while until it can be asked, or has ended: until then it
/// has the machine, and tells nobody what it does.
///
/// # Errors
/// Any error from the system.
pub(in super::super) async fn send_behind(home: &Home, folder: &MachineFolder) -> Result<()> {
    let mut command = disks::program(home, &folder.log())?;
    // QEMU is not needed for that.
    let qemu = ::vm::machine::default_qemu();
    command.args(["vm", "keep", folder.name(), "--qemu"]).arg(qemu).arg("--upload");
    let mut child = command.spawn().map_err(|e| Error::io("cannot start a keeper", e))?;
    let until = Instant::now() + ASKS;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        if UnixStream::connect(folder.socket()).await.is_ok() {
            break;
        }
        sleep(STEP).await;
    }
    Ok(())
}

/// The last line of a log that was written since it had `from` bytes, without the program's name.
fn last_line(log: &Path, from: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let fresh = bytes.get(from as usize..).unwrap_or_default();
    let text = String::from_utf8_lossy(fresh);
    let last = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("the keeper says nothing");
    last.strip_prefix("sojourn: ").unwrap_or(last).to_owned()
}
