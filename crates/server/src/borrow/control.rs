//! How `borrow status` and `borrow down` reach a borrowed disk in use: one JSON document each way on
//! a unix socket, `borrow/NAME.sock` in the home. Beside it lies `NAME.lock`, which the process that
//! serves the disk has locked; after a crash the lock is free and the socket dead, and the next
//! `borrow up` of that name takes both over.

use super::report::{DownRequest, DownView, StatusView};
use block::{Error, Result};
use engine::home::Home;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest message, in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a client has to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked of a borrowed disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ControlRequest {
    /// How it is.
    Status,
    /// Take it down.
    Down(DownRequest),
}

/// What it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// How it is.
    Status(Box<StatusView>),
    /// How the end was.
    Down(DownView),
    /// The exit code of the error's kind, and its message.
    Error(String, String),
}

impl Reply {
    /// An error as a reply.
    pub(crate) fn error(error: &Error) -> Self {
        Self::Error(error.kind().as_str().to_owned(), error.message().to_owned())
    }
}

/// The paths of the borrowed disk `name`.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Locked by the process that serves the disk.
    pub lock: PathBuf,
    /// Where it is asked.
    pub socket: PathBuf,
    /// Where it is served, unless told otherwise.
    pub nbd: PathBuf,
}

/// The directory of the borrowed disks' sockets.
pub fn directory(home: &Home) -> PathBuf {
    home.dir().join("borrow")
}

impl Paths {
    /// The paths of a disk whose name was checked.
    pub fn new(home: &Home, name: &str) -> Self {
        let at = |end: &str| directory(home).join(format!("{name}{end}"));
        Self { lock: at(".lock"), socket: at(".sock"), nbd: at(".nbd") }
    }
}

/// Reads one message to the end of the stream.
async fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> Result<T> {
    let mut bytes = Vec::new();
    let io = |e| Error::io("the control socket of a borrowed disk", e);
    stream.take(LONGEST).read_to_end(&mut bytes).await.map_err(io)?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Error::invalid(format!("the control socket of a borrowed disk says no JSON: {e}"))
    })
}

/// Sends one message, and says that it is the last.
pub(crate) async fn send<T: Serialize>(stream: &mut UnixStream, message: &T) -> Result<()> {
    let bytes = serde_json::to_vec(message)
        .map_err(|e| Error::internal("cannot write a message as JSON").with_source(e))?;
    let io = |e| Error::io("the control socket of a borrowed disk", e);
    stream.write_all(&bytes).await.map_err(io)?;
    stream.shutdown().await.map_err(io)
}

/// What a client asks for.
///
/// # Errors
/// When it does not say so in time.
pub(crate) async fn request(stream: &mut UnixStream) -> Result<ControlRequest> {
    tokio::time::timeout(PATIENCE, receive(stream))
        .await
        .map_err(|_| Error::unavailable("a client of the control socket says nothing"))?
}

/// Asks the borrowed disk `name`; `None` when nobody serves it.
///
/// # Errors
/// Those that it replies with.
pub async fn ask(home: &Home, name: &str, what: &ControlRequest) -> Result<Option<Reply>> {
    let path = Paths::new(home, name).socket;
    let mut stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(Error::io(path.display(), e)),
    };
    send(&mut stream, what).await?;
    match receive(&mut stream).await? {
        Reply::Error(kind, message) => {
            let kinds = [
                block::ErrorKind::Invalid,
                block::ErrorKind::NotFound,
                block::ErrorKind::Conflict,
                block::ErrorKind::Fenced,
                block::ErrorKind::Unavailable,
                block::ErrorKind::Corrupt,
                block::ErrorKind::NoSpace,
                block::ErrorKind::Denied,
                block::ErrorKind::Unsupported,
            ];
            let kind = kinds.into_iter().find(|known| known.as_str() == kind);
            Err(Error::new(kind.unwrap_or(block::ErrorKind::Internal), message))
        }
        reply => Ok(Some(reply)),
    }
}

/// The names of all borrowed disks that have a socket, dead or alive, sorted.
///
/// # Errors
/// Any error from the directory.
pub fn names(home: &Home) -> Result<Vec<String>> {
    let path = directory(home);
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(path.display(), e)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}
