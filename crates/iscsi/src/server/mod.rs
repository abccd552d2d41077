//! The server: listening, logins, sessions.
//!
//! | module | concept |
//! |---|---|
//! | `connection` | one connection from its login to its end |
//! | `session` | the full feature phase: the flow of commands and data |
//! | `tasks` | commands whose data is on its way |
//! | `text` | discovery |
//! | `input` | the bytes that came |
//! | `logins` | who leaves when there are too many that log in |
//! | `places` | how many connections each client has |
//! | `room` | the bytes that commands under way hold |
//! | `busy_poll` | for how long the next command is looked for |
//! | `registry` | which sessions and units there are; reinstatement |

mod busy_poll;
mod connection;
mod input;
mod logins;
mod places;
mod registry;
mod room;
mod session;
mod tasks;
mod text;

#[cfg(test)]
mod tests;

use crate::Targets;
use block::{Error, Result};
use logins::Logins;
use nbd::server::{BusyPoll, Processors};
use places::ClientPlaces;
use registry::{SessionOrder, SessionRegistry};
use room::CommandRoom;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long accepting rests after it failed, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is logged that clients are refused.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Bounds on what initiators may take from a server. Each connection also has fixed ones: 64 commands
/// at a time with 256 KiB of unsolicited data each, and 16 MiB of data that was asked for or is on its
/// way back. All of that together is bounded by [`held_bytes`](Self::held_bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiatorLimits {
    /// Connections at a time by all listeners; more are closed at once. A quarter of them may be in their login: when there are
    /// more, the oldest of them is closed of the address that has the most.
    pub connections: usize,
    /// Connections at a time of one client, which is told apart as [`crate::Initiator::identity`] has it; more are
    /// refused. One that begins a session anew needs no place for it. 0 is no limit, but that a client which has a
    /// quarter of [`connections`](Self::connections) gets no more once half of them are taken.
    pub client_connections: usize,
    /// Bytes that the commands of all sessions may hold at a time, beside 1 MiB for each session; of that
    /// one client has half at the most. What finds no room is answered with TASK SET FULL or BUSY, and its initiator
    /// sends it again.
    pub held_bytes: u64,
    /// Silence until a session ends that is told of targets and uses none.
    pub discovery_silence: Duration,
    /// From the connection to the end of the login.
    pub login_deadline: Duration,
    /// Silence until the peer is probed; one that then stays silent for as long again is dropped.
    pub keepalive: Duration,
    /// Whether a connection looks for the next command before it sleeps, as an NBD connection does.
    pub busy_poll: BusyPoll,
    /// How long a stop waits for initiators to log out and for their commands.
    pub stop_deadline: Duration,
}

impl Default for InitiatorLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            client_connections: 0,
            held_bytes: 1 << 30,
            discovery_silence: Duration::from_secs(60),
            login_deadline: Duration::from_secs(30),
            keepalive: Duration::from_secs(60),
            busy_poll: BusyPoll::Never,
            stop_deadline: Duration::from_secs(10),
        }
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InitiatorCounters {
    /// Connections now.
    pub connections: u64,
    /// Sessions now that use a target.
    pub sessions: u64,
    /// Logins that were refused.
    pub refused: u64,
    /// Commands that were answered.
    pub commands: u64,
    /// Bytes that initiators read.
    pub read_bytes: u64,
    /// Bytes that they sent to be written.
    pub written_bytes: u64,
    /// Commands that were found by busy polling, before the connection slept.
    pub busy_polled: u64,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    sessions: AtomicU64,
    refused: AtomicU64,
    commands: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    busy_polled: AtomicU64,
}

/// A server of some targets. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    targets: Arc<dyn Targets>,
    limits: InitiatorLimits,
    registry: SessionRegistry,
    logins: Logins,
    places: ClientPlaces,
    room: CommandRoom,
    processors: Processors,
    counts: Counts,
}

impl Server {
    /// A server of `targets`, which takes of these processors to look for commands.
    pub fn new(targets: Arc<dyn Targets>, limits: InitiatorLimits, processors: Processors) -> Self {
        let (registry, counts) = (SessionRegistry::default(), Counts::default());
        let logins = Logins::new(limits.connections / 4);
        let places = ClientPlaces::new(limits.client_connections, limits.connections);
        let room = CommandRoom::new(limits.held_bytes);
        let inner = Inner { targets, limits, registry, logins, places, room, processors, counts };
        Self { inner: Arc::new(inner) }
    }

    /// Its limits.
    pub fn limits(&self) -> &InitiatorLimits {
        &self.inner.limits
    }

    /// Whether initiators need a secret now.
    pub fn asks_for_secret(&self) -> bool {
        self.inner.targets.secrets().is_some()
    }

    /// What was counted so far.
    pub fn counters(&self) -> InitiatorCounters {
        let counts = &self.inner.counts;
        InitiatorCounters {
            connections: counts.connections.load(Relaxed),
            sessions: counts.sessions.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            commands: counts.commands.load(Relaxed),
            read_bytes: counts.read_bytes.load(Relaxed),
            written_bytes: counts.written_bytes.load(Relaxed),
            busy_polled: counts.busy_polled.load(Relaxed),
        }
    }

    /// Serves every initiator that connects to `listener` until `stop` is ready; then asks all to log
    /// out, finishes what they have begun, flushes, and closes their sessions, within
    /// [`InitiatorLimits::stop_deadline`].
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when sessions were cut off by the deadline.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<()> {
        let (order, orders) = watch::channel(SessionOrder::Go);
        let mut clients = JoinSet::new();
        let mut told = None;
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = clients.join_next() => note_panic(&ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        self.admit(stream, peer, &orders, &mut clients, &mut told);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accepting an iSCSI connection failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop(listener);
        order.send_replace(SessionOrder::LogOut);
        let all = async {
            while let Some(ended) = clients.join_next().await {
                note_panic(&ended);
            }
        };
        if tokio::time::timeout(self.inner.limits.stop_deadline, all).await.is_err() {
            let left = clients.len();
            clients.shutdown().await;
            let why = format!("{left} iSCSI sessions did not end in time and were cut off");
            return Err(Error::unavailable(why));
        }
        Ok(())
    }

    fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        orders: &watch::Receiver<SessionOrder>,
        clients: &mut JoinSet<()>,
        told: &mut Option<Instant>,
    ) {
        let now = Instant::now();
        let Some(place) = ConnectionPlace::take(&self.inner) else {
            self.inner.counts.refused.fetch_add(1, Relaxed);
            if told.is_none_or(|told| now - told >= TELL_AGAIN) {
                *told = Some(now); // a storm must not fill the log
                tracing::warn!(%peer, "refused: too many iSCSI connections");
            }
            return;
        };
        let orders = orders.clone();
        clients.spawn(async move {
            if let Err(why) = connection::serve(&place.0, stream, peer, orders).await {
                tracing::debug!(%peer, %why, "iSCSI connection ended");
            }
        });
    }
}

fn note_panic(ended: &std::result::Result<(), tokio::task::JoinError>) {
    if ended.as_ref().is_err_and(tokio::task::JoinError::is_panic) {
        tracing::error!("an iSCSI connection was lost by a fault of the program");
    }
}

/// A connection's place among those of all listeners; free again when it is dropped.
struct ConnectionPlace(Arc<Inner>);

impl ConnectionPlace {
    fn take(inner: &Arc<Inner>) -> Option<Self> {
        let most = inner.limits.connections as u64;
        let one_more = |connections| (connections < most).then_some(connections + 1);
        inner.counts.connections.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(inner)))
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Relaxed);
    }
}

/// Counted while it lives.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
