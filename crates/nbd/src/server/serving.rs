//! A server: it accepts clients, or goes on with those that another process passed, until it stops.

use super::admission::limits::ServerLimits;
use super::admission::seat::ConnectionSeat;
use super::admission::state::ServerState;
use super::counters::registry::{ClientPace, Counters};
use super::exports::{Exports, Peer};
use super::schedule::busy_poll::Processors;
use super::session::passing::{ListenerSignals, PassedConnection, Passing, Phase};
use super::sockets::listener::{Accepted, Listener};
use super::sockets::stream::Watch;
use super::sockets::tls::Tls;
use block::{Error, Result};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long accepting rests after it failed, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often it is logged that clients are refused; all are counted.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// A server of some exports. Cheap to clone; all clones share limits and counters.
#[derive(Clone)]
pub struct Server {
    pub(super) state: Arc<ServerState>,
}

impl Server {
    /// A server of `exports`.
    pub fn new(exports: Arc<dyn Exports>, limits: ServerLimits) -> Self {
        Self { state: Arc::new(ServerState::new(exports, limits)) }
    }

    /// Changes the limits. [`ServerLimits::client_rates`] and [`ServerLimits::total_bytes`] hold for all
    /// clients at once, the rest for those who connect from now on.
    pub fn set_limits(&self, limits: ServerLimits) {
        self.state.set_limits(limits);
    }

    /// The processors that its connections take for busy polling; [`spare_while_idle`](super::spare_while_idle)
    /// says how many are to spare.
    pub fn processors(&self) -> Processors {
        self.state.processors.clone()
    }

    /// How fast the client may go that is at the other end: one pace for all front ends.
    pub fn pace(&self, peer: &Peer) -> ClientPace {
        self.state.registry.pace(&peer.identity)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.state.registry.snapshot()
    }

    /// The same, but the exports without their latencies: for whoever asks often, as with thousands of
    /// exports most of a look goes to these.
    pub fn totals(&self) -> Counters {
        self.state.registry.totals()
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
            let keepalive = self.state.limits().keepalive;
            tokio::select! {
                biased;
                _ = listens.reaches(Phase::Closed) => break,
                Some(ended) = clients.join_next() => self.state.note_panic(&ended),
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

    /// Goes on with the connections that another process passed, until they leave or `phases` ends
    /// it, as [`serve_phases`](Self::serve_phases) does. They have their places among the connections, in the order
    /// in which they attached, when this returns, before the future runs. One whose export is not what it was is closed.
    /// `attached` is called when each of them has its export again, or is closed.
    ///
    /// # Errors
    /// Any error from [`serve`](Self::serve).
    pub fn serve_passed<F: FnOnce() + Send + 'static>(
        &self,
        passed: Vec<PassedConnection>,
        phases: watch::Receiver<Phase>,
        passing: Option<Passing>,
        attached: F,
    ) -> impl Future<Output = Result<()>> + Send + use<F> {
        let told = ListenerSignals::new(phases, passing);
        let mut clients = JoinSet::new();
        let (opening, mut opened) = mpsc::channel::<Infallible>(1);
        for PassedConnection { stream, session, carrier, place } in in_order(passed) {
            if let Some(carrier) = carrier {
                clients.spawn(carrier);
            }
            let peer = session.peer.clone();
            let closed = move |error: Error| {
                tracing::warn!(%peer, error = error.message(), "a passed connection is closed");
            };
            let seat = ConnectionSeat::take(&self.state, &session.peer).and_then(|mut seat| {
                let reserved = seat.reserve(stream, &session)?;
                Ok((seat, reserved))
            });
            let (seat, reserved) = match seat {
                Ok(taken) => taken,
                Err(error) => {
                    closed(error);
                    continue;
                }
            };
            let (told, opening) = (told.clone(), (opening.clone(), place));
            clients.spawn(async move {
                if let Err(error) = seat.resume(reserved, session, told, opening).await {
                    closed(error);
                }
            });
        }
        let server = self.clone();
        async move {
            drop(opening);
            let all_open = async {
                opened.recv().await; // nobody ever sends
                attached();
            };
            tokio::join!(server.finish(clients, told), all_open).0
        }
    }

    /// Serves clients until they leave or all stops; then stops them.
    async fn finish(&self, mut clients: JoinSet<()>, mut told: ListenerSignals) -> Result<()> {
        told.passes_no_more();
        loop {
            tokio::select! {
                biased;
                _ = told.reaches(Phase::Stopping) => break,
                ended = clients.join_next() => match ended {
                    Some(ended) => self.state.note_panic(&ended),
                    None => return Ok(()),
                }
            }
        }
        let all = async {
            while let Some(ended) = clients.join_next().await {
                self.state.note_panic(&ended);
            }
        };
        if tokio::time::timeout(self.state.limits().stop_deadline, all).await.is_err() {
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
        let place = match ConnectionSeat::take(&self.state, &peer) {
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
        let keepalive = self.state.limits().keepalive;
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
        let mut place = ConnectionSeat::take(&self.state, &peer)?;
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
        tokio::time::timeout(self.state.limits().stop_deadline, client)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the session did not end in time")))
    }
}

/// Connections in the order in which they attached, in which they are to have their places anew.
fn in_order(mut passed: Vec<PassedConnection>) -> Vec<PassedConnection> {
    passed.sort_by_key(|one| one.session.order);
    for kept in passed.iter_mut().filter_map(|one| one.place.as_mut()) {
        kept.leave_order();
    }
    passed
}
