//! The protocol from the top: one client, from its connection to the end of its session.
//!
//! 1. A connection begins: [`serve`](ConnectionSeat::serve) for one that a listener accepted,
//!    [`resume`](ConnectionSeat::resume), which goes on with step 4, for one that another process passed.
//! 2. [`client`](ConnectionSeat::client) goes through the negotiation and, where the client asks for it,
//!    through TLS and the negotiation once more inside.
//! 3. [`negotiate`](ConnectionSeat::negotiate) greets and answers options (`handshake`, `options`) until the
//!    client uses an export or leaves; [`in_time`](ConnectionSeat::in_time) bounds each step, and
//!    [`part`](ConnectionSeat::part) closes what came to nothing.
//! 4. [`session`](ConnectionSeat::session) counts the client in, attaches it to its export, has its requests
//!    answered ([`drive`], `connection`, `engine`) and does what the way in which that
//!    [ended](ConnectionSeat::ended) asks for: flush, pass on, close.

use super::connection::{Connection, ConnectionEnd};
use super::engine::EngineSetup;
use super::handshake::{self, Agreed, NegotiationOutcome};
use super::options::Channel;
use super::passing::{Interrupted, InterruptedUse, KeptPlace, ListenerSignals, Phase};
use crate::server::admission::attachments::{self, Attached, PlaceInOrder};
use crate::server::admission::negotiations::{Attended, Negotiation};
use crate::server::admission::seat::ConnectionSeat;
use crate::server::admission::state::ServerState;
use crate::server::exports::{Peer, Purpose, SessionEnding};
use crate::server::schedule::budget::BudgetHold;
use crate::server::schedule::order::TurnOrder;
use crate::server::sockets::listener::Accepted;
use crate::server::sockets::stream::ConnectedSocket;
use crate::server::sockets::tls::Tls;
use block::{Device, Error, Result};
use futures::FutureExt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

impl ConnectionSeat {
    /// Serves a client from its connection to the end, or until it is passed on.
    pub(in crate::server) async fn serve(
        mut self,
        stream: ConnectedSocket,
        peer: &Peer,
        tls: Option<Tls>,
        mut told: ListenerSignals,
    ) -> Result<()> {
        self.watch = Some(stream.watch());
        if let Some((stream, session)) = self.client(stream, peer, tls, &mut told).await? {
            told.pass_socket(stream, session);
        }
        Ok(())
    }

    /// The connection's socket, and its place among those that use its export.
    ///
    /// # Errors
    /// When the socket is of no known kind.
    pub(in crate::server) fn reserve(
        &mut self,
        stream: OwnedFd,
        was: &Interrupted,
    ) -> Result<(ConnectedSocket, Option<PlaceInOrder>)> {
        let Accepted { stream, .. } = Accepted::from_fd(stream, was.peer.clone())?;
        self.watch = Some(stream.watch());
        let attach = || {
            let (watch, client) = (self.watch.clone(), &was.peer.identity);
            self.state.attachments.attach(&was.export, client, was.reinstates, watch)
        };
        let place = (!was.read_only).then(attach);
        Ok((stream, place))
    }

    /// Goes on with a session that another process passed, to its end or until it is passed on. `opening` is
    /// dropped when the export is open, or cannot be opened.
    pub(in crate::server) async fn resume(
        self,
        (stream, place): (ConnectedSocket, Option<PlaceInOrder>),
        was: Interrupted,
        told: ListenerSignals,
        opening: impl Send,
    ) -> Result<()> {
        // Until the connection holds it itself.
        let mut held = BudgetHold::new(&self.state.budget);
        held.owe((was.rest.received.len() + was.rest.unsent.len()) as u64);
        let session = self.state.exports.open(&was.export, &was.peer, Purpose::Resume).await?;
        drop(opening);
        let device = session.device();
        // What its client has in its memory belongs to what was there.
        let is_other = was.content.is_some() && session.content() != was.content;
        if is_other || device.size() < was.size || (device.read_only() && !was.read_only) {
            let why = format!("{} is not what it was when its client connected", was.export);
            session.close(SessionEnding::Lost).await;
            return Err(Error::conflict(why));
        }
        let agreed = Agreed {
            session,
            style: was.style,
            allocation: was.allocation,
            reinstates: was.reinstates,
            keeper: None,
            place,
            rest: was.rest,
        };
        let mut told = told;
        drop(held);
        if let Some((stream, session)) = self.session(stream, &was.peer, agreed, &mut told).await? {
            told.pass_socket(stream, session);
        }
        Ok(())
    }

    /// Serves a client from the greeting to the end, or until it can be passed on.
    pub(in crate::server) async fn client<S>(
        &self,
        mut stream: S,
        peer: &Peer,
        tls: Option<Tls>,
        told: &mut ListenerSignals,
    ) -> Result<Option<(S, InterruptedUse)>>
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
        let step = self.state.negotiations.begin(self.watch.clone(), &self.evicted);
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
        let (exports, attachments) = (&*self.state.exports, &*self.state.attachments);
        let exports = Attended { exports, attachments, negotiation };
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
    ) -> Result<Option<(S, InterruptedUse)>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Agreed { session, style, allocation, reinstates, keeper, place, rest } = agreed;
        let peer = keeper.as_ref().unwrap_or(peer);
        self.count_once(|registry| &registry.accepted);
        let ServerState { registry, budget, .. } = &*self.state;
        let limits = &*self.limits;
        let export = session.name().to_owned();
        let device = Arc::clone(session.device());
        tracing::info!(%peer, export, ?style, "session opened");
        let share = registry.join(&export, &peer.identity);
        let attach = || {
            let (watch, client) = (self.watch.clone(), &peer.identity);
            self.state.attachments.attach(&export, client, reinstates, watch)
        };
        let place = place.or_else(|| (!device.read_only()).then(attach));
        let (attached, older) = place.map_or((None, None), |(own, older)| (Some(own), older));
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
            goes_on_elsewhere: session.goes_on_elsewhere(),
        };
        let work = async {
            let stall = limits.stall_deadline;
            let order = TurnOrder::new(&self.state.light);
            let mut connection = Connection::new(&mut stream, terms, stall, &share, rest, order);
            connection.notice(self.watch.clone());
            connection.set_busy_poll(limits.busy_poll, &self.state.processors);
            connection.follow(older);
            drive(connection, told, attached.as_ref()).await
        };
        let end = AssertUnwindSafe(work).catch_unwind().await;
        // Nothing is in flight: who follows goes on, unless this one is to go on before it elsewhere.
        let attached = attached.filter(|_| matches!(end, Ok(ConnectionEnd::Interrupted(_))));
        let flushes = matches!(end, Ok(ConnectionEnd::Stopped | ConnectionEnd::Interrupted(_)));
        let flushed = flushes && flush(&*device, &export).await;
        let (ending, result) = match end {
            // Not unless it was flushed: whoever goes on would flush without what is lost here, and the
            // client must know.
            Ok(ConnectionEnd::Interrupted(rest)) if flushed => {
                let content = session.content();
                let order = attached.as_ref().map(Attached::number);
                let place = KeptPlace { attached, export: session.pass().await };
                tracing::info!(%peer, export, "session interrupted, to be passed on");
                let session = Interrupted {
                    peer: peer.clone(),
                    export,
                    style,
                    allocation,
                    size: device.size(),
                    read_only: device.read_only(),
                    content,
                    order,
                    reinstates,
                    rest,
                };
                return Ok(Some((stream, InterruptedUse { session, place })));
            }
            Ok(end) => self.ended(end, peer, &export),
            Err(_) => {
                self.count(|r| &r.panics);
                tracing::error!(%peer, export, "session lost by a fault of the program");
                (SessionEnding::Lost, Err(Error::internal(format!("{peer}: a request panicked"))))
            }
        };
        drop(attached);
        session.close(ending).await;
        self.state.complaints.log_left_out(Instant::now());
        tracing::info!(%peer, export, ?ending, "session closed");
        let _ = tokio::time::timeout(limits.stall_deadline, stream.shutdown()).await;
        result.map(|()| None)
    }

    /// What the end of a connection is for the session and for the caller; counts and logs a client that
    /// broke the protocol.
    fn ended(&self, end: ConnectionEnd, peer: &Peer, export: &str) -> (SessionEnding, Result<()>) {
        match end {
            ConnectionEnd::Done => (SessionEnding::Clean, Ok(())),
            ConnectionEnd::Vanished
            | ConnectionEnd::Replaced
            | ConnectionEnd::Stopped
            | ConnectionEnd::Interrupted(_) => (SessionEnding::Lost, Ok(())),
            ConnectionEnd::Broken(e) => (SessionEnding::Lost, Err(e.context(peer))),
            ConnectionEnd::Violation(e) => {
                self.count(|r| &r.protocol_errors);
                if self.state.complaints.admits(&peer.identity, Instant::now()) {
                    tracing::warn!(
                        %peer, export, error = %e, "closed: the client broke the protocol"
                    );
                }
                (SessionEnding::Lost, Err(e.context(peer)))
            }
        }
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
            demand = attachments::demand(attached) => connection.ask_to_settle(demand),
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
