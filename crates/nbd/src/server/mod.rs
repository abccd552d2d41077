//! The server: listening, negotiation, the request loop.
//!
//! | module | concept |
//! |---|---|
//! | `exports` | what is offered, to whom: implemented by the daemon |
//! | `listener` | listening sockets |
//! | `passing` | connections on their way to another process |
//! | `stream`, `registered` | a connected socket that wakes for what is waited for |
//! | `tls` | encryption, and clients with certificates |
//! | `handshake` | the negotiation |
//! | `negotiations` | who leaves when there are too many that negotiate |
//! | `connection` | the request loop of one connection |
//! | `engine` | from requests to the device and back |
//! | `attachments` | in which order clients attached to an export |
//! | `busy_poll` | for how long the next request is looked for |
//! | `order` | who goes first on a thread |
//! | `input`, `replies` | the buffers of a connection |
//! | `budget` | the bytes that all connections together may hold |
//! | `limits`, `pace`, `counters` | what clients may take, how fast, and what they took |
//! | `complaints` | how often the log hears of clients that break the protocol |
//! | `latency` | how long requests took |
//! | `observing` | what a session's observer is told |

mod attachments;
mod budget;
mod busy_poll;
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
mod order;
mod pace;
mod passing;
mod registered;
mod replies;
mod stream;
mod tls;

#[cfg(test)]
mod tests;

pub use busy_poll::{Looker, Processors, Waits};
pub use counters::{ClientCounters, ClientPace, Counters, ExportCounters, Traffic};
pub use exports::{
    ExportSummary, Exports, Layered, Peer, Purpose, Session, SessionEnding, Transport,
};
pub use latency::{Latencies, Latency, TimedOperation};
pub use limits::{BusyPoll, ServerLimits};
pub use listener::{DEFAULT_BACKLOG, Listener};
pub use order::TurnOrder;
pub use pace::Rates;
pub use passing::{Carrier, ConnectionRemainder, Interrupted, PassedConnection, Passing, Phase};
pub use stream::{ConnectedSocket, Watch};
pub use tls::{Credentials, Tls};

use attachments::{Attached, Attachments};
use block::{Device, Error, Result};
use budget::Budget;
use complaints::Complaints;
use connection::{Connection, ConnectionEnd};
use counters::CounterRegistry;
use engine::EngineSetup;
use futures::FutureExt;
use handshake::{Agreed, Channel, NegotiationOutcome};
use listener::Accepted;
use negotiations::{Attended, Negotiation, Negotiations};
use passing::ListenerSignals;
use std::collections::HashMap;
use std::future::Future;
use std::num::NonZero;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
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

    /// The processors that its connections take in order to look for requests: who knows what the machine
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
    /// As [`serve`](Self::serve).
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
    /// As [`serve_one`](Self::serve_one), and when accepting fails.
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
    /// As [`serve_one`](Self::serve_one).
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

/// One connection's place among those that are allowed.
struct ConnectionSeat {
    inner: Arc<Inner>,
    limits: Arc<ServerLimits>,
    seat: Mutex<Option<ClientSeat>>,
    /// It is counted as accepted or refused.
    counted: AtomicBool,
    /// It is another connection's.
    gave_up: Arc<AtomicBool>,
    /// To see that the client leaves, where there is a socket.
    watch: Option<Watch>,
}

/// A client that has a connection.
struct ConnectedClient {
    connections: usize,
    /// What all of them may hold.
    part: Arc<Budget>,
}

/// A connection's place among those of its client.
struct ClientSeat {
    inner: Arc<Inner>,
    caller: String,
    part: Arc<Budget>,
}

impl ConnectionSeat {
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many connections, of all
    /// or of this client.
    fn take(inner: &Arc<Inner>, peer: &Peer) -> Result<Self> {
        let registry = &inner.registry;
        let limits = inner.limits();
        let before = registry.connections.fetch_add(1, Relaxed);
        // Gives it back on drop.
        let (inner, seat) = (Arc::clone(inner), Mutex::default());
        let (counted, gave_up) = (AtomicBool::new(false), Arc::default());
        let place = Self { inner, limits, seat, counted, gave_up, watch: None };
        place.sit_down(peer)?;
        if before >= place.limits.connections as u64 && !place.inherits() {
            place.count_once(|registry| &registry.refused);
            let most = place.limits.connections;
            return Err(Error::unavailable(format!(
                "more than {most} connections: raise the limit"
            )));
        }
        Ok(place)
    }

    /// Whether a connection that keeps the server waiting in its negotiation leaves it its place.
    fn inherits(&self) -> bool {
        let made = self.inner.negotiations.make_room(self.limits.handshake_deadline);
        if made {
            self.inner.registry.connections.fetch_sub(1, Relaxed);
        }
        made
    }

    /// Counts the connection to this client, and to no other any more.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the client has too many.
    fn sit_down(&self, peer: &Peer) -> Result<()> {
        let (seat, connections) = ClientSeat::take(&self.inner, &peer.identity);
        let most = self.limits.client_connections;
        if most > 0 && connections > most {
            self.count_once(|registry| &registry.refused);
            let why = format!("more than {most} connections of one client: raise the limit");
            return Err(Error::unavailable(why));
        }
        *lock(&self.seat) = Some(seat);
        Ok(())
    }

    /// What the client's connections may hold.
    fn part_of_client(&self) -> Arc<Budget> {
        let seat = lock(&self.seat);
        let part = seat.as_ref().map(|seat| Arc::clone(&seat.part));
        part.unwrap_or_else(|| Budget::new(self.limits.client_budget()))
    }

    /// Counts the connection as refused, or as accepted, which it is when no limit can refuse it any more.
    fn count_once(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        if !self.counted.swap(true, Relaxed) {
            self.count(what);
        }
    }

    fn count(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        what(&self.inner.registry).fetch_add(1, Relaxed);
    }

    /// Serves a client from the greeting to the end, or until it can be passed on.
    async fn client<S>(
        &self,
        mut stream: S,
        peer: &Peer,
        tls: Option<Tls>,
        told: &mut ListenerSignals,
    ) -> Result<Option<(S, Interrupted)>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let deadline = Instant::now() + self.limits.handshake_deadline;
        if tls.is_none() {
            self.count_once(|registry| &registry.accepted);
        }
        let channel = match &tls {
            None => Channel::Plain,
            Some(tls) if tls.required => Channel::MustEncrypt,
            Some(_) => Channel::MayEncrypt,
        };
        let step = self.inner.negotiations.begin(self.watch.clone(), &self.gave_up);
        let negotiated = self.negotiate(&mut stream, peer, channel, &step);
        let outcome = self.in_time(negotiated, deadline, peer, &step, told).await?;
        match (outcome, tls) {
            (Some(NegotiationOutcome::Use(agreed)), _) => {
                let agreed = self.keep(step, peer, *agreed).await?;
                self.session(stream, peer, agreed, told).await
            }
            (Some(NegotiationOutcome::StartTls(flags)), Some(tls)) => {
                // In a box: what it takes is not to be paid for by connections without TLS.
                let encrypted = async {
                    let accepted = tls.accept(stream, peer);
                    let accepted = self.in_time(accepted, deadline, peer, &step, told).await?;
                    let Some((mut stream, peer)) = accepted else { return Ok(()) };
                    self.sit_down(&peer)?;
                    let channel = Channel::Encrypted(flags);
                    let negotiated = self.negotiate(&mut stream, &peer, channel, &step);
                    match self.in_time(negotiated, deadline, &peer, &step, told).await? {
                        Some(NegotiationOutcome::Use(agreed)) => {
                            let agreed = self.keep(step, &peer, *agreed).await?;
                            match self.session(stream, &peer, agreed, told).await? {
                                Some((stream, session)) => {
                                    let stall = self.limits.stall_deadline;
                                    told.pass_inside(stream, session, stall)
                                }
                                None => Ok(()),
                            }
                        }
                        outcome => self.part(stream, outcome).await,
                    }
                };
                Box::pin(encrypted).await.map(|()| None)
            }
            (outcome, _) => self.part(stream, outcome).await.map(|()| None),
        }
    }

    async fn negotiate<S>(
        &self,
        stream: &mut S,
        peer: &Peer,
        channel: Channel,
        negotiation: &Negotiation<'_>,
    ) -> Result<NegotiationOutcome>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let exports = Attended { exports: &*self.inner.exports, negotiation };
        handshake::negotiate(stream, &exports, &self.limits, peer, channel).await
    }

    /// Keeps the place behind a negotiation.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it is another's.
    async fn keep(
        &self,
        negotiation: Negotiation<'_>,
        peer: &Peer,
        agreed: Agreed,
    ) -> Result<Agreed> {
        if negotiation.ends() {
            return Ok(agreed);
        }
        agreed.session.close(SessionEnding::Lost).await;
        Err(self.gives_up(peer))
    }

    fn gives_up(&self, peer: &Peer) -> Error {
        self.count(|r| &r.failed_handshakes);
        tracing::debug!(%peer, "its place was needed while it was silent in its negotiation");
        Error::unavailable(format!("{peer}: too many connections, and it was silent"))
    }

    /// Does a part of the negotiation, unless it fails or takes too long; `None` when the server
    /// stops, or hands over and cannot wait.
    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T>>,
        deadline: Instant,
        peer: &Peer,
        negotiation: &Negotiation<'_>,
        told: &mut ListenerSignals,
    ) -> Result<Option<T>> {
        let done = tokio::select! {
            biased;
            done = tokio::time::timeout_at(deadline, step) => done,
            () = negotiation.leaves() => return Err(self.gives_up(peer)),
            () = told.wants_no_negotiation() => return Ok(None),
        };
        match done {
            Ok(Ok(done)) => Ok(Some(done)),
            Ok(Err(e)) => {
                self.count(|r| &r.failed_handshakes);
                tracing::debug!(%peer, error = %e, "negotiation failed");
                Err(e.context(peer))
            }
            Err(_) => {
                self.count(|r| &r.failed_handshakes);
                tracing::debug!(%peer, "negotiation did not end in time");
                Err(Error::unavailable(format!(
                    "{peer}: the negotiation did not end in {:?}",
                    self.limits.handshake_deadline
                )))
            }
        }
    }

    /// Closes a connection that came to nothing; one that was told to leave, in good order.
    async fn part<S>(&self, mut stream: S, outcome: Option<NegotiationOutcome>) -> Result<()>
    where
        S: AsyncWrite + Unpin,
    {
        if outcome.is_some() {
            let stall = self.limits.stall_deadline;
            let _ = tokio::time::timeout(stall, stream.shutdown()).await;
        }
        Ok(())
    }

    /// Serves the requests of a client, to the end or until it can be passed on.
    async fn session<S>(
        &self,
        mut stream: S,
        peer: &Peer,
        agreed: Agreed,
        told: &mut ListenerSignals,
    ) -> Result<Option<(S, Interrupted)>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Agreed { session, style, allocation, reinstates, keeper, rest } = agreed;
        let peer = keeper.as_ref().unwrap_or(peer);
        self.count_once(|registry| &registry.accepted);
        let Inner { registry, budget, .. } = &*self.inner;
        let limits = &*self.limits;
        let export = session.name().to_owned();
        let device = Arc::clone(session.device());
        tracing::info!(%peer, export, ?style, "session opened");
        let share = registry.join(&export, &peer.identity);
        let (attached, older) = match device.read_only() {
            true => (None, None),
            false => {
                let watch = self.watch.clone();
                let attachments = &self.inner.attachments;
                let (attached, older) =
                    attachments.attach(&export, &peer.identity, reinstates, watch);
                (Some(attached), older)
            }
        };
        let terms = EngineSetup {
            device: Arc::clone(&device),
            export: export.clone(),
            style,
            allocation,
            max_request: limits.max_request,
            in_flight_bytes: limits.in_flight_bytes,
            budget: Arc::clone(budget),
            part: self.part_of_client(),
            meter: Arc::clone(&share.meter),
            observer: session.observer(),
        };
        let work = async {
            let stall = limits.stall_deadline;
            let mut connection = Connection::new(&mut stream, terms, stall, &share, rest);
            connection.notice(self.watch.clone());
            connection.look(limits.busy_poll, &self.inner.processors);
            connection.follow(older);
            drive(connection, told, attached.as_ref()).await
        };
        let end = AssertUnwindSafe(work).catch_unwind().await;
        drop(attached); // nothing is in flight: who follows goes on
        let (ending, result) = match end {
            Ok(ConnectionEnd::Done) => (SessionEnding::Clean, Ok(())),
            Ok(ConnectionEnd::Vanished | ConnectionEnd::Replaced) => (SessionEnding::Lost, Ok(())),
            Ok(ConnectionEnd::Stopped) => {
                flush(&*device, &export).await;
                (SessionEnding::Lost, Ok(()))
            }
            // Whoever goes on would flush without what is lost here: the client must know.
            Ok(ConnectionEnd::Interrupted(_)) if !flush(&*device, &export).await => {
                (SessionEnding::Lost, Ok(()))
            }
            Ok(ConnectionEnd::Interrupted(rest)) => {
                session.close(SessionEnding::Lost).await; // the client is known again when it goes on
                tracing::info!(%peer, export, "session interrupted, to be passed on");
                let session = Interrupted {
                    peer: peer.clone(),
                    export,
                    style,
                    allocation,
                    size: device.size(),
                    read_only: device.read_only(),
                    reinstates,
                    rest,
                };
                return Ok(Some((stream, session)));
            }
            Ok(ConnectionEnd::Broken(e)) => (SessionEnding::Lost, Err(e.context(peer))),
            Ok(ConnectionEnd::Violation(e)) => {
                self.count(|r| &r.protocol_errors);
                if self.inner.complaints.admits(&peer.identity, Instant::now()) {
                    tracing::warn!(
                        %peer, export, error = %e, "closed: the client broke the protocol"
                    );
                }
                (SessionEnding::Lost, Err(e.context(peer)))
            }
            Err(_) => {
                self.count(|r| &r.panics);
                tracing::error!(%peer, export, "session lost by a fault of the program");
                (SessionEnding::Lost, Err(Error::internal(format!("{peer}: a request panicked"))))
            }
        };
        session.close(ending).await;
        self.inner.complaints.log_left_out(Instant::now());
        tracing::info!(%peer, export, ?ending, "session closed");
        let _ = tokio::time::timeout(limits.stall_deadline, stream.shutdown()).await;
        result.map(|()| None)
    }
}

/// Answers a connection's requests until it ends by itself, or because the server is told to pass it on
/// or to stop.
async fn drive<S>(
    mut connection: Connection<'_, S>,
    told: &mut ListenerSignals,
    attached: Option<&Attached>,
) -> ConnectionEnd
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut next = if told.passes() { Phase::Passing } else { Phase::Stopping };
    loop {
        tokio::select! {
            biased;
            end = std::future::poll_fn(|cx| connection.poll(cx)) => return end,
            now = told.reaches(next) => match now {
                Phase::Passing => {
                    connection.interrupt();
                    next = Phase::Stopping;
                }
                _ => {
                    connection.stop();
                    return std::future::poll_fn(|cx| connection.poll(cx)).await;
                }
            },
            demand = attachments::demand(attached) => connection.doubt(demand),
        }
    }
}

/// Flushes when the server ends a session by itself; whether that went well.
async fn flush(device: &dyn Device, export: &str) -> bool {
    if device.read_only() {
        return true;
    }
    let flushed = device.flush().await;
    if let Err(error) = &flushed {
        tracing::error!(export, %error, "the flush at the end of the session failed");
    }
    flushed.is_ok()
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.count_once(|registry| &registry.accepted); // no limit has refused it
        if !self.gave_up.load(Relaxed) {
            self.inner.registry.connections.fetch_sub(1, Relaxed);
        }
    }
}

impl ClientSeat {
    /// Counts one connection more of the client; gives how many it has now.
    fn take(inner: &Arc<Inner>, identity: &str) -> (Self, usize) {
        let mut callers = lock(&inner.callers);
        // The limits are read while nobody can change this client's part after them.
        let caller = callers.entry(identity.to_owned()).or_insert_with(|| ConnectedClient {
            connections: 0,
            part: Budget::new(inner.limits().client_budget()),
        });
        caller.connections += 1;
        let (inner, part) = (Arc::clone(inner), Arc::clone(&caller.part));
        (Self { inner, caller: identity.to_owned(), part }, caller.connections)
    }
}

impl Drop for ClientSeat {
    fn drop(&mut self) {
        let mut callers = lock(&self.inner.callers);
        if let Some(caller) = callers.get_mut(&self.caller) {
            caller.connections -= 1;
            if caller.connections == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}
