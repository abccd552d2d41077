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
use std::convert::Infallible;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
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

/// How long it rests after something failed that is tried again, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(200);

/// Why serving ended.
enum ServeEnd {
    Signal,
    Asked(DownRequest, UnixStream),
}

impl ServeEnd {
    /// How the end is to be.
    fn asked(&self) -> DownRequest {
        match self {
            Self::Signal => DownRequest::default(),
            Self::Asked(asked, _) => asked.clone(),
        }
    }

    /// Answers whoever asked for the end. They may have gone away; what was done is done all the same.
    async fn answer(self, reply: &Reply) {
        if let Self::Asked(_, mut client) = self {
            let _ = control::send(&mut client, reply).await;
        }
    }
}

/// Serves until a signal or `borrow down`, then ends the session. A write-back that fails leaves
/// the disk up, and nothing but a second signal ends it before its state was written back. `ready` is called
/// once clients can connect.
///
/// # Errors
/// When it cannot listen at first; when a second signal ends it at once.
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
    let mut bound = Vec::new();
    for address in &options.addresses {
        bound.push(Some(Listener::bind(address, DEFAULT_BACKLOG).await?));
    }
    let mut ready = Some(ready);
    loop {
        let (stop, mut tasks) = (Switch::new(), JoinSet::new());
        for (address, listener) in options.addresses.iter().zip(&mut bound) {
            tasks.spawn(listen_on(address.clone(), listener.take(), server.clone(), stop.clone()));
        }
        let mut beside = JoinSet::new(); // ends with this
        beside.spawn(spare_while_idle(server.processors(), stop.wait()));
        if let Some(ready) = ready.take() {
            ready()?;
            notify("READY=1");
        }
        let answers =
            ControlAnswers { control: &control, session: &session, server: &server, uri: &uri };
        let mut why = tokio::select! {
            () = signals.stop() => ServeEnd::Signal,
            (asked, client) = answers.until_asked() => ServeEnd::Asked(asked, client),
        };
        notify("STOPPING=1");
        stop.throw();
        let mut asked = why.asked();
        let finish = async {
            // A listener that fails, or a session that does not end, keeps nothing from being written back.
            while let Some(ended) = tasks.join_next().await {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => tracing::warn!(error = e.message(), "not all sessions ended"),
                    Err(e) => tracing::error!(error = %e, "a listener panicked"),
                }
            }
            session.write_back(&asked).await
        };
        let written = tokio::select! {
            written = finish => written,
            () = signals.stop() => {
                let error = Error::unavailable("stopped at once by a second signal");
                why.answer(&Reply::error(&error)).await;
                return Err(error);
            }
            (given_up, client) = answers.until_given_up() => {
                let error = Error::conflict("another `borrow down` gave the changes up");
                why.answer(&Reply::error(&error)).await;
                tasks.shutdown().await;
                why = ServeEnd::Asked(given_up, client);
                asked = why.asked();
                Ok(0)
            }
        };
        match written {
            Ok(written) => {
                drop(server); // the last other user of the disk, whose key goes now
                let busy = Error::unavailable(format!(
                    "{} is on its way down: its key is gone, the owner's disks are looked at again",
                    session.name
                ));
                let view = tokio::select! {
                    view = session.end(&asked, written) => view,
                    never = refuse_all(&control, &busy) => match never {},
                };
                let _ = std::fs::remove_file(&options.paths.socket);
                why.answer(&Reply::Down(view.clone())).await;
                return Ok(view);
            }
            Err(e) => {
                tracing::error!(error = e.message(), "the disk stays up");
                why.answer(&Reply::error(&e)).await;
            }
        }
    }
}

/// Serves at `address` until it is to stop. What cannot be bound is tried again: there may be state that
/// is to be written back, so this is no reason to end.
async fn listen_on(
    address: Address,
    bound: Option<Listener>,
    server: Server,
    stop: Switch,
) -> Result<()> {
    let mut bound = bound;
    let listener = loop {
        if let Some(listener) = bound.take() {
            break listener;
        }
        match Listener::bind(&address, DEFAULT_BACKLOG).await {
            Ok(listener) => bound = Some(listener),
            Err(e) => {
                tracing::warn!(%address, error = e.message(), "cannot listen; it is tried again");
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = stop.wait() => return Ok(()),
                }
            }
        }
    };
    server.serve(listener, stop.wait()).await
}

/// Serves while a command runs, and gives its exit code. Where the state cannot be written back after that, the disk
/// stays up as `options` say, until [`run`] ends.
///
/// # Errors
/// When the command cannot be run; when a file system of the owner is not as it was; any error from [`run`].
pub async fn run_command(
    session: BorrowSession,
    command: &str,
    options: BorrowServeOptions,
) -> Result<ExitCode> {
    let exports = FileExports::new(session.device(), Path::new(&session.name));
    let limits = limits(&Config::default());
    let ended = one_client::run(Arc::new(exports), limits, command, &session.name).await;
    let asked = DownRequest::default();
    let down = match session.write_back(&asked).await {
        Ok(written) => session.end(&asked, written).await,
        // What was changed is nowhere else.
        Err(e) => {
            tracing::error!(error = e.message(), "the state was not written back");
            run(session, options, || Ok(())).await?
        }
    };
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

/// What the control socket tells of.
struct ControlAnswers<'a> {
    control: &'a UnixListener,
    session: &'a BorrowSession,
    server: &'a Server,
    uri: &'a str,
}

impl ControlAnswers<'_> {
    /// Answers questions until somebody asks for the end.
    async fn until_asked(&self) -> (DownRequest, UnixStream) {
        loop {
            let (asked, client) = question(self.control).await;
            match asked {
                ControlRequest::Down(asked) => return (asked, client),
                ControlRequest::Status => self.tell(client).await,
            }
        }
    }

    /// Answers questions while sessions end and state is written back, until somebody gives the changes up.
    async fn until_given_up(&self) -> (DownRequest, UnixStream) {
        loop {
            let (asked, mut client) = self.until_asked().await;
            if asked.drop_changes {
                return (asked, client);
            }
            let error = Error::conflict(format!(
                "{} is on its way down already; give what is not written back up with \
                 `sojourn borrow down --drop-changes`",
                self.session.name
            ));
            let _ = control::send(&mut client, &Reply::error(&error)).await;
        }
    }

    async fn tell(&self, mut client: UnixStream) {
        let users = self.server.counters().connections;
        let view = self.session.status(self.uri.to_owned(), users);
        let _ = control::send(&mut client, &Reply::Status(Box::new(view))).await;
    }
}

/// Answers everything with an error.
async fn refuse_all(control: &UnixListener, error: &Error) -> Infallible {
    loop {
        let (_, mut client) = question(control).await;
        let _ = control::send(&mut client, &Reply::error(error)).await;
    }
}

/// The next question, and who asks. Whoever asks what is no question is told so.
async fn question(control: &UnixListener) -> (ControlRequest, UnixStream) {
    loop {
        let mut client = match control.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "the control socket of a borrowed disk does not accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match control::request(&mut client).await {
            Ok(asked) => return (asked, client),
            Err(e) => {
                let _ = control::send(&mut client, &Reply::error(&e)).await;
            }
        }
    }
}
