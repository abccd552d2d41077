//! The server of a home, from start to graceful stop.

use super::boots::BootHelps;
use super::exports::HomeExports;
use super::handover::{self, Estate, Succession};
use super::http::Port;
use super::iscsi::{Front, Plan};
use super::lease::Lease;
use super::listeners::Listeners;
use super::notify::notify;
use super::prepared::Prepared;
use super::record::{Recording, recorded};
use super::reload::Changeable;
use super::returning::Returning;
use super::signals::{Asked, Signals, Switch};
use super::throttle::{Throttles, throttled};
use super::{forecast, head_room, limits, listen, spare, strain};
use crate::borrow::shadow::{Shadows, Wanted};
use crate::control::{
    self,
    api::{Draining, Reloaded},
    client::Client,
};
use block::fs::FsPath;
use block::{Error, Result};
use engine::Config;
use engine::config::place::Place;
use engine::config::throttle::ThrottleRule;
use engine::home::Home;
use engine::{Engine, Use};
use gateway::Gateway;
use nbd::Server;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// How often idle disks are looked for.
const TICK: Duration = Duration::from_secs(1);
/// Rounds of closing them that go on at a time: those that began before wait for hanging storage.
const CLOSINGS: usize = 16;

/// How long what carries an encrypted connection has to send the last bytes when the server ends.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Head-room is looked at once in so many of them.
const HEAD_ROOM_TICKS: u64 = 5;

/// How long a server drains that was given no time.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What the user asked for, on top of the configuration.
pub struct Options {
    /// The configuration file, to read it again.
    pub config_path: PathBuf,
    /// Changes the log level when the configuration is read again; `None` when the user has fixed it.
    pub change_log_level: Option<fn(&str) -> Result<()>>,
    /// Instead of the HTTP port of the configuration.
    pub http: Option<Place>,
    /// Instead of the gateway's address of the configuration.
    pub gateway: Option<String>,
    /// Where to listen.
    pub listen: listen::Asked,
    /// What a client gets that names no export.
    pub default_export: Option<String>,
    /// Where to record what clients ask, whatever the configuration says.
    pub trace: Option<PathBuf>,
    /// Where ephemeral disks keep their private blocks, when not in the home.
    pub borrow: Option<Wanted>,
    /// What exports are as slow as that no rule of the configuration is for.
    pub throttle: Option<ThrottleRule>,
    /// Follow the server that runs, if one does.
    pub take_over: bool,
}

/// A running server, as its HTTP handlers see it.
pub(crate) struct Running {
    pub(crate) home: Home,
    pub(crate) engine: Arc<Engine>,
    pub(crate) nbd: Server,
    /// When it serves iSCSI, too.
    pub(crate) iscsi: Option<iscsi::Server>,
    /// When its store is open to others.
    pub(crate) gateway: Option<Arc<Gateway>>,
    pub(crate) places: Mutex<Places>,
    pub(crate) started: Instant,
    pub(crate) recording: Option<Recording>,
    pub(crate) throttles: Option<Arc<Throttles>>,
    pub(crate) head_room: head_room::Meter,
    /// Full and slow disks.
    pub(crate) troubles: Arc<strain::Troubles>,
    /// The longest mean response that is bearable, in milliseconds; 0: any.
    pub(crate) response_ms: AtomicU64,
    /// Verbs that are being carried out.
    pub(crate) verbs: Mutex<Verbs>,
    /// Whether the clients of an earlier server have their disks again.
    pub(crate) attached: watch::Sender<bool>,
    /// What the control socket asks of the server itself.
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

/// Verbs that are being carried out.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    tasks: JoinSet<()>,
    /// None may begin: clients are between two servers, and their disks look unused.
    held: bool,
}

impl Verbs {
    fn is_busy(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        !self.tasks.is_empty()
    }
}

impl Running {
    /// Waits until the clients of an earlier server have their disks again, which look unused before.
    pub(crate) async fn all_attached(&self) {
        let _ = self.attached.subscribe().wait_for(|attached| *attached).await;
    }

    /// Whether a verb is being carried out.
    pub(crate) fn is_busy(&self) -> bool {
        self.verbs.lock().is_busy()
    }

    /// Has the status tell where iSCSI is served.
    pub(crate) fn tell_iscsi(&self, front: Option<&Front>) {
        self.places.lock().iscsi = front.map(Front::addresses).unwrap_or_default();
    }

    /// Has the gateway take no more clients.
    pub(crate) fn drain_gateway(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.drain();
        }
    }

    /// Carries out a verb, in a task of its own.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while the server is handed over.
    pub(crate) fn begin(&self, verb: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut verbs = self.verbs.lock();
        if verbs.held {
            return Err(Error::conflict("the server is being handed over; try again"));
        }
        // Those that have ended are forgotten.
        verbs.is_busy();
        verbs.tasks.spawn(verb);
        Ok(())
    }

    /// Lets no verb begin until [`release_verbs`](Self::release_verbs), unless one is being carried
    /// out: then it is `false`.
    pub(crate) fn hold_verbs(&self) -> bool {
        let mut verbs = self.verbs.lock();
        verbs.held = !verbs.is_busy();
        verbs.held
    }

    /// Undoes [`hold_verbs`](Self::hold_verbs).
    pub(crate) fn release_verbs(&self) {
        self.verbs.lock().held = false;
    }

    /// Takes the verbs, to wait for their end.
    pub(crate) fn take_verbs(&self) -> JoinSet<()> {
        std::mem::take(&mut self.verbs.lock().tasks)
    }

    /// The longest mean response that is bearable, in seconds.
    pub(crate) fn bearable(&self) -> Option<f64> {
        let milliseconds = self.response_ms.load(Ordering::Relaxed);
        (milliseconds > 0).then(|| milliseconds as f64 / 1e3)
    }
}

/// Where the server listens now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    pub(crate) nbd: Vec<String>,
    pub(crate) iscsi: Vec<String>,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) gateway: Option<SocketAddr>,
}

/// What the control socket asks of the server itself.
pub(crate) enum Order {
    /// Read the configuration again.
    Reload(Answer<Reloaded>),
    /// Take no new clients, and end when the last one has left, or after this time.
    Drain(Option<Duration>),
    /// Hand everything over to the successor that waits, and end.
    HandOver(Answer<Draining>),
    /// Start a successor, which will ask for that.
    Succeed(Answer<Draining>),
}

/// Who gave an order waits for it here.
type Answer<T> = oneshot::Sender<Result<T>>;

/// Serves a home until a signal stops it.
///
/// # Errors
/// When it cannot start, or when a disk could not be closed properly.
pub async fn run(home: &Home, config: Config, options: Options) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // Before a running server lets go of everything.
    if let Some(path) = options.trace.as_ref().filter(|path| path.exists()) {
        return Err(Error::conflict(format!(
            "{}: is there already, and a recording begins a file of its own; move it away, or set \
             trace.dir",
            path.display()
        )));
    }
    let follows = options.take_over && Client::connect(home).await?.is_some();
    let lock = if follows { None } else { Some(home.lock()?) };
    // What can fail comes before an earlier server lets go of everything.
    let engine = Engine::prepare(home, &config, Use::Server).await?;
    let throttles = Throttles::new(&config.throttle, options.throttle.as_ref())?;
    let plan = Plan::new(home.dir(), &config, &options.listen.under(&config)).await?;
    let prepare = async |estate: &mut Estate| {
        Prepared::new(home, &config, &options, estate).await //
    };
    let borrow = async || match &options.borrow {
        Some(wanted) => Shadows::borrow(wanted).await.map(Some),
        None => Ok(None),
    };
    let taken = match follows {
        true => handover::take_over(home, prepare).await?,
        false => None,
    };
    let (prepared, clients, lock, shadows, iscsi) = match taken {
        Some((prepared, clients, lock)) => {
            let shadows = borrow().await?;
            let iscsi = match plan {
                Some(plan) => plan.bind().await.map(Some).unwrap_or_else(|e| {
                    // The clients that were taken over go on.
                    tracing::error!(error = e.message(), "iSCSI is not served");
                    None
                }),
                None => None,
            };
            (prepared, clients, lock, shadows, iscsi)
        }
        None => {
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
            (prepared, Vec::new(), lock, shadows, iscsi)
        }
    };
    let Prepared { bound, http, gateway, security, control, recording, reserve } = prepared;
    let engine = engine.open(shadows.as_ref().map(Shadows::room));
    let passing = match gateway.as_ref().map(|port| port.gateway(home, &engine, &security)) {
        Some(Err(e)) if !clients.is_empty() => {
            // The clients that were taken over go on.
            tracing::error!(error = e.message(), "there is no gateway");
            None
        }
        passing => passing.transpose()?,
    };
    let exports = HomeExports::new(
        Arc::clone(&engine),
        options.default_export.clone(),
        BootHelps::of(&config.serve),
    );
    let exports = throttled(throttles.as_ref(), Arc::new(exports));
    let exports = recorded(recording.as_ref(), exports);
    let returning = Arc::new(Returning::new(exports));
    let exports = security.guard(Arc::clone(&returning) as _, options.default_export.clone());
    let mut iscsi = iscsi.map(|bound| bound.serve(Arc::clone(&exports)));
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let running = Arc::new(Running {
        home: home.clone(),
        engine: Arc::clone(&engine),
        nbd: Server::new(exports, limits(&config)),
        iscsi: iscsi.as_ref().map(Front::server),
        gateway: passing,
        places: Mutex::default(),
        started: Instant::now(),
        recording,
        throttles,
        head_room: head_room::Meter::default(),
        troubles: Arc::default(),
        response_ms: AtomicU64::new(config.serve.response_ms),
        verbs: Mutex::default(),
        attached: watch::Sender::new(clients.is_empty()),
        orders,
    });
    engine.disks.limit_private_bytes(config.limits.disk_space.0);
    engine.call_slow(Duration::from_millis(config.serve.slow_ms));

    let lease = Duration::from_secs(config.serve.lease_seconds);
    let lease = match follows {
        true => Lease::go_on(&engine, lease).await,
        false => Lease::start(&engine, lease).await?,
    };
    drop(reserve);
    let http_socket = http.as_ref().map(Port::listen).transpose()?;
    let stop = Switch::new();
    let mut others: JoinSet<()> = JoinSet::new();
    let listeners = Listeners::start(&running.nbd, bound, &security, &returning, clients)?;
    let (for_verbs, attached) = (Arc::clone(&running), listeners.attached());
    others.spawn(async move {
        attached.await;
        for_verbs.attached.send_replace(true);
    });
    if let (Some(port), Some(socket)) = (&http, http_socket) {
        port.serve(socket, &running, &security, &mut others)?;
    }
    if let (Some(port), Some(passing)) = (&gateway, &running.gateway) {
        port.serve(passing, &mut others)?;
    }
    let (for_control, stop_control) = (Arc::clone(&running), stop.clone());
    others.spawn(async move {
        control::server::serve(control.into_listener(), for_control, stop_control).await;
    });
    others.spawn(forecast::follow(Arc::clone(&engine.cache), stop.clone()));
    others.spawn(spare::follow(running.nbd.processors(), stop.clone()));
    let troubles = Arc::clone(&running.troubles);
    others.spawn(strain::follow(troubles, Arc::clone(&engine), stop.clone()));
    tracing::info!(home = %home.dir().display(), pid = std::process::id(), "ready");
    notify("READY=1");

    let mut server = Changeable {
        config,
        options,
        security,
        running: Arc::clone(&running),
        listeners,
        http,
        gateway,
        others,
    };
    server.tell_places();
    running.tell_iscsi(iscsi.as_ref());
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut draining, mut succession, mut successor) = (None, Succession::default(), None);
    let mut ticks = 0u64;
    // Beside the loop: a disk whose storage hangs keeps neither signals waiting nor other disks open.
    let mut closing = JoinSet::new();
    let (mut noting, mut taking_room) = (JoinSet::new(), JoinSet::new());
    let failed = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break None,
                Asked::Reload => tokio::select! {
                    // What is wrong is in the log.
                    _ = server.reload() => {}
                    () = signals.stop() => break None,
                },
            },
            Some(order) = ordered.recv() => match order {
                Order::Reload(answer) => tokio::select! {
                    reloaded = server.reload() => {
                        let _ = answer.send(reloaded);
                    }
                    () = signals.stop() => break None,
                },
                Order::Drain(patience) => {
                    let connections = running.nbd.counters().connections;
                    tracing::info!(connections, "draining: no new clients");
                    let until = Instant::now() + patience.unwrap_or(FOR_EVER);
                    draining = Some(until);
                    server.listeners.close();
                    running.drain_gateway();
                    stop_iscsi(&running, &mut iscsi).await;
                }
                Order::Succeed(answer) => succession.start(answer),
                Order::HandOver(answer) => {
                    let handed = match shadows {
                        None => {
                            // Its sessions hold disks that the successor is to open.
                            stop_iscsi(&running, &mut iscsi).await;
                            server.hand_over().await
                        }
                        Some(_) => Err(Error::conflict(
                            "what this server borrowed ends with it (--shadow borrowed): stop it, \
                             then start the other",
                        )),
                    };
                    if let Ok(handed) = &handed {
                        succession.done(handed);
                        successor = Some(handed.successor);
                    }
                    let _ = answer.send(handed);
                    if successor.is_none()
                        && draining.is_none()
                        && let Some(front) = &mut iscsi
                    {
                        if let Err(e) = front.start().await {
                            tracing::error!(error = e.message(), "iSCSI is not served any more");
                        }
                        running.tell_iscsi(iscsi.as_ref());
                    }
                    if successor.is_some() {
                        break None;
                    }
                }
            },
            () = succession.failed() => {}
            ended = server.listeners.ended() => match ended {
                Some(Ok(())) => {}
                Some(Err(e)) => break Some(e),
                None if draining.is_some() => break None,
                None => break Some(Error::internal("all listeners ended; see the log")),
            },
            Some(ended) = server.others.join_next() => if let Err(e) = ended {
                break Some(Error::internal("a listener panicked").with_source(e));
            },
            () = tokio::time::sleep_until(draining.unwrap_or_else(Instant::now)),
                if draining.is_some() => break None,
            _ = tick.tick() => {
                let idle = Duration::from_secs(server.config.serve.idle_seconds);
                while closing.try_join_next().is_some() {}
                if closing.len() < CLOSINGS {
                    let engine = Arc::clone(&engine);
                    closing.spawn(async move { engine.open.close_idle(idle).await });
                }
                if ticks.is_multiple_of(HEAD_ROOM_TICKS) {
                    running.head_room.note(&engine, &running.nbd.counters());
                }
                while noting.try_join_next().is_some() {}
                if noting.len() < CLOSINGS {
                    let engine = Arc::clone(&engine);
                    noting.spawn(async move { engine.open.note_all().await });
                }
                if taking_room.try_join_next().is_some() || taking_room.is_empty() {
                    let disks = Arc::clone(&engine.disks);
                    taking_room.spawn(async move { disks.keep_room().await });
                }
                ticks += 1;
            }
        }
    };

    match successor {
        // The manager follows it from here.
        Some(Some(pid)) => notify(&format!("MAINPID={pid}")),
        Some(None) => {}
        None => notify("STOPPING=1"),
    }
    tracing::info!(connections = running.nbd.counters().connections, "stopping");
    stop.throw();
    if let Some(port) = &server.http {
        port.close();
    }
    running.drain_gateway();
    let Changeable { listeners, mut others, .. } = server;
    let mut listeners = listeners;
    let finish = async {
        // Clients that were passed have left already, and are another's.
        listeners.stop();
        tokio::join!(listeners.all_ended(), stop_iscsi(&running, &mut iscsi));
        if successor.is_none() {
            let _ = tokio::time::timeout(LAST_BYTES, listeners.all_carried()).await;
        }
        while others.join_next().await.is_some() {}
        while closing.join_next().await.is_some() {}
        while noting.join_next().await.is_some() {}
        let closed = finish(&running).await;
        match successor {
            None => lease.end().await,
            Some(_) => lease.leave().await,
        }
        closed
    };
    let (result, at_once) = tokio::select! {
        result = finish => (result, false),
        () = signals.stop() => {
            tracing::warn!("stopped at once by a second signal; nothing flushed is lost");
            (Err(Error::unavailable("stopped at once by a second signal")), true)
        }
    };
    if successor.is_none() {
        let _ = FsPath::from(&*home.control()).remove_synced();
    }
    drop(lock);
    if let Some(failed) = failed {
        return Err(failed);
    }
    let ended = match shadows {
        Some(shadows) if result.is_ok() => shadows.end().await,
        _ => Ok(()),
    };
    if successor.is_some() && !at_once {
        // Encrypted connections are carried from here to where they are served now, and cached;
        // also when a disk did not close well, which may be another client's.
        if let Err(e) = result.as_ref().and(ended.as_ref()) {
            tracing::error!(error = e.message(), "not all was closed well");
        }
        if let Err(e) = engine.change_cache(Some(0), None).await {
            tracing::warn!(error = e.message(), "the cache is not given back");
        }
        tokio::select! {
            () = listeners.all_carried() => {}
            () = signals.stop() => {}
        }
    }
    result?;
    ended?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Ends iSCSI sessions and listeners; what had to be cut off is in the log.
async fn stop_iscsi(running: &Running, front: &mut Option<Front>) {
    if let Some(front) = front
        && let Err(e) = front.stop().await
    {
        tracing::warn!(error = e.message(), "iSCSI sessions were cut off");
    }
    running.tell_iscsi(front.as_ref());
}

/// Ends the recording, finishes the verbs, closes the disks.
async fn finish(running: &Running) -> Result<()> {
    if let Some(recording) = &running.recording {
        recording.finish().await;
    }
    let mut verbs = running.take_verbs();
    while verbs.join_next().await.is_some() {}
    running.engine.open.close_all().await
}
