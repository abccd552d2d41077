//! How `borrow status` and `borrow down` reach a borrowed disk in use: one JSON document each way on
//! a unix socket, `borrow/NAME.sock` in the home. Beside it lies `NAME.lock`, which the process that
//! serves the disk has locked; after a crash the lock is free and the socket dead, and the next
//! `borrow up` of that name takes both over.

use super::report::{DownRequest, DownView, StatusView};
use block::{Error, Result};
use engine::home::Home;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest message, in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a client has to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a borrowed disk has to say how it is. Taking one down takes as long as it takes.
const STATUS: Duration = Duration::from_secs(10);

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
    if bytes.is_empty() {
        return Err(Error::unavailable("the other end of the control socket left without a word"));
    }
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
/// Those that it replies with; [`Unavailable`](block::ErrorKind::Unavailable) when it ends without a reply,
/// and when it does not say in time how it is.
pub async fn ask(home: &Home, name: &str, what: &ControlRequest) -> Result<Option<Reply>> {
    ask_at(&Paths::new(home, name).socket, name, what).await
}

async fn ask_at(path: &Path, name: &str, what: &ControlRequest) -> Result<Option<Reply>> {
    let mut stream = match UnixStream::connect(path).await {
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
    let answer = async {
        send(&mut stream, what).await?;
        receive(&mut stream).await
    };
    let answer = match what {
        ControlRequest::Status => tokio::time::timeout(STATUS, answer).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "{name} does not say how it is; its process may be stopped"
            )))
        }),
        ControlRequest::Down(_) => answer.await.map_err(|e| match e.kind() {
            block::ErrorKind::Unavailable => {
                Error::unavailable(format!("{name} ended without an answer: {e}"))
            }
            _ => e,
        }),
    };
    match answer? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn whoever_ends_without_an_answer_is_not_said_to_speak_no_json() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let socket = UnixListener::bind(&path).unwrap();
        let ends = async {
            for _ in 0..2 {
                let (mut client, _) = socket.accept().await.unwrap();
                request(&mut client).await.unwrap();
            }
        };
        let asks = async {
            let down = ControlRequest::Down(DownRequest::default());
            for what in [ControlRequest::Status, down] {
                let error = ask_at(&path, "x", &what).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(!error.message().contains("JSON"), "{error}");
            }
        };
        tokio::join!(ends, asks);
        // Closing it is not enough: the child of a fork in another test has it until its exec.
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
        drop(socket);
        assert!(ask_at(&path, "x", &ControlRequest::Status).await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_say_how_it_is_does_not_keep_others_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let _silent = UnixListener::bind(&path).unwrap();
        let error = ask_at(&path, "x", &ControlRequest::Status).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
