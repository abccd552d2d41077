//! Replies to requests: simple replies, and chunks of structured and extended ones.

use super::constants::{
    EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, allocation, chunk,
};
use super::{FieldReader, Parsed, ReplyStyle, clip};
use block::{Error, Extent, ExtentKind, Result, Span};

/// Length of a simple reply's header, in bytes.
pub const SIMPLE: usize = 16;
/// Length of a structured chunk's header, in bytes.
pub const STRUCTURED: usize = 20;
/// Length of an extended chunk's header, in bytes.
pub const EXTENDED: usize = 32;
/// Bytes in front of the data of an `OFFSET_DATA` chunk.
pub const DATA_OFFSET: usize = 8;

/// Marks the request that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset; only extended headers carry it.
    pub offset: u64,
}

fn put_chunk(
    style: ReplyStyle,
    mark: Mark,
    flags: u16,
    kind: u16,
    payload: u64,
    out: &mut Vec<u8>,
) {
    let extended = style == ReplyStyle::Extended;
    let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    out.extend_from_slice(&magic.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&mark.cookie.to_be_bytes());
    if extended {
        out.extend_from_slice(&mark.offset.to_be_bytes());
        out.extend_from_slice(&payload.to_be_bytes());
    } else {
        out.extend_from_slice(&(payload as u32).to_be_bytes());
    }
}

fn put_simple(cookie: u64, error: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Writes a whole reply that says "done".
pub fn put_done(style: ReplyStyle, mark: Mark, out: &mut Vec<u8>) {
    match style {
        ReplyStyle::Simple => put_simple(mark.cookie, 0, out),
        _ => put_chunk(style, mark, chunk::FLAG_DONE, chunk::NONE, 0, out),
    }
}

/// Writes what stands in front of the `len` bytes of a read that is answered at once and whole.
/// Of an empty read this is the whole reply.
pub fn put_read_head(style: ReplyStyle, mark: Mark, len: u32, out: &mut Vec<u8>) {
    if len == 0 || style == ReplyStyle::Simple {
        return put_done(style, mark, out);
    }
    let payload = u64::from(len) + DATA_OFFSET as u64;
    put_chunk(style, mark, chunk::FLAG_DONE, chunk::OFFSET_DATA, payload, out);
    out.extend_from_slice(&mark.offset.to_be_bytes());
}

/// Writes a chunk that says that `len` bytes from `offset` on read as zeroes. Structured styles
/// only.
pub fn put_hole(
    style: ReplyStyle,
    mark: Mark,
    done: bool,
    offset: u64,
    len: u32,
    out: &mut Vec<u8>,
) {
    let flags = if done { chunk::FLAG_DONE } else { 0 };
    put_chunk(style, mark, flags, chunk::OFFSET_HOLE, 12, out);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Writes a whole reply that fails with `error`; `message` is for people and goes along where
/// the style has room for it.
pub fn put_error(style: ReplyStyle, mark: Mark, error: u32, message: &str, out: &mut Vec<u8>) {
    if style == ReplyStyle::Simple {
        return put_simple(mark.cookie, error, out);
    }
    let message = clip(message);
    let payload = 6 + message.len() as u64;
    put_chunk(style, mark, chunk::FLAG_DONE, chunk::ERROR, payload, out);
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Writes a whole reply of `base:allocation` under the context's number. Structured styles only;
/// without extended headers extents are below 4 GiB.
pub fn put_extents(
    style: ReplyStyle,
    mark: Mark,
    context: u32,
    extents: &[Extent],
    out: &mut Vec<u8>,
) {
    let count = extents.len() as u64;
    if style == ReplyStyle::Extended {
        put_chunk(style, mark, chunk::FLAG_DONE, chunk::BLOCK_STATUS_EXT, 8 + count * 16, out);
        out.extend_from_slice(&context.to_be_bytes());
        out.extend_from_slice(&(count as u32).to_be_bytes());
    } else {
        put_chunk(style, mark, chunk::FLAG_DONE, chunk::BLOCK_STATUS, 4 + count * 8, out);
        out.extend_from_slice(&context.to_be_bytes());
    }
    for extent in extents {
        let state = match extent.kind {
            ExtentKind::Data => 0,
            ExtentKind::Zero => allocation::ZERO,
            ExtentKind::Hole => allocation::ZERO | allocation::HOLE,
        };
        if style == ReplyStyle::Extended {
            out.extend_from_slice(&extent.span.len().to_be_bytes());
            out.extend_from_slice(&u64::from(state).to_be_bytes());
        } else {
            out.extend_from_slice(&(extent.span.len() as u32).to_be_bytes());
            out.extend_from_slice(&state.to_be_bytes());
        }
    }
}

/// The header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. The data of a successful read follow; their length is the request's.
    Simple {
        /// The request's cookie.
        cookie: u64,
        /// 0, or the error's number.
        error: u32,
    },
    /// A chunk.
    Chunk {
        /// The request's cookie.
        cookie: u64,
        /// This is the last chunk of the reply.
        done: bool,
        /// See [`chunk`].
        kind: u16,
        /// The length of what follows in bytes: any number a server likes.
        len: u64,
    },
}

impl ReplyHeader {
    /// Reads a header. In the structured style both simple replies and chunks occur; in the
    /// extended one only extended chunks.
    ///
    /// # Errors
    /// When the magic number is wrong for the style: the stream is out of step.
    pub fn parse(style: ReplyStyle, bytes: &[u8]) -> Result<Parsed<Self>> {
        if bytes.len() < 4 {
            return Ok(Parsed::Incomplete(SIMPLE));
        }
        let mut fields = FieldReader::new("reply header", bytes);
        let magic = fields.u32()?;
        let header = match (magic, style) {
            (SIMPLE_REPLY_MAGIC, ReplyStyle::Simple | ReplyStyle::Structured) => SIMPLE,
            (STRUCTURED_REPLY_MAGIC, ReplyStyle::Structured) => STRUCTURED,
            (EXTENDED_REPLY_MAGIC, ReplyStyle::Extended) => EXTENDED,
            _ => return Err(Error::invalid(format!("wrong magic number {magic:#x} of a reply"))),
        };
        if bytes.len() < header {
            return Ok(Parsed::Incomplete(header));
        }
        if header == SIMPLE {
            let error = fields.u32()?;
            return Ok(Parsed::Complete(Self::Simple { cookie: fields.u64()?, error }, header));
        }
        let flags = fields.u16()?;
        let kind = fields.u16()?;
        let cookie = fields.u64()?;
        let len = if header == EXTENDED {
            let _offset = fields.u64()?;
            fields.u64()?
        } else {
            u64::from(fields.u32()?)
        };
        let done = flags & chunk::FLAG_DONE != 0;
        Ok(Parsed::Complete(Self::Chunk { cookie, done, kind, len }, header))
    }
}

/// Reads the payload of a hole chunk: offset and length in bytes.
///
/// # Errors
/// When it has not the right length.
pub fn parse_hole(payload: &[u8]) -> Result<(u64, u32)> {
    let mut fields = FieldReader::new("hole chunk", payload);
    let hole = (fields.u64()?, fields.u32()?);
    fields.end()?;
    Ok(hole)
}

/// Reads the payload of an error chunk of any kind: number and text.
///
/// # Errors
/// When the lengths do not add up.
pub fn parse_error(payload: &[u8]) -> Result<(u32, String)> {
    let mut fields = FieldReader::new("error chunk", payload);
    let error = fields.u32()?;
    let len = fields.u16()?;
    let message = fields.bytes(usize::from(len))?; // an offset may follow
    Ok((error, String::from_utf8_lossy(message).into_owned()))
}

/// Reads the payload of a block status chunk: the context's number, and the extents from
/// `span.offset()` on, clipped to `span`.
///
/// # Errors
/// When the lengths do not add up, an extent is empty, or there is none.
pub fn parse_extents(style: ReplyStyle, span: Span, payload: &[u8]) -> Result<(u32, Vec<Extent>)> {
    let mut fields = FieldReader::new("block status chunk", payload);
    let context = fields.u32()?;
    let wide = style == ReplyStyle::Extended;
    let entry = if wide { 16 } else { 8 };
    let announced = if wide { Some(fields.u32()? as usize) } else { None };
    let count = fields.rest.len() / entry;
    if count == 0
        || !fields.rest.len().is_multiple_of(entry)
        || announced.is_some_and(|n| n != count)
    {
        return Err(Error::invalid("a block status chunk has a wrong length"));
    }
    let mut list = Vec::new();
    let mut at = span.offset();
    for _ in 0..count {
        let (len, state) = if wide {
            (fields.u64()?, fields.u64()?)
        } else {
            (u64::from(fields.u32()?), u64::from(fields.u32()?))
        };
        if len == 0 {
            return Err(Error::invalid("a block status chunk holds an empty extent"));
        }
        let end = at.saturating_add(len).min(span.end());
        let kind = match state as u32 {
            s if s & allocation::ZERO == 0 => ExtentKind::Data,
            s if s & allocation::HOLE == 0 => ExtentKind::Zero,
            _ => ExtentKind::Hole,
        };
        block::extent::push(&mut list, Span::between(at, end), kind);
        at = end;
    }
    Ok((context, list))
}
