//! Another server's exports: every client gets a connection of its own to that server.

use super::listen::ListenOptions;
use super::record::{Recording, RecordingView};
use super::recordings::RecordingTarget;
use super::without_home;
use async_trait::async_trait;
use block::{Device, Result};
use engine::Config;
use nbd::{
    ClientOptions, ExportSummary, Exports, Peer, Purpose, Remote, Session, SessionEnding, Uri,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The exports of another server.
pub(crate) struct ForwardExports {
    to: Uri,
    options: ClientOptions,
}

impl ForwardExports {
    /// Forwards to the server of `to`, whose export is the default one.
    pub(crate) fn new(to: Uri, options: ClientOptions) -> Self {
        Self { to, options }
    }
}

#[async_trait]
impl Exports for ForwardExports {
    async fn list(&self, _peer: &Peer) -> Result<Vec<ExportSummary>> {
        let description = format!("forwarded to {}", self.to);
        Ok(vec![ExportSummary { name: self.to.export.clone(), description }])
    }

    async fn open(&self, name: &str, _peer: &Peer, _purpose: Purpose) -> Result<Box<dyn Session>> {
        let name = if name.is_empty() { &self.to.export } else { name };
        let uri = self.to.with_export(name);
        let remote = Arc::new(Remote::connect(&uri, self.options.clone()).await?);
        let device: Arc<dyn Device> = Arc::clone(&remote) as _;
        Ok(Box::new(ForwardSession { name: name.to_owned(), device, remote }))
    }
}

struct ForwardSession {
    name: String,
    device: Arc<dyn Device>,
    remote: Arc<Remote>,
}

#[async_trait]
impl Session for ForwardSession {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        &self.name
    }

    async fn close(self: Box<Self>, _ending: SessionEnding) {
        let Self { device, remote, .. } = *self;
        drop(device);
        // Others may still hold the device for a moment; then the connection just ends.
        if let Some(remote) = Arc::into_inner(remote) {
            remote.close().await;
        }
    }
}

/// Serves the exports of another server and records what clients ask in a new file `out`, until a signal,
/// or until the file has `limit` bytes. Also says how the recording ended.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when there is such a file; any error from the file, and of
/// listening.
pub async fn record(
    to: &Uri,
    options: ClientOptions,
    asked: &ListenOptions,
    out: PathBuf,
    limit: u64,
) -> Result<(Result<ExitCode>, RecordingView)> {
    let notes = format!("recorded between clients and {to}");
    let recording = Recording::start(RecordingTarget::File(out), limit, &notes)?;
    let exports = recording.exports(Arc::new(ForwardExports::new(to.clone(), options)));
    let served = without_home::run(exports, None, Path::new("."), &Config::default(), asked).await;
    Ok((served, recording.finish().await))
}
