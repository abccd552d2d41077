//! The server of a home, started by a command that needs it, on its own: it stays when the command ends.

use crate::client::ControlClient;
use block::program::own_program;
use block::{Error, Result};
use engine::Home;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;

/// How long a process may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How long one may take to end.
const STOP: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// How long a log grows; then it is the old one, and what was that is dropped.
const LOG_MOST: u64 = 1 << 20;
/// How often is looked how long it is.
const LOG_LOOK: Duration = Duration::from_secs(5);
/// The end of a log that is looked at when the process does not start, in bytes.
const LOG_END: u64 = 2000;

/// The server of a home; it is started when none runs, with the arguments `verb`.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when it does not start, with the last line of its log;
/// that of the system when it cannot be reached.
pub async fn running(home: &Home, verb: &[&str]) -> Result<ControlClient> {
    if let Some(client) = ControlClient::connect(home).await? {
        return Ok(client);
    }
    let mut child = start(home, verb)?;
    let until = Instant::now() + START;
    loop {
        if let Some(client) = ControlClient::connect(home).await? {
            return Ok(client);
        }
        let ended = child.try_wait().map_err(|e| Error::io("the server's process", e))?;
        if ended.is_some() || Instant::now() > until {
            // Another command may have started one at the same time.
            if let Some(client) = ControlClient::connect(home).await? {
                return Ok(client);
            }
            let why = last_line(home);
            let log = log(home);
            return Err(Error::unavailable(format!(
                "the process of {} does not start: {why}; {} has more",
                home.dir().display(),
                log.display()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Has a server end as a signal does, and waits for it.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when it does not end; any error from the system.
pub async fn stop(client: ControlClient) -> Result<()> {
    let process = client.process()?;
    drop(client);
    let io = |e: std::io::Error| Error::io("the server's process", e);
    pidfd_send_signal(&process, Signal::TERM).map_err(|e| io(e.into()))?;
    match ended(process, Some(STOP)).await? {
        true => Ok(()),
        false => Err(Error::unavailable("the server does not end; look at its log")),
    }
}

/// Waits until a server's process has ended, but no longer than `most`; whether it has.
///
/// # Errors
/// That of the system.
pub async fn ended(process: OwnedFd, most: Option<Duration>) -> Result<bool> {
    block::offload(move || {
        let until = most.map(|most| Instant::now() + most);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            match rustix::event::poll(&mut ended, left.as_ref()) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("waiting for the server", e.into())),
                Ok(events) => return Ok(events > 0),
            }
        }
    })
    .await
}

/// Bounds the log of this process, for ever, if it is the one that [`running`] gave it: one that grew to 1 MiB
/// becomes `agent.log.1`, and a new one is begun.
pub async fn bound_log(home: &Home) -> Infallible {
    let path = log(home);
    loop {
        tokio::time::sleep(LOG_LOOK).await;
        let at = path.clone();
        let bounded = block::offload(move || {
            bound(&at, std::io::stderr(), LOG_MOST).map_err(|e| Error::io(at.display(), e))
        });
        if let Err(error) = bounded.await {
            tracing::warn!(%error, "the log is not bounded");
        }
    }
}

/// Begins a new log at `path` when `errors`, which this process writes to, is the one there and longer than
/// `most` bytes.
fn bound(path: &Path, errors: impl AsFd, most: u64) -> std::io::Result<()> {
    let (open, named) = (rustix::fs::fstat(errors)?, std::fs::metadata(path));
    let is_ours = named.is_ok_and(|named| (named.dev(), named.ino()) == (open.st_dev, open.st_ino));
    if !is_ours || u64::try_from(open.st_size).unwrap_or(0) <= most {
        return Ok(());
    }
    // The new one first: without it this process goes on with the old one, under its name.
    let fresh = path.with_extension("log.new");
    let log = open_log(&fresh)?;
    std::fs::rename(path, path.with_extension("log.1"))?;
    std::fs::rename(fresh, path)?;
    rustix::stdio::dup2_stderr(&log)?;
    rustix::stdio::dup2_stdout(&log)?;
    Ok(())
}

fn open_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn log(home: &Home) -> PathBuf {
    home.dir().join("agent.log")
}

fn last_line(home: &Home) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log(home))?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_END)))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        Ok(String::from_utf8_lossy(&end).into_owned())
    };
    let text = read().unwrap_or_default();
    let line = text.lines().last().unwrap_or("it says nothing");
    line.strip_prefix("sojourn: ").unwrap_or(line).to_owned()
}

fn start(home: &Home, verb: &[&str]) -> Result<Child> {
    let path = log(home);
    let io = |e| Error::io(path.display(), e);
    let log = open_log(&path).map_err(io)?;
    let errors = log.try_clone().map_err(io)?;
    let program = own_program()?;
    Command::new(&program)
        .arg("--home")
        .arg(home.dir())
        .args(verb)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .current_dir("/")
        .process_group(0)
        .spawn()
        .map_err(|e| Error::io(program.display(), e))
}
