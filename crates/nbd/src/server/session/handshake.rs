//! The negotiation, from the greeting to the choice of an export.
//!
//! Every option is answered in step: its body is taken whole off the stream before the next one is
//! looked at, whatever is wrong with it.

use super::options::{Channel, Negotiated, OptionOutcome};
use super::remainder::ConnectionRemainder;
use crate::codec::constants::option_reply::ERR_TOO_BIG;
use crate::codec::option::{ClientFlags, OptionHeader, Reinstatement, put_greeting};
use crate::codec::{Parsed, ReplyStyle};
use crate::server::admission::attachments::PlaceInOrder;
use crate::server::admission::limits::ServerLimits;
use crate::server::exports::{Exports, Peer, Session};
use block::{Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What is received at a time, in bytes.
const RECEIVE: usize = 4096;

/// How a negotiation ended without an error.
pub(super) enum NegotiationOutcome {
    /// The client uses an export.
    Use(Box<Agreed>),
    /// The client left in good order.
    Left,
    /// The client was told to begin TLS. What it said so far is forgotten, but for its flags: the
    /// negotiation begins again inside, without a greeting.
    StartTls(ClientFlags),
}

/// What was agreed.
pub(super) struct Agreed {
    pub(super) session: Box<dyn Session>,
    pub(super) style: ReplyStyle,
    /// Block status of `base:allocation` was asked for.
    pub(super) allocation: bool,
    /// Which connections this one takes the place of.
    pub(super) reinstates: Option<Reinstatement>,
    /// The client by another identity than it came with.
    pub(super) keeper: Option<Peer>,
    /// Its place among those that use the export, where it has one already.
    pub(super) place: Option<PlaceInOrder>,
    /// The last replies of the negotiation, and what was received beyond it.
    pub(super) rest: ConnectionRemainder,
}

/// One negotiation.
struct Handshake<'a, S> {
    stream: &'a mut S,
    received: Vec<u8>,
    state: Negotiated<'a>,
}

/// Negotiates with a client. The caller sets the deadline.
///
/// # Errors
/// When the client breaks the protocol or vanishes.
pub(super) async fn negotiate<S>(
    stream: &mut S,
    exports: &dyn Exports,
    limits: &ServerLimits,
    peer: &Peer,
    channel: Channel,
) -> Result<NegotiationOutcome>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let state = Negotiated {
        exports,
        limits,
        peer,
        channel,
        out: Vec::new(),
        flags: ClientFlags::default(),
        style: ReplyStyle::Simple,
        allocation: None,
        reinstates: None,
        keeper: None,
    };
    let mut handshake = Handshake { stream, received: Vec::with_capacity(RECEIVE), state };
    handshake.run().await
}

impl<S: AsyncRead + AsyncWrite + Unpin> Handshake<'_, S> {
    async fn run(&mut self) -> Result<NegotiationOutcome> {
        self.state.flags = match self.state.channel {
            Channel::Encrypted(flags) => flags,
            _ => {
                put_greeting(&mut self.state.out);
                self.send().await?;
                self.receive(ClientFlags::parse).await?
            }
        };
        loop {
            if self.received.is_empty() && !self.receives_more().await? {
                return Ok(NegotiationOutcome::Left); // many clients just close when they know enough
            }
            let header = self.receive(OptionHeader::parse).await?;
            let Some(body) = self.body(header).await? else { continue };
            match self.state.option(header.code, &body).await? {
                OptionOutcome::Continue => self.send().await?,
                OptionOutcome::Leave => {
                    self.send().await?;
                    return Ok(NegotiationOutcome::Left);
                }
                OptionOutcome::Encrypt => {
                    // Whoever is in between could have put it there, to be taken for encrypted.
                    if !self.received.is_empty() {
                        let why = "the client sent more behind STARTTLS before it was answered";
                        return Err(Error::invalid(why));
                    }
                    self.send().await?;
                    return Ok(NegotiationOutcome::StartTls(self.state.flags));
                }
                OptionOutcome::Use(session) => {
                    let name = self.state.allocation.take();
                    return Ok(NegotiationOutcome::Use(Box::new(Agreed {
                        session,
                        style: self.state.style,
                        allocation: name.is_some(),
                        reinstates: self.state.reinstates,
                        keeper: self.state.keeper.take(),
                        place: None,
                        rest: ConnectionRemainder {
                            unsent: std::mem::take(&mut self.state.out),
                            received: std::mem::take(&mut self.received),
                            skip: 0,
                        },
                    })));
                }
            }
        }
    }

    async fn send(&mut self) -> Result<()> {
        let sent = async {
            self.stream.write_all(&self.state.out).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|e| Error::io("negotiation", e))?;
        self.state.out.clear();
        Ok(())
    }

    /// Receives more; false at the end of the stream.
    async fn receives_more(&mut self) -> Result<bool> {
        match self.stream.read_buf(&mut self.received).await {
            Ok(n) => Ok(n > 0),
            Err(e) => Err(Error::io("negotiation", e)),
        }
    }

    async fn more(&mut self) -> Result<()> {
        match self.receives_more().await? {
            true => Ok(()),
            false => Err(Error::unavailable("the client left in the middle of the negotiation")),
        }
    }

    async fn receive<T>(&mut self, parse: impl Fn(&[u8]) -> Result<Parsed<T>>) -> Result<T> {
        loop {
            if let Parsed::Complete(value, used) = parse(&self.received)? {
                self.received.drain(..used);
                return Ok(value);
            }
            self.more().await?;
        }
    }

    /// Receives the body of an option. One that is too long is refused, then skipped.
    async fn body(&mut self, header: OptionHeader) -> Result<Option<Vec<u8>>> {
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len <= self.state.limits.option_bytes {
            while self.received.len() < len {
                self.more().await?;
            }
            return Ok(Some(self.received.drain(..len).collect()));
        }
        let most = self.state.limits.option_bytes;
        let why = format!("an option of {len} bytes is longer than the {most} that are accepted");
        self.state.refuse(header.code, ERR_TOO_BIG, &why);
        self.send().await?;
        let mut left = len;
        loop {
            let part = left.min(self.received.len());
            self.received.drain(..part);
            left -= part;
            if left == 0 {
                return Ok(None);
            }
            self.more().await?;
        }
    }
}
