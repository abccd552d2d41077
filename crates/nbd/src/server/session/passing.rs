//! Connections on their way to another process: a server ends, its successor goes on with its
//! clients, who notice nothing.
//!
//! A connection is passed as soon as the device has answered all that was taken; what was received
//! beyond it, even a part of a request, and what the client has not taken yet go along, so that nobody
//! waits for a client. One that is still in its negotiation has a moment to end it. One that is
//! encrypted stays with the process that has its keys, which passes a socket pair in its place and
//! carries the bytes between the two.

mod carrier;

use super::remainder::ConnectionRemainder;
use crate::codec::ReplyStyle;
use crate::codec::option::Reinstatement;
use crate::server::admission::attachments::Attached;
use crate::server::exports::{PassedUse, Peer};
use crate::server::sockets::stream::ConnectedSocket;
use block::{Error, Result};
use futures::future::BoxFuture;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// How long a client may go on with its negotiation while the others wait to be passed.
const NEGOTIATING: Duration = Duration::from_secs(1);

/// What a listener and its clients are told; it only ever goes on to a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// New clients are accepted.
    #[default]
    Serving,
    /// No new ones are; those that are there are served until they leave.
    Closed,
    /// Those that are there are passed to another process, each when nothing of it is in flight.
    Passing,
    /// Requests in flight are finished, and everything ends.
    Stopping,
}

/// Where connections come out that are to be passed to another process. It ends when no more will.
pub type Passing = mpsc::UnboundedSender<PassedConnection>;

/// A connection for another process.
pub struct PassedConnection {
    /// The socket.
    pub stream: OwnedFd,
    /// What goes on over it.
    pub session: Interrupted,
    /// What this process has to run for it, wherever it goes on.
    pub carrier: Option<Carrier>,
    /// What waits for it in this process.
    pub place: Option<KeptPlace>,
}

/// What is kept of a connection in the process that passes it: its place in the order of its client's, and its
/// export. Dropped, the connection goes on here, or is lost.
pub struct KeptPlace {
    pub(super) attached: Option<Attached>,
    pub(super) export: Option<Box<dyn PassedUse>>,
}

impl KeptPlace {
    /// Another process has the connection.
    pub fn hand_over(self) {
        if let Some(export) = self.export {
            export.hand_over();
        }
    }

    /// It is to have another place in the order.
    pub(in crate::server) fn leave_order(&mut self) {
        self.attached = None;
    }
}

/// Carries what an encrypted connection brings between it and the socket that was passed in its
/// place, until one of them ends. The keys are here, and nowhere else.
pub type Carrier = BoxFuture<'static, ()>;

impl fmt::Debug for PassedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, session, carrier, place } = self;
        f.debug_struct("Passed")
            .field("stream", stream)
            .field("session", session)
            .field("carried", &carrier.is_some())
            .field("awaited", &place.is_some())
            .finish()
    }
}

/// What becomes of a session that is interrupted.
pub(in crate::server) struct InterruptedUse {
    pub(super) session: Interrupted,
    pub(super) place: KeptPlace,
}

/// A session with nothing in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupted {
    /// The client.
    pub peer: Peer,
    /// The canonical name of its export.
    pub export: String,
    /// How replies look.
    pub style: ReplyStyle,
    /// Block status of `base:allocation` was agreed on.
    pub allocation: bool,
    /// The size of the export as the client knows it, in bytes.
    pub size: u64,
    /// Whether the client was told that it cannot write.
    pub read_only: bool,
    /// What the export [holds as a whole](crate::Session::content); `None` where nobody told.
    pub content: Option<String>,
    /// Those of its client that attached before it have lower numbers. `None` where it cannot write, or nobody told.
    pub order: Option<u64>,
    /// Which connections it takes the place of, and which one its own.
    pub reinstates: Option<Reinstatement>,
    /// What is left of its streams.
    pub rest: ConnectionRemainder,
}

/// What the connections of a listener hear.
#[derive(Clone)]
pub(in crate::server) struct ListenerSignals {
    phases: watch::Receiver<Phase>,
    passing: Option<Passing>,
}

impl ListenerSignals {
    pub(in crate::server) fn new(phases: watch::Receiver<Phase>, passing: Option<Passing>) -> Self {
        Self { phases, passing }
    }

    /// Waits until the phase is this one or a later one, and gives it. One that nobody can tell
    /// anything any more stops.
    pub(in crate::server) async fn reaches(&mut self, phase: Phase) -> Phase {
        self.phases.wait_for(|now| *now >= phase).await.map_or(Phase::Stopping, |now| *now)
    }

    /// Whether its connections can be passed on.
    pub(super) fn passes(&self) -> bool {
        self.passing.is_some()
    }

    /// Passes none of its own from now on; the end is seen when all who could have said so.
    pub(in crate::server) fn passes_no_more(&mut self) {
        self.passing = None;
    }

    /// Waits until a negotiation has to be given up: when all stops, and a moment after connections
    /// are passed on.
    pub(super) async fn wants_no_negotiation(&mut self) {
        let first = if self.passes() { Phase::Passing } else { Phase::Stopping };
        if self.reaches(first).await == Phase::Passing {
            let _ = tokio::time::timeout(NEGOTIATING, self.reaches(Phase::Stopping)).await;
        }
    }

    fn pass(&mut self, passed: PassedConnection) {
        if let Some(passing) = self.passing.take() {
            // Nobody takes it when they waited for long enough: then the connection closes.
            let _ = passing.send(passed);
        }
    }

    /// Passes a connection itself.
    pub(super) fn pass_socket(mut self, stream: ConnectedSocket, interrupted: InterruptedUse) {
        let InterruptedUse { session, place } = interrupted;
        let place = Some(place);
        match stream.into_fd() {
            Ok(stream) => self.pass(PassedConnection { stream, session, carrier: None, place }),
            Err(e) => tracing::warn!(peer = %session.peer, error = %e, "a connection is lost"),
        }
    }

    /// Passes one end of a socket pair, and what carries the bytes of an encrypted connection between
    /// it and the other end. `stall` is the deadline of clients that take no replies.
    ///
    /// # Errors
    /// When there is no socket pair.
    pub(super) fn pass_inside<S>(
        &mut self,
        stream: S,
        interrupted: InterruptedUse,
        stall: Duration,
    ) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let InterruptedUse { session, place } = interrupted;
        let peer = session.peer.clone();
        let fail = |e| Error::io(&peer, e);
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        let theirs = theirs.into_std().map_err(fail)?.into();
        let carrier: Carrier = Box::pin(async move {
            if let Err(error) = carrier::carry(stream, ours, stall).await {
                tracing::debug!(%peer, %error, "a carried connection ended");
            }
        });
        let (carrier, place) = (Some(carrier), Some(place));
        self.pass(PassedConnection { stream: theirs, session, carrier, place });
        Ok(())
    }
}
