//! What a server offers, and to whom: the interface between the protocol and the daemon.

use async_trait::async_trait;
use block::{Device, Observer, Result};
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError};
use tokio::net::UnixStream;

/// How a client reaches the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A unix socket; the credentials of the process that connected.
    Unix {
        /// Its user id.
        uid: u32,
        /// Its process id, when the system tells. It does not tell that of a process in a pid
        /// namespace that this one does not see.
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
    /// certificate `cert:NAME@` before it. Where the system does not tell the process it is
    /// `uid:N/socket:N`, another one for each connection, and with a certificate `cert:NAME@uid:N`.
    /// A process that keeps a device is `uid:N/device:ID`, as is the one that takes the device up after it.
    pub identity: String,
    /// The name in the certificate that it showed.
    pub certificate: Option<String>,
    /// The user whose secret it proved to know, where it came by a protocol that asks for one.
    pub user: Option<String>,
    /// The run of its system, where it says that this has just [begun](Self::begun).
    pub run: Option<[u8; 16]>,
    asked: RequestedName,
}

/// By which name a client asked for what it uses. It does not say who the client is, so any two are
/// equal.
#[derive(Clone, Default)]
struct RequestedName(Arc<Mutex<Option<String>>>);

impl PartialEq for RequestedName {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RequestedName {}

impl fmt::Debug for RequestedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Peer {
    fn new(transport: Transport, identity: String) -> Self {
        let asked = RequestedName::default();
        Self { transport, identity, certificate: None, user: None, run: None, asked }
    }

    /// A client on a unix socket. Where its process is not known (a `pid` of 0 is none) it is another
    /// one than all that this process has made.
    pub fn unix(uid: u32, pid: Option<i32>) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        match seen(pid) {
            Some(pid) => Self::new(Transport::Unix { uid, pid: Some(pid) }, format!("pid:{pid}")),
            None => Self::unseen(uid, format_args!("peer:{}", MADE.fetch_add(1, Relaxed))),
        }
    }

    /// A client of which the system tells no process: two connections are not taken for one client,
    /// as that would give one disk to two guests. No other one has this `mark`.
    fn unseen(uid: u32, mark: fmt::Arguments<'_>) -> Self {
        Self::new(Transport::Unix { uid, pid: None }, format!("uid:{uid}/{mark}"))
    }

    /// The client at the other end of a unix socket.
    ///
    /// # Errors
    /// When the system does not tell its user, or neither its process nor the number of the socket.
    pub fn at_socket(socket: &UnixStream) -> io::Result<Self> {
        let who = socket.peer_cred()?;
        Self::of_user(who.uid(), who.pid(), socket)
    }

    fn of_user(uid: u32, pid: Option<i32>, socket: &UnixStream) -> io::Result<Self> {
        if seen(pid).is_some() {
            return Ok(Self::unix(uid, pid));
        }
        // No other socket has it until the machine starts anew, at whatever process it is.
        let number = sockopt::socket_cookie(socket)?;
        let peer = Self::unseen(uid, format_args!("socket:{number}"));
        tell_of_unseen(&peer);
        Ok(peer)
    }

    /// A client that another process knows; `asked` is what it [asked for](Self::asked) there.
    pub fn known(
        transport: Transport,
        identity: String,
        certificate: Option<String>,
        asked: Option<String>,
    ) -> Self {
        let asked = RequestedName(Arc::new(Mutex::new(asked)));
        Self { transport, identity, certificate, user: None, run: None, asked }
    }

    /// A client at a TCP address. An IPv4 address mapped into IPv6 is the IPv4 address.
    pub fn tcp(address: SocketAddr) -> Self {
        let identity = format!("ip:{}", address.ip().to_canonical());
        Self::new(Transport::Tcp(address), identity)
    }

    /// The client on standard input and output.
    pub fn stdio() -> Self {
        Self::new(Transport::Stdio, "stdio".to_owned())
    }

    /// The same client, now that it has shown a certificate in the name of `name`. Two machines
    /// with one certificate stay two clients. Where nobody knows its process, the certificate is what
    /// its connections are known by.
    #[must_use]
    pub fn certified(mut self, name: String) -> Self {
        self.identity = match self.transport {
            Transport::Unix { uid, pid: None } => format!("cert:{name}@uid:{uid}"),
            _ => format!("cert:{name}@{}", self.identity),
        };
        self.certificate = Some(name);
        self
    }

    /// The same client, now that it has proved to know the secret of `user`. Two machines with one
    /// secret stay two clients.
    #[must_use]
    pub fn proven(mut self, user: String) -> Self {
        self.identity = format!("chap:{user}@{}", self.identity);
        self.user = Some(user);
        self
    }

    /// The same client, now that it has said that its connections take each other's place under `id`. On a
    /// unix socket that id and the user say who it is from then on, whatever process it is: who keeps a
    /// device is started anew and goes on with it. `None` where the identity stays as it is.
    pub(super) fn keeping(&self, id: &[u8; 16]) -> Option<Self> {
        let Transport::Unix { uid, .. } = self.transport else { return None };
        let own = format!("uid:{uid}/device:{:032x}", u128::from_be_bytes(*id));
        let identity = match &self.certificate {
            Some(name) => format!("cert:{name}@{own}"),
            None => own,
        };
        Some(Self { identity, ..self.clone() })
    }

    /// The same client, now that it has said that its system has just begun: all that it had before, but for what it
    /// does under `run`, is of one that has ended. It is known by the same identity as that one.
    #[must_use]
    pub(super) fn begun(&self, run: [u8; 16]) -> Self {
        Self { run: Some(run), ..self.clone() }
    }

    /// The name by which this connection asked for the export that it uses, which need not be the
    /// [canonical](Session::name) one: what it may do is judged by this one, also when it goes on at
    /// another process. `None` when nobody [noted](Self::note_asked) it.
    pub fn asked(&self) -> Option<String> {
        self.asked.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes by which name this connection uses an export, for all clones.
    pub fn note_asked(&self, name: &str) {
        *self.asked.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }
}

/// A process that the system tells of: it gives 0 for one that this process does not see.
fn seen(pid: Option<i32>) -> Option<i32> {
    pid.filter(|pid| *pid > 0)
}

/// Says once what follows from it that the system does not tell the processes of clients.
fn tell_of_unseen(peer: &Peer) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            %peer,
            "the process of a client is in a pid namespace that is not seen from here, so each \
             connection from there counts as a client of its own: run the server in the clients' \
             pid namespace, or give each client a certificate (docs/security.md)"
        );
    });
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.transport, &self.certificate) {
            (Transport::Tcp(address), None) => match &self.user {
                Some(user) => write!(f, "chap:{user}@{address}"),
                None => write!(f, "{address}"),
            },
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
    /// To read it beside whoever uses it, without being its client. No client can ask for this.
    Look,
    /// To read and write it.
    Use,
    /// To go on reading and writing it, by a connection that another process passed.
    Resume,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnding {
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

    /// What tells the export from all others and stays the same on every server, also when another one
    /// gets its name.
    fn identity(&self) -> String {
        self.name().to_owned()
    }

    /// What the export holds as a whole, if that can be told: another text when something else was put in its place,
    /// such as an earlier state of it; the same on every server while only its clients change it.
    fn content(&self) -> Option<String> {
        None
    }

    /// Whether a client goes on with the export at the server that takes it from this one, and so is to look for it
    /// there: its connection is cut then, in place of an answer that would be an error to whatever uses it.
    fn goes_on_elsewhere(&self) -> bool {
        false
    }

    /// Who is told of the session's requests, if anybody.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        None
    }

    /// Ends the session. None of its requests is in flight any more. A graceful stop flushes before
    /// it; other ends do not.
    async fn close(self: Box<Self>, ending: SessionEnding);

    /// Ends the session of a connection that goes on at another process, or at this one where no other takes it.
    /// The export is to wait for its client, however long that takes, until what comes out is dropped. Where no
    /// export waits for anybody, nothing does.
    async fn pass(self: Box<Self>) -> Option<Box<dyn PassedUse>> {
        self.close(SessionEnding::Lost).await;
        None
    }
}

/// An export that waits for a client on its way. Dropped, the client is there again or never will be.
pub trait PassedUse: Send + Sync {
    /// The client is another process's from now on: the export is nobody else's here any more.
    fn hand_over(self: Box<Self>);
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

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn content(&self) -> Option<String> {
        self.inner.content()
    }

    fn goes_on_elsewhere(&self) -> bool {
        self.inner.goes_on_elsewhere()
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.clone()
    }

    async fn close(self: Box<Self>, ending: SessionEnding) {
        // The layers go first, so that the session's own device is its alone again.
        let Self { inner, device, observer } = *self;
        drop((device, observer));
        inner.close(ending).await;
    }

    async fn pass(self: Box<Self>) -> Option<Box<dyn PassedUse>> {
        let Self { inner, device, observer } = *self;
        drop((device, observer));
        inner.pass().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_whose_process_is_not_seen_is_another_one_with_each_connection() {
        let (one, other) = UnixStream::pair().unwrap();
        for pid in [None, Some(0), Some(-1)] {
            let peer = |socket| Peer::of_user(7, pid, socket).unwrap();
            assert_ne!(peer(&one).identity, peer(&other).identity);
            assert_eq!(peer(&one).identity, peer(&one).identity, "it is the socket's");
            assert_eq!(peer(&one).transport, Transport::Unix { uid: 7, pid: None });
            assert_ne!(Peer::unix(7, pid).identity, Peer::unix(7, pid).identity);
        }
    }

    #[tokio::test]
    async fn a_process_that_is_seen_is_one_client() {
        let (one, other) = UnixStream::pair().unwrap();
        let peer = Peer::at_socket(&one).unwrap();
        assert_eq!(peer, Peer::at_socket(&other).unwrap());
        assert_eq!(peer.identity, format!("pid:{}", std::process::id()));
    }

    #[test]
    fn whoever_keeps_a_device_is_known_by_user_and_id_and_not_by_process() {
        let keeper = |uid, pid, id| Peer::unix(uid, Some(pid)).keeping(&[id; 16]).unwrap().identity;
        assert_eq!(keeper(7, 1, 5), keeper(7, 2, 5), "another process of the user");
        assert_ne!(keeper(7, 1, 5), keeper(7, 1, 6), "another device");
        assert_ne!(keeper(7, 1, 5), keeper(8, 1, 5), "another user who knows the id");
        let certified = Peer::unix(7, Some(1)).certified("alice".into()).keeping(&[5; 16]);
        assert!(certified.unwrap().identity.starts_with("cert:alice@uid:7/device:0505"));
        assert_eq!(Peer::tcp(([127, 0, 0, 1], 9).into()).keeping(&[5; 16]), None);
    }

    #[test]
    fn the_certificate_says_who_it_is_where_the_process_is_not_seen() {
        let certified = |pid, name: &str| Peer::unix(7, pid).certified(name.into()).identity;
        assert_eq!(certified(Some(0), "alice"), certified(Some(0), "alice"));
        assert_ne!(certified(Some(0), "alice"), certified(Some(0), "bob"));
        assert_ne!(certified(Some(1), "alice"), certified(Some(2), "alice"), "two processes");
    }

    #[test]
    fn what_was_asked_for_is_known_to_every_clone_and_tells_nobody_apart() {
        let peer = Peer::unix(7, Some(9));
        let certified = peer.clone().certified("alice".to_owned());
        certified.note_asked("debian");
        assert_eq!(certified.clone().asked().as_deref(), Some("debian"));
        assert_eq!(peer.asked().as_deref(), Some("debian"));
        assert_eq!(peer, Peer::unix(7, Some(9)));
    }
}
