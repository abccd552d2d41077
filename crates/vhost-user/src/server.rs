//! The server: a socket for each export, connections, their end.

mod sockets;

use crate::allowance::Allowances;
use crate::backend::{Backend, BackendSetup};
use crate::counters::{FrontEndCounters, LiveCounters, WhileThere};
use crate::export_use::{ExportUse, ExportUses, OlderUses};
use crate::held::ClientsHeld;
use block::{Error, Result};
use nbd::server::{BusyPoll, Processors};
use nbd::{Exports, Peer, Purpose, SessionEnding};
use sockets::{BACKLOG, Sockets};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use vhost::vhost_user::{BackendReqHandler, Error as Broken};

/// How long rings that end as they are may take for what they are at.
const LAST_TURN: Duration = Duration::from_millis(500);
/// How long a connection waits for the one before until it says so.
const SOON: Duration = Duration::from_secs(1);

/// Bounds on what front ends may take from a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontEndLimits {
    /// Connections at a time; more are closed at once. Each takes a thread, and one more for each of its
    /// virtqueues: 128 at most, and 4,096 of all together.
    pub connections: usize,
    /// Whether a virtqueue's thread polls for the next request before it sleeps, as an NBD connection does.
    pub busy_poll: BusyPoll,
    /// Bytes of all requests together that wait for their devices; one client has at most half of it, by however many
    /// connections. Requests beyond it wait in their rings.
    pub held_bytes: u64,
    /// Open files that all front ends together may have the server keep, for their memory and their virtqueues.
    pub descriptors: u64,
    /// How long a stop waits for requests in flight. Those that are left are done again by the server that
    /// comes next.
    pub stop_deadline: Duration,
}

impl Default for FrontEndLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            busy_poll: BusyPoll::Never,
            held_bytes: 1 << 30,
            descriptors: u64::MAX,
            stop_deadline: Duration::from_secs(10),
        }
    }
}

/// A server of some exports. Cheap to clone.
#[derive(Clone)]
pub struct VhostUserServer {
    inner: Arc<Inner>,
}

struct Inner {
    exports: Arc<dyn Exports>,
    limits: FrontEndLimits,
    processors: Processors,
    counts: Arc<LiveCounters>,
    allowances: Arc<Allowances>,
    held: ClientsHeld,
    uses: ExportUses,
}

impl VhostUserServer {
    /// A server of `exports`, which takes of these processors for busy polling.
    pub fn new(exports: Arc<dyn Exports>, limits: FrontEndLimits, processors: Processors) -> Self {
        let (counts, uses) = Default::default();
        let allowances = Arc::new(Allowances::with_descriptors(limits.descriptors));
        let held = ClientsHeld::new(limits.held_bytes);
        let inner = Inner { exports, limits, processors, counts, allowances, held, uses };
        Self { inner: Arc::new(inner) }
    }

    /// Its limits.
    pub fn limits(&self) -> &FrontEndLimits {
        &self.inner.limits
    }

    /// What was counted so far.
    pub fn counters(&self) -> FrontEndCounters {
        self.inner.counts.read()
    }

    /// Serves at a socket `DIR/NAME` for each of `names`, as they come and go, until `stop` is ready; then
    /// finishes what is in flight and closes all connections, within [`FrontEndLimits::stop_deadline`]. A
    /// connection outlives its name. `opened` is called when the first sockets are there. Where there are no
    /// names, and nobody changes that any more, it ends with the last connection.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when requests were left in flight by the deadline.
    /// A socket that cannot be opened is in the log, and tried again each second.
    pub async fn serve(
        &self,
        dir: &Path,
        mut names: watch::Receiver<BTreeSet<String>>,
        opened: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let (order, orders) = watch::channel(false);
        let mut clients = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        let (accepted, mut accepting) = mpsc::channel(BACKLOG as usize);
        let mut sockets = Sockets::new(dir, accepted);
        sockets.want(names.borrow_and_update().clone());
        let mut opened = Some(opened);
        let mut change = true;
        loop {
            if let Some(opened) = opened.take_if(|_| sockets.are_tried()) {
                opened();
            }
            if sockets.are_none() && !change && clients.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = &mut stop => {
                    sockets.close().await;
                    order.send_replace(true);
                    return self.end(clients).await;
                }
                changed = names.changed(), if change => match changed {
                    Ok(()) => sockets.want(names.borrow_and_update().clone()),
                    // Nobody changes them any more.
                    Err(_) => change = false,
                },
                () = sockets.work() => {}
                Some(_) = clients.join_next() => {}
                Some((name, stream)) = accepting.recv() => {
                    self.admit(name, stream, &orders, &mut clients);
                }
            }
        }
    }

    async fn end(&self, mut clients: JoinSet<()>) -> Result<()> {
        let all = async { while clients.join_next().await.is_some() {} };
        if tokio::time::timeout(self.inner.limits.stop_deadline, all).await.is_err() {
            let left = clients.len();
            // Whoever comes next does their requests again; the devices may fail what is asked of them
            // from here on, which no guest is to hear of.
            self.inner.uses.give_up();
            let all = async { while clients.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(LAST_TURN, all).await;
            clients.shutdown().await;
            let why = format!("{left} vhost-user connections had requests in flight to the end");
            return Err(Error::unavailable(why));
        }
        Ok(())
    }

    fn admit(
        &self,
        name: String,
        stream: UnixStream,
        orders: &watch::Receiver<bool>,
        clients: &mut JoinSet<()>,
    ) {
        if clients.len() >= self.inner.limits.connections {
            self.inner.counts.refused.fetch_add(1, Relaxed);
            tracing::warn!(export = name, "refused: too many vhost-user connections");
            return;
        }
        let mut orders = orders.clone();
        clients.spawn(self.clone().serve_one(name, stream, async move {
            let _ = orders.wait_for(|stop| *stop).await;
        }));
    }

    /// Serves the export of this `name` to the one front end at `stream`, until that hangs up, or until `stop` is
    /// ready and what is in flight is done. Why it is refused is in the log. Of two connections to one export, the
    /// first one is the one that this was called for first.
    pub fn serve_one(
        self,
        name: String,
        stream: UnixStream,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let inner = self.inner;
        let entered = stream
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::io("a vhost-user connection", e))
            .and_then(|socket| inner.uses.enter(&name, socket.into(), Handle::current()));
        async move {
            let _counted = WhileThere::at(&inner.counts.connections);
            let ended = match entered {
                Ok((usage, older)) => connection(&inner, &name, stream, usage, older, stop).await,
                Err(e) => Err(e),
            };
            if let Err(e) = ended {
                inner.counts.refused.fetch_add(1, Relaxed);
                tracing::warn!(export = name, error = e.message(), "vhost-user: refused");
            }
        }
    }
}

/// Whether a socket can have an export's name: it is a file name, and none that is hidden.
pub fn is_socket_name(name: &str) -> bool {
    !(name.is_empty() || name.contains('/') || name.starts_with('.'))
}

/// Serves one connection to its end, or until there is the order to stop.
///
/// # Errors
/// Why it is refused.
async fn connection(
    inner: &Inner,
    name: &str,
    stream: UnixStream,
    usage: Arc<ExportUse>,
    older: OlderUses,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let failed = |e| Error::io("a vhost-user connection", e);
    let peer = Peer::at_socket(&stream).map_err(failed)?;
    let session = inner.exports.open(name, &peer, Purpose::Use).await?;
    let terms = BackendSetup {
        name: name.to_owned(),
        device: Arc::clone(session.device()),
        usage: Arc::clone(&usage),
        identity: session.identity(),
        content: session.content(),
        observer: session.observer(),
        counts: Arc::clone(&inner.counts),
        allowances: Arc::clone(&inner.allowances),
        held: inner.held.half_of(&peer.identity),
        busy_poll: inner.limits.busy_poll,
        processors: inner.processors.clone(),
        runtime: Handle::current(),
    };
    usage.keep(session);
    let stream = stream.into_std().map_err(failed)?;
    stream.set_nonblocking(false).map_err(failed)?;
    tracing::debug!(export = name, %peer, "vhost-user: connected");
    let backend = Arc::new(Mutex::new(Backend::new(terms)));
    let (ended, mut ending) = oneshot::channel();
    let (handled, export) = (Arc::clone(&backend), name.to_owned());
    let spawned = std::thread::Builder::new().name(format!("vu {name}")).spawn(move || {
        let _ = ended.send(serve(stream, handled, &export));
    });
    if let Err(e) = spawned {
        drop(backend);
        usage.end(SessionEnding::Lost).await;
        return Err(Error::io("a thread for a vhost-user connection", e));
    }
    // Cut off by its deadline, a stop leaves the thread to its requests.
    let hung_up = HangUp(Arc::clone(&usage));
    let ending = tokio::select! {
        ending = &mut ending => ending.unwrap_or(SessionEnding::Lost),
        () = stop => {
            // First what is in flight: a front end that is hung up on looks at once how far the used ring is.
            drain(Arc::clone(&backend), name).await;
            usage.hang_up();
            let _ = ending.await;
            // It comes back, also where its rings were stopped just now: those of a machine that is paused are.
            SessionEnding::Lost
        }
        never = begin(&usage, older, name) => match never {},
    };
    drop((hung_up, backend));
    // What was given up may be at the device for as long as that likes.
    if !usage.is_given_up() {
        usage.end(ending).await;
    }
    Ok(())
}

/// Has a connection's rings served as soon as those of the connections before it have ended, which are
/// over but may have requests at the device.
async fn begin(usage: &ExportUse, older: OlderUses, name: &str) -> Infallible {
    if older.are_there() {
        let mut ended = std::pin::pin!(older.ended());
        if tokio::time::timeout(SOON, &mut ended).await.is_err() {
            let what =
                "virtqueues wait until the disk has done what an earlier connection asked for";
            tracing::info!(export = name, "{what}");
            ended.await;
        }
        usage.begin();
    }
    std::future::pending().await
}

/// Ends a connection's rings once what is in flight is done; whether any was being served, which the guest has
/// stopped by then where it is shut down.
fn close(backend: &Mutex<Backend>) -> bool {
    backend.lock().unwrap_or_else(PoisonError::into_inner).close()
}

/// Ends a connection's rings in a thread of its own: a device that never answers holds up nothing else, not
/// even the end of the process.
async fn drain(backend: Arc<Mutex<Backend>>, name: &str) {
    let (closed, ending) = oneshot::channel();
    let thread = std::thread::Builder::new().name(format!("vu {name}"));
    let spawned = thread.spawn(move || {
        let _ = closed.send(close(&backend));
    });
    // Without a thread, the connection's own does it once it is hung up on.
    if spawned.is_ok() {
        let _ = ending.await;
    }
}

struct HangUp(Arc<ExportUse>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

/// Answers a front end until it hangs up, then ends its rings. It has left where it hung up by itself and had them
/// stopped before: one that is hung up on, for what it sent or what could not be done, has not.
fn serve(
    stream: std::os::unix::net::UnixStream,
    backend: Arc<Mutex<Backend>>,
    name: &str,
) -> SessionEnding {
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
    let why = loop {
        match handler.handle_request() {
            Ok(()) | Err(Broken::SocketRetry(_)) => {}
            Err(why) => break why,
        }
    };
    let ending = match (close(&backend), &why) {
        (false, Broken::Disconnected) => SessionEnding::Clean,
        _ => SessionEnding::Lost,
    };
    // Whoever drops the backend last may be a thread of the runtime.
    backend.lock().unwrap_or_else(PoisonError::into_inner).close_files();
    tracing::debug!(export = name, %why, ?ending, "vhost-user: disconnected");
    ending
}

#[cfg(test)]
mod tests;
