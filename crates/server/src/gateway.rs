//! The gateway's port: the home's store by HTTPS, for clients with certificates.

use crate::security::Security;
use block::{Error, Result};
use engine::Engine;
use engine::home::Home;
use gateway::{Gateway, GatewayCounters, GatewayLimits};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Where it listens when no address is given.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9443";
/// The file of the home in which is noted what clients brought.
const UPLOADS: &str = "gateway.log";
/// How long requests that are under way may take when the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// A gateway's port that is open.
pub(crate) struct GatewayPort {
    /// The address that the user asked for.
    asked: String,
    socket: TcpListener,
    local: SocketAddr,
}

/// A gateway, as the status tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewayView {
    /// Where it listens.
    pub address: String,
    /// What it did.
    #[serde(flatten)]
    pub counters: GatewayCounters,
}

impl GatewayPort {
    /// Listens at `asked`, or goes on with the socket that another server `had` there.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what is no address,
    /// [`Conflict`](block::ErrorKind::Conflict) when the port is in use.
    pub(crate) async fn open(asked: &str, had: Option<OwnedFd>) -> Result<Self> {
        let address: SocketAddr =
            asked.parse().map_err(|_| Error::invalid(format!("gateway {asked}: write IP:PORT")))?;
        let fail = |e| Error::io(format!("gateway {address}; choose another with --gateway"), e);
        let socket = match had {
            Some(socket) => TcpListener::from_std(socket.into()), // it does not block already
            None => TcpListener::bind(address).await,
        };
        let socket = socket.map_err(fail)?;
        let local = socket.local_addr().map_err(fail)?;
        Ok(Self { asked: asked.to_owned(), socket, local })
    }

    /// What the user asked for.
    pub(crate) fn asked(&self) -> &str {
        &self.asked
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.local
    }

    /// The socket, for a successor.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn share(&self) -> Result<OwnedFd> {
        let shared = self.socket.as_fd().try_clone_to_owned();
        shared.map_err(|e| Error::io(format!("gateway {}", self.local), e))
    }

    /// The gateway to the store of a home.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when there are no certificates; any error from the home's files.
    pub(crate) fn gateway(
        &self,
        home: &Home,
        engine: &Engine,
        security: &Security,
    ) -> Result<Arc<Gateway>> {
        Gateway::new(
            engine.store.clone(),
            security.rules(),
            security.credentials()?,
            &home.dir().join(UPLOADS),
            GatewayLimits::default(),
        )
    }

    /// Answers in a task until the gateway drains.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn serve(&self, gateway: &Arc<Gateway>, tasks: &mut JoinSet<()>) -> Result<()> {
        let socket = std::net::TcpListener::from(self.share()?);
        let fail = |e| Error::io(format!("gateway {}", self.local), e);
        let socket = TcpListener::from_std(socket).map_err(fail)?;
        let gateway = Arc::clone(gateway);
        tasks.spawn(async move { gateway.serve(socket, LAST_REQUESTS).await });
        tracing::info!(address = %self.local, "listening as a gateway");
        Ok(())
    }
}
