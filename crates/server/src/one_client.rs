//! Servers that end by themselves: `--single` for one client, `--run` for one command.

use super::listen::{self, BoundListener, ListenOptions};
use super::security::Security;
use super::signals::{Signals, Switch};
use block::{Error, Result};
use engine::config::listener::TlsMode;
use nbd::server::{DEFAULT_BACKLOG, spare_while_idle};
use nbd::{
    Address, Exports, Listener, Peer, Purpose, Server, ServerLimits, SessionEnding, Tls, Uri,
};
use rustix::net::AddressFamily;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// The one client of `--single`: how it comes, and what is asked of it.
pub(crate) struct Single {
    way: SingleClient,
    pub(crate) tls: TlsMode,
}

enum SingleClient {
    /// The next one on a socket that was passed by socket activation.
    Next(Listener),
    /// Standard input is its socket: then both directions go through it.
    Unix(UnixStream),
    Tcp(TcpStream),
    /// Standard input and output.
    Pipes,
}

impl Single {
    /// On the socket that was passed by socket activation if there is one, else on standard input and
    /// output.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) for a socket that other machines reach without TLS;
    /// [`Invalid`](block::ErrorKind::Invalid) for a socket that is neither a unix nor a TCP one.
    pub(crate) async fn find(asked: &ListenOptions) -> Result<Self> {
        if let Some(BoundListener { listener, tls, .. }) =
            listen::inherited(asked).await?.into_iter().next()
        {
            return Ok(Self { way: SingleClient::Next(listener), tls });
        }
        let way = stdin_socket()?.unwrap_or(SingleClient::Pipes);
        let tls = asked.mode(matches!(way, SingleClient::Tcp(_)));
        Ok(Self { way, tls })
    }

    /// Serves the client.
    ///
    /// # Errors
    /// When the client breaks the protocol.
    pub(crate) async fn serve(
        self,
        exports: Arc<dyn Exports>,
        limits: ServerLimits,
        security: &Security,
    ) -> Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let server = Server::new(exports, limits);
        let mut beside = JoinSet::new(); // ends with this
        beside.spawn(spare_while_idle(server.processors(), std::future::pending()));
        let stop = async move { signals.stop().await };
        let tls = security.tls(self.tls)?;
        match self.way {
            SingleClient::Next(listener) => {
                server.serve_next(security.secure(listener, self.tls)?, stop).await?;
            }
            SingleClient::Unix(stream) => {
                let peer = unix_peer(&stream)?;
                one(&server, stream, peer, tls, stop).await?;
            }
            SingleClient::Tcp(stream) => {
                let from = stream.peer_addr().map_err(|e| Error::io("standard input", e))?;
                one(&server, stream, Peer::tcp(from), tls, stop).await?;
            }
            SingleClient::Pipes => {
                let stream = tokio::io::join(tokio::io::stdin(), tokio::io::stdout());
                one(&server, stream, Peer::stdio(), tls, stop).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Serves the client on `stream`, which with `tls` may, or must, encrypt.
async fn one<S>(
    server: &Server,
    stream: S,
    peer: Peer,
    tls: Option<Tls>,
    stop: impl Future<Output = ()>,
) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match tls {
        Some(tls) => server.serve_one_with_tls(stream, peer, tls, stop).await,
        None => server.serve_one(stream, peer, stop).await,
    }
}

/// Who is at the other end of standard input. Our own user could have started us, and may do all;
/// another one came by a socket that a service manager accepted for us.
fn unix_peer(stream: &UnixStream) -> Result<Peer> {
    let io = |e| Error::io("standard input", e);
    match stream.peer_cred().map_err(io)?.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(Peer::stdio()),
        false => Peer::at_socket(stream).map_err(io),
    }
}

/// Standard input, when it is a socket.
fn stdin_socket() -> Result<Option<SingleClient>> {
    let stdin = std::io::stdin();
    let Ok(family) = rustix::net::sockopt::socket_domain(&stdin) else { return Ok(None) };
    let io = |e| Error::io("standard input", e);
    let socket = stdin.as_fd().try_clone_to_owned().map_err(io)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| io(e.into()))?;
    match family {
        AddressFamily::UNIX => UnixStream::from_std(socket.into()).map(SingleClient::Unix),
        AddressFamily::INET | AddressFamily::INET6 => {
            let stream = std::net::TcpStream::from(socket);
            let _ = stream.set_nodelay(true); // an answer must not wait for the next one
            TcpStream::from_std(stream).map(SingleClient::Tcp)
        }
        _ => return Err(Error::invalid("standard input is a socket of another family")),
    }
    .map(Some)
    .map_err(io)
}

/// Serves on private sockets while `command` runs, and gives its exit code. The command finds
/// `uri`, `unixsocket` and `exportname` in its environment, and `socket`, that for vhost-user, of an export
/// whose name a socket can have.
///
/// # Errors
/// When the export cannot be opened, or the socket or the command cannot be made.
pub(crate) async fn run(
    exports: Arc<dyn Exports>,
    limits: ServerLimits,
    command: &str,
    export: &str,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // A command that never looks at the export would hide that it is not there.
    if !export.is_empty() {
        exports
            .open(export, &Peer::stdio(), Purpose::Info)
            .await?
            .close(SessionEnding::Clean)
            .await;
    }
    let dir = tempfile::Builder::new()
        .prefix("sojourn-")
        .tempdir()
        .map_err(|e| Error::io("cannot make a private directory; set TMPDIR", e))?;
    let path = dir.path().join("nbd.sock");
    let address = Address::unix(&path)?;
    let listener = Listener::bind(&address, DEFAULT_BACKLOG).await?;
    let shared = dir.path().join("vhost-user");
    std::fs::create_dir(&shared).map_err(|e| Error::io(shared.display(), e))?;
    let bounds = super::limits::of_virtqueues(&limits);
    let server = Server::new(Arc::clone(&exports), limits);
    let machines = vhost_user::VhostUserServer::new(exports, bounds, server.processors());
    let stop = Switch::new();
    let mut beside = JoinSet::new(); // ends with this
    beside.spawn(spare_while_idle(server.processors(), stop.wait()));
    let serving = server.serve(listener, stop.wait());
    let named = Some(export).filter(|name| vhost_user::is_socket_name(name));
    let (_, names) = watch::channel(named.map(str::to_owned).into_iter().collect());
    let socket = named.map(|name| shared.join(name));
    let (opened, open) = oneshot::channel();
    let opened = || {
        // Nobody waits for it any more when the command is done.
        let _ = opened.send(());
    };
    let serving_machines = machines.serve(&shared, names, opened, stop.wait());
    let running = async {
        let _ = open.await;
        let environment = Environment {
            uri: &Uri::new(address, export).to_string(),
            nbd: &path,
            export,
            vhost_user: socket.as_deref().filter(|socket| is_socket(socket)),
        };
        let status = shell(command, &environment, &mut signals).await;
        stop.throw();
        status
    };
    let (served, served_machines, status) = tokio::join!(serving, serving_machines, running);
    served?;
    served_machines?;
    Ok(code(status?))
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// What a command finds in its environment.
struct Environment<'a> {
    uri: &'a str,
    /// The unix socket for NBD.
    nbd: &'a Path,
    export: &'a str,
    vhost_user: Option<&'a Path>,
}

/// Runs `command` for an export that another process serves by NBD, as [`run`] does, and gives its exit code.
///
/// # Errors
/// When the command cannot be made.
pub async fn command(command: &str, uri: &str, socket: &Path, export: &str) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let environment = Environment { uri, nbd: socket, export, vhost_user: None };
    shell(command, &environment, &mut signals).await.map(code)
}

async fn shell(
    command: &str,
    environment: &Environment<'_>,
    signals: &mut Signals,
) -> Result<ExitStatus> {
    let socket = environment.vhost_user.map(|path| ("socket", path));
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .env("uri", environment.uri)
        .env("unixsocket", environment.nbd)
        .env("exportname", environment.export)
        .env_remove("socket")
        .envs(socket)
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_PID")
        .env_remove("NOTIFY_SOCKET")
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| Error::io("cannot run /bin/sh", e))?;
    let status = tokio::select! {
        status = child.wait() => status,
        () = signals.stop() => {
            terminate(&child);
            child.wait().await
        }
    };
    status.map_err(|e| Error::io("cannot wait for the command", e))
}

/// Asks a command to stop.
fn terminate(child: &tokio::process::Child) {
    let pid =
        child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// The exit code of a command, as a shell gives it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
