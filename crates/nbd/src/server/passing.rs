//! Connections on their way to another process: a server ends, its successor goes on with its
//! clients, who notice nothing.
//!
//! A connection is passed between two requests: all that was taken is answered, and what was
//! received beyond it goes along. One that is encrypted stays with the process that has its keys,
//! which passes a socket pair in its place and carries the bytes between the two.

use super::handshake::Agreed;
use super::listener::Accepted;
use super::stream::Stream;
use super::{Ending, Peer, Place, Purpose, Server, Tls};
use crate::codec::ReplyStyle;
use block::{Error, Result};
use std::os::fd::OwnedFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// What a listener and its clients are told; it only ever goes on to a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// New clients are accepted.
    #[default]
    Serving,
    /// No new ones are; those that are there are served until they leave.
    Closed,
    /// Those that are there are passed to another process, each between two of its requests.
    Passing,
    /// Requests in flight are finished, and everything ends.
    Stopping,
}

/// Where connections come out that are to be passed to another process. It ends when no more will.
pub type Passing = mpsc::UnboundedSender<Passed>;

/// A connection for another process.
#[derive(Debug)]
pub struct Passed {
    /// The socket.
    pub stream: OwnedFd,
    /// What goes on over it.
    pub session: Interrupted,
}

/// A session between two requests, with nothing in flight.
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
    /// What was received and not taken.
    pub received: Vec<u8>,
}

/// What the connections of a listener hear.
#[derive(Clone)]
pub(super) struct Told {
    phases: watch::Receiver<Phase>,
    passing: Option<Passing>,
}

impl Told {
    pub(super) fn new(phases: watch::Receiver<Phase>, passing: Option<Passing>) -> Self {
        Self { phases, passing }
    }

    /// Waits until the phase is this one or a later one, and gives it. One that nobody can tell
    /// anything any more stops.
    pub(super) async fn reaches(&mut self, phase: Phase) -> Phase {
        self.phases.wait_for(|now| *now >= phase).await.map_or(Phase::Stopping, |now| *now)
    }

    /// Whether its connections can be passed on.
    pub(super) fn passes(&self) -> bool {
        self.passing.is_some()
    }

    /// Passes none of its own from now on; the end is seen when all who could have said so.
    pub(super) fn passes_no_more(&mut self) {
        self.passing = None;
    }

    fn pass(&mut self, stream: OwnedFd, session: Interrupted) {
        if let Some(passing) = self.passing.take() {
            // Nobody takes it when they waited for long enough: then the connection closes.
            let _ = passing.send(Passed { stream, session });
        }
    }

    /// Passes a connection itself.
    pub(super) fn pass_socket(mut self, stream: Stream, session: Interrupted) {
        match stream.into_fd() {
            Ok(stream) => self.pass(stream, session),
            Err(e) => tracing::warn!(peer = %session.peer, error = %e, "a connection is lost"),
        }
    }

    /// Passes one end of a socket pair and carries what an encrypted connection brings, until one
    /// of them ends.
    ///
    /// # Errors
    /// When there is no socket pair, or the connection fails.
    pub(super) async fn pass_inside<S>(&mut self, mut stream: S, session: Interrupted) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let peer = session.peer.clone();
        let fail = |e| Error::io(&peer, e);
        let (mut ours, theirs) = UnixStream::pair().map_err(fail)?;
        self.pass(theirs.into_std().map_err(fail)?.into(), session);
        tokio::io::copy_bidirectional(&mut stream, &mut ours).await.map(drop).map_err(fail)
    }
}

impl Server {
    /// Goes on with the connections that another process passed, until they leave or `phases` ends
    /// it, as [`serve_phases`](Self::serve_phases) does. One whose export is not what it was is
    /// closed.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub async fn serve_passed(
        &self,
        passed: Vec<Passed>,
        phases: watch::Receiver<Phase>,
        passing: Option<Passing>,
    ) -> Result<()> {
        let told = Told::new(phases, passing);
        let mut clients = JoinSet::new();
        for Passed { stream, session } in passed {
            let peer = session.peer.clone();
            let place = match Place::take(&self.inner, &peer) {
                Ok(place) => place,
                Err(error) => {
                    tracing::warn!(%peer, error = error.message(), "a passed connection is closed");
                    continue;
                }
            };
            let told = told.clone();
            clients.spawn(async move {
                if let Err(error) = place.resume(stream, session, told).await {
                    tracing::warn!(%peer, error = error.message(), "a passed connection is closed");
                }
            });
        }
        self.finish(clients, told).await
    }
}

impl Place {
    async fn resume(self, stream: OwnedFd, was: Interrupted, told: Told) -> Result<()> {
        let session = self.inner.exports.open(&was.export, &was.peer, Purpose::Use).await?;
        let device = session.device();
        if device.size() < was.size || (device.read_only() && !was.read_only) {
            let why = format!("{} is not what it was when its client connected", was.export);
            session.close(Ending::Lost).await;
            return Err(Error::conflict(why));
        }
        let agreed = Agreed {
            session,
            style: was.style,
            allocation: was.allocation,
            unsent: Vec::new(),
            received: was.received,
        };
        let peer = was.peer;
        let Accepted { stream, peer } = Accepted::from_fd(stream, peer)?;
        self.go_on(stream, &peer, agreed, told).await
    }

    async fn go_on(
        self,
        stream: Stream,
        peer: &Peer,
        agreed: Agreed,
        mut told: Told,
    ) -> Result<()> {
        if let Some((stream, session)) = self.session(stream, peer, agreed, &mut told).await? {
            told.pass_socket(stream, session);
        }
        Ok(())
    }

    /// Serves a client from its connection to the end, or until it is passed on.
    pub(super) async fn serve(
        self,
        stream: Stream,
        peer: &Peer,
        tls: Option<Tls>,
        mut told: Told,
    ) -> Result<()> {
        if let Some((stream, session)) = self.client(stream, peer, tls, &mut told).await? {
            told.pass_socket(stream, session);
        }
        Ok(())
    }
}
