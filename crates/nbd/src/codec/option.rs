//! The negotiation: greeting, options and their replies.

use super::constants::{FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, OPTION_MAGIC};
use super::{FieldReader, Parsed};
use block::{Error, Result};

mod body;
mod info;
mod meta;
mod reinstate;
mod reply;
mod request;

pub use info::InfoRequest;
pub use meta::MetaRequest;
pub use reinstate::Reinstatement;
pub use reply::{Info, OptionReply, OptionReplyHeader, put_export};
pub use request::OptionRequest;

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

/// Writes a body behind its length (32 bits).
fn with_length(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}
