//! The server of a home, from start to graceful stop.

use super::exports::HomeExports;
use super::lease::Lease;
use super::notify::notify;
use super::record::{Recording, recorded};
use super::security::Security;
use super::signals::{Asked, Signals, Switch};
use super::{http, limits, listen};
use crate::borrow::shadow::{Shadows, Wanted};
use crate::config::{self, Config};
use crate::control;
use crate::engine::{Engine, Use};
use crate::home::Home;
use crate::logging;
use block::{Error, Result};
use cache::PolicyKind;
use nbd::{Listener, Server};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// How often idle disks are looked for.
const TICK: Duration = Duration::from_secs(1);

/// How long a server drains that was given no time.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What the user asked for, on top of the configuration.
pub(crate) struct Options {
    /// The configuration file, to read it again.
    pub(crate) config_path: PathBuf,
    /// Whether `--log` overrides the configuration's level.
    pub(crate) log_fixed: bool,
    pub(crate) http: Option<SocketAddr>,
    /// Where to listen.
    pub(crate) listen: listen::Asked,
    /// What a client gets that names no export.
    pub(crate) default_export: Option<String>,
    /// Where to record what clients ask, whatever the configuration says.
    pub(crate) trace: Option<PathBuf>,
    /// Where ephemeral disks keep their private blocks, when not in the home.
    pub(crate) borrow: Option<Wanted>,
}

/// A running server, as its HTTP handlers see it.
pub(crate) struct Running {
    pub(crate) home: Home,
    pub(crate) engine: Arc<Engine>,
    pub(crate) nbd: Server,
    pub(crate) cache_policy: PolicyKind,
    pub(crate) listeners: Vec<String>,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) started: Instant,
    pub(crate) recording: Option<Recording>,
    /// Verbs that are being carried out.
    pub(crate) verbs: Mutex<JoinSet<()>>,
    /// What the control socket asks of the server itself.
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

/// What the control socket asks of the server itself.
pub(crate) enum Order {
    /// Read the configuration again; the keys that need a restart are the answer.
    Reload(oneshot::Sender<Result<Vec<String>>>),
    /// Take no new clients, and end when the last one has left, or after this time.
    Drain(Option<Duration>),
}

/// Serves a home until a signal stops it.
///
/// # Errors
/// When it cannot start, or when a disk could not be closed properly.
pub(crate) async fn run(home: &Home, config: Config, options: Options) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let lock = home.lock()?;
    let shadows = match &options.borrow {
        Some(wanted) => Some(Shadows::borrow(wanted).await?),
        None => None,
    };
    let room = shadows.as_ref().map(Shadows::room);
    let engine = Engine::open_with(home, &config, Use::Server, room).await?;
    let lease = Duration::from_secs(config.serve.lease_seconds);
    let asked = &options.listen;
    let bound = listen::bind(home.dir(), &config.serve.nbd, asked).await?;
    if bound.is_empty() {
        return Err(Error::invalid("nothing to listen on; set serve.nbd or give --nbd"));
    }
    let (security, listeners) = Security::new(home.dir(), &config, asked, bound)?;
    let http_listener = match options.http.or(config.serve.http) {
        Some(address) => {
            listen::check_http(address, asked.insecure)?;
            Some(http::bind(address).await?)
        }
        None => None,
    };
    let control_listener = control::server::bind(home)?;
    let exports = HomeExports::new(
        Arc::clone(&engine),
        options.default_export.clone(),
        config.serve.boot_lists,
    );
    let recording = Recording::wanted(options.trace.as_deref(), &config, Some(home))?;
    let exports = recorded(recording.as_ref(), Arc::new(exports));
    let exports = security.guard(exports, options.default_export.clone());
    let (orders, mut asked) = mpsc::unbounded_channel();
    let running = Arc::new(Running {
        home: home.clone(),
        engine: Arc::clone(&engine),
        nbd: Server::new(exports, limits(&config)),
        cache_policy: config.cache.policy,
        listeners: listeners.iter().map(|listener| listener.address().to_string()).collect(),
        http: http_listener.as_ref().and_then(|listener| listener.local_addr().ok()),
        started: Instant::now(),
        recording,
        verbs: Mutex::default(),
        orders,
    });
    engine.disks.limit_private_bytes(config.limits.disk_space.0);

    let lease = Lease::start(&engine, lease).await?;
    let (stop, drain) = (Switch::new(), Switch::new());
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    tasks.spawn(serve_all(running.nbd.clone(), listeners, drain.clone(), stop.clone()));
    if let Some(listener) = http_listener {
        tracing::info!(address = ?running.http, "listening for HTTP");
        let (running, stop) = (Arc::clone(&running), stop.clone());
        tasks.spawn(async move {
            http::serve(listener, running, stop).await;
            Ok(())
        });
    }
    let (for_control, stop_control) = (Arc::clone(&running), stop.clone());
    tasks.spawn(async move {
        control::server::serve(control_listener, for_control, stop_control).await;
        Ok(())
    });
    tracing::info!(home = %home.dir().display(), pid = std::process::id(), "ready");
    notify("READY=1");

    let mut config = config;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = None;
    let failed = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break None,
                Asked::Reload => {
                    // What is wrong is in the log.
                    let _ = reload(&mut config, &options, &security, &running);
                }
            },
            Some(order) = asked.recv() => match order {
                Order::Reload(answer) => {
                    let _ = answer.send(reload(&mut config, &options, &security, &running));
                }
                Order::Drain(patience) => {
                    let connections = running.nbd.counters().connections;
                    tracing::info!(connections, "draining: no new clients");
                    let until = Instant::now() + patience.unwrap_or(FOR_EVER);
                    draining = Some(until);
                    drain.throw();
                }
            },
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ok(())) if draining.is_some() => break None,
                ended => break Some(ended),
            },
            () = tokio::time::sleep_until(draining.unwrap_or_else(Instant::now)),
                if draining.is_some() => break None,
            _ = tick.tick() => {
                engine.open.close_idle(Duration::from_secs(config.serve.idle_seconds)).await;
            }
        }
    };

    notify("STOPPING=1");
    tracing::info!(connections = running.nbd.counters().connections, "stopping");
    stop.throw();
    let finish = finish(&running, tasks, lease);
    let result = tokio::select! {
        result = finish => result,
        () = signals.stop() => {
            tracing::warn!("stopped at once by a second signal; nothing flushed is lost");
            Err(Error::unavailable("stopped at once by a second signal"))
        }
    };
    let _ = std::fs::remove_file(home.control());
    drop(lock);
    if let Some(ended) = failed {
        ended.map_err(|e| Error::internal("a listener panicked").with_source(e))??;
        return Err(Error::internal("a listener ended by itself; see the log"));
    }
    result?;
    if let Some(shadows) = shadows {
        shadows.end().await?;
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Serves on all listeners. Ends by itself when they are closed by `drain` and all clients have left.
async fn serve_all(
    server: Server,
    listeners: Vec<Listener>,
    drain: Switch,
    stop: Switch,
) -> Result<()> {
    let mut serving = JoinSet::new();
    for listener in listeners {
        let (server, close, stop) = (server.clone(), drain.wait(), stop.wait());
        serving.spawn(async move { server.serve_until(listener, close, stop).await });
    }
    let mut result = Ok(());
    while let Some(ended) = serving.join_next().await {
        let ended = ended.map_err(|e| Error::internal("a listener panicked").with_source(e));
        result = result.and(ended.and_then(|served| served));
    }
    result
}

/// Waits for the clients, finishes the verbs, closes the disks, ends the lease.
async fn finish(running: &Running, mut tasks: JoinSet<Result<()>>, lease: Lease) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(e)) = ended {
            tracing::error!(error = e.message(), "a listener failed");
        }
    }
    if let Some(recording) = &running.recording {
        recording.finish().await;
    }
    let mut verbs = std::mem::take(&mut *running.verbs.lock());
    while verbs.join_next().await.is_some() {}
    let closed = running.engine.open.close_all().await;
    lease.end().await;
    closed
}

/// Reads the configuration and the certificates again and gives the keys that need a restart. Either
/// of them that cannot be read changes nothing.
///
/// # Errors
/// Those of the files.
fn reload(
    config: &mut Config,
    options: &Options,
    security: &Security,
    running: &Running,
) -> Result<Vec<String>> {
    notify("RELOADING=1");
    let mut restart = Vec::new();
    // Also when the configuration is wrong: somebody was revoked.
    let certificates = security.reload_certificates();
    let result = match Config::load(&options.config_path) {
        Ok(new) => {
            if !options.log_fixed
                && let Err(e) = logging::change(&new.log.level)
            {
                tracing::error!(error = e.message(), "the log level stays as it was");
            }
            for (key, changed) in [
                ("store", new.store != config.store),
                ("cache", new.cache != config.cache),
                ("trace", new.trace != config.trace),
                (
                    "limits.total_in_flight",
                    new.limits.total_in_flight != config.limits.total_in_flight,
                ),
                ("serve.nbd", new.serve.nbd != config.serve.nbd),
                ("serve.tls", new.serve.tls != config.serve.tls),
                ("tls", new.tls != config.tls),
                ("serve.http", new.serve.http != config.serve.http),
                ("serve.insecure", new.serve.insecure != config.serve.insecure),
                ("serve.stop_seconds", new.serve.stop_seconds != config.serve.stop_seconds),
                ("serve.boot_lists", new.serve.boot_lists != config.serve.boot_lists),
                ("serve.lease_seconds", new.serve.lease_seconds != config.serve.lease_seconds),
                ("log.format", new.log.format != config.log.format),
            ] {
                if changed {
                    tracing::warn!(key, "changed in the configuration; restart to apply it");
                    restart.push(key.to_owned());
                }
            }
            config.serve.idle_seconds = new.serve.idle_seconds;
            config.limits = config::Limits {
                total_in_flight: config.limits.total_in_flight,
                ..new.limits.clone()
            };
            running.nbd.set_limits(limits(config));
            running.engine.disks.limit_private_bytes(config.limits.disk_space.0);
            security.change_rules(&new);
            tracing::info!(config = %options.config_path.display(), "configuration read again");
            certificates.map(|()| restart)
        }
        Err(e) => {
            tracing::error!(error = e.message(), "the configuration stays as it was");
            Err(e)
        }
    };
    notify("READY=1");
    result
}
