//! Recording what clients ask: exports whose sessions note every request, and the task that writes
//! the trace beside them. A fault of the recording ends it, never a client.

use super::recordings::{RecordingDirectory, RecordingFile, RecordingTarget};
use async_trait::async_trait;
use block::{Error, Result, offload};
use engine::config::Config;
use engine::home::Home;
use nbd::{ExportSummary, Exports, Layered, Peer, Purpose, Session, Transport};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use trace::TraceDisk;
use trace::record::{Collector, Recorder};

/// How often what was noted is written.
const PASS: Duration = Duration::from_millis(250);

/// Exports with or without a recording.
pub(crate) fn recorded(
    recording: Option<&Recording>,
    exports: Arc<dyn Exports>,
) -> Arc<dyn Exports> {
    match recording {
        Some(recording) => recording.exports(exports),
        None => exports,
    }
}

/// How a recording fares, as `sojourn status` tells it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RecordingView {
    /// The file that is being written.
    pub file: String,
    /// Files of this recording, this one included.
    #[serde(default)]
    pub files: u64,
    /// Requests recorded so far.
    pub requests: u64,
    /// Bytes written so far.
    pub bytes: u64,
    /// Requests that came too fast to be recorded.
    pub dropped: u64,
    /// Why it ended before its time; null while it goes on.
    pub error: Option<String>,
}

/// A trace being recorded.
pub(crate) struct Recording {
    recorder: Arc<Recorder>,
    view: Arc<Mutex<RecordingView>>,
    directory: Option<PathBuf>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    task: tokio::sync::Mutex<JoinSet<()>>,
}

impl Recording {
    /// Begins a new file. At `limit` bytes it goes on in the next one, or ends.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is such a file; any error from the file.
    pub(crate) fn start(mut place: RecordingTarget, limit: u64, notes: &str) -> Result<Self> {
        let directory = place.directory().map(Path::to_owned);
        let (out, path) = place.first()?;
        let recorder = Recorder::new(engine::world::system().clock.now() * 1_000_000_000);
        let collector = Collector::new(Arc::clone(&recorder), out, &path, limit, notes)?;
        let file = path.display().to_string();
        tracing::info!(file, limit, "recording");
        let view = RecordingView { file, files: 1, ..RecordingView::default() };
        let view = Arc::new(Mutex::new(view));
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        let writing = Writing { collector, place, before: (0, 0) };
        task.spawn(collect(writing, Arc::clone(&recorder), Arc::clone(&view), stopped));
        let (stop, task) = (Mutex::new(Some(stop)), tokio::sync::Mutex::new(task));
        Ok(Self { recorder, view, directory, stop, task })
    }

    /// The recording that a server is to make: into `file`, else into the configured directory of
    /// its home, else none.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is such a file; any error from the file.
    pub(crate) fn wanted(
        file: Option<&Path>,
        config: &Config,
        home: Option<&Home>,
    ) -> Result<Option<Self>> {
        let place = match (file, &config.trace.dir, home) {
            (Some(file), ..) => RecordingTarget::File(file.to_owned()),
            (None, Some(dir), Some(home)) => {
                let began = engine::world::system().clock.now();
                let dir = home.resolve(dir.as_ref());
                RecordingTarget::Directory(RecordingDirectory::new(dir, began, config.trace.files)?)
            }
            _ => return Ok(None),
        };
        let notes = format!("recorded by sojourn serve {}", env!("CARGO_PKG_VERSION"));
        Self::start(place, config.trace.size.0, &notes).map(Some)
    }

    /// The same exports, recorded.
    pub(crate) fn exports(&self, inner: Arc<dyn Exports>) -> Arc<dyn Exports> {
        Arc::new(RecordedExports { inner, recorder: Arc::clone(&self.recorder) })
    }

    /// The directory of its files, and of those before; none for a file of its own.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// How it fares.
    pub(crate) fn view(&self) -> RecordingView {
        RecordingView { dropped: self.recorder.dropped(), ..self.view.lock().clone() }
    }

    /// Writes the rest and ends the file.
    pub(crate) async fn finish(&self) -> RecordingView {
        if let Some(stop) = self.stop.lock().take() {
            let _ = stop.send(());
        }
        while self.task.lock().await.join_next().await.is_some() {}
        self.view()
    }
}

/// A trace being written.
struct Writing {
    collector: Collector<RecordingFile>,
    place: RecordingTarget,
    /// Requests and bytes of the files before.
    before: (u64, u64),
}

impl Writing {
    /// Requests and bytes that are safe.
    fn written(&self) -> (u64, u64) {
        let (requests, bytes) = self.collector.written();
        (self.before.0 + requests, self.before.1 + bytes)
    }

    /// Writes what was noted; goes on in the next file when this one is full.
    fn pass(&mut self, view: &Mutex<RecordingView>) -> Result<()> {
        self.collector.pass()?;
        if !self.collector.is_full() {
            return Ok(());
        }
        let (out, path) = self.place.next()?;
        let (_, requests, bytes) = self.collector.rotate(out, &path)?;
        self.before = (self.before.0 + requests, self.before.1 + bytes);
        let mut view = view.lock();
        view.file = path.display().to_string();
        view.files += 1;
        Ok(())
    }

    /// Writes the rest and ends the file; gives the requests and bytes of all.
    fn finish(self) -> Result<(u64, u64)> {
        let (_, requests, bytes) = self.collector.finish()?;
        Ok((self.before.0 + requests, self.before.1 + bytes))
    }
}

/// Writes until it is stopped or fails.
async fn collect(
    mut writing: Writing,
    recorder: Arc<Recorder>,
    view: Arc<Mutex<RecordingView>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let failed = |error: &Error| {
        recorder.stop();
        tracing::error!(error = error.message(), "recording ended");
        view.lock().error = Some(error.message().to_owned());
    };
    let note = |(requests, bytes): (u64, u64)| {
        let mut view = view.lock();
        (view.requests, view.bytes) = (requests, bytes);
    };
    loop {
        let stop = tokio::select! {
            _ = &mut stopped => true,
            () = tokio::time::sleep(PASS) => false,
        };
        if stop {
            recorder.stop();
            match offload(move || writing.finish()).await {
                Ok(all) => note(all),
                Err(error) => failed(&error),
            }
            return;
        }
        let for_pass = Arc::clone(&view);
        let passed = offload(move || {
            let result = writing.pass(&for_pass);
            Ok((writing, result))
        });
        match passed.await {
            Ok((back, Ok(()))) => {
                note(back.written());
                writing = back;
            }
            Ok((back, Err(error))) => {
                failed(&error);
                note(back.written());
                // What was written is worth keeping whole; where even that fails, it stays cut.
                if let Ok(all) = offload(move || back.finish()).await {
                    note(all);
                }
                return;
            }
            Err(error) => return failed(&error),
        }
    }
}

/// Exports whose sessions note every request.
struct RecordedExports {
    inner: Arc<dyn Exports>,
    recorder: Arc<Recorder>,
}

/// Who a client is in a trace. Guests behind one address are told apart by their export.
fn client(peer: &Peer, export: &str) -> String {
    match peer.transport {
        Transport::Tcp(_) => format!("{} {export}", peer.identity),
        _ => peer.identity.clone(),
    }
}

#[async_trait]
impl Exports for RecordedExports {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.inner.list(peer).await
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let session = self.inner.open(name, peer, purpose).await?;
        if matches!(purpose, Purpose::Info | Purpose::Look) {
            return Ok(session);
        }
        let disk = TraceDisk {
            name: session.name().to_owned(),
            size: session.device().size(),
            base: session.origin().unwrap_or_default().to_owned(),
        };
        let log = self.recorder.log(client(peer, &disk.name), disk);
        Ok(Box::new(Layered::observed(session, log)))
    }
}
