//! The header of a request.

use super::constants::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};
use super::{Parsed, ReplyStyle};
use block::{Error, Result};

/// Length of a compact header, in bytes.
pub const COMPACT: usize = 28;
/// Length of an extended header, in bytes.
pub const EXTENDED: usize = 32;

/// Length of a request's header, in bytes.
pub const fn header_len(style: ReplyStyle) -> usize {
    match style {
        ReplyStyle::Simple | ReplyStyle::Structured => COMPACT,
        ReplyStyle::Extended => EXTENDED,
    }
}

/// The header of a request. Command and flags may be unknown ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// See [`command_flags`](super::constants::command_flags).
    pub flags: u16,
    /// See [`command`](super::constants::command).
    pub command: u16,
    /// The client's mark, returned in the reply.
    pub cookie: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes; below 2^32 in a compact header.
    pub len: u64,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

impl RequestHeader {
    /// Reads a header of the negotiated style.
    ///
    /// # Errors
    /// When the magic number is wrong: the stream is out of step.
    #[inline]
    pub fn parse(style: ReplyStyle, bytes: &[u8]) -> Result<Parsed<Self>> {
        let header = header_len(style);
        if bytes.len() < header {
            return Ok(Parsed::Incomplete(header));
        }
        let magic = u32::from_be_bytes(field(bytes, 0));
        let extended = style == ReplyStyle::Extended;
        if magic != if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC } {
            return Err(Error::invalid(format!("wrong magic number {magic:#x} of a request")));
        }
        let request = Self {
            flags: u16::from_be_bytes(field(bytes, 4)),
            command: u16::from_be_bytes(field(bytes, 6)),
            cookie: u64::from_be_bytes(field(bytes, 8)),
            offset: u64::from_be_bytes(field(bytes, 16)),
            len: if extended {
                u64::from_be_bytes(field(bytes, 24))
            } else {
                u64::from(u32::from_be_bytes(field(bytes, 24)))
            },
        };
        Ok(Parsed::Complete(request, header))
    }

    /// Writes the header. In a compact one only the low 32 bits of the length are kept.
    pub fn put(&self, style: ReplyStyle, out: &mut Vec<u8>) {
        let extended = style == ReplyStyle::Extended;
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        if extended {
            out.extend_from_slice(&self.len.to_be_bytes());
        } else {
            out.extend_from_slice(&(self.len as u32).to_be_bytes());
        }
    }
}
