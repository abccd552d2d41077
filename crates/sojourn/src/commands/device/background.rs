//! A device's keeper in the background: this program again, whose parent ends when the device is there.

use crate::output;
use block::{Error, Result};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// The flag of the keeper's process.
const DETACH: &str = "--detach";
/// The kernel's log: it is written whatever file system is away.
const KERNEL_LOG: &str = "/dev/kmsg";
/// Where nothing is written.
const NOWHERE: &str = "/dev/null";

/// Starts the keeper with the command line of this process, and prints what it prints until the device
/// is there.
///
/// # Errors
/// When it cannot be started. When it fails it says why itself, and this process ends with its code.
pub(super) async fn start() -> Result<()> {
    match spawn(std::env::args_os().skip(1), Stdio::null()).await? {
        Ok(said) => output::raw(&said),
        Err(code) => std::process::exit(code),
    }
}

/// Starts a keeper with a command line and something to hold open; gives what it prints until the device is
/// there, or the exit code of one that failed.
///
/// # Errors
/// When it cannot be started.
pub(super) async fn spawn(
    line: impl Iterator<Item = OsString>,
    held: Stdio,
) -> Result<Result<Vec<u8>, i32>> {
    let program = std::env::current_exe().map_err(|e| Error::io("this program's path", e))?;
    let mut keeper = Command::new(program)
        .args(line)
        .arg(DETACH)
        .stdin(held)
        .stdout(Stdio::piped())
        .current_dir("/")
        .spawn()
        .map_err(|e| Error::io("cannot start the device's keeper", e))?;
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
pub(super) fn leave() -> Result<()> {
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
