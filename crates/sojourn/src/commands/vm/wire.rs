//! What a command and the keeper of a machine say to each other: a JSON line each, over a unix socket.

use super::folder::MachineFolder;
use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use vm::machine::ParcelReport;

/// The longest line, in bytes.
const LONGEST: u64 = 256 << 10;

/// What a keeper is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum KeeperRequest {
    Status,
    Suspend,
    Checkpoint,
    Stop { force: bool },
}

impl KeeperRequest {
    /// What is being done, for a progress line.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::Status => "asking",
            Self::Suspend => "suspending",
            Self::Checkpoint => "storing",
            Self::Stop { .. } => "stopping",
        }
    }
}

/// What a keeper answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeeperReply {
    Status(RunningView),
    Stored(StoredView),
    Stopped,
}

/// A machine that runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunningView {
    pub(super) name: String,
    /// In QEMU's words: `running`, `paused`, …
    pub(super) state: String,
    /// The parcel that it came from.
    pub(super) parcel: Option<String>,
    /// `kvm` or `tcg`.
    pub(super) accelerator: String,
    /// Process ids.
    pub(super) keeper: u32,
    pub(super) qemu: u32,
    /// The socket of the serial console.
    pub(super) console: String,
    /// The socket of the screen, if it has one.
    pub(super) screen: Option<String>,
    /// Whether memory is fetched as it is touched; if not, FUSE cannot be used and all was fetched first.
    pub(super) memory_on_demand: bool,
    /// Bytes of memory that the guest wrote here.
    pub(super) memory_written: u64,
    /// From the request until the guest ran, in seconds.
    pub(super) started_seconds: f64,
}

/// A parcel that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredView {
    /// Such as `work@5`.
    pub(super) parcel: String,
    /// For how long the guest stood still; of a suspend, until all was stored.
    pub(super) paused_seconds: f64,
    pub(super) stored_seconds: f64,
    /// Bytes that its memory and devices added to the store's packs.
    pub(super) memory_bytes: u64,
    /// Extents of 64 KiB that changed since the parcel before.
    pub(super) changed_extents: u64,
    /// Those of them that were stored in full.
    pub(super) full_extents: u64,
    /// Whether the disk was released, so that another host can take it.
    pub(super) released: bool,
}

impl StoredView {
    pub(super) fn new(report: &ParcelReport, released: bool) -> Self {
        Self {
            parcel: report.parcel.name(),
            paused_seconds: report.paused,
            stored_seconds: report.stored,
            memory_bytes: report.memory_bytes,
            changed_extents: report.changed,
            full_extents: report.full,
            released,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeeperAnswer {
    Done(KeeperReply),
    Failed { kind: u8, message: String },
}

/// The kind of error that an exit code stands for.
pub(super) fn kind_of(code: u8) -> ErrorKind {
    let all = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Fenced,
        ErrorKind::Unavailable,
        ErrorKind::Corrupt,
        ErrorKind::NoSpace,
        ErrorKind::Denied,
        ErrorKind::Unsupported,
    ];
    all.into_iter().find(|kind| kind.exit_code() == code).unwrap_or(ErrorKind::Internal)
}

/// Asks the keeper of a machine; `None` when the machine does not run.
///
/// # Errors
/// What the keeper answers; [`Unavailable`](ErrorKind::Unavailable) when it goes away before it does.
pub(super) async fn call(
    folder: &MachineFolder,
    request: &KeeperRequest,
) -> Result<Option<KeeperReply>> {
    let mut stream = match UnixStream::connect(folder.socket()).await {
        Ok(stream) => stream,
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(Error::io(folder.socket().display(), e)),
    };
    let gone = |e: std::io::Error| {
        let name = folder.name();
        Error::unavailable(format!(
            "the keeper of machine {name:?} went away: {e}; see 'sojourn vm log --qemu {name}'"
        ))
    };
    stream.write_all(&line(request)?).await.map_err(gone)?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(LONGEST).read_until(b'\n', &mut answer).await.map_err(gone)?;
    let answer: KeeperAnswer = serde_json::from_slice(&answer).map_err(|e| gone(e.into()))?;
    match answer {
        KeeperAnswer::Done(reply) => Ok(Some(reply)),
        KeeperAnswer::Failed { kind, message } => Err(Error::new(kind_of(kind), message)),
    }
}

/// Reads what a command asks.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when it is no request; those of the connection.
pub(super) async fn receive(stream: &mut UnixStream) -> Result<KeeperRequest> {
    let mut request = Vec::new();
    let failed = |e| Error::io("the connection of a command", e);
    BufReader::new(stream).take(LONGEST).read_until(b'\n', &mut request).await.map_err(failed)?;
    serde_json::from_slice(&request).map_err(|e| Error::invalid(format!("no request: {e}")))
}

/// Answers a command.
pub(super) async fn answer(mut stream: UnixStream, reply: Result<KeeperReply>) {
    let answer = match reply {
        Ok(reply) => KeeperAnswer::Done(reply),
        Err(e) => {
            KeeperAnswer::Failed { kind: e.kind().exit_code(), message: e.message().to_owned() }
        }
    };
    if let Ok(line) = line(&answer) {
        // The command may have been interrupted.
        let _ = stream.write_all(&line).await;
    }
}

fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|e| {
        Error::internal("a message to or from a keeper cannot be written").with_source(e)
    })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_keep_their_kind_on_their_way_to_the_command() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        answer(theirs, Err(Error::fenced("disk \"alice\" was taken"))).await;
        let mut text = String::new();
        ours.read_to_string(&mut text).await.unwrap();
        let KeeperAnswer::Failed { kind, message } = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(
            (kind_of(kind), message.as_str()),
            (ErrorKind::Fenced, "disk \"alice\" was taken")
        );
        assert_eq!(kind_of(77), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn a_request_is_read_back_and_other_lines_are_refused() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.write_all(&line(&KeeperRequest::Stop { force: true }).unwrap()).await.unwrap();
        assert!(matches!(receive(&mut theirs).await.unwrap(), KeeperRequest::Stop { force: true }));
        ours.write_all(b"{\"verb\":\"dance\"}\n").await.unwrap();
        assert_eq!(receive(&mut theirs).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}
