//! The client: an export of some server as a device.

use crate::Uri;
use async_trait::async_trait;
use block::{Device, Durability, Error, Extent, Result, Span, ZeroMode};
use std::time::Duration;

/// How a client behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long one attempt to connect and negotiate may take.
    pub connect: Duration,
    /// How long to try again after the connection is lost; requests wait meanwhile. Zero: they
    /// fail at once.
    pub reconnect: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), reconnect: Duration::from_secs(30) }
    }
}

/// An export of a server, as a device.
#[derive(Debug)]
pub struct Remote {
    uri: Uri,
}

impl Remote {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached,
    /// [`NotFound`](block::ErrorKind::NotFound) when it has no such export.
    pub async fn connect(uri: &Uri, options: ClientOptions) -> Result<Self> {
        let _ = (uri, options);
        Err(Error::internal("not yet"))
    }

    /// The export.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Ends the session cleanly: waits for the requests in flight and tells the server.
    pub async fn close(self) {}
}

#[async_trait]
impl Device for Remote {
    fn size(&self) -> u64 {
        0
    }
    async fn read(&self, _: Span, _: &mut [u8]) -> Result<()> {
        Err(Error::internal("not yet"))
    }
    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(Error::internal("not yet"))
    }
    async fn flush(&self) -> Result<()> {
        Err(Error::internal("not yet"))
    }
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(Error::internal("not yet"))
    }
    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(Error::internal("not yet"))
    }
    async fn extents(&self, _: Span, _: usize) -> Result<Vec<Extent>> {
        Err(Error::internal("not yet"))
    }
}
