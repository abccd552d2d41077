//! The control socket: HTTP and JSON on `control.sock` in the home, for the commands that touch disks
//! while a server has them open. [`client`](crate::client) is the other side.

use crate::answers::problem;
use crate::api::{
    CACHE_PATH, CacheRequest, DISK_PATH, DRAIN_PATH, DrainRequest, HAND_OVER_PATH, LOOK_PATH,
    LOOK_PROTOCOL, RELOAD_PATH, STATUS_PATH,
};
use crate::audit::{Actor, Deed};
use crate::http::{HttpClients, answer, send_status};
use crate::orders;
use crate::origin::Origin;
use crate::running::RunningServer;
use crate::signals::Switch;
use agent::api::{ATTACH_PATH, AttachRequest};
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use block::fs::FsPath;
use block::{Error, Result};
use engine::Home;
use engine::api::DiskRequest;
use engine::verbs;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

/// How long accepting rests after it failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// The control socket of a home, for its owner alone, open beside its place: an earlier server may
/// still be reached there.
pub(crate) struct Control {
    listener: UnixListener,
    fresh: UnplacedSocket,
    path: PathBuf,
}

/// A socket that is not at its place yet.
struct UnplacedSocket {
    path: PathBuf,
    moved: bool,
}

impl Drop for UnplacedSocket {
    fn drop(&mut self) {
        if !self.moved {
            let _ = FsPath::from(&*self.path).remove_synced();
        }
    }
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when something else than a socket is at its place;
    /// [`Invalid`](block::ErrorKind::Invalid) for a path that is too long for a socket; that of the
    /// system call.
    pub(crate) fn bind(home: &Home) -> Result<Self> {
        let path = home.control();
        if path.as_os_str().len() > 100 {
            return Err(Error::invalid(format!(
                "{} is too long for a unix socket; use a shorter --home",
                path.display()
            )));
        }
        must_be_socket(&path)?;
        let fresh = path.with_extension("new");
        let listener = listen_alone(&fresh)?;
        Ok(Self { listener, fresh: UnplacedSocket { path: fresh, moved: false }, path })
    }

    /// Puts it to its place: commands that come from now on wait for this server. The caller holds the
    /// home's lock, or was told that the home is its own.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the home is gone, [`Denied`](block::ErrorKind::Denied)
    /// when it may not be written to.
    pub(crate) fn publish(&mut self) -> Result<()> {
        let moved = std::fs::rename(&self.fresh.path, &self.path);
        moved.map_err(|e| Error::io(self.path.display(), e))?;
        self.fresh.moved = true;
        // As `FsPath::remove_synced`, of what was there.
        let _ = FsPath::from(&*self.path).above().sync_directory();
        Ok(())
    }

    /// The socket.
    pub(crate) fn into_listener(self) -> UnixListener {
        self.listener
    }
}

/// Listens at a path that is this process's to use, for the owner alone.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when something else than a socket is there; that of the
/// system call.
pub(crate) fn listen_alone(path: &Path) -> Result<UnixListener> {
    let io = |e| Error::io(path.display(), e);
    must_be_socket(path)?;
    let _ = FsPath::from(path).remove_synced(); // of a process that was killed
    let listener = UnixListener::bind(path).map_err(io)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(io)?;
    Ok(listener)
}

/// Fails when there is something that no server left there: a file system that was damaged, as by a
/// power cut, may give a name to what is another's.
fn must_be_socket(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Error::conflict(format!(
            "{} is not a socket, and a server needs its place: move it away, and after a power cut \
             check the file system (fsck) first",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Answers until `stop`, and finishes what it began.
pub(crate) async fn serve(listener: UnixListener, running: Arc<RunningServer>, stop: Switch) {
    let router = Router::new()
        .route(DISK_PATH, post(disk))
        .route(STATUS_PATH, get(send_status))
        .route(RELOAD_PATH, post(reload))
        .route(DRAIN_PATH, post(drain))
        .route(CACHE_PATH, post(cache))
        .route(HAND_OVER_PATH, post(hand_over))
        .route(ATTACH_PATH, post(attach))
        .route(LOOK_PATH, post(look))
        .with_state(Arc::clone(&running));
    answer(Processes(listener), router, stop, || running.is_busy()).await;
}

/// What was asked, for the log.
fn in_words(request: &impl Serialize) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

/// Who asks on the control socket.
type AskedFrom = ConnectInfo<Origin>;

/// Processes that come by the control socket.
struct Processes(UnixListener);

impl HttpClients for Processes {
    type Stream = UnixStream;

    async fn next(&mut self) -> (UnixStream, Origin) {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let process = stream.peer_cred().ok().map(|peer| (peer.uid(), peer.pid()));
                    return (stream, Origin::unix(process));
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a command failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

fn actor(ConnectInfo(origin): AskedFrom) -> Actor {
    Actor { token: None, origin }
}

/// Carries out a verb on a disk.
async fn disk(
    State(running): State<Arc<RunningServer>>,
    from: AskedFrom,
    Json(request): Json<DiskRequest>,
) -> Response {
    tracing::info!(verb = in_words(&request), "control");
    running.all_attached().await;
    let carrying = Arc::clone(&running);
    let deed = (!request.only_looks()).then(|| Deed::of("disk", &request));
    let verb = async move {
        let done = verbs::perform(&carrying.engine, request).await;
        if let Some(deed) = deed {
            carrying.note_change();
            carrying.audit.note(&actor(from), &deed, done.as_ref().map(|_| ())).await;
        }
        done
    };
    finished(&running, verb).await
}

async fn reload(State(running): State<Arc<RunningServer>>, from: AskedFrom) -> Response {
    let ordered = Arc::clone(&running);
    let order = async move { orders::reload(&ordered).await };
    carried_out(&running, from, Deed::of_server("reload", &()), order).await
}

async fn hand_over(State(running): State<Arc<RunningServer>>, from: AskedFrom) -> Response {
    let ordered = Arc::clone(&running);
    let order = async move { orders::hand_over(&ordered).await };
    carried_out(&running, from, Deed::of_server("hand_over", &()), order).await
}

async fn drain(
    State(running): State<Arc<RunningServer>>,
    from: AskedFrom,
    Json(request): Json<DrainRequest>,
) -> Response {
    let (deed, ordered) = (Deed::of_server("drain", &request), Arc::clone(&running));
    let order = async move {
        match request.to_successor {
            true => orders::succeed(&ordered).await,
            false => orders::drain(&ordered, request.seconds),
        }
    };
    carried_out(&running, from, deed, order).await
}

async fn cache(
    State(running): State<Arc<RunningServer>>,
    from: AskedFrom,
    Json(request): Json<CacheRequest>,
) -> Response {
    tracing::info!(cache = in_words(&request), "control");
    let (deed, ordered) = (Deed::of_server("cache", &request), Arc::clone(&running));
    let order = async move { orders::change_cache(&ordered, &request).await };
    carried_out(&running, from, deed, order).await
}

/// What an order to the server itself gives, which is carried out and noted in a task of its own: also when the command
/// that asked goes away.
async fn carried_out<T: Serialize + Send + 'static>(
    running: &Arc<RunningServer>,
    from: AskedFrom,
    deed: Deed,
    order: impl Future<Output = Result<T>> + Send + 'static,
) -> Response {
    let (send, receive) = oneshot::channel();
    let noting = Arc::clone(running);
    running.begin_order(async move {
        let done = order.await;
        noting.audit.note(&actor(from), &deed, done.as_ref().map(|_| ())).await;
        let _ = send.send(done);
    });
    received(receive).await
}

/// Carries out a verb on attached disks.
async fn attach(
    State(running): State<Arc<RunningServer>>,
    from: AskedFrom,
    Json(request): Json<AttachRequest>,
) -> Response {
    let Some(porter) = running.porter.clone() else {
        return problem(&Error::invalid(
            "this is the server of a home of its own; `sojourn attach` makes other ones",
        ));
    };
    running.all_attached().await;
    let carrying = Arc::clone(&running);
    let deed = (!matches!(request, AttachRequest::Status)).then(|| Deed::of("attached", &request));
    let verb = async move {
        let done = porter.perform(request).await;
        carrying.note_change();
        if let Some(deed) = deed {
            carrying.audit.note(&actor(from), &deed, done.as_ref().map(|_| ())).await;
        }
        done
    };
    finished(&running, verb).await
}

/// Goes on by NBD, for a program that looks at exports beside those who use them.
async fn look(State(running): State<Arc<RunningServer>>, mut request: Request<Body>) -> Response {
    let goes_on = hyper::upgrade::on(&mut request);
    match running.begin_look(async { goes_on.await.ok().map(TokioIo::new) }) {
        Ok(()) => {
            let headers = [(CONNECTION, "upgrade"), (UPGRADE, LOOK_PROTOCOL)];
            (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
        }
        Err(e) => problem(&e),
    }
}

/// What a verb gives, which is carried out in a task of its own: it is finished even when the command that
/// asked goes away.
async fn finished<T: Serialize + Send + 'static>(
    running: &RunningServer,
    verb: impl Future<Output = Result<T>> + Send + 'static,
) -> Response {
    let (send, receive) = oneshot::channel();
    let verb = async move {
        let _ = send.send(verb.await);
    };
    if let Err(e) = running.begin(verb) {
        return problem(&e);
    }
    received(receive).await
}

/// What a task gives, as an answer.
async fn received<T: Serialize>(from: oneshot::Receiver<Result<T>>) -> Response {
    match from.await {
        Ok(Ok(reply)) => Json(reply).into_response(),
        Ok(Err(e)) => problem(&e),
        Err(_) => problem(&Error::internal("the verb failed inside the server; see its log")),
    }
}
