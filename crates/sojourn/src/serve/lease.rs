//! The server's lease: the others on the store learn that it is at work, and it learns which of its
//! disks they took.

use crate::engine::Engine;
use block::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// A lease that is kept up until [`end`](Self::end).
pub(crate) struct Lease {
    engine: Arc<Engine>,
    host: String,
    renewing: JoinSet<()>,
}

impl Lease {
    /// Starts to renew the lease, three times in its `time`.
    ///
    /// # Errors
    /// Those of the store, and of the directory of the disks.
    pub(crate) async fn start(engine: &Arc<Engine>, time: Duration) -> Result<Self> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        announce(engine, &host, time).await?;
        let mut renewing = JoinSet::new();
        renewing.spawn(renew(Arc::clone(engine), host.clone(), time));
        Ok(Self { engine: Arc::clone(engine), host, renewing })
    }

    /// Says that the server is not at work any more: its disks may be taken at once.
    pub(crate) async fn end(mut self) {
        self.renewing.shutdown().await;
        if let Err(e) = announce(&self.engine, &self.host, Duration::ZERO).await {
            tracing::warn!(error = e.message(), "cannot end the lease; it runs out by itself");
        }
    }
}

async fn announce(engine: &Engine, host: &str, time: Duration) -> Result<()> {
    let server = engine.disks.server().await?;
    engine.store.servers().announce(server, host, time).await
}

async fn renew(engine: Arc<Engine>, host: String, time: Duration) {
    let mut tick = tokio::time::interval(time / 3);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        tick.tick().await;
        if let Err(e) = announce(&engine, &host, time).await {
            tracing::warn!(
                error = e.message(),
                "cannot renew the lease; another server may take the disks when it runs out"
            );
        }
        engine.open.confirm().await;
    }
}
