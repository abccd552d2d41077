//! What the NBD servers under test export: one small disk in memory, new for every session.

use async_trait::async_trait;
use block::{Device, Error, Memory, Result};
use nbd::{ExportSummary, Exports, Peer, Purpose, ServerLimits, Session, SessionEnding};
use std::sync::Arc;

/// The size of the disk, in bytes.
const SIZE: u64 = 64 << 10;

/// Limits that an input can reach.
pub fn limits() -> ServerLimits {
    ServerLimits { in_flight_bytes: 1 << 20, max_request: 1 << 20, ..ServerLimits::default() }
}

/// The export `disk`, which is the default one.
pub struct One;

struct OpenExport(Arc<dyn Device>);

#[async_trait]
impl Exports for One {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(vec![ExportSummary { name: "disk".into(), description: "a disk".into() }])
    }

    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        match name {
            "" | "disk" => Ok(Box::new(OpenExport(Arc::new(Memory::new(SIZE))))),
            _ => Err(Error::not_found("there is no such export")),
        }
    }
}

#[async_trait]
impl Session for OpenExport {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "disk"
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}
