//! The client's side of the negotiation. The server is not trusted: every length is bounded.

use super::{ClientOptions, Stream};
use crate::Uri;
use crate::codec::constants::{BASE_ALLOCATION, FLAG_NO_ZEROES, export_flags, info, option_reply};
use crate::codec::option::{
    CLIENT_FLAGS, ClientFlags, EXPORT_NAME_PADDING, GREETING, Info, InfoRequest, MetaRequest,
    OptionReply, OptionReplyHeader, OptionRequest, REPLY_HEADER, parse_greeting,
};
use crate::codec::{Parsed, ReplyStyle, fault};
use block::{BLOCK, Error, Limits, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest reply to an option that is accepted, in bytes.
const LONGEST_REPLY: u32 = 64 << 10;
/// Replies to one option that are accepted.
const MOST_REPLIES: usize = 1000;
/// Bytes of all replies to one option that are accepted.
const MOST_BYTES: usize = 1 << 20;
/// Exports of a list that are accepted.
const MOST_LISTED: usize = 10_000;
/// The longest payload that is sent or asked for, whatever the server says.
const LONGEST_PAYLOAD: u32 = 32 << 20;

/// What was agreed with the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The size of the export, in bytes.
    pub size: u64,
    /// See [`export_flags`](crate::codec::constants::export_flags).
    pub flags: u16,
    /// How replies look.
    pub style: ReplyStyle,
    /// The number of `base:allocation`, when it was agreed on.
    pub allocation: Option<u32>,
    /// The sizes of requests that the server takes.
    pub limits: Limits,
    /// What the export holds as a whole, where the server tells it.
    pub content: Option<String>,
}

impl Terms {
    /// Whether the export has a flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether requests made under these terms can go on under `new` ones: the export has not
    /// shrunk, can all that it could, and nothing else was put in its place.
    pub fn continues_as(&self, new: &Self) -> bool {
        new.size >= self.size
            && new.flags & self.flags == self.flags
            && new.has(export_flags::READ_ONLY) == self.has(export_flags::READ_ONLY)
            && new.style == self.style
            && new.allocation.is_some() == self.allocation.is_some()
            && new.limits == self.limits
            && self.is_content_of(new)
    }

    /// Whether `new` is of what this was of. A server that does not tell is believed.
    pub fn is_content_of(&self, new: &Self) -> bool {
        match (&self.content, &new.content) {
            (Some(own), Some(new)) => own == new,
            _ => true,
        }
    }
}

/// Agrees with the server at the other end of `stream` to use the export of `uri`, and encrypts the
/// connection before if that says so. For programs that drive the connection themselves, with the
/// [`codec`](crate::codec); [`Remote`](crate::Remote) is for the rest.
///
/// # Errors
/// The server's refusal, or what is wrong with its answers.
pub async fn negotiate(
    stream: Box<dyn Stream>,
    uri: &Uri,
    options: &ClientOptions,
) -> Result<(Box<dyn Stream>, Terms)> {
    encrypt_and_choose(stream, uri, options, Features::All).await
}

/// What is asked of a server beyond what every server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Features {
    /// Extended headers or structured replies, and block status.
    All,
    /// Nothing: the connection is for somebody who knows simple replies only.
    None,
}

/// Negotiates as [`negotiate`] does, asking for these features.
pub(super) async fn encrypt_and_choose(
    stream: Box<dyn Stream>,
    uri: &Uri,
    options: &ClientOptions,
    features: Features,
) -> Result<(Box<dyn Stream>, Terms)> {
    let (mut stream, no_zeroes) = greet_and_encrypt(stream, uri, options).await?;
    let terms = choose(&mut stream, uri, options, no_zeroes, features).await?;
    Ok((stream, terms))
}

/// The names of all exports that the server lists.
pub(super) async fn encrypt_and_list(
    stream: Box<dyn Stream>,
    uri: &Uri,
    options: &ClientOptions,
) -> Result<Vec<String>> {
    let (mut stream, _) = greet_and_encrypt(stream, uri, options).await?;
    let mut names = Vec::new();
    let listed = ask_for(MOST_LISTED, &mut stream, &OptionRequest::List, |reply| {
        if let OptionReply::Server { name, .. } = reply {
            names.push(name.to_owned());
        }
        Ok(())
    });
    if let Err(refused) = listed.await? {
        let why = match refused.message.as_str() {
            "" => format!("error {:#x}", refused.code),
            text => text.to_owned(),
        };
        let kind = fault::option_kind(refused.code);
        return Err(Error::new(kind, format!("the server does not list its exports: {why}")));
    }
    // A goodbye; whether it arrives does not matter.
    let mut out = Vec::new();
    OptionRequest::Abort.put(&mut out);
    let _ = stream.write_all(&out).await;
    Ok(names)
}

/// Takes the greeting, and encrypts the connection if the address says so; gives what [`greet`] does.
async fn greet_and_encrypt(
    mut stream: Box<dyn Stream>,
    uri: &Uri,
    options: &ClientOptions,
) -> Result<(Box<dyn Stream>, bool)> {
    let no_zeroes = greet(&mut stream).await?;
    if uri.tls.is_some() {
        let Some(tls) = &options.tls else {
            return Err(Error::invalid("nbds:// needs certificates, and none were given"));
        };
        if let Err(refused) = ask(&mut stream, &OptionRequest::StartTls, |_| Ok(())).await? {
            let why = match refused.message.as_str() {
                "" => format!("error {:#x}", refused.code),
                text => text.to_owned(),
            };
            return Err(Error::denied(format!("the server does not encrypt: {why}")));
        }
        stream = tls.connect(stream, uri).await?;
    }
    Ok((stream, no_zeroes))
}

/// Agrees on an export over a connection that is not encrypted, with no features. Takes not one byte
/// more than the negotiation has.
pub(super) async fn choose_plain<S>(
    stream: &mut S,
    uri: &Uri,
    options: &ClientOptions,
) -> Result<Terms>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let no_zeroes = greet(stream).await?;
    choose(stream, uri, options, no_zeroes, Features::None).await
}

/// Takes the greeting and answers it; whether the server leaves out the zeroes behind the answer to
/// `EXPORT_NAME`.
async fn greet<S>(stream: &mut S) -> Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = [0; GREETING];
    read_exact(stream, &mut greeting).await?;
    let no_zeroes = match parse_greeting(&greeting)? {
        Parsed::Complete(flags, _) => flags & FLAG_NO_ZEROES != 0,
        Parsed::Incomplete(_) => return Err(Error::internal("a greeting has a fixed length")),
    };
    let mut out = Vec::with_capacity(CLIENT_FLAGS);
    ClientFlags { fixed_newstyle: true, no_zeroes }.put(&mut out);
    stream.write_all(&out).await.map_err(lost)?;
    Ok(no_zeroes)
}

/// Agrees on an export and on how to use it.
async fn choose<S>(
    stream: &mut S,
    uri: &Uri,
    options: &ClientOptions,
    no_zeroes: bool,
    features: Features,
) -> Result<Terms>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let export = &uri.export;
    let mut style = ReplyStyle::Simple;
    let styles: &[_] = match features {
        Features::None => &[],
        Features::All => &[
            (OptionRequest::ExtendedHeaders, ReplyStyle::Extended),
            (OptionRequest::StructuredReply, ReplyStyle::Structured),
        ],
    };
    for (option, agreed) in styles {
        if ask(stream, option, |_| Ok(())).await?.is_ok() {
            style = *agreed;
            break;
        }
    }
    let mut allocation = None;
    if style != ReplyStyle::Simple {
        let request = MetaRequest { name: export, queries: vec![BASE_ALLOCATION] };
        let set = OptionRequest::SetMetaContext(request);
        // A server without contexts refuses, which is no harm.
        let _ = ask(stream, &set, |reply| {
            if let OptionReply::MetaContext { id, name: BASE_ALLOCATION } = reply {
                allocation = Some(id);
            }
            Ok(())
        })
        .await?;
    }
    if let Some(reinstatement) = options.reinstates {
        // A server that does not know it refuses, and orders connections as it will.
        let _ = ask(stream, &OptionRequest::Reinstate(reinstatement), |_| Ok(())).await?;
        if options.initial_contact {
            let _ = ask(stream, &OptionRequest::InitialContact, |_| Ok(())).await?;
        }
    }
    let (mut size, mut limits) = (None, Limits { maximum: LONGEST_PAYLOAD, ..Limits::default() });
    let mut content = None;
    // Whoever connects again must find what it left. Servers pass over what they do not know.
    let wanted = vec![info::BLOCK_SIZE, info::CONTENT];
    let go = OptionRequest::Go(InfoRequest { name: export, wanted });
    let answer = ask(stream, &go, |reply| {
        match reply {
            OptionReply::Info(Info::Export { size: bytes, flags }) => size = Some((bytes, flags)),
            OptionReply::Info(Info::BlockSize { minimum, preferred, maximum }) => {
                limits = block_sizes(minimum, preferred, maximum)?;
            }
            OptionReply::Info(Info::Content(text)) => content = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    })
    .await?;
    let (size, flags) = match answer {
        Ok(()) => size.ok_or_else(|| Error::invalid("the server does not tell the size"))?,
        Err(Refused { code: option_reply::ERR_UNSUP, .. }) => {
            export_name(stream, export, no_zeroes).await?
        }
        Err(refused) => return Err(refused.error(export)),
    };
    Ok(Terms { size, flags, style, allocation, limits, content })
}

/// A server's refusal of an option.
struct Refused {
    code: u32,
    message: String,
}

impl Refused {
    fn error(&self, export: &str) -> Error {
        let why = match self.message.as_str() {
            "" => format!("error {:#x}", self.code),
            text => text.to_owned(),
        };
        let kind = fault::option_kind(self.code);
        Error::new(kind, format!("the server refuses export {export:?}: {why}"))
    }
}

/// Sends an option and hands every reply but the last to `each`.
async fn ask<S>(
    stream: &mut S,
    option: &OptionRequest<'_>,
    each: impl FnMut(OptionReply<'_>) -> Result<()>,
) -> Result<std::result::Result<(), Refused>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    ask_for(MOST_REPLIES, stream, option, each).await
}

/// Sends an option and gives each reply to `each`: at most `most` replies, of [`MOST_BYTES`] together.
async fn ask_for<S>(
    most: usize,
    stream: &mut S,
    option: &OptionRequest<'_>,
    mut each: impl FnMut(OptionReply<'_>) -> Result<()>,
) -> Result<std::result::Result<(), Refused>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = Vec::new();
    option.put(&mut out);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut bytes = 0;
    for _ in 0..=most {
        let mut header = [0; REPLY_HEADER];
        read_exact(stream, &mut header).await?;
        let Parsed::Complete(header, _) = OptionReplyHeader::parse(&header)? else {
            return Err(Error::internal("a reply's header has a fixed length"));
        };
        if header.option != option.code() || header.len > LONGEST_REPLY {
            return Err(Error::invalid("the server's reply does not fit its option"));
        }
        bytes += header.len as usize;
        if bytes > MOST_BYTES {
            return Err(Error::invalid("the server's replies to an option are too long"));
        }
        let mut body = vec![0; header.len as usize];
        read_exact(stream, &mut body).await?;
        match OptionReply::parse(header.kind, &body)? {
            OptionReply::Ack => return Ok(Ok(())),
            OptionReply::Error { code, message } => {
                return Ok(Err(Refused { code, message: message.to_owned() }));
            }
            reply => each(reply)?,
        }
    }
    Err(Error::invalid("the server's replies to an option do not end"))
}

/// The old way to choose an export.
async fn export_name<S>(stream: &mut S, export: &str, no_zeroes: bool) -> Result<(u64, u16)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = Vec::new();
    OptionRequest::ExportName(export).put(&mut out);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut answer = [0; 10 + EXPORT_NAME_PADDING];
    let len = if no_zeroes { 10 } else { answer.len() };
    read_exact(stream, &mut answer[..len]).await?;
    let (size, flags) = answer[..10].split_at(8);
    let size = size.try_into().map(u64::from_be_bytes);
    let flags = flags.try_into().map(u16::from_be_bytes);
    match (size, flags) {
        (Ok(size), Ok(flags)) => Ok((size, flags)),
        _ => Err(Error::internal("the answer to EXPORT_NAME has a fixed length")),
    }
}

fn block_sizes(minimum: u32, preferred: u32, maximum: u32) -> Result<Limits> {
    let sane = minimum.is_power_of_two()
        && minimum <= 64 << 10
        && preferred.is_power_of_two()
        && preferred >= minimum
        && maximum >= minimum;
    if !sane {
        return Err(Error::invalid(format!(
            "the server tells senseless block sizes ({minimum}, {preferred}, {maximum})"
        )));
    }
    let maximum = maximum.min(LONGEST_PAYLOAD) / minimum * minimum;
    let most = 1 << maximum.ilog2(); // a small maximum rules
    let preferred = preferred.max(BLOCK as u32).min(most);
    Ok(Limits { minimum, preferred, maximum })
}

async fn read_exact(stream: &mut (impl AsyncRead + Unpin), buf: &mut [u8]) -> Result<()> {
    stream.read_exact(buf).await.map(|_| ()).map_err(lost)
}

fn lost(error: std::io::Error) -> Error {
    if let Some(refused) = super::tls::refused(&error) {
        return refused; // TLS 1.3 says so only behind the handshake
    }
    Error::unavailable(format!("the connection was lost in the negotiation: {error}"))
        .with_source(error)
}
