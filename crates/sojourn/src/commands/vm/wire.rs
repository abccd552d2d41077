//! What a command and the keeper of a machine say to each other: a JSON line each, over a unix socket.

use super::folder::MachineFolder;
use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use vm::GuestClock;
use vm::packing::ParcelReport;

/// The longest line, in bytes.
const LONGEST: u64 = 256 << 10;

/// What a keeper is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum KeeperRequest {
    Status,
    /// With `wait`, the answer comes when the parcel is in the store.
    Suspend {
        wait: bool,
    },
    /// Go on with a suspension that is still going up.
    Resume {
        qemu: PathBuf,
        /// Fetch nothing of the memory but what is touched.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_fill: bool,
    },
    Checkpoint,
    Stop {
        force: bool,
    },
    /// End the sending of a suspension, and no machine that runs.
    StopSending,
}

impl KeeperRequest {
    /// What is being done, for a progress line.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::Status => "asking",
            Self::Suspend { .. } => "suspending",
            Self::Resume { .. } => "resuming",
            Self::Checkpoint => "storing",
            Self::Stop { .. } => "stopping",
            Self::StopSending => "ending the sending",
        }
    }
}

/// What a keeper answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeeperReply {
    Status(RunningView),
    Starting(StartingView),
    Uploading(PendingView),
    Stored(StoredView),
    Kept(KeptView),
    /// The machine has ended.
    Stopped,
    /// What it was suspended as, such as `work@5`, is not sent any more, and stays.
    NotSent(String),
}

/// A machine that does not run yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StartingView {
    /// The process that starts it.
    pub(super) keeper: u32,
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
    /// Whether all of it has come to this host since, behind the guest.
    #[serde(default)]
    pub(super) memory_here: bool,
    /// Bytes of memory that the guest wrote here.
    pub(super) memory_written: u64,
    /// From the request until the guest ran, in seconds.
    pub(super) started_seconds: f64,
    /// What became of the clock of a guest that went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clock: Option<GuestClock>,
}

/// A suspension that is not in the store yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PendingView {
    /// What its parcel is to be called, such as `work@5`.
    pub(super) parcel: String,
    /// When the machine was suspended, in Unix seconds.
    pub(super) created: u64,
    /// Bytes of memory and disk that have not gone up, before they are compressed: an upper bound.
    pub(super) left_bytes: u64,
    /// The process that sends it; `None` when none does.
    pub(super) keeper: Option<u32>,
    /// Why it does not go up at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Somebody had the sending end: it does not begin again unless it is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) stopped: bool,
}

/// A suspension that is durable on this host, and goes up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeptView {
    /// What its parcel is to be called.
    pub(super) parcel: String,
    /// From the guest's stop until all was on stable storage here.
    pub(super) paused_seconds: f64,
    /// The same from the request.
    pub(super) kept_seconds: f64,
    /// Bytes that are to go up, before they are compressed: an upper bound.
    pub(super) left_bytes: u64,
}

/// A parcel that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredView {
    /// Such as `work@5`.
    pub(super) parcel: String,
    /// For how long the guest stood still; of a suspend, until all was on stable storage.
    pub(super) paused_seconds: f64,
    pub(super) stored_seconds: f64,
    /// Bytes that its memory and devices added to the store's packs.
    pub(super) memory_bytes: u64,
    /// Extents of 64 KiB that changed since the parcel before.
    pub(super) changed_extents: u64,
    /// The ones that were stored in full.
    pub(super) full_extents: u64,
    /// Whether the disk was released, so that another host can take it.
    pub(super) released: bool,
}

impl StoredView {
    /// A parcel of which nothing is known but that it is in the store, and its disk released.
    pub(super) fn of(parcel: String) -> Self {
        Self {
            parcel,
            paused_seconds: 0.0,
            stored_seconds: 0.0,
            memory_bytes: 0,
            changed_extents: 0,
            full_extents: 0,
            released: true,
        }
    }

    /// Whether what it cost is known: to whoever had it stored, and waited.
    pub(super) fn is_measured(&self) -> bool {
        self.stored_seconds > 0.0
    }

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

/// Asks the keeper of a machine; `None` when the machine does not run.
///
/// # Errors
/// What the keeper answers; [`Unavailable`](block::ErrorKind::Unavailable) when it goes away before it does.
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
        KeeperAnswer::Failed { kind, message } => {
            Err(Error::new(ErrorKind::of_exit_code(kind), message))
        }
    }
}

/// A command that connected, and what it has said so far.
pub(super) struct KeeperCaller {
    stream: UnixStream,
    said: Vec<u8>,
}

impl KeeperCaller {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, said: Vec::new() }
    }

    /// Waits for what the command asks. When this is dropped before, what has come is kept for the next call.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is no request; any error from the connection.
    pub(super) async fn request(&mut self) -> Result<KeeperRequest> {
        let failed = |e| Error::io("the connection of a command", e);
        while !self.said.ends_with(b"\n") && (self.said.len() as u64) < LONGEST {
            if self.stream.read_buf(&mut self.said).await.map_err(failed)? == 0 {
                break;
            }
        }
        serde_json::from_slice(&self.said).map_err(|e| Error::invalid(format!("no request: {e}")))
    }

    /// The connection, to answer on.
    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }
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
    use std::time::Duration;
    use tokio::time::timeout;

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
            (ErrorKind::of_exit_code(kind), message.as_str()),
            (ErrorKind::Fenced, "disk \"alice\" was taken")
        );
        assert_eq!(ErrorKind::of_exit_code(77), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn a_request_is_read_back_and_other_lines_are_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&line(&KeeperRequest::Stop { force: true }).unwrap()).await.unwrap();
        let asked = KeeperCaller::new(theirs).request().await.unwrap();
        assert!(matches!(asked, KeeperRequest::Stop { force: true }));
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"{\"verb\":\"dance\"}\n").await.unwrap();
        let refused = KeeperCaller::new(theirs).request().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }

    #[tokio::test]
    async fn a_request_that_was_not_waited_for_to_its_end_is_heard_by_the_next_call() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut caller = KeeperCaller::new(theirs);
        let text = line(&KeeperRequest::Suspend { wait: true }).unwrap();
        for part in text[..text.len() - 1].chunks(7) {
            ours.write_all(part).await.unwrap();
            assert!(timeout(Duration::from_millis(20), caller.request()).await.is_err());
        }
        ours.write_all(b"\n").await.unwrap();
        let asked = caller.request().await.unwrap();
        assert!(matches!(asked, KeeperRequest::Suspend { wait: true }));
    }
}
