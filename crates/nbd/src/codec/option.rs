//! The negotiation: greeting, options and their replies.

use super::constants::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, MAX_STRING, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    info, option, option_reply,
};
use super::{FieldReader, Parsed, clip, put_counted_text};
use block::{Error, Result};

/// Length of the server's greeting, in bytes.
pub const GREETING: usize = 18;
/// Length of the client's answer to the greeting, in bytes.
pub const CLIENT_FLAGS: usize = 4;
/// Length of an option's header, in bytes.
pub const OPTION_HEADER: usize = 16;
/// Length of the header of an option's reply, in bytes.
pub const REPLY_HEADER: usize = 20;
/// The zeroes behind the answer to `EXPORT_NAME` when the client did not ask to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;

/// Writes the server's greeting: fixed newstyle, no zeroes needed.
pub fn put_greeting(out: &mut Vec<u8>) {
    out.extend_from_slice(&INIT_MAGIC.to_be_bytes());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
}

/// Reads a server's greeting; gives its handshake flags.
///
/// # Errors
/// When it is not an NBD server, or not one of the fixed newstyle negotiation.
pub fn parse_greeting(bytes: &[u8]) -> Result<Parsed<u16>> {
    if bytes.len() < GREETING {
        return Ok(Parsed::Incomplete(GREETING));
    }
    let mut fields = FieldReader::new("greeting", bytes);
    if fields.u64()? != INIT_MAGIC {
        return Err(Error::invalid("the peer is not an NBD server"));
    }
    if fields.u64()? != OPTION_MAGIC {
        return Err(Error::unsupported("the server speaks the old negotiation, without options"));
    }
    let flags = fields.u16()?;
    if flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(Error::unsupported("the server does not speak the fixed newstyle negotiation"));
    }
    Ok(Parsed::Complete(flags, GREETING))
}

/// The client's answer to the greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientFlags {
    /// It knows that a server may refuse options.
    pub fixed_newstyle: bool,
    /// It does not want the padding behind the answer to `EXPORT_NAME`.
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// Reads the flags.
    ///
    /// # Errors
    /// On a flag that the greeting did not offer: the client and the server would disagree.
    pub fn parse(bytes: &[u8]) -> Result<Parsed<Self>> {
        if bytes.len() < CLIENT_FLAGS {
            return Ok(Parsed::Incomplete(CLIENT_FLAGS));
        }
        let flags = FieldReader::new("client flags", bytes).u32()?;
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return Err(Error::invalid(format!("unknown client flags {:#x}", flags & !known)));
        }
        let flags = Self {
            fixed_newstyle: flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0,
            no_zeroes: flags & u32::from(FLAG_NO_ZEROES) != 0,
        };
        Ok(Parsed::Complete(flags, CLIENT_FLAGS))
    }

    /// Writes the flags.
    pub fn put(self, out: &mut Vec<u8>) {
        let mut flags = 0;
        if self.fixed_newstyle {
            flags |= FLAG_FIXED_NEWSTYLE;
        }
        if self.no_zeroes {
            flags |= FLAG_NO_ZEROES;
        }
        out.extend_from_slice(&u32::from(flags).to_be_bytes());
    }
}

/// The header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option.
    pub code: u32,
    /// The length of its body in bytes: any number a client likes.
    pub len: u32,
}

impl OptionHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// When the magic number is wrong: the stream is out of step.
    pub fn parse(bytes: &[u8]) -> Result<Parsed<Self>> {
        if bytes.len() < OPTION_HEADER {
            return Ok(Parsed::Incomplete(OPTION_HEADER));
        }
        let mut fields = FieldReader::new("option header", bytes);
        let magic = fields.u64()?;
        if magic != OPTION_MAGIC {
            return Err(Error::invalid(format!("wrong magic number {magic:#x} of an option")));
        }
        let header = Self { code: fields.u32()?, len: fields.u32()? };
        Ok(Parsed::Complete(header, OPTION_HEADER))
    }
}

/// An option with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionRequest<'a> {
    /// Use the export, without information: ends the negotiation.
    ExportName(&'a str),
    /// End the connection.
    Abort,
    /// List the exports.
    List,
    /// Start TLS.
    StartTls,
    /// Tell about an export.
    Info(InfoRequest<'a>),
    /// Use an export: ends the negotiation.
    Go(InfoRequest<'a>),
    /// Use structured replies.
    StructuredReply,
    /// Use extended headers.
    ExtendedHeaders,
    /// List metadata contexts.
    ListMetaContext(MetaRequest<'a>),
    /// Choose metadata contexts.
    SetMetaContext(MetaRequest<'a>),
    /// End the connections that this one takes the place of.
    Reinstate(Reinstatement),
    /// An option that is not known here.
    Unknown(u32),
}

/// One of several connections of which each takes the place of those before: what a client gave up on an
/// older one must not be carried out behind what it asks on a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reinstatement {
    /// Says which connections take each other's place: a number that no other client can guess.
    pub id: [u8; 16],
    /// Its place among them: it ends those of the same export and client with lower numbers.
    pub number: u64,
}

impl Reinstatement {
    /// Whether the other one takes its place.
    pub fn is_before(&self, other: &Self) -> bool {
        self.id == other.id && self.number < other.number
    }

    fn parse(body: &[u8]) -> Result<Self> {
        let mut fields = FieldReader::new("REINSTATE", body);
        let mut id = [0; 16];
        id.copy_from_slice(fields.bytes(16)?);
        let number = fields.u64()?;
        fields.end()?;
        Ok(Self { id, number })
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.number.to_be_bytes());
    }
}

/// The body of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// The kinds of information that are wanted.
    pub wanted: Vec<u16>,
}

/// The body of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// The contexts that are asked for.
    pub queries: Vec<&'a str>,
}

impl<'a> OptionRequest<'a> {
    /// Reads an option's body, which has exactly the announced length.
    ///
    /// # Errors
    /// When the lengths in it do not add up, or a text is too long or not UTF-8.
    pub fn parse(code: u32, body: &'a [u8]) -> Result<Self> {
        let plain = |what, request| FieldReader::new(what, body).end().map(|()| request);
        match code {
            option::EXPORT_NAME => {
                FieldReader::new("EXPORT_NAME", body).text(body.len()).map(Self::ExportName)
            }
            option::ABORT => Ok(Self::Abort), // whatever it carries
            option::LIST => plain("LIST", Self::List),
            option::STARTTLS => plain("STARTTLS", Self::StartTls),
            option::STRUCTURED_REPLY => plain("STRUCTURED_REPLY", Self::StructuredReply),
            option::EXTENDED_HEADERS => plain("EXTENDED_HEADERS", Self::ExtendedHeaders),
            option::INFO => InfoRequest::parse("INFO", body).map(Self::Info),
            option::GO => InfoRequest::parse("GO", body).map(Self::Go),
            option::LIST_META_CONTEXT => {
                MetaRequest::parse("LIST_META_CONTEXT", body).map(Self::ListMetaContext)
            }
            option::SET_META_CONTEXT => {
                MetaRequest::parse("SET_META_CONTEXT", body).map(Self::SetMetaContext)
            }
            option::REINSTATE => Reinstatement::parse(body).map(Self::Reinstate),
            _ => Ok(Self::Unknown(code)),
        }
    }

    /// The option's number.
    pub fn code(&self) -> u32 {
        match self {
            Self::ExportName(_) => option::EXPORT_NAME,
            Self::Abort => option::ABORT,
            Self::List => option::LIST,
            Self::StartTls => option::STARTTLS,
            Self::Info(_) => option::INFO,
            Self::Go(_) => option::GO,
            Self::StructuredReply => option::STRUCTURED_REPLY,
            Self::ExtendedHeaders => option::EXTENDED_HEADERS,
            Self::ListMetaContext(_) => option::LIST_META_CONTEXT,
            Self::SetMetaContext(_) => option::SET_META_CONTEXT,
            Self::Reinstate(_) => option::REINSTATE,
            Self::Unknown(code) => *code,
        }
    }

    /// Writes the option with its header.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.code().to_be_bytes());
        with_length(out, |out| match self {
            Self::ExportName(name) => out.extend_from_slice(clip(name).as_bytes()),
            Self::Info(request) | Self::Go(request) => request.put(out),
            Self::ListMetaContext(request) | Self::SetMetaContext(request) => request.put(out),
            Self::Reinstate(reinstatement) => reinstatement.put(out),
            _ => {}
        });
    }
}

impl<'a> InfoRequest<'a> {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new(what, body);
        let name = fields.counted_text()?;
        let count = fields.u16()?;
        let mut kinds = FieldReader::new(what, fields.bytes(usize::from(count) * 2)?);
        fields.end()?;
        let mut wanted = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            wanted.push(kinds.u16()?);
        }
        Ok(Self { name, wanted })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_counted_text(self.name, out);
        out.extend_from_slice(&(self.wanted.len() as u16).to_be_bytes());
        for kind in &self.wanted {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }
}

impl<'a> MetaRequest<'a> {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new(what, body);
        let name = fields.counted_text()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.counted_text()?); // fails as soon as the body ends
        }
        fields.end()?;
        Ok(Self { name, queries })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_counted_text(self.name, out);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            put_counted_text(query, out);
        }
    }
}

/// The header of a reply to an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: u32,
    /// The kind of reply.
    pub kind: u32,
    /// The length of its body in bytes: any number a server likes.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// When the magic number is wrong: the stream is out of step.
    pub fn parse(bytes: &[u8]) -> Result<Parsed<Self>> {
        if bytes.len() < REPLY_HEADER {
            return Ok(Parsed::Incomplete(REPLY_HEADER));
        }
        let mut fields = FieldReader::new("option reply header", bytes);
        let magic = fields.u64()?;
        if magic != OPTION_REPLY_MAGIC {
            return Err(Error::invalid(format!("wrong magic number {magic:#x} of a reply")));
        }
        let header = Self { option: fields.u32()?, kind: fields.u32()?, len: fields.u32()? };
        Ok(Parsed::Complete(header, REPLY_HEADER))
    }
}

/// A reply to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionReply<'a> {
    /// The option is done.
    Ack,
    /// One export of a list.
    Server {
        /// Its name.
        name: &'a str,
        /// What it is; may be empty.
        description: &'a str,
    },
    /// One piece of information on an export.
    Info(Info<'a>),
    /// A metadata context.
    MetaContext {
        /// The number that block status replies will carry.
        id: u32,
        /// Its name.
        name: &'a str,
    },
    /// The option is refused.
    Error {
        /// The error's number, with the top bit set.
        code: u32,
        /// Why, for people; may be empty.
        message: &'a str,
    },
    /// A reply that is not known here; to be skipped.
    Unknown(u32),
}

/// Information on an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Info<'a> {
    /// Size and abilities.
    Export {
        /// The size in bytes.
        size: u64,
        /// The transmission flags.
        flags: u16,
    },
    /// The canonical name.
    Name(&'a str),
    /// What it is, for people.
    Description(&'a str),
    /// The sizes of requests, in bytes.
    BlockSize {
        /// Everything must be a multiple of this.
        minimum: u32,
        /// Multiples of this are fast.
        preferred: u32,
        /// The longest payload.
        maximum: u32,
    },
    /// A kind that is not known here; to be skipped.
    Unknown(u16),
}

impl<'a> OptionReply<'a> {
    /// Reads a reply's body, which has exactly the announced length.
    ///
    /// # Errors
    /// When the lengths in it do not add up, or a text is too long or not UTF-8.
    pub fn parse(kind: u32, body: &'a [u8]) -> Result<Self> {
        match kind {
            option_reply::ACK => FieldReader::new("ACK", body).end().map(|()| Self::Ack),
            option_reply::SERVER => {
                let mut fields = FieldReader::new("SERVER reply", body);
                let name = fields.counted_text()?;
                let description = fields.text(fields.rest.len())?;
                Ok(Self::Server { name, description })
            }
            option_reply::INFO => Info::parse(body).map(Self::Info),
            option_reply::META_CONTEXT => {
                let mut fields = FieldReader::new("META_CONTEXT reply", body);
                let id = fields.u32()?;
                Ok(Self::MetaContext { id, name: fields.text(fields.rest.len())? })
            }
            code if code & option_reply::ERROR_BIT != 0 => {
                // A text that cannot be read must not hide the error.
                let shown = &body[..body.len().min(MAX_STRING)];
                let message = match std::str::from_utf8(shown) {
                    Ok(message) => message,
                    Err(e) => std::str::from_utf8(&shown[..e.valid_up_to()]).unwrap_or_default(),
                };
                Ok(Self::Error { code, message })
            }
            kind => Ok(Self::Unknown(kind)),
        }
    }

    /// Writes the reply to `option` with its header.
    pub fn put(&self, option: u32, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Ack => option_reply::ACK,
            Self::Server { .. } => option_reply::SERVER,
            Self::Info(_) => option_reply::INFO,
            Self::MetaContext { .. } => option_reply::META_CONTEXT,
            Self::Error { code, .. } => code | option_reply::ERROR_BIT,
            Self::Unknown(kind) => *kind,
        };
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        with_length(out, |out| match self {
            Self::Server { name, description } => {
                put_counted_text(name, out);
                out.extend_from_slice(clip(description).as_bytes());
            }
            Self::Info(info) => info.put(out),
            Self::MetaContext { id, name } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(clip(name).as_bytes());
            }
            Self::Error { message, .. } => out.extend_from_slice(clip(message).as_bytes()),
            Self::Ack | Self::Unknown(_) => {}
        });
    }
}

impl<'a> Info<'a> {
    fn parse(body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new("INFO reply", body);
        let value = match fields.u16()? {
            info::EXPORT => Self::Export { size: fields.u64()?, flags: fields.u16()? },
            info::NAME => return fields.text(fields.rest.len()).map(Self::Name),
            info::DESCRIPTION => return fields.text(fields.rest.len()).map(Self::Description),
            info::BLOCK_SIZE => Self::BlockSize {
                minimum: fields.u32()?,
                preferred: fields.u32()?,
                maximum: fields.u32()?,
            },
            kind => return Ok(Self::Unknown(kind)),
        };
        fields.end()?;
        Ok(value)
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Export { size, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                put_export(*size, *flags, out);
            }
            Self::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(clip(name).as_bytes());
            }
            Self::Description(text) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(clip(text).as_bytes());
            }
            Self::BlockSize { minimum, preferred, maximum } => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [minimum, preferred, maximum] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Unknown(kind) => out.extend_from_slice(&kind.to_be_bytes()),
        }
    }
}

/// Writes size and flags of an export: the answer to `EXPORT_NAME`, without its padding.
pub fn put_export(size: u64, flags: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
}

/// Writes a body behind its length (32 bits).
fn with_length(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}
