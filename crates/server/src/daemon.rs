//! The server of a home, from start to graceful stop.

use super::audit::AuditLog;
use super::control;
use super::estate::Estate;
use super::exports::HomeExports;
use super::fronts::{Fronts, Unserved};
use super::handover::{self, Succession};
use super::http::Port;
use super::iscsi::{self, IscsiPlan};
use super::lease::KeptLease;
use super::limits::limits;
use super::listeners::Listeners;
use super::looks::Looks;
use super::notify::notify;
use super::options::ServerOptions;
use super::peers::PeerPort;
use super::prepared::PreparedServer;
use super::record::recorded;
use super::reload::Changeable;
use super::returning::Returning;
use super::running::{RunningServer, ServerOrder};
use super::signals::{SignalAction, Signals, Switch};
use super::throttle::{Throttles, throttled};
use super::upkeep::Upkeep;
use super::{discovery, forecast, head_room, trouble, vhost_user};
use crate::api::Draining;
use crate::borrow::shadow::Shadows;
use crate::client::ControlClient;
use agent::Porter;
use block::fs::FsPath;
use block::lock::LockFile;
use block::{Error, Result};
use engine::boots::{BootHelps, Boots};
use engine::{Config, Engine, Home};
use nbd::server::{PassedConnection, spare_while_idle};
use nbd::{Exports, Server};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

/// How often idle disks are looked for.
const TICK: Duration = Duration::from_secs(1);

/// How long what carries an encrypted connection has to send the last bytes when the server ends.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// How long a server that is told to end while it starts may take to get ready, and then end in order.
const LAST_STEP: Duration = Duration::from_secs(2);

/// How long a server drains that was given no time.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Serves a home until a signal stops it.
///
/// # Errors
/// When it cannot start, or when a disk could not be closed properly.
pub async fn run(home: &Home, config: Config, options: ServerOptions) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // In a task of its own: also where opening a store blocks its thread, a signal is heard.
    let mut starting = JoinSet::new();
    let home = home.clone();
    starting.spawn(async move { Daemon::start(&home, config, options).await });
    let started = tokio::select! {
        started = starting.join_next() => started,
        () = signals.stop() => {
            // One that is about to be ready ends in order.
            let Ok(started) = tokio::time::timeout(LAST_STEP, starting.join_next()).await else {
                tracing::warn!("stopped before it was ready: the store, or a source, does not answer");
                return Ok(ExitCode::SUCCESS);
            };
            return daemon_of(started)?.stop(StopReason::Asked, &mut signals).await;
        }
    };
    let mut daemon = daemon_of(started)?;
    let end = daemon.serve(&mut signals).await;
    daemon.stop(end, &mut signals).await
}

/// What came of starting.
fn daemon_of(started: Option<std::result::Result<Result<Daemon>, JoinError>>) -> Result<Daemon> {
    match started {
        Some(Ok(started)) => started,
        Some(Err(e)) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        _ => Err(Error::internal("the start of the server was lost")),
    }
}

/// A server that clients can connect to.
struct Daemon {
    server: Changeable,
    fronts: Fronts,
    lease: KeptLease,
    upkeep: Upkeep,
    /// Stops what runs beside the listeners.
    stop: Switch,
    /// Until the very end: who gives an order meanwhile waits, rather than be told of a fault.
    ordered: mpsc::UnboundedReceiver<ServerOrder>,
    /// Until the very end: whoever asked for a successor hears what became of it.
    succession: Succession,
    /// It takes no new clients, and ends at this moment.
    draining: Option<Instant>,
    /// It has no listeners any more, nor clients of theirs.
    has_drained: bool,
    shadows: Option<Shadows>,
    lock: LockFile,
}

/// Why a server ends.
enum StopReason {
    /// It was told to, or has drained.
    Asked,
    /// It cannot go on.
    Failed(Error),
    /// Another process has its clients.
    HandedOver(Option<u32>),
}

/// What a server takes before it serves: from the one that it follows, or for itself.
struct Takeover {
    prepared: PreparedServer,
    clients: Vec<PassedConnection>,
    lock: LockFile,
    shadows: Option<Shadows>,
    iscsi: Option<iscsi::BoundIscsi>,
}

impl Takeover {
    /// Takes the home. Without its `lock` there is a server to follow.
    ///
    /// # Errors
    /// Any error from what is taken; a server to follow goes on then.
    async fn take(
        home: &Home,
        config: &Config,
        options: &ServerOptions,
        lock: Option<LockFile>,
        plan: Option<IscsiPlan>,
    ) -> Result<Self> {
        let prepare = async |estate: &mut Estate| {
            PreparedServer::new(home, config, options, estate).await //
        };
        let borrow = async || match &options.borrow {
            Some(wanted) => Shadows::borrow(wanted).await.map(Some),
            None => Ok(None),
        };
        let followed = match &lock {
            Some(_) => None,
            None => handover::take_over(home, prepare).await?,
        };
        if let Some((prepared, clients, lock)) = followed {
            let shadows = borrow().await?;
            let iscsi = match plan {
                Some(plan) => plan.bind().await.map(Some).unwrap_or_else(|e| {
                    // The clients that were taken over go on.
                    tracing::error!(error = e.message(), "iSCSI is not served");
                    None
                }),
                None => None,
            };
            return Ok(Self { prepared, clients, lock, shadows, iscsi });
        }
        let lock = match lock {
            Some(lock) => lock,
            None => home.lock()?, // the one to follow has ended
        };
        let shadows = borrow().await?;
        // First: whoever can connect by NBD finds the same server by iSCSI.
        let iscsi = match plan {
            Some(plan) => Some(plan.bind().await?),
            None => None,
        };
        let mut prepared = prepare(&mut Estate::default()).await?;
        prepared.control.publish()?;
        Ok(Self { prepared, clients: Vec::new(), lock, shadows, iscsi })
    }
}

/// Fails when a recording that the user named exists.
fn must_be_new(trace: Option<&Path>) -> Result<()> {
    match trace.filter(|path| path.exists()) {
        None => Ok(()),
        Some(path) => Err(Error::conflict(format!(
            "{}: is there already, and a recording begins a file of its own; move it away, or set \
             trace.dir",
            path.display()
        ))),
    }
}

impl Daemon {
    /// Opens everything, and serves. What can fail comes before an earlier server lets go of everything.
    ///
    /// # Errors
    /// Why it cannot start; then everything is let go of again, the other front ends first and the home's lock behind
    /// what is guarded by it.
    async fn start(home: &Home, config: Config, options: ServerOptions) -> Result<Self> {
        must_be_new(options.trace.as_deref())?;
        let follows = options.take_over && ControlClient::connect(home).await?.is_some();
        let lock = if follows { None } else { Some(home.lock()?) };
        let engine = Engine::prepare(home, &config, options.store_use()).await?;
        let throttles = Throttles::new(&config.throttle, options.throttle.as_ref())?;
        let plan = IscsiPlan::new(home.dir(), &config, &options.listen.under(&config)).await?;
        let taken = Takeover::take(home, &config, &options, lock, plan).await?;
        // Dropped in reverse order on a failure.
        let Takeover { prepared, clients, lock, shadows, iscsi } = taken;
        let PreparedServer { bound, http, gateway, security, control, recording, reserve } =
            prepared;
        let engine = engine.open(shadows.as_ref().map(Shadows::room));
        let passing = gateway.as_ref().map(|port| port.gateway(home, &engine, &security));
        let passing = passing.map(|it| unless_clients_go_on(it, &clients, "there is no gateway"));
        let passing = passing.transpose()?.flatten();
        let boots = Arc::new(Boots::new(Arc::clone(&engine), BootHelps::of(&config.serve)));
        let default = options.default_export.clone();
        let exports = HomeExports::new(Arc::clone(&engine), default, Arc::clone(&boots));
        let exports = throttled(throttles.as_ref(), Arc::new(exports));
        let returning = Arc::new(Returning::new(recorded(recording.as_ref(), exports)));
        // Before the other front ends: their clients could take the disks of those that were passed.
        returning.expect(&clients);
        let exports = security.guard(Arc::clone(&returning) as _, options.default_export.clone());
        let (nbd, looks) = servers(&exports, &config);
        let iscsi = iscsi.map(|bound| bound.serve(Arc::clone(&exports), nbd.clone()));
        let vhost_user = match options.vhost_user_dir(home, &config) {
            Some(dir) => {
                let (at, disks, processors) = (home.disks(), &engine.disks, nbd.processors());
                let started =
                    vhost_user::Front::start(dir, at, disks, exports, processors, &config);
                unless_clients_go_on(started.await, &clients, "vhost-user is not served")?
            }
            None => None,
        };
        let fronts = Fronts { iscsi, vhost_user, unserved: Unserved::default() };
        let (orders, ordered) = mpsc::unbounded_channel();
        let (stop, others) = (Switch::new(), JoinSet::new());
        let porter = porter(home, &config, &engine, Arc::clone(&boots));
        let peers = PeerPort::open(home, &config, &engine, porter.as_deref()).await;
        let running = Arc::new(RunningServer {
            home: home.clone(),
            engine: Arc::clone(&engine),
            boots,
            nbd,
            looks,
            iscsi: fronts.iscsi.as_ref().map(iscsi::Front::server),
            vhost_user: fronts.vhost_user.as_ref().map(vhost_user::Front::server),
            gateway: passing,
            places: Mutex::default(),
            started: Instant::now(),
            recording,
            throttles,
            borrowed: shadows.as_ref().map(Shadows::told),
            head_room: head_room::Meter::default(),
            troubles: Arc::default(),
            response_ms: AtomicU64::new(config.serve.response_ms),
            verbs: Mutex::default(),
            orders_begun: Mutex::default(),
            ending: stop.clone(),
            attached: watch::Sender::new(clients.is_empty()),
            porter,
            orders,
            handed_over: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            audit: AuditLog::of(home),
        });
        configure(&engine, &config);
        let lease = lease(&engine, &config, (follows, options.for_machines)).await?;
        drop(reserve);
        let socket = http.as_ref().map(Port::listen).transpose()?;
        let listeners = Listeners::start(&running.nbd, bound, &security, &returning, clients)?;
        let mut server =
            Changeable { config, options, security, running, listeners, http, gateway, others };
        if let (Some(port), Some(socket)) = (&server.http, socket) {
            port.serve(socket, &server.running, &server.security, &mut server.others)?;
        }
        if let (Some(port), Some(passing)) = (&server.gateway, &server.running.gateway) {
            port.serve(passing, &mut server.others)?;
        }
        work_beside(&mut server, control.into_listener(), peers, &stop);
        server.tell_places();
        fronts.tell(&server.running);
        tracing::info!(home = %home.dir().display(), pid = std::process::id(), "ready");
        notify("READY=1");
        Ok(Self {
            server,
            fronts,
            lease,
            upkeep: Upkeep::new(engine),
            stop,
            ordered,
            succession: Succession::default(),
            draining: None,
            has_drained: false,
            shadows,
            lock,
        })
    }

    /// Serves until it is to end.
    async fn serve(&mut self, signals: &mut Signals) -> StopReason {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                asked = signals.next() => match asked {
                    SignalAction::Stop => return StopReason::Asked,
                    SignalAction::Reload => tokio::select! {
                        // What is wrong is in the log.
                        _ = self.server.reload() => {}
                        () = signals.stop() => return StopReason::Asked,
                    },
                },
                Some(order) = self.ordered.recv() => {
                    if let Some(end) = self.obey(order, signals).await {
                        return end;
                    }
                }
                () = self.succession.failed() => {}
                ended = self.server.listeners.ended(), if !self.has_drained => match ended {
                    Some(Ok(())) => {}
                    Some(Err(e)) => return StopReason::Failed(e),
                    None if self.draining.is_some() => self.has_drained = true,
                    None => {
                        return StopReason::Failed(Error::internal("all listeners ended; see the log"));
                    }
                },
                // Only now: virtual machines are waited for, too.
                () = self.fronts.ended(), if self.has_drained => return StopReason::Asked,
                Some(ended) = self.server.others.join_next() => if let Err(e) = ended {
                    return StopReason::Failed(Error::internal("a listener panicked").with_source(e));
                },
                () = tokio::time::sleep_until(self.draining.unwrap_or_else(Instant::now)),
                    if self.draining.is_some() => return StopReason::Asked,
                _ = tick.tick() => {
                    let idle = Duration::from_secs(self.server.config.serve.idle_seconds);
                    self.upkeep.tick(idle, &self.server.running);
                    self.fronts.retry(&self.server.running).await;
                }
            }
        }
    }

    /// Does what the control socket asks for; says why the server is to end if it is.
    async fn obey(&mut self, order: ServerOrder, signals: &mut Signals) -> Option<StopReason> {
        match order {
            ServerOrder::Reload(answer) => tokio::select! {
                reloaded = self.server.reload() => {
                    let _ = answer.send(reloaded);
                }
                () = signals.stop() => return Some(StopReason::Asked),
            },
            ServerOrder::Drain(patience) => {
                let connections = self.server.running.waited_for();
                tracing::info!(connections, "draining: no new clients");
                self.draining = Some(Instant::now() + patience.unwrap_or(FOR_EVER));
                self.server.listeners.close();
                self.server.running.drain_gateway();
                self.fronts.drain(&self.server.running).await;
            }
            ServerOrder::Succeed(answer) => self.succession.start(answer).await,
            ServerOrder::HandOver(answer) => {
                let handed = self.hand_over().await;
                let successor = handed.as_ref().ok().map(|handed| handed.successor);
                let _ = answer.send(handed);
                return successor.map(StopReason::HandedOver);
            }
        }
        None
    }

    /// Hands over what a successor can go on with.
    async fn hand_over(&mut self) -> Result<Draining> {
        if self.shadows.is_some() {
            return Err(Error::conflict(
                "what this server borrowed ends with it (--shadow borrowed): stop it, then start the \
                 other",
            ));
        }
        // First, as their guests are not to be cut off for nothing.
        let successor = self.server.successor().await?;
        // Their sessions hold disks that the successor is to open.
        self.fronts.stop(&self.server.running).await;
        let handed = self.server.hand_over(successor).await;
        match &handed {
            Ok(handed) => {
                self.server.running.tell_handed_over();
                self.succession.done(handed);
            }
            Err(_) if self.draining.is_none() => {
                self.fronts.start_again(&self.server.running).await
            }
            Err(_) => {}
        }
        handed
    }

    /// Finishes what clients were promised, and lets go of the home.
    ///
    /// # Errors
    /// Why it ended, if not because it was asked to;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when a second signal ends it at once; when a disk
    /// could not be closed properly.
    async fn stop(self, end: StopReason, signals: &mut Signals) -> Result<ExitCode> {
        let Self { server, mut fronts, lease, mut upkeep, stop, ordered, shadows, lock, .. } = self;
        let Changeable { running, mut listeners, http, gateway, mut others, .. } = server;
        running.end_verbs();
        // A verb that asked for something waits for an answer, and is itself waited for below.
        drop(ordered);
        match &end {
            // The manager follows it from here.
            StopReason::HandedOver(Some(pid)) => notify(&format!("MAINPID={pid}")),
            StopReason::HandedOver(None) => {}
            StopReason::Asked | StopReason::Failed(_) => notify("STOPPING=1"),
        }
        let handed_over = matches!(end, StopReason::HandedOver(_));
        tracing::info!(connections = running.nbd.counters().connections, "stopping");
        stop.throw();
        if let Some(port) = &http {
            port.close();
        }
        running.drain_gateway();
        // Where encrypted connections are carried, this process may live for long: it listens nowhere meanwhile.
        drop((http, gateway));
        let finish = async {
            // Clients that were passed have left already, and are another's.
            listeners.stop();
            tokio::join!(listeners.all_ended(), fronts.stop(&running));
            if !handed_over {
                let _ = tokio::time::timeout(LAST_BYTES, listeners.all_carried()).await;
            }
            while others.join_next().await.is_some() {}
            running.all_orders_done().await;
            upkeep.finish().await;
            let closed = finish(&running).await;
            match handed_over {
                false => lease.end().await,
                true => lease.leave().await,
            }
            closed
        };
        // Nobody asked one that was followed to end: the first signal does.
        let mut is_asked = !handed_over;
        let hurried = async {
            if !is_asked {
                signals.stop().await;
                is_asked = true;
            }
            signals.stop().await;
        };
        let (result, at_once) = tokio::select! {
            result = finish => (result, false),
            () = hurried => {
                tracing::warn!("stopped at once by a second signal; nothing flushed is lost");
                (Err(Error::unavailable("stopped at once by a second signal")), true)
            }
        };
        if !handed_over {
            let _ = FsPath::from(&*running.home.control()).remove_synced();
        }
        drop(lock);
        if let StopReason::Failed(failed) = end {
            return Err(failed);
        }
        let ended = match shadows {
            Some(shadows) if result.is_ok() => shadows.end().await,
            _ => Ok(()),
        };
        if handed_over && !at_once {
            // Encrypted connections are carried from here to where they are served now, and cached;
            // also when a disk did not close well, which may be another client's.
            if let Err(e) = result.as_ref().and(ended.as_ref()) {
                tracing::error!(error = e.message(), "not all was closed well");
            }
            if let Err(e) = running.engine.change_cache(Some(0), None).await {
                tracing::warn!(error = e.message(), "the cache is not given back");
            }
            if !is_asked {
                tokio::select! {
                    () = listeners.all_carried() => {}
                    () = signals.stop() => {}
                }
            }
        }
        result?;
        ended?;
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// The lease of the server on its disks: gone on with where it follows another one.
///
/// # Errors
/// Any error from [`KeptLease::start`].
async fn lease(
    engine: &Arc<Engine>,
    config: &Config,
    (follows, for_machines): (bool, bool),
) -> Result<KeptLease> {
    let time = Duration::from_secs(config.serve.lease_seconds);
    Ok(match follows {
        true => KeptLease::go_on(engine, time).await,
        false if for_machines || config.attach.is_some() => {
            KeptLease::without_waiting(engine, time).await
        }
        false => KeptLease::start(engine, time).await?,
    })
}

/// Starts what works beside the listeners until `stop`: the control socket, what looks after the cache, the processors
/// and the disks, what is given to peers, and the announcement of the server.
fn work_beside(
    server: &mut Changeable,
    control: tokio::net::UnixListener,
    peers: Option<PeerPort>,
    stop: &Switch,
) {
    let peers_at = peers.as_ref().map(PeerPort::address);
    if server.options.announce || server.config.serve.announce || peers_at.is_some() {
        announce(server, peers_at, stop);
    }
    let Changeable { running, listeners, others, .. } = server;
    let (for_verbs, attached) = (Arc::clone(running), listeners.attached());
    others.spawn(async move {
        attached.await;
        for_verbs.attached.send_replace(true);
    });
    others.spawn(control::serve(control, Arc::clone(running), stop.clone()));
    others.spawn(forecast::follow(Arc::clone(&running.engine.cache), stop.clone()));
    others.spawn(spare_while_idle(running.nbd.processors(), stop.wait()));
    let (troubles, engine) = (Arc::clone(&running.troubles), Arc::clone(&running.engine));
    others.spawn(trouble::follow(troubles, engine, stop.clone()));
    if let Some(porter) = &running.porter {
        let stop = stop.clone();
        others.spawn(Arc::clone(porter).follow(async move { stop.wait().await }));
    }
    if let Some(peers) = peers {
        let stop = stop.clone();
        others.spawn(peers.serve(async move { stop.wait().await }));
    }
}

/// Announces the server in its network until `stop`, and that it is gone, unless another one follows.
fn announce(server: &mut Changeable, peers: Option<SocketAddr>, stop: &Switch) {
    let (running, stop) = (Arc::clone(&server.running), stop.wait());
    server.others.spawn(async move {
        let ended = async {
            stop.await;
            !running.is_handed_over()
        };
        discovery::announce(&running, peers, ended).await;
    });
}

/// What was made; nothing, with the failure logged, where clients that were taken over go on without it.
///
/// # Errors
/// The failure, where there are no such clients.
fn unless_clients_go_on<T>(
    made: Result<T>,
    clients: &[PassedConnection],
    without: &str,
) -> Result<Option<T>> {
    match made {
        Err(e) if !clients.is_empty() => {
            tracing::error!(error = e.message(), "{without}");
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// Who serves the exports to clients, and to those who look at them.
fn servers(exports: &Arc<dyn Exports>, config: &Config) -> (Server, Looks) {
    let nbd = Server::new(Arc::clone(exports), limits(config));
    (nbd, Looks::new(Arc::clone(exports), limits(config)))
}

/// Tells an open home what its configuration says of it.
fn configure(engine: &Engine, config: &Config) {
    engine.disks.limit_private_bytes(config.limits.disk_space.0);
    engine.call_slow(Duration::from_millis(config.serve.slow_ms));
}

/// Who looks after attached disks, in a home of those.
fn porter(
    home: &Home,
    config: &Config,
    engine: &Arc<Engine>,
    boots: Arc<Boots>,
) -> Option<Arc<Porter>> {
    config.attach.as_ref().map(|attach| Porter::new(home, &config.store, engine, boots, attach))
}

/// Ends the recording, finishes the verbs, closes the disks.
async fn finish(running: &RunningServer) -> Result<()> {
    if let Some(recording) = &running.recording {
        recording.finish().await;
    }
    let verbs = running.take_verbs();
    running.looks.end().await;
    for mut some in verbs {
        while some.join_next().await.is_some() {}
    }
    running.engine.open.close_for_good().await
}
