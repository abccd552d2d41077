//! Where a command works: on a home of this machine, or on a server of another one.

use crate::interrupt;
use block::Result;
use engine::api::{DiskReply, DiskRequest};
use engine::{Config, Engine, Home, StoreUse, verbs};
use server::client::ControlClient;
use server::remote::RemoteServer;

/// Where a command works.
pub(crate) enum Site {
    /// On a home of this machine.
    Home(Home),
    /// On a server, by its HTTP API.
    Server(Box<RemoteServer>),
}

impl Site {
    /// Has a verb on disks carried out.
    ///
    /// # Errors
    /// Any error from the verb; of a server, also when it cannot be reached, or the token does not allow it.
    pub(crate) async fn ask(&self, request: DiskRequest) -> Result<DiskReply> {
        match self {
            Self::Home(home) => ask(request, home).await,
            Self::Server(server) => server.disk(&request).await,
        }
    }
}

/// Has a verb on disks carried out on a home: by the server when one runs there, else right here.
///
/// # Errors
/// Any error from the verb.
pub(crate) async fn ask(request: DiskRequest, home: &Home) -> Result<DiskReply> {
    if let Some(client) = ControlClient::connect(home).await? {
        return client.disk(&request).await;
    }
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    interrupt::remember(&engine.store);
    let reply = verbs::perform(&engine, request).await;
    let closed = engine.open.close_all().await;
    let reply = reply?;
    closed?;
    Ok(reply)
}
