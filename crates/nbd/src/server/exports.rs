//! What a server offers, and to whom: the interface between the protocol and the daemon.

use async_trait::async_trait;
use block::{Device, Observer, Result};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// How a client reaches the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A unix socket; the credentials of the process that connected.
    Unix {
        /// Its user id.
        uid: u32,
        /// Its process id, when the system tells.
        pid: Option<i32>,
    },
    /// TCP from this address.
    Tcp(SocketAddr),
    /// One stream handed over by the caller, such as standard input and output.
    Stdio,
}

/// A client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// How it is connected.
    pub transport: Transport,
    /// Who it is, the same for all its connections: `pid:N`, `ip:ADDR` or `stdio`; with a
    /// certificate `cert:NAME@` before it.
    pub identity: String,
    /// The name in the certificate that it showed.
    pub certificate: Option<String>,
}

impl Peer {
    /// A client on a unix socket.
    pub fn unix(uid: u32, pid: Option<i32>) -> Self {
        let identity = match pid {
            Some(pid) => format!("pid:{pid}"),
            None => format!("uid:{uid}"),
        };
        Self { transport: Transport::Unix { uid, pid }, identity, certificate: None }
    }

    /// A client at a TCP address. An IPv4 address mapped into IPv6 is the IPv4 address.
    pub fn tcp(address: SocketAddr) -> Self {
        let identity = format!("ip:{}", address.ip().to_canonical());
        Self { transport: Transport::Tcp(address), identity, certificate: None }
    }

    /// The client on standard input and output.
    pub fn stdio() -> Self {
        Self { transport: Transport::Stdio, identity: "stdio".to_owned(), certificate: None }
    }

    /// The same client, now that it has shown a certificate in the name of `name`. Two machines
    /// with one certificate stay two clients.
    #[must_use]
    pub fn certified(mut self, name: String) -> Self {
        self.identity = format!("cert:{name}@{}", self.identity);
        self.certificate = Some(name);
        self
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.transport, &self.certificate) {
            (Transport::Tcp(address), None) => write!(f, "{address}"),
            (Transport::Tcp(address), Some(name)) => write!(f, "cert:{name}@{address}"),
            _ => f.write_str(&self.identity),
        }
    }
}

/// Why an export is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To tell its size and properties; this has no side effect.
    Info,
    /// To read and write it.
    Use,
    /// To go on reading and writing it, by a connection that another process passed.
    Resume,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The client said that it is done.
    Clean,
    /// The connection was lost, broke the protocol, or was closed by the server.
    Lost,
}

/// An export in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSummary {
    /// Its name, at most 4096 bytes.
    pub name: String,
    /// What it is, for people; may be empty.
    pub description: String,
}

/// The exports of a server. Called for every negotiation, so that exports come and go live.
#[async_trait]
pub trait Exports: Send + Sync {
    /// The exports that `peer` may see.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when listing is not allowed.
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>>;

    /// Opens the export `name` for one connection; the empty name is the default export. The
    /// call may be cancelled while it waits, and must then leave nothing behind.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), [`Denied`](block::ErrorKind::Denied),
    /// [`Conflict`](block::ErrorKind::Conflict) when another client holds it. The message is
    /// sent to the client.
    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>>;
}

/// One connection's use of an export.
#[async_trait]
pub trait Session: Send + Sync {
    /// The device behind the export.
    fn device(&self) -> &Arc<dyn Device>;

    /// The canonical name of the export: that of the default export is not empty.
    fn name(&self) -> &str;

    /// What the export is, for people.
    fn description(&self) -> Option<&str> {
        None
    }

    /// What the export was made from, such as an image version: exports of the same origin have
    /// the same content where nobody has written.
    fn origin(&self) -> Option<&str> {
        None
    }

    /// Who is told of the session's requests, if anybody.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        None
    }

    /// Ends the session. None of its requests is in flight any more. A graceful stop flushes before
    /// it; other ends do not.
    async fn close(self: Box<Self>, ending: Ending);
}

/// A session with a layer above its device, or whose requests somebody is told of: all else is the
/// session's own.
pub struct Layered {
    inner: Box<dyn Session>,
    device: Arc<dyn Device>,
    observer: Option<Arc<dyn Observer>>,
}

impl Layered {
    /// `inner`, whose clients use `device`, which stands on the device of `inner`.
    pub fn new(inner: Box<dyn Session>, device: Arc<dyn Device>) -> Self {
        let observer = inner.observer();
        Self { inner, device, observer }
    }

    /// `inner`, whose requests `observer` is told of.
    pub fn observed(inner: Box<dyn Session>, observer: Arc<dyn Observer>) -> Self {
        let device = Arc::clone(inner.device());
        Self { inner, device, observer: Some(observer) }
    }
}

#[async_trait]
impl Session for Layered {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn description(&self) -> Option<&str> {
        self.inner.description()
    }

    fn origin(&self) -> Option<&str> {
        self.inner.origin()
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.clone()
    }

    async fn close(self: Box<Self>, ending: Ending) {
        // The layers go first, so that the session's own device is its alone again.
        let Self { inner, device, observer } = *self;
        drop((device, observer));
        inner.close(ending).await;
    }
}
