//! The server: listening, negotiation, the request loop.

mod counters;
mod exports;
mod limits;
mod listener;

pub use counters::{Counters, ExportCounters, Traffic};
pub use exports::{Ending, ExportSummary, Exports, Peer, Purpose, Session, Transport};
pub use limits::Limits;
pub use listener::{DEFAULT_BACKLOG, Listener};

use block::{Error, Result};
use counters::Registry;
use std::future::Future;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// A server of some exports. Cheap to clone; all clones share limits and counters.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    exports: Arc<dyn Exports>,
    limits: Limits,
    registry: Registry,
}

impl Server {
    /// A server of `exports`.
    pub fn new(exports: Arc<dyn Exports>, limits: Limits) -> Self {
        Self { inner: Arc::new(Inner { exports, limits, registry: Registry::default() }) }
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.inner.registry.snapshot()
    }

    /// Serves every client that connects to `listener`, until `stop` is ready; then finishes the
    /// requests in flight, flushes, and closes all sessions. May be called for several listeners.
    ///
    /// # Errors
    /// None at present: a failing accept is retried.
    pub async fn serve(&self, listener: Listener, stop: impl Future<Output = ()>) -> Result<()> {
        let _ = (listener, stop, &self.inner.exports, &self.inner.limits);
        Err(Error::internal("not yet"))
    }

    /// Serves the one client on `stream` (for standard input and output join the two with
    /// [`tokio::io::join`]), until it is done or `stop` is ready.
    ///
    /// # Errors
    /// When the negotiation fails or the client breaks the protocol.
    pub async fn serve_one<S>(
        &self,
        stream: S,
        peer: Peer,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let _ = (stream, peer, stop);
        Err(Error::internal("not yet"))
    }
}
