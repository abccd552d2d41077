//! The server: listening, negotiation, the request loop.
//!
//! | module | concept |
//! |---|---|
//! | `exports` | what is offered, to whom: implemented by the daemon |
//! | `listener` | listening sockets |
//! | `passing` | connections on their way to another process |
//! | `stream`, `registered` | a connected socket that wakes for what is waited for |
//! | `tls` | encryption, and clients with certificates |
//! | `admission` | which connections are let in |
//! | `service` | one client, from the greeting to the end of its session |
//! | `handshake` | the negotiation: bytes off the stream, replies onto it |
//! | `options` | what is done with each option |
//! | `negotiations` | who leaves when there are too many that negotiate |
//! | `connection` | the request loop of one connection |
//! | `checked` | a request that was found to be right |
//! | `engine` | from requests to the device and back |
//! | `attachments` | in which order clients attached to an export |
//! | `busy_poll` | for how long the next request is looked for |
//! | `order` | who goes first on a thread |
//! | `input`, `replies`, `spare` | the buffers of a connection |
//! | `remainder` | what is left of a connection's streams |
//! | `budget` | the bytes that all connections together may hold |
//! | `limits`, `pace`, `counters` | what clients may take, how fast, and what they took |
//! | `complaints` | how often the log hears of clients that break the protocol |
//! | `traffic` | requests and bytes |
//! | `latency` | how long requests took |
//! | `observing` | what a session's observer is told |

mod admission;
mod attachments;
mod budget;
mod busy_poll;
mod checked;
mod complaints;
mod connection;
mod counters;
mod engine;
mod exports;
mod handshake;
mod input;
mod latency;
mod limits;
mod listener;
mod negotiations;
mod observing;
mod options;
mod order;
mod pace;
mod passing;
mod registered;
mod remainder;
mod replies;
mod service;
mod spare;
mod stream;
mod tls;
mod traffic;

#[cfg(test)]
mod tests;

pub use busy_poll::{BusyPoll, Looker, Processors, Waits};
pub use counters::{ClientCounters, ClientPace, Counters, ExportCounters};
pub use exports::{
    ExportSummary, Exports, Layered, Peer, Purpose, Session, SessionEnding, Transport,
};
pub use latency::{Latencies, Latency, TimedOperation};
pub use limits::ServerLimits;
pub use listener::{DEFAULT_BACKLOG, Listener};
pub use order::TurnOrder;
pub use pace::Rates;
pub use passing::{Carrier, Interrupted, PassedConnection, Passing, Phase};
pub use remainder::ConnectionRemainder;
pub use stream::{ConnectedSocket, Watch};
pub use tls::{Credentials, Tls};
pub use traffic::Traffic;

use admission::{ConnectedClient, ConnectionSeat};
use attachments::Attachments;
use block::{Error, Result};
use budget::Budget;
use complaints::Complaints;
use counters::CounterRegistry;
use listener::Accepted;
use negotiations::Negotiations;
use passing::ListenerSignals;
use std::collections::HashMap;
use std::future::Future;
use std::num::NonZero;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long accepting rests after it failed, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often it is logged that clients are refused; all are counted.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// A server of some exports. Cheap to clone; all clones share limits and counters.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    exports: Arc<dyn Exports>,
    /// Each connection keeps those it began with.
    limits: Mutex<Arc<ServerLimits>>,
    registry: CounterRegistry,
    budget: Arc<Budget>,
    processors: Processors,
    negotiations: Negotiations,
    attachments: Arc<Attachments>,
    complaints: Complaints,
    /// The clients that have a connection.
    callers: Mutex<HashMap<String, ConnectedClient>>,
}

impl Server {
    /// A server of `exports`.
    pub fn new(exports: Arc<dyn Exports>, limits: ServerLimits) -> Self {
        let budget = Budget::new(limits.budget());
        let registry = CounterRegistry::new(limits.client_rates);
        let limits = Mutex::new(Arc::new(limits));
        let (callers, negotiations) = (Mutex::default(), Negotiations::default());
        let attachments = Arc::default();
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let processors = Processors::new(processors);
        let inner = Inner {
            exports,
            limits,
            registry,
            budget,
            processors,
            negotiations,
            attachments,
            complaints: Complaints::default(),
            callers,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Changes the limits. [`ServerLimits::client_rates`] and [`ServerLimits::total_bytes`] hold for all
    /// clients at once, the rest for those who connect from now on.
    pub fn set_limits(&self, limits: ServerLimits) {
        self.inner.budget.resize(limits.budget());
        self.inner.registry.set_rates(limits.client_rates);
        let part = limits.client_budget();
        *lock(&self.inner.limits) = Arc::new(limits);
        lock(&self.inner.callers).values().for_each(|caller| caller.part.resize(part));
    }

    /// The processors that its connections take to look for requests: who knows what the machine
    /// does says there how many are to spare.
    pub fn processors(&self) -> Processors {
        self.inner.processors.clone()
    }

    /// How fast the client may go that is at the other end: one pace for all front ends.
    pub fn pace(&self, peer: &Peer) -> ClientPace {
        self.inner.registry.pace(&peer.identity)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.inner.registry.snapshot()
    }

    /// The same, but the exports without their latencies: for whoever asks often, as with thousands of
    /// exports most of a look goes to these.
    pub fn totals(&self) -> Counters {
        self.inner.registry.totals()
    }

    /// Serves every client that connects to `listener`, until `stop` is ready; then closes the
    /// listener, finishes the requests in flight, flushes, and closes all sessions, for at most
    /// [`ServerLimits::stop_deadline`]. May be called for several listeners at a time.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when sessions were cut off by the deadline.
    /// While it serves nothing is an error: a failing accept is logged and repeated.
    pub async fn serve(&self, listener: Listener, stop: impl Future<Output = ()>) -> Result<()> {
        let (phase, phases) = watch::channel(Phase::Serving);
        let mut serving = std::pin::pin!(self.serve_phases(listener, phases, None));
        tokio::select! {
            biased;
            () = stop => {}
            served = &mut serving => return served,
        }
        phase.send_replace(Phase::Stopping);
        serving.await
    }

    /// The same, through `phases`: with [`Phase::Closed`] the listener is closed and the clients
    /// that are there are served until they leave, with [`Phase::Passing`] they come out of
    /// `passing`, if it is given.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when sessions were cut off by the deadline.
    /// While it serves nothing is an error: a failing accept is logged and repeated.
    pub async fn serve_phases(
        &self,
        listener: Listener,
        phases: watch::Receiver<Phase>,
        passing: Option<Passing>,
    ) -> Result<()> {
        let told = ListenerSignals::new(phases, passing);
        let mut listens = told.clone();
        let mut clients = JoinSet::new();
        let mut logged = None;
        tracing::info!(address = %listener.address(), "listening");
        loop {
            let keepalive = self.inner.limits().keepalive;
            tokio::select! {
                biased;
                _ = listens.reaches(Phase::Closed) => break,
                Some(ended) = clients.join_next() => self.inner.note_panic(&ended),
                accepted = listener.accept(keepalive) => match accepted {
                    Ok(accepted) => {
                        let tls = listener.tls().cloned();
                        self.admit(accepted, tls, &mut clients, &told, &mut logged);
                    }
                    Err(error) => {
                        tracing::warn!(address = %listener.address(), %error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop((listener, listens));
        self.finish(clients, told).await
    }

    /// Serves clients until they leave or all stops; then stops them.
    async fn finish(&self, mut clients: JoinSet<()>, mut told: ListenerSignals) -> Result<()> {
        told.passes_no_more();
        loop {
            tokio::select! {
                biased;
                _ = told.reaches(Phase::Stopping) => break,
                ended = clients.join_next() => match ended {
                    Some(ended) => self.inner.note_panic(&ended),
                    None => return Ok(()),
                }
            }
        }
        let all = async {
            while let Some(ended) = clients.join_next().await {
                self.inner.note_panic(&ended);
            }
        };
        if tokio::time::timeout(self.inner.limits().stop_deadline, all).await.is_err() {
            let left = clients.len();
            clients.shutdown().await;
            let why = format!("{left} sessions did not end in time and were cut off");
            return Err(Error::unavailable(why));
        }
        Ok(())
    }

    fn admit(
        &self,
        accepted: Accepted,
        tls: Option<Tls>,
        clients: &mut JoinSet<()>,
        told: &ListenerSignals,
        logged: &mut Option<Instant>,
    ) {
        let Accepted { stream, peer } = accepted;
        let place = match ConnectionSeat::take(&self.inner, &peer) {
            Ok(place) => place,
            Err(error) => {
                let now = Instant::now();
                if logged.is_none_or(|logged| now - logged >= TELL_AGAIN) {
                    *logged = Some(now); // a storm must not fill the log
                    tracing::warn!(%peer, error = error.message(), "refused");
                }
                return;
            }
        };
        let told = told.clone();
        clients.spawn(async move {
            if let Err(error) = place.serve(stream, &peer, tls, told).await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }

    /// Serves the first client that connects to `listener`, and no other, until it is done or
    /// `stop` is ready.
    ///
    /// # Errors
    /// Any error from [`serve_one`](Self::serve_one), and when accepting fails.
    pub async fn serve_next(
        &self,
        listener: Listener,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        let keepalive = self.inner.limits().keepalive;
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            accepted = listener.accept(keepalive) => accepted,
        };
        let Accepted { stream, peer } = accepted.map_err(|e| Error::io(listener.address(), e))?;
        let tls = listener.tls().cloned();
        drop(listener);
        let watch = Some(stream.watch());
        self.serve_alone(stream, peer, tls, watch, stop).await
    }

    /// Serves the one client on `stream` (for standard input and output join the two with
    /// [`tokio::io::join`]), until it is done or `stop` is ready.
    ///
    /// # Errors
    /// When there are too many connections, the negotiation fails, the client breaks the protocol
    /// or the connection fails. A client that just closes is no error.
    pub async fn serve_one<S>(
        &self,
        stream: S,
        peer: Peer,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_alone(stream, peer, None, None, stop).await
    }

    /// The same for a client that may, or must, encrypt its connection first.
    ///
    /// # Errors
    /// When there are too many connections, the negotiation fails, the client breaks the protocol
    /// or the connection fails. A client that just closes is no error.
    pub async fn serve_one_with_tls<S>(
        &self,
        stream: S,
        peer: Peer,
        tls: Tls,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_alone(stream, peer, Some(tls), None, stop).await
    }

    async fn serve_alone<S>(
        &self,
        stream: S,
        peer: Peer,
        tls: Option<Tls>,
        watch: Option<Watch>,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut place = ConnectionSeat::take(&self.inner, &peer)?;
        place.watch = watch;
        let (phase, phases) = watch::channel(Phase::Serving);
        let mut told = ListenerSignals::new(phases, None);
        let client = async { place.client(stream, &peer, tls, &mut told).await.map(drop) };
        let mut client = std::pin::pin!(client);
        tokio::select! {
            biased;
            result = &mut client => return result,
            () = stop => {}
        }
        phase.send_replace(Phase::Stopping);
        tokio::time::timeout(self.inner.limits().stop_deadline, client)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the session did not end in time")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn limits(&self) -> Arc<ServerLimits> {
        Arc::clone(&lock(&self.limits))
    }

    fn note_panic(&self, ended: &std::result::Result<(), tokio::task::JoinError>) {
        if ended.as_ref().is_err_and(|e| e.is_panic()) {
            self.registry.panics.fetch_add(1, Relaxed);
            tracing::error!("a connection was lost by a fault of the program");
        }
    }
}
