//! The wire format of the protocol. Pure: byte slices in, byte vectors out, no I/O, no clock.
//!
//! Every parser is total: for any bytes it gives a value, asks for more, or fails with
//! [`Invalid`](block::ErrorKind::Invalid). Parsers of a stream take what was received so far and
//! give [`Parsed`]; parsers of a body take exactly its bytes. Nothing is allocated for a length
//! that was only announced.
//!
//! All integers are big-endian.

pub mod constants;
pub mod fault;
pub mod names;
pub mod option;
pub(crate) mod options_table;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;

use block::{Error, Result};

/// What a parser of a stream found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<T> {
    /// A whole item; it took this many bytes.
    Complete(T, usize),
    /// The item is not whole: it needs at least this many bytes, counted from its start.
    Incomplete(usize),
}

/// How the replies of a connection look, as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ReplyStyle {
    /// One header with an error number; data only behind reads.
    #[default]
    Simple,
    /// Typed chunks, errors with a text.
    Structured,
    /// Structured with 64-bit lengths, in requests too.
    Extended,
}

/// Reads fields off the front of a body.
#[derive(Debug, Clone, Copy)]
struct FieldReader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> FieldReader<'a> {
    fn new(what: &'static str, rest: &'a [u8]) -> Self {
        Self { rest, what }
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(Error::invalid(format!("{} is too short", self.what))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A text of `len` bytes: a name or a message.
    fn text(&mut self, len: usize) -> Result<&'a str> {
        if len > constants::MAX_STRING {
            let (what, most) = (self.what, constants::MAX_STRING);
            return Err(Error::invalid(format!(
                "{what} holds a text of {len} bytes, more than {most}"
            )));
        }
        std::str::from_utf8(self.bytes(len)?)
            .map_err(|_| Error::invalid(format!("{} holds a text that is not UTF-8", self.what)))
    }

    /// A text preceded by its length (32 bits).
    fn counted_text(&mut self) -> Result<&'a str> {
        let len = self.u32()?;
        self.text(usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!("{} is {} bytes too long", self.what, self.rest.len())))
    }
}

fn put_counted_text(text: &str, out: &mut Vec<u8>) {
    let text = clip(text);
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// A text cut to what the protocol allows.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(constants::MAX_STRING)]
}
