//! The NBD server around a borrowed disk, until it is taken down.

use super::control::{self, ControlRequest, Paths, Reply};
use super::report::{DownRequest, DownView};
use super::session::{BorrowSession, complain};
use crate::file::FileExports;
use crate::limits::limits;
use crate::listen;
use crate::notify::notify;
use crate::one_client;
use crate::signals::{Signals, Switch};
use block::{Error, Result};
use engine::config::Config;
use engine::config::listener::TlsMode;
use nbd::server::{DEFAULT_BACKLOG, spare_while_idle};
use nbd::{Address, Listener, Server};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Where a borrowed disk is served.
pub struct BorrowServeOptions {
    /// The control socket and its lock.
    pub paths: Paths,
    /// Where it is served for NBD; at least one.
    pub addresses: Vec<Address>,
    /// Allow addresses that other machines reach.
    pub insecure: bool,
}

/// Why serving ended.
enum ServeEnd {
    Signal,
    Asked(DownRequest, UnixStream),
}

/// Serves until a signal or `borrow down`, then ends the session. A write-back that fails leaves
/// the disk up. `ready` is called once clients can connect.
///
/// # Errors
/// When it cannot listen; when a second signal ends it at once.
pub async fn run(
    session: BorrowSession,
    options: BorrowServeOptions,
    ready: impl FnOnce() -> Result<()>,
) -> Result<DownView> {
    let mut signals = Signals::listen()?;
    let control = bind(&options.paths.socket)?;
    let exports = Arc::new(FileExports::new(session.device(), Path::new(&session.name)));
    let server = Server::new(exports, limits(&Config::default()));
    for address in &options.addresses {
        listen::check(address, TlsMode::Off, options.insecure).await?;
    }
    let address = options
        .addresses
        .first()
        .cloned()
        .ok_or_else(|| Error::invalid("say where to serve the borrowed disk: --nbd ADDR"))?;
    let uri = nbd::Uri::new(address, &session.name).to_string();
    let mut ready = Some(ready);
    loop {
        let (stop, mut tasks) = (Switch::new(), JoinSet::new());
        for address in &options.addresses {
            let listener = Listener::bind(address, DEFAULT_BACKLOG).await?;
            let (server, stop) = (server.clone(), stop.wait());
            tasks.spawn(async move { server.serve(listener, stop).await });
        }
        let mut beside = JoinSet::new(); // ends with this
        beside.spawn(spare_while_idle(server.processors(), stop.wait()));
        if let Some(ready) = ready.take() {
            ready()?;
            notify("READY=1");
        }
        let why = tokio::select! {
            () = signals.stop() => ServeEnd::Signal,
            why = attend(&control, &session, &server, &uri) => why?,
        };
        notify("STOPPING=1");
        stop.throw();
        let finish = async {
            while let Some(ended) = tasks.join_next().await {
                ended.map_err(|e| Error::internal("a listener panicked").with_source(e))??;
            }
            let asked = match &why {
                ServeEnd::Signal => DownRequest::default(),
                ServeEnd::Asked(asked, _) => asked.clone(),
            };
            Ok::<_, Error>((session.write_back(&asked).await, asked))
        };
        let (written, asked) = tokio::select! {
            result = finish => result?,
            () = signals.stop() => {
                return Err(Error::unavailable("stopped at once by a second signal"));
            }
        };
        match written {
            Ok(written) => {
                drop(server); // the last other user of the disk, whose key goes now
                let view = session.end(&asked, written).await;
                if let ServeEnd::Asked(_, mut client) = why {
                    // The client may have gone away; all is done all the same.
                    let _ = control::send(&mut client, &Reply::Down(view.clone())).await;
                }
                let _ = std::fs::remove_file(&options.paths.socket);
                return Ok(view);
            }
            Err(e) => {
                tracing::error!(error = e.message(), "the disk stays up");
                if let ServeEnd::Asked(_, mut client) = why {
                    let _ = control::send(&mut client, &Reply::error(&e)).await;
                }
            }
        }
    }
}

/// Serves while a command runs, and gives its exit code.
///
/// # Errors
/// When the command cannot be run or the state cannot be written back; when a file system of the owner
/// is not as it was.
pub async fn run_command(session: BorrowSession, command: &str) -> Result<ExitCode> {
    let exports = FileExports::new(session.device(), Path::new(&session.name));
    let limits = limits(&Config::default());
    let ended = one_client::run(Arc::new(exports), limits, command, &session.name).await;
    let asked = DownRequest::default();
    let written = session.write_back(&asked).await;
    let down = session.end(&asked, *written.as_ref().unwrap_or(&0)).await;
    written?;
    complain(&down.checked)?;
    ended
}

/// Binds the control socket, over a dead one if need be: the name's lock is ours.
fn bind(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(path.display(), e));
        }
        _ => {}
    }
    UnixListener::bind(path).map_err(|e| Error::io(path.display(), e))
}

/// Answers questions until somebody asks for the end.
async fn attend(
    control: &UnixListener,
    session: &BorrowSession,
    server: &Server,
    uri: &str,
) -> Result<ServeEnd> {
    loop {
        let (mut client, _) = control
            .accept()
            .await
            .map_err(|e| Error::io("the control socket of a borrowed disk", e))?;
        match control::request(&mut client).await {
            Ok(ControlRequest::Down(asked)) => return Ok(ServeEnd::Asked(asked, client)),
            Ok(ControlRequest::Status) => {
                let view = session.status(uri.to_owned(), server.counters().connections);
                let _ = control::send(&mut client, &Reply::Status(Box::new(view))).await;
            }
            Err(e) => {
                let _ = control::send(&mut client, &Reply::error(&e)).await;
            }
        }
    }
}
