//! Recording what clients ask: exports whose devices note every request, and the task that writes
//! the trace beside them. A fault of the recording ends it, never a client.

use crate::config::Config;
use crate::home::Home;
use async_trait::async_trait;
use block::{Device, Error, Result, offload};
use nbd::{ExportSummary, Exports, Layered, Peer, Purpose, Session, Transport};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use trace::Disk;
use trace::record::{Collector, Recorded, Recorder};

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
pub(crate) struct RecordingView {
    pub(crate) file: String,
    /// Requests in the file so far.
    pub(crate) requests: u64,
    /// Bytes of the file so far.
    pub(crate) bytes: u64,
    /// Requests that came too fast to be recorded.
    pub(crate) dropped: u64,
    /// Why it ended before its time; null while it goes on.
    pub(crate) error: Option<String>,
}

/// A trace being recorded.
pub(crate) struct Recording {
    recorder: Arc<Recorder>,
    view: Arc<Mutex<RecordingView>>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    task: tokio::sync::Mutex<JoinSet<()>>,
}

impl Recording {
    /// Begins a new file, which ends at `limit` bytes.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is such a file; those of the file.
    pub(crate) fn start(path: &Path, limit: u64, notes: &str) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = file.map_err(|e| Error::io(path.display(), e))?;
        let recorder = Recorder::new();
        let out = BufWriter::with_capacity(256 << 10, file);
        let collector = Collector::new(Arc::clone(&recorder), out, path, limit, notes)?;
        let file = path.display().to_string();
        tracing::info!(file, limit, "recording");
        let view = Arc::new(Mutex::new(RecordingView { file, ..RecordingView::default() }));
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(collect(collector, Arc::clone(&recorder), Arc::clone(&view), stopped));
        let (stop, task) = (Mutex::new(Some(stop)), tokio::sync::Mutex::new(task));
        Ok(Self { recorder, view, stop, task })
    }

    /// The recording that a server is to make: into `file`, else into the configured directory of
    /// its home, else none.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn wanted(
        file: Option<&Path>,
        config: &Config,
        home: Option<&Home>,
    ) -> Result<Option<Self>> {
        let path = match (file, &config.trace.dir, home) {
            (Some(file), ..) => file.to_owned(),
            (None, Some(dir), Some(home)) => {
                file_in(&home.resolve(dir.as_ref()), crate::world::system().clock.now())?
            }
            _ => return Ok(None),
        };
        let notes = format!("recorded by sojourn serve {}", env!("CARGO_PKG_VERSION"));
        Self::start(&path, config.trace.size.0, &notes).map(Some)
    }

    /// The same exports, recorded.
    pub(crate) fn exports(&self, inner: Arc<dyn Exports>) -> Arc<dyn Exports> {
        Arc::new(RecordedExports { inner, recorder: Arc::clone(&self.recorder) })
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

/// Writes until it is stopped or fails.
async fn collect(
    mut collector: Collector<BufWriter<File>>,
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
            match offload(move || collector.finish()).await {
                Ok((_, requests, bytes)) => note((requests, bytes)),
                Err(error) => failed(&error),
            }
            return;
        }
        let passed = offload(move || {
            let result = collector.pass();
            Ok((collector, result))
        });
        match passed.await {
            Ok((back, Ok(()))) => {
                note(back.written());
                collector = back;
            }
            Ok((back, Err(error))) => {
                failed(&error);
                note(back.written());
                // What was written is worth keeping whole; where even that fails, it stays cut.
                if let Ok((_, requests, bytes)) = offload(move || back.finish()).await {
                    note((requests, bytes));
                }
                return;
            }
            Err(error) => return failed(&error),
        }
    }
}

/// Exports whose devices note every request.
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
        if purpose == Purpose::Info {
            return Ok(session);
        }
        let inner = Arc::clone(session.device());
        let disk = Disk {
            name: session.name().to_owned(),
            size: inner.size(),
            base: session.origin().unwrap_or_default().to_owned(),
        };
        let client = client(peer, &disk.name);
        let device: Arc<dyn Device> =
            Arc::new(Recorded::new(inner, &self.recorder, &client, &disk));
        Ok(Box::new(Layered::new(session, device)))
    }
}

/// The file of a server's recording: in `dir`, named by the moment and the process.
fn file_in(dir: &Path, now: u64) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), e))?;
    let moment = crate::output::moment(now).replace(['-', ':'], "").replace(' ', "-");
    Ok(dir.join(format!("{moment}-{}.sjt", std::process::id())))
}
