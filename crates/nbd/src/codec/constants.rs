//! The numbers of the protocol, under the names of its specification (`doc/proto.md` of the NBD
//! project, with `extension-ext-header`).

#![allow(missing_docs)] // the names are the specification's; it says what they mean

pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943; // "NBDMAGIC"
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // "IHAVEOPT"
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The longest name, description or error text, in bytes.
pub const MAX_STRING: usize = 4096;

/// Handshake flags, of the server and of the client alike.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Transmission flags: what an export can do.
pub mod export_flags {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_RESIZE: u16 = 1 << 9;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Options of the negotiation.
pub mod option {
    macro_rules! numbers {
        ($($number:literal, $name:ident, $form:ident$(($holds:ty))?, $answers:path;)*) => {
            $(pub const $name: u32 = $number;)*
        };
    }
    crate::codec::options_table::for_each_option!(numbers);
}

/// Replies to options. Those with the top bit set are errors.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;

    pub const ERROR_BIT: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Kinds of information on an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
    /// Our own: what the export holds as a whole.
    pub const CONTENT: u16 = 0x534f;
}

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    pub const RESIZE: u16 = 8;
}

/// Flags of commands.
pub mod command_flags {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of reply chunks. Those with the top bit set are errors.
pub mod chunk {
    pub const FLAG_DONE: u16 = 1 << 0;

    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR_BIT: u16 = 1 << 15;
    pub const ERROR: u16 = ERROR_BIT | 1;
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// The metadata context that every server should offer.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// States of `base:allocation`.
pub mod allocation {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// Error numbers on the wire.
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
}
