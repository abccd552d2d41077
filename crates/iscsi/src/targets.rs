//! What a server offers, and to whom: the interface between the protocol and the daemon.

use crate::Secrets;
use async_trait::async_trait;
use block::{Device, Observer, Result};
use nbd::server::ClientPace;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// An initiator that logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initiator {
    /// The other end of its connection.
    pub address: SocketAddr,
    /// The iSCSI name that it gives itself, which proves nothing.
    pub initiator: String,
    /// The CHAP user whose secret it knows, when secrets are asked for.
    pub user: Option<String>,
}

impl Initiator {
    /// Which client it is, the same for all its connections, as [`nbd::Peer`] has it: its address, and the user whose
    /// secret it knows. Two machines with one secret stay two clients.
    pub fn identity(&self) -> String {
        let address = self.address.ip();
        match &self.user {
            Some(user) => format!("chap:{user}@ip:{address}"),
            None => format!("ip:{address}"),
        }
    }
}

impl fmt::Display for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "chap:{user}@{} ({})", self.address, self.initiator),
            None => write!(f, "{} ({})", self.address, self.initiator),
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnding {
    /// The initiator logged out.
    Clean,
    /// The connection was lost or reinstated, broke the protocol, or was closed by the server.
    Lost,
}

/// The exports of a server, each of which is a target. Called for every login, so that exports come
/// and go live.
#[async_trait]
pub trait Targets: Send + Sync {
    /// The names of the exports that `client` may use.
    ///
    /// # Errors
    /// When they cannot be listed.
    async fn list(&self, client: &Initiator) -> Result<Vec<String>>;

    /// Attaches the export `name` for one session. The call may be cancelled while it waits, and must
    /// then leave nothing behind.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), [`Denied`](block::ErrorKind::Denied),
    /// [`Conflict`](block::ErrorKind::Conflict) when another client holds it.
    async fn attach(&self, name: &str, client: &Initiator) -> Result<Box<dyn Attachment>>;

    /// The reservations that were last kept of the export of this identity (as [`Attachment::identity`] says
    /// it), at most [`LONGEST`](crate::scsi::reservations::LONGEST) bytes.
    ///
    /// # Errors
    /// When it cannot be told: nobody may use the target then.
    async fn kept_reservations(&self, identity: &str) -> Result<Option<String>>;

    /// Keeps these, or none, so that they survive a loss of power.
    ///
    /// # Errors
    /// When they cannot be kept; what was kept before is kept still.
    async fn keep_reservations(&self, identity: &str, record: Option<&str>) -> Result<()>;

    /// The secrets of which every client must know one; `None` when nobody is asked for one.
    fn secrets(&self) -> Option<Arc<Secrets>>;

    /// Fills `bytes` with what nobody can guess.
    ///
    /// # Errors
    /// When the system has no random numbers.
    fn random(&self, bytes: &mut [u8]) -> Result<()>;
}

/// One session's use of an export.
#[async_trait]
pub trait Attachment: Send + Sync {
    /// The device behind it.
    fn device(&self) -> &Arc<dyn Device>;

    /// What tells this export from all others and stays the same on every server: the serial number
    /// and the designators that initiators see are made from it.
    fn identity(&self) -> String;

    /// Who is told of the session's requests, if anybody.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        None
    }

    /// How fast its client may go, if there is a limit.
    fn pace(&self) -> Option<ClientPace> {
        None
    }

    /// Ends it. None of its requests is in flight any more. A graceful stop flushes before it; other
    /// ends do not.
    async fn close(self: Box<Self>, ending: SessionEnding);
}
