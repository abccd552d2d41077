//! Replies to options.

use super::{REPLY_HEADER, with_length};
use crate::codec::constants::{MAX_STRING, OPTION_REPLY_MAGIC, info, option_reply};
use crate::codec::{FieldReader, Parsed, clip, put_counted_text};
use block::{Error, Result};

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
    /// What the export holds as a whole: another text when something else was put in its place, such as an earlier
    /// state, and the same on every server while only its clients change it.
    Content(&'a str),
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
            info::CONTENT => return fields.text(fields.rest.len()).map(Self::Content),
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
            Self::Content(text) => {
                out.extend_from_slice(&info::CONTENT.to_be_bytes());
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
