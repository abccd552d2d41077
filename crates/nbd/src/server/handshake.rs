//! The negotiation, from the greeting to the choice of an export.
//!
//! Every option is answered in step: its body is taken whole off the stream before the next one is
//! looked at, whatever is wrong with it.

use super::exports::{Exports, Peer, Purpose, Session, SessionEnding};
use super::limits::ServerLimits;
use super::passing::ConnectionRemainder;
use crate::codec::constants::{
    BASE_ALLOCATION, export_flags, info, option, option_reply as error_code,
};
use crate::codec::option::{
    ClientFlags, EXPORT_NAME_PADDING, Info, InfoRequest, MetaRequest, OptionHeader, OptionReply,
    OptionRequest, Reinstatement, put_export, put_greeting,
};
use crate::codec::{Parsed, ReplyStyle, fault};
use block::{Device, Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Under which number block status replies of `base:allocation` go.
pub(super) const ALLOCATION_ID: u32 = 1;

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

/// What a negotiation runs over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Channel {
    /// A connection that is not encrypted, and cannot be.
    Plain,
    /// One that the client may encrypt.
    MayEncrypt,
    /// One that the client must encrypt before it asks for anything.
    MustEncrypt,
    /// An encrypted one; the flags were sent before it was.
    Encrypted(ClientFlags),
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
    /// The last replies of the negotiation, and what was received beyond it.
    pub(super) rest: ConnectionRemainder,
}

/// One negotiation.
struct Handshake<'a, S> {
    stream: &'a mut S,
    exports: &'a dyn Exports,
    limits: &'a ServerLimits,
    peer: &'a Peer,
    channel: Channel,
    received: Vec<u8>,
    out: Vec<u8>,
    flags: ClientFlags,
    style: ReplyStyle,
    /// The export whose `base:allocation` was asked for.
    allocation: Option<String>,
    reinstates: Option<Reinstatement>,
    /// The client, once it said that it keeps a device.
    keeper: Option<Peer>,
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
    let mut handshake = Handshake {
        stream,
        exports,
        limits,
        peer,
        channel,
        received: Vec::with_capacity(RECEIVE),
        out: Vec::new(),
        flags: ClientFlags::default(),
        style: ReplyStyle::Simple,
        allocation: None,
        reinstates: None,
        keeper: None,
    };
    handshake.run().await
}

/// What an option led to.
enum OptionOutcome {
    Continue,
    Leave,
    Encrypt,
    Use(Box<dyn Session>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Handshake<'_, S> {
    fn peer(&self) -> &Peer {
        self.keeper.as_ref().unwrap_or(self.peer)
    }

    async fn run(&mut self) -> Result<NegotiationOutcome> {
        self.flags = match self.channel {
            Channel::Encrypted(flags) => flags,
            _ => {
                put_greeting(&mut self.out);
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
            match self.option(header.code, &body).await? {
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
                    return Ok(NegotiationOutcome::StartTls(self.flags));
                }
                OptionOutcome::Use(session) => {
                    let name = self.allocation.take();
                    return Ok(NegotiationOutcome::Use(Box::new(Agreed {
                        session,
                        style: self.style,
                        allocation: name.is_some(),
                        reinstates: self.reinstates,
                        keeper: self.keeper.take(),
                        rest: ConnectionRemainder {
                            unsent: std::mem::take(&mut self.out),
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
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|e| Error::io("negotiation", e))?;
        self.out.clear();
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
        if len <= self.limits.option_bytes {
            while self.received.len() < len {
                self.more().await?;
            }
            return Ok(Some(self.received.drain(..len).collect()));
        }
        let most = self.limits.option_bytes;
        let why = format!("an option of {len} bytes is longer than the {most} that are accepted");
        self.refuse(header.code, error_code::ERR_TOO_BIG, &why);
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

    fn reply(&mut self, option: u32, reply: &OptionReply<'_>) {
        reply.put(option, &mut self.out);
    }

    fn refuse(&mut self, option: u32, code: u32, message: &str) {
        tracing::debug!(peer = %self.peer, option, message, "option refused");
        self.reply(option, &OptionReply::Error { code, message });
    }

    async fn option(&mut self, code: u32, body: &[u8]) -> Result<OptionOutcome> {
        if matches!(self.channel, Channel::MustEncrypt)
            && !matches!(code, option::STARTTLS | option::ABORT)
        {
            let why = "TLS is required here: encrypt the connection first";
            if code == option::EXPORT_NAME {
                return Err(Error::denied(why)); // this option has no error reply
            }
            self.refuse(code, error_code::ERR_TLS_REQD, why);
            return Ok(OptionOutcome::Continue);
        }
        let request = match OptionRequest::parse(code, body) {
            Ok(request) => request,
            // This option has no error reply: the protocol wants the connection closed.
            Err(e) if code == option::EXPORT_NAME => return Err(e),
            Err(e) => {
                self.refuse(code, error_code::ERR_INVALID, e.message());
                return Ok(OptionOutcome::Continue);
            }
        };
        match request {
            OptionRequest::ExportName(name) => return self.export_name(name).await,
            OptionRequest::Go(request) => return Ok(self.go(&request).await),
            OptionRequest::Abort => {
                self.reply(code, &OptionReply::Ack);
                return Ok(OptionOutcome::Leave);
            }
            OptionRequest::Info(request) => {
                if let Some(session) = self.open(code, &request, Purpose::Info).await {
                    session.close(SessionEnding::Clean).await;
                }
            }
            OptionRequest::List => self.list().await,
            OptionRequest::StructuredReply => match self.style {
                ReplyStyle::Extended => {
                    let why = "extended headers were negotiated already";
                    self.refuse(code, error_code::ERR_EXT_HEADER_REQD, why);
                }
                _ => {
                    self.style = ReplyStyle::Structured;
                    self.reply(code, &OptionReply::Ack);
                }
            },
            OptionRequest::ExtendedHeaders => {
                self.style = ReplyStyle::Extended;
                self.reply(code, &OptionReply::Ack);
            }
            OptionRequest::ListMetaContext(request) => self.meta_context(code, &request).await,
            OptionRequest::SetMetaContext(request) => self.meta_context(code, &request).await,
            OptionRequest::StartTls => match self.channel {
                Channel::MayEncrypt | Channel::MustEncrypt => {
                    self.reply(code, &OptionReply::Ack);
                    return Ok(OptionOutcome::Encrypt);
                }
                Channel::Plain => {
                    self.refuse(code, error_code::ERR_POLICY, "TLS is not offered here");
                }
                Channel::Encrypted(_) => {
                    let why = "the connection is encrypted already";
                    self.refuse(code, error_code::ERR_INVALID, why);
                }
            },
            OptionRequest::Reinstate(reinstatement) => {
                self.reinstates = Some(reinstatement);
                self.keeper = self.peer.keeping(&reinstatement.id);
                self.reply(code, &OptionReply::Ack);
            }
            OptionRequest::Unknown(_) => {
                let why = format!("option {code} is not known");
                self.refuse(code, error_code::ERR_UNSUP, &why);
            }
        }
        Ok(OptionOutcome::Continue)
    }

    async fn export_name(&mut self, name: &str) -> Result<OptionOutcome> {
        let session = self.exports.open(name, self.peer(), Purpose::Use).await?;
        put_export(session.device().size(), flags(&**session.device(), self.style), &mut self.out);
        if !self.flags.no_zeroes {
            self.out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        self.keep_allocation_of(name);
        Ok(OptionOutcome::Use(session))
    }

    async fn go(&mut self, request: &InfoRequest<'_>) -> OptionOutcome {
        match self.open(option::GO, request, Purpose::Use).await {
            Some(session) => {
                self.keep_allocation_of(request.name);
                OptionOutcome::Use(session)
            }
            None => OptionOutcome::Continue,
        }
    }

    /// The choice of contexts holds for the export it was made for.
    fn keep_allocation_of(&mut self, name: &str) {
        self.allocation.take_if(|chosen| chosen != name);
    }

    /// Opens the export for `INFO` or `GO` and tells about it, or refuses.
    async fn open(
        &mut self,
        code: u32,
        request: &InfoRequest<'_>,
        purpose: Purpose,
    ) -> Option<Box<dyn Session>> {
        let session = match self.exports.open(request.name, self.peer(), purpose).await {
            Ok(session) => session,
            Err(e) => {
                self.refuse(code, fault::option_number(e.kind()), e.message());
                return None;
            }
        };
        let device = &**session.device();
        let limits = device.limits();
        if limits.minimum > 512 && !request.wanted.contains(&info::BLOCK_SIZE) {
            let why = format!("the export takes only multiples of {} bytes", limits.minimum);
            self.refuse(code, error_code::ERR_BLOCK_SIZE_REQD, &why);
            session.close(SessionEnding::Clean).await;
            return None;
        }
        let (size, flags) = (device.size(), flags(device, self.style));
        self.reply(code, &OptionReply::Info(Info::Export { size, flags }));
        if request.wanted.contains(&info::NAME) {
            self.reply(code, &OptionReply::Info(Info::Name(session.name())));
        }
        if request.wanted.contains(&info::DESCRIPTION)
            && let Some(text) = session.description()
        {
            self.reply(code, &OptionReply::Info(Info::Description(text)));
        }
        let sizes = Info::BlockSize {
            minimum: limits.minimum,
            preferred: limits.preferred.max(512),
            maximum: self.limits.max_request,
        };
        self.reply(code, &OptionReply::Info(sizes));
        self.reply(code, &OptionReply::Ack);
        Some(session)
    }

    async fn list(&mut self) {
        match self.exports.list(self.peer()).await {
            Ok(list) => {
                for export in &list {
                    let (name, description) = (&*export.name, &*export.description);
                    self.reply(option::LIST, &OptionReply::Server { name, description });
                }
                self.reply(option::LIST, &OptionReply::Ack);
            }
            Err(e) => self.refuse(option::LIST, fault::option_number(e.kind()), e.message()),
        }
    }

    async fn meta_context(&mut self, code: u32, request: &MetaRequest<'_>) {
        let set = code == option::SET_META_CONTEXT;
        if set {
            self.allocation = None; // even when this one fails
        }
        if self.style == ReplyStyle::Simple {
            let why = "metadata contexts need structured replies: negotiate these first";
            return self.refuse(code, error_code::ERR_INVALID, why);
        }
        match self.exports.open(request.name, self.peer(), Purpose::Info).await {
            Ok(session) => session.close(SessionEnding::Clean).await,
            Err(e) => return self.refuse(code, fault::option_number(e.kind()), e.message()),
        }
        let queries = &request.queries;
        let wanted = if set {
            queries.contains(&BASE_ALLOCATION)
        } else {
            queries.is_empty() || queries.iter().any(|q| matches!(*q, "base:" | BASE_ALLOCATION))
        };
        if wanted {
            let id = if set { ALLOCATION_ID } else { 0 };
            self.reply(code, &OptionReply::MetaContext { id, name: BASE_ALLOCATION });
        }
        if set && wanted {
            self.allocation = Some(request.name.to_owned());
        }
        self.reply(code, &OptionReply::Ack);
    }
}

/// What an export can do, as the protocol tells it.
fn flags(device: &dyn Device, style: ReplyStyle) -> u16 {
    use export_flags as f;
    let mut flags = f::HAS_FLAGS | f::SEND_FLUSH | f::SEND_FUA | f::SEND_CACHE | f::CAN_MULTI_CONN;
    flags |= if device.read_only() {
        f::READ_ONLY
    } else {
        f::SEND_TRIM | f::SEND_WRITE_ZEROES | f::SEND_FAST_ZERO
    };
    if style != ReplyStyle::Simple {
        flags |= f::SEND_DF;
    }
    flags
}
