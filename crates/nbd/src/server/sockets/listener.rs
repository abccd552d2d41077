//! Listening sockets.

use super::stream::ConnectedSocket;
use super::tls::Tls;
use crate::server::exports::Peer;
use crate::{Address, socket};
use block::fs::FsPath;
use block::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

/// The backlog for clients that connect at the same instant: a class that boots at nine.
pub const DEFAULT_BACKLOG: u32 = 4096;

/// How often, and after which pauses, the turn to bind is asked for.
const TURN_ATTEMPTS: u32 = 200;
const TURN_PAUSE: Duration = Duration::from_millis(5);

/// A listening socket. The file of a unix socket is removed when this, and all that
/// [share](Self::share) the socket, are dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Listening,
    address: Address,
    tls: Option<Tls>,
    file: Option<Arc<SocketFile>>,
}

#[derive(Debug)]
enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A connection that was accepted.
pub(in crate::server) struct Accepted {
    pub(in crate::server) stream: ConnectedSocket,
    pub(in crate::server) peer: Peer,
}

impl Listener {
    /// Listens at `address`; port 0 picks a free one. `backlog` is how many clients may wait to be
    /// accepted (the system may hold it lower, see `net.core.somaxconn`).
    ///
    /// The file of a unix socket on which nobody listens any more is replaced.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody listens there already, or the path
    /// is a file of another kind; [`NotFound`](block::ErrorKind::NotFound) when the host or the
    /// directory does not exist.
    pub async fn bind(address: &Address, backlog: u32) -> Result<Self> {
        match address {
            Address::Unix(path) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let turn = BindingTurn::take(parent.unwrap_or(Path::new("."))).await;
                Self::bind_unix(path, backlog, &turn)
            }
            Address::Tcp(host, port) => Self::bind_tcp(host, *port, backlog).await,
        }
    }

    /// Listens at the unix socket `address`, as [`bind`](Self::bind) does, where it is one of several in a directory
    /// and the `turn` there was taken for all of them.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); [`Invalid`](block::ErrorKind::Invalid) for an address of TCP.
    pub fn bind_in_turn(address: &Address, backlog: u32, turn: &BindingTurn) -> Result<Self> {
        match address {
            Address::Unix(path) => Self::bind_unix(path, backlog, turn),
            Address::Tcp(..) => Err(Error::invalid(format!("{address} is no unix socket"))),
        }
    }

    fn bind_unix(path: &Path, backlog: u32, _: &BindingTurn) -> Result<Self> {
        let address = Address::Unix(path.to_owned());
        let fail = |e: io::Error| Error::io(&address, e);
        remove_stale(path)?;
        let socket = UnixSocket::new_stream().map_err(fail)?;
        socket.bind(path).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => in_use(&address),
            _ => fail(e),
        })?;
        let file = Arc::new(SocketFile::new(path));
        let socket = Listening::Unix(socket.listen(backlog).map_err(fail)?);
        Ok(Self { socket, address, tls: None, file: Some(file) })
    }

    async fn bind_tcp(host: &str, port: u16, backlog: u32) -> Result<Self> {
        let address = Address::Tcp(host.to_owned(), port);
        let found = tokio::net::lookup_host((host, port))
            .await
            .map_err(|e| Error::not_found(format!("{address}: {e}: check the host's name")))?;
        let mut failure = Error::not_found(format!("{address}: the host has no address"));
        for resolved in found {
            let bound = (|| {
                let socket = match resolved.is_ipv4() {
                    true => TcpSocket::new_v4()?,
                    false => TcpSocket::new_v6()?,
                };
                socket.set_reuseaddr(true)?;
                socket.bind(resolved)?;
                socket.listen(backlog)
            })();
            match bound {
                Ok(listener) => {
                    let port = listener.local_addr().map_or(port, |local| local.port());
                    let address = Address::Tcp(host.to_owned(), port);
                    let socket = Listening::Tcp(listener);
                    return Ok(Self { socket, address, tls: None, file: None });
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => failure = in_use(&address),
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
                    failure = Error::not_found(format!(
                        "{address} is no address of this machine; `ip address` lists those it has, \
                         and 0.0.0.0:{port} takes all of them"
                    ));
                }
                Err(e)
                    if e.kind() == io::ErrorKind::PermissionDenied && (1..1024).contains(&port) =>
                {
                    failure = Error::denied(format!(
                        "{address}: {e}: ports below 1024 are root's; take another one, or give the \
                         server CAP_NET_BIND_SERVICE or a socket of the service manager"
                    ));
                }
                Err(e) => failure = Error::io(&address, e),
            }
        }
        Err(failure)
    }

    /// Uses a socket that listens already, such as one from a service manager (`LISTEN_FDS`). Its
    /// file, if any, stays when this is dropped: it belongs to who made it.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is not a listening TCP or unix stream
    /// socket.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "the inherited file descriptor {why}: pass a listening TCP or unix stream socket"
            ))
        };
        let kind = sockopt::socket_type(&fd).map_err(|_| bad("is not a socket"))?;
        if kind != SocketType::STREAM || !sockopt::socket_acceptconn(&fd).unwrap_or(false) {
            return Err(bad("is not a listening stream socket"));
        }
        rustix::io::ioctl_fionbio(&fd, true)
            .map_err(|e| Error::io("inherited socket", e.into()))?;
        let fail = |e: io::Error| Error::io("inherited socket", e);
        match sockopt::socket_domain(&fd).map_err(|e| fail(e.into()))? {
            AddressFamily::UNIX => {
                let listener = UnixListener::from_std(fd.into()).map_err(fail)?;
                let local = listener.local_addr().map_err(fail)?;
                let path = local.as_pathname().unwrap_or(Path::new("(unnamed)"));
                let address = Address::Unix(path.to_owned());
                Ok(Self { socket: Listening::Unix(listener), address, tls: None, file: None })
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let listener = TcpListener::from_std(fd.into()).map_err(fail)?;
                let local = listener.local_addr().map_err(fail)?;
                let address = Address::Tcp(local.ip().to_string(), local.port());
                Ok(Self { socket: Listening::Tcp(listener), address, tls: None, file: None })
            }
            _ => Err(bad("is of another family")),
        }
    }

    /// The same socket, whose clients may or must encrypt.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Another handle on the same socket, without TLS: whoever accepts first has the client.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn share(&self) -> Result<Self> {
        let again = self.as_fd().try_clone_to_owned().map_err(|e| Error::io(&self.address, e))?;
        let again = Self::from_fd(again)?;
        Ok(Self { address: self.address.clone(), file: self.file.clone(), ..again })
    }

    /// Leaves the file of a unix socket to another process, which has the socket too. Gives whether
    /// the file was for this one to remove.
    pub fn leave_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.left.swap(true, SeqCst))
    }

    /// Undoes [`leave_file`](Self::leave_file). A file that somebody else made stays theirs.
    pub fn keep_file(&self) {
        if let Some(file) = &self.file {
            file.left.store(false, SeqCst);
        }
    }

    /// Takes over the file that another process left.
    #[must_use]
    pub fn take_file(mut self) -> Self {
        if let (None, Address::Unix(path)) = (&self.file, &self.address) {
            self.file = Some(Arc::new(SocketFile::new(path)));
        }
        self
    }

    /// What is asked of clients; `None`: nothing is encrypted.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next client.
    pub(in crate::server) async fn accept(&self, keepalive: Duration) -> io::Result<Accepted> {
        match &self.socket {
            Listening::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::at_socket(&stream)?;
                socket::widen(&stream);
                Ok(Accepted { stream: ConnectedSocket::new(stream.into_std()?.into()), peer })
            }
            Listening::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                socket::tune(&stream, keepalive);
                let stream = ConnectedSocket::new(stream.into_std()?.into());
                Ok(Accepted { stream, peer: Peer::tcp(from) })
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Listening::Unix(listener) => listener.as_fd(),
            Listening::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Accepted {
    /// A connection that another process accepted and passed.
    pub(in crate::server) fn from_fd(fd: OwnedFd, peer: Peer) -> Result<Self> {
        let fail = |e: io::Error| Error::io(format!("passed connection of {peer}"), e);
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| fail(e.into()))?;
        match sockopt::socket_domain(&fd).map_err(|e| fail(e.into()))? {
            AddressFamily::UNIX | AddressFamily::INET | AddressFamily::INET6 => {
                Ok(Self { stream: ConnectedSocket::new(fd), peer })
            }
            _ => {
                Err(Error::invalid(format!("the passed connection of {peer} is of no known kind")))
            }
        }
    }
}

fn in_use(address: &Address) -> Error {
    Error::conflict(format!("{address} is in use: stop the other server or choose another address"))
}

/// The turn to bind unix sockets in a directory, as long as it lives. Two servers that find the same stale socket must
/// not remove each other's new one, nor take one for stale that is bound and does not listen yet. Anybody who may read
/// the directory may hold its lock, so the wait is short, and one for all that are to be bound; without the turn only
/// that race is open.
#[derive(Debug)]
pub struct BindingTurn {
    _lock: Option<std::fs::File>,
}

impl BindingTurn {
    /// Waits for it, for a second at most.
    pub async fn take(directory: &Path) -> Self {
        let Ok(lock) = std::fs::File::open(directory) else { return Self { _lock: None } };
        for _ in 0..TURN_ATTEMPTS {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN | Errno::INTR) => tokio::time::sleep(TURN_PAUSE).await,
                done => return Self { _lock: done.ok().map(|()| lock) },
            }
        }
        Self { _lock: None }
    }
}

/// Removes the file of a unix socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(path.display(), e)),
    };
    if !metadata.file_type().is_socket() {
        return Err(Error::conflict(format!(
            "{} exists and is not a socket: move it away or choose another path",
            path.display()
        )));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing a socket that nobody listens on");
            FsPath::from(path).remove_synced().map_err(|e| Error::io(path.display(), e))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(in_use(&Address::Unix(path.to_owned()))), // when in doubt it is alive
    }
}

/// The file of a unix socket; removed on drop if it is still the same, and nobody else's.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    /// It is another process's to remove.
    left: AtomicBool,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path), left: AtomicBool::new(false) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = self.identity.is_some() && !*self.left.get_mut();
        if ours && self.identity == identity(&self.path) {
            let _ = FsPath::from(&*self.path).remove_synced();
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::os::unix::net as std_unix;

    #[tokio::test]
    async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std_unix::UnixListener::bind(&path).unwrap()); // leaves its file
        let address = Address::unix(&path).unwrap();
        let listener = Listener::bind(&address, 16).await.unwrap();
        let error = Listener::bind(&address, 16).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains("in use"), "{error}");
        drop(listener);
        assert!(!path.exists(), "the file is removed at the end");
    }

    #[tokio::test]
    async fn servers_bind_in_one_directory_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std_unix::UnixListener::bind(&path).unwrap());
        let address = Address::unix(&path).unwrap();
        let others = BindingTurn::take(dir.path()).await;
        let mut bound = std::pin::pin!(Listener::bind(&address, 16));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut bound).await;
        assert!(early.is_err(), "another server is at work there");
        drop(others);
        bound.await.unwrap();
        let turn = BindingTurn::take(dir.path()).await;
        let second = Address::unix(dir.path().join("t")).unwrap();
        Listener::bind_in_turn(&second, 16, &turn).unwrap();
        assert!(Listener::bind_in_turn(&"127.0.0.1:0".parse().unwrap(), 16, &turn).is_err());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&Address::unix(&path).unwrap(), 16).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_port_in_use_is_a_conflict() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap(), 16).await.unwrap();
        assert!(!first.address().to_string().ends_with(":0"), "the picked port is told");
        let error = Listener::bind(first.address(), 16).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[tokio::test]
    async fn an_inherited_descriptor_must_be_a_listening_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        assert!(Listener::from_fd(file.into()).is_err());
        let (one, _other) = std_unix::UnixStream::pair().unwrap();
        assert!(Listener::from_fd(one.into()).is_err());
        let socket = std_unix::UnixListener::bind(&path).unwrap();
        let listener = Listener::from_fd(socket.into()).unwrap();
        assert_eq!(listener.address(), &Address::Unix(path.clone()));
        // Also when another process was to have it, and did not take it.
        assert!(!listener.leave_file());
        listener.keep_file();
        drop(listener);
        assert!(path.exists(), "the file belongs to who made it");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Listener::from_fd(socket.into()).is_ok());
    }

    #[tokio::test]
    async fn the_file_goes_with_the_last_handle_unless_it_was_left_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = Address::unix(&path).unwrap();
        let listener = Listener::bind(&address, 16).await.unwrap();
        let again = listener.share().unwrap();
        drop(listener);
        assert!(path.exists());
        assert!(again.leave_file() && !again.leave_file());
        again.keep_file();
        assert!(again.leave_file(), "it was taken back");
        let passed = again.as_fd().try_clone_to_owned().unwrap();
        drop(again);
        assert!(path.exists(), "another process has it");
        drop(Listener::from_fd(passed).unwrap().take_file());
        assert!(!path.exists());
    }
}
