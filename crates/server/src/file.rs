//! One file as the only export: `serve --file`.

use super::brief::Until;
use super::options::Options;
use super::plain;
use super::record::{Recording, recorded};
use super::throttle::{Throttles, throttled};
use async_trait::async_trait;
use block::{Device, Error, Result};
use engine::{Config, Home};
use nbd::{Ending, ExportSummary, Exports, Peer, Purpose, Session};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// The one export. Its name is the file's; the empty name means it too.
pub(crate) struct FileExports {
    device: Arc<dyn Device>,
    name: String,
}

impl FileExports {
    /// Exports `device`, which is the file at `path`.
    pub(crate) fn new(device: Arc<dyn Device>, path: &Path) -> Self {
        let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
        Self { device, name: name.into_owned() }
    }

    /// The export's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[async_trait]
impl Exports for FileExports {
    async fn list(&self, _peer: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(vec![ExportSummary { name: self.name.clone(), description: "file".into() }])
    }

    async fn open(&self, name: &str, _peer: &Peer, _purpose: Purpose) -> Result<Box<dyn Session>> {
        if !name.is_empty() && name != self.name {
            let name = name.chars().take(40).collect::<String>();
            return Err(Error::not_found(format!(
                "no export {name:?}; the only one is {:?}, which is also the default",
                self.name
            )));
        }
        Ok(Box::new(FileSession { device: Arc::clone(&self.device), name: self.name.clone() }))
    }
}

struct FileSession {
    device: Arc<dyn Device>,
    name: String,
}

#[async_trait]
impl Session for FileSession {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        &self.name
    }

    async fn close(self: Box<Self>, _ending: Ending) {}
}

/// Serves the file at `path`: until it ends by itself if `until` is given, else until a signal.
///
/// # Errors
/// Those of the file, of listening, and of flushing it at the end.
pub async fn serve(
    path: &Path,
    opening: formats::OpenOptions,
    home: &Home,
    config: &Config,
    options: &Options,
    until: Option<&Until>,
) -> Result<ExitCode> {
    let device = formats::open(path, opening).await?;
    let exports = FileExports::new(Arc::clone(&device), path);
    let name = exports.name().to_owned();
    let recording = Recording::wanted(options.trace.as_deref(), config, None)?;
    let throttles = Throttles::new(&config.throttle, options.throttle.as_ref())?;
    let exports = throttled(throttles.as_ref(), Arc::new(exports));
    let exports = recorded(recording.as_ref(), exports);
    let result = match until {
        Some(until) => until.serve(exports, home.dir(), config, &options.listen, &name).await,
        None => {
            let asked = options.listen.under(config);
            plain::run(exports, Some(name), home.dir(), config, &asked).await
        }
    };
    if let Some(recording) = &recording {
        recording.finish().await;
    }
    if !device.read_only() {
        device.flush().await?;
    }
    result
}
