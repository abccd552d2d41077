//! One file as the only export: `serve --file`.

use async_trait::async_trait;
use block::{Device, Error, Result};
use nbd::{ExportSummary, Exports, Peer, Purpose, Session, SessionEnding};
use std::path::Path;
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

    async fn close(self: Box<Self>, _ending: SessionEnding) {}
}
