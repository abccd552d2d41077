//! A running server, as those see it who answer questions about it and carry out what is asked of it.

use super::audit::AuditLog;
use super::borrow::shadow::BorrowedShadows;
use super::head_room;
use super::looks::Looks;
use super::record::Recording;
use super::signals::Switch;
use super::throttle::Throttles;
use super::trouble;
use crate::api::{Draining, Reloaded};
use agent::Porter;
use block::{Error, Result};
use engine::boots::Boots;
use engine::{Engine, Home};
use gateway::Gateway;
use nbd::Server;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A running server, as its HTTP handlers see it.
pub(crate) struct RunningServer {
    pub(crate) home: Home,
    pub(crate) engine: Arc<Engine>,
    pub(crate) boots: Arc<Boots>,
    pub(crate) nbd: Server,
    /// Those who look at exports.
    pub(crate) looks: Looks,
    /// When it serves iSCSI, too.
    pub(crate) iscsi: Option<iscsi::Server>,
    /// When it serves vhost-user, too.
    pub(crate) vhost_user: Option<vhost_user::VhostUserServer>,
    /// When its store is open to others.
    pub(crate) gateway: Option<Arc<Gateway>>,
    pub(crate) places: Mutex<ListenAddresses>,
    pub(crate) started: Instant,
    pub(crate) recording: Option<Recording>,
    pub(crate) throttles: Option<Arc<Throttles>>,
    /// Its borrowed room, if it has any.
    pub(crate) borrowed: Option<BorrowedShadows>,
    pub(crate) head_room: head_room::Meter,
    /// Full and slow disks.
    pub(crate) troubles: Arc<trouble::Troubles>,
    /// The longest mean response that is bearable, in milliseconds; 0: any.
    pub(crate) response_ms: AtomicU64,
    /// Verbs that are being carried out.
    pub(crate) verbs: Mutex<Verbs>,
    /// Orders to the server itself that are being carried out. No hand-over waits for them: one of them orders it.
    pub(crate) orders_begun: Mutex<JoinSet<()>>,
    /// Thrown when the server begins to end.
    pub(crate) ending: Switch,
    /// Whether the clients of an earlier server have their disks again.
    pub(crate) attached: watch::Sender<bool>,
    /// Looks after attached disks, in a home of those.
    pub(crate) porter: Option<Arc<Porter>>,
    /// What the control socket asks of the server itself.
    pub(crate) orders: mpsc::UnboundedSender<ServerOrder>,
    /// A successor serves in its place.
    pub(crate) handed_over: AtomicBool,
    /// How often commands have changed disks.
    pub(crate) changes: AtomicU64,
    /// Who changed what.
    pub(crate) audit: AuditLog,
}

/// Verbs that are being carried out.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    tasks: JoinSet<()>,
    /// Those that processes of their own carry out, which may take hours. A server is handed over all the same, and has
    /// them end when it ends.
    errands: JoinSet<()>,
    held: Option<VerbHold>,
}

/// Why no verb may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerbHold {
    /// Clients are between two servers, and their disks look unused.
    HandOver,
    /// Disks are closed, and stay closed.
    Ending,
}

impl Verbs {
    fn is_busy(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        !self.tasks.is_empty()
    }

    /// How many errands are carried out.
    fn errands(&mut self) -> u64 {
        while self.errands.try_join_next().is_some() {}
        self.errands.len() as u64
    }

    fn must_be_free(&self) -> Result<()> {
        match self.held {
            None => Ok(()),
            Some(VerbHold::HandOver) => {
                Err(Error::conflict("the server is being handed over; try again"))
            }
            Some(VerbHold::Ending) => Err(Error::unavailable("the server is stopping")),
        }
    }
}

impl RunningServer {
    /// Waits until the clients of an earlier server have their disks again, which look unused before.
    pub(crate) async fn all_attached(&self) {
        let _ = self.attached.subscribe().wait_for(|attached| *attached).await;
    }

    /// Whether a verb is being carried out, or an errand.
    pub(crate) fn is_busy(&self) -> bool {
        let mut verbs = self.verbs.lock();
        verbs.is_busy() || verbs.errands() > 0
    }

    /// How many errands are carried out.
    pub(crate) fn errands(&self) -> u64 {
        self.verbs.lock().errands()
    }

    /// The connections whose clients a server that drains waits for.
    pub(crate) fn waited_for(&self) -> u64 {
        let machines = self.vhost_user.as_ref().map_or(0, |server| server.counters().connections);
        self.nbd.counters().connections + machines
    }

    /// Has the gateway take no more clients.
    pub(crate) fn drain_gateway(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.drain();
        }
    }

    /// Notes that a successor serves in its place.
    pub(crate) fn tell_handed_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether a successor serves in its place.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// Notes that a command has changed disks, or may have.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// How often commands have changed disks.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Carries out a verb, in a task of its own.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while the server is handed over,
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it ends.
    pub(crate) fn begin(&self, verb: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut verbs = self.verbs.lock();
        verbs.must_be_free()?;
        // Those that have ended are forgotten.
        verbs.is_busy();
        verbs.tasks.spawn(verb);
        Ok(())
    }

    /// Carries out a verb that is at work in a process of its own: the server can be handed over meanwhile, and has it
    /// end when it ends itself.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub(crate) fn begin_errand(
        &self,
        errand: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let mut verbs = self.verbs.lock();
        verbs.must_be_free()?;
        // Those that have ended are forgotten.
        verbs.errands();
        verbs.errands.spawn(errand);
        Ok(())
    }

    /// Serves who looks by the stream that is to come.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub(crate) fn begin_look<S>(
        &self,
        stream: impl Future<Output = Option<S>> + Send + 'static,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Locked until it has begun: whoever holds the verbs ends all looks behind that.
        let verbs = self.verbs.lock();
        verbs.must_be_free()?;
        self.looks.begin(stream);
        Ok(())
    }

    /// Carries out an order to the server itself, in a task of its own.
    pub(crate) fn begin_order(&self, order: impl Future<Output = ()> + Send + 'static) {
        let mut begun = self.orders_begun.lock();
        while begun.try_join_next().is_some() {}
        begun.spawn(order);
    }

    /// Waits until the orders to the server itself are carried out and noted.
    pub(crate) async fn all_orders_done(&self) {
        let mut begun = std::mem::take(&mut *self.orders_begun.lock());
        while begun.join_next().await.is_some() {}
    }

    /// Lets no verb begin until [`release_verbs`](Self::release_verbs), unless one is being carried
    /// out: then it is `false`.
    pub(crate) fn hold_verbs(&self) -> bool {
        let mut verbs = self.verbs.lock();
        let free = !verbs.is_busy();
        verbs.held = free.then_some(VerbHold::HandOver);
        free
    }

    /// Undoes [`hold_verbs`](Self::hold_verbs).
    pub(crate) fn release_verbs(&self) {
        self.verbs.lock().held = None;
    }

    /// Lets no verb begin any more, but for what is told by a server that was handed over.
    pub(crate) fn end_verbs(&self) {
        self.verbs.lock().held.get_or_insert(VerbHold::Ending);
    }

    /// Takes the verbs and the errands, to wait for their end. No more begin.
    pub(crate) fn take_verbs(&self) -> [JoinSet<()>; 2] {
        self.end_verbs();
        let mut verbs = self.verbs.lock();
        [std::mem::take(&mut verbs.tasks), std::mem::take(&mut verbs.errands)]
    }

    /// Requests that came by iSCSI and vhost-user.
    pub(crate) fn untimed_requests(&self) -> u64 {
        let iscsi = self.iscsi.as_ref().map_or(0, |server| server.counters().commands);
        let vhost_user = self.vhost_user.as_ref().map_or(0, |server| server.counters().requests);
        iscsi + vhost_user
    }

    /// The longest mean response that is bearable, in seconds.
    pub(crate) fn bearable(&self) -> Option<f64> {
        let milliseconds = self.response_ms.load(Ordering::Relaxed);
        (milliseconds > 0).then(|| milliseconds as f64 / 1e3)
    }
}

/// Where the server listens now.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenAddresses {
    pub(crate) nbd: Vec<String>,
    pub(crate) iscsi: Vec<String>,
    /// The directory of its vhost-user sockets.
    pub(crate) vhost_user: Option<String>,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) gateway: Option<SocketAddr>,
}

/// What the control socket asks of the server itself.
pub(crate) enum ServerOrder {
    /// Read the configuration again.
    Reload(ReplySender<Reloaded>),
    /// Take no new clients, and end when the last one has left, or after this time.
    Drain(Option<Duration>),
    /// Hand everything over to the successor that waits, and end.
    HandOver(ReplySender<Draining>),
    /// Start a successor, which will ask for that.
    Succeed(ReplySender<Draining>),
}

/// Who gave an order waits for it here.
type ReplySender<T> = oneshot::Sender<Result<T>>;
