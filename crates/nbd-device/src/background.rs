//! A keeper in the background: this program again, whose parent ends when the device is there.

use block::program::own_program;
use block::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// The flag of the keeper's process: the program [leaves](leave) when its device is there.
pub const FLAG: &str = "--detach";
/// The kernel's log: it is written whatever file system is away.
const KERNEL_LOG: &str = "/dev/kmsg";
/// Where nothing is written.
const NOWHERE: &str = "/dev/null";

/// Starts a keeper with a command line and something to hold open, under a name of its own (`argv[0]`) if one is
/// given; gives what it prints until the device is there, or the exit code of one that failed.
///
/// # Errors
/// When it cannot be started.
pub async fn spawn(
    line: impl Iterator<Item = OsString>,
    held: Stdio,
    name: Option<&OsStr>,
) -> Result<Result<Vec<u8>, i32>> {
    let mut command = Command::new(own_program()?);
    if let Some(name) = name {
        command.arg0(name);
    }
    let started =
        command.args(line).arg(FLAG).stdin(held).stdout(Stdio::piped()).current_dir("/").spawn();
    let mut keeper = started.map_err(|e| Error::io("cannot start the device's keeper", e))?;
    let mut said = Vec::new();
    if let Some(mut stdout) = keeper.stdout.take() {
        // Until the keeper closes it: when it leaves for the background, or ends.
        stdout.read_to_end(&mut said).await.map_err(|e| Error::io("the device's keeper", e))?;
    }
    if !said.is_empty() {
        return Ok(Ok(said));
    }
    let ended = keeper.wait().await.map_err(|e| Error::io("the device's keeper", e))?;
    Ok(Err(ended.code().unwrap_or(1)))
}

/// Leaves the terminal and whoever started this process: a session of its own, nothing to read, and
/// what it has to say goes to the kernel's log.
///
/// # Errors
/// Any error from the system calls.
pub fn leave() -> Result<()> {
    let failed = |e: rustix::io::Errno| Error::io("going to the background", e.into());
    // It fails where this leads a session already.
    let _ = rustix::process::setsid();
    let open = |path| OpenOptions::new().write(true).open(path);
    let nowhere = open(NOWHERE).map_err(|e| Error::io(NOWHERE, e))?;
    match open(KERNEL_LOG) {
        Ok(log) => rustix::stdio::dup2_stderr(log).map_err(failed)?,
        Err(_) => rustix::stdio::dup2_stderr(&nowhere).map_err(failed)?,
    }
    rustix::stdio::dup2_stdout(nowhere).map_err(failed)
}
