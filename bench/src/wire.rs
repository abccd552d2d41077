//! The NBD messages that the load needs, as the protocol document lays them out (all integers are
//! big-endian): the fixed newstyle handshake up to `NBD_OPT_GO`, 28-byte requests, 16-byte simple
//! replies. Simple replies are what the Linux kernel's client speaks.

/// The first eight bytes a server sends, `NBDMAGIC`.
pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The second eight bytes, and the start of every option, `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The start of an option's reply.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The start of a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The start of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags, both ways: fixed newstyle, no zeroes.
pub(crate) const HANDSHAKE_FLAGS: u16 = 0b11;
/// `NBD_OPT_GO`.
pub(crate) const OPTION_GO: u32 = 7;
/// `NBD_OPT_STARTTLS`.
pub(crate) const OPTION_STARTTLS: u32 = 5;
/// `NBD_REP_ACK`.
pub(crate) const REPLY_ACK: u32 = 1;
/// `NBD_REP_INFO`.
pub(crate) const REPLY_INFO: u32 = 3;
/// `NBD_REP_ERR_UNSUP`; the highest bit marks an error.
pub(crate) const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
/// `NBD_INFO_EXPORT`: u16 type, u64 size, u16 transmission flags.
pub(crate) const INFO_EXPORT: u16 = 0;

/// `NBD_CMD_READ`.
pub(crate) const READ: u16 = 0;
/// `NBD_CMD_WRITE`.
pub(crate) const WRITE: u16 = 1;
/// `NBD_CMD_DISC`.
pub(crate) const DISCONNECT: u16 = 2;
/// `NBD_CMD_FLUSH`.
pub(crate) const FLUSH: u16 = 3;

/// Length of a request's header.
pub(crate) const REQUEST: usize = 28;
/// Length of a simple reply's header.
pub(crate) const REPLY: usize = 16;

/// A request's header: magic, flags, type, cookie, offset, length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The command.
    pub(crate) kind: u16,
    /// Comes back in the reply.
    pub(crate) cookie: u64,
    /// Offset, bytes.
    pub(crate) offset: u64,
    /// Length, bytes.
    pub(crate) length: u32,
}

impl RequestHeader {
    /// The header's bytes.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].fill(0);
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.length.to_be_bytes());
    }

    /// The request whose header `bytes` begins with, or `None` without its magic.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        (u32_at(bytes, 0) == REQUEST_MAGIC).then(|| Self {
            kind: u16::from_be_bytes([bytes[6], bytes[7]]),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }
}

/// The big-endian `u32` at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The big-endian `u64` at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(bytes, at)) << 32) | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let request = RequestHeader { kind: WRITE, cookie: 0x0102, offset: 1 << 40, length: 4096 };
        let mut bytes = [0xff; REQUEST];
        request.encode(&mut bytes);
        assert_eq!(
            bytes,
            [
                0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 0,
                0, 0, 0x10, 0
            ]
        );
        assert_eq!(RequestHeader::decode(&bytes), Some(request));
        bytes[0] = 0;
        assert_eq!(RequestHeader::decode(&bytes), None);
    }
}
