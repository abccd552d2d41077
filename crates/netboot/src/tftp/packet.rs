//! Packets. Total: whatever is none is `None`.

/// The longest request that is read, in bytes (RFC 2347).
const LONGEST_REQUEST: usize = 512;
/// The most options of a request.
const MOST_OPTIONS: usize = 8;

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientPacket<'a> {
    /// Send this file.
    Read(ReadRequest<'a>),
    /// Take a file: never done.
    Write,
    /// Everything up to this block came; 0 is the answer to options.
    Ack(u16),
    /// The client ends the transfer.
    Error,
}

/// A request for a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether bytes are to be sent as they are (`octet`).
    pub binary: bool,
    /// The block size that is wished.
    pub block_size: Option<u64>,
    /// Seconds until something is sent again.
    pub timeout: Option<u64>,
    /// The client asks for the file's size.
    pub wants_size: bool,
    /// The blocks that may be under way.
    pub window: Option<u64>,
}

impl<'a> ClientPacket<'a> {
    /// Reads a packet.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk::<2>()?;
        match u16::from_be_bytes(*kind) {
            1 if bytes.len() <= LONGEST_REQUEST => read_request(rest).map(Self::Read),
            2 => Some(Self::Write),
            4 => Some(Self::Ack(u16::from_be_bytes(*rest.first_chunk()?))),
            5 => Some(Self::Error),
            _ => None,
        }
    }
}

fn read_request(bytes: &[u8]) -> Option<ReadRequest<'_>> {
    // Every text ends with a zero.
    let bytes = bytes.strip_suffix(&[0])?;
    let mut texts = bytes.split(|byte| *byte == 0).map(std::str::from_utf8);
    let name = texts.next()?.ok()?;
    let mode = texts.next()?.ok()?;
    let mut request =
        ReadRequest { name, binary: mode.eq_ignore_ascii_case("octet"), ..ReadRequest::default() };
    for _ in 0..MOST_OPTIONS {
        let Some(option) = texts.next() else { break };
        let (option, value) = (option.ok()?, texts.next()?.ok()?);
        let number = || value.parse().ok();
        match option.to_ascii_lowercase().as_str() {
            "blksize" => request.block_size = number(),
            "timeout" => request.timeout = number(),
            "tsize" => request.wants_size = true,
            "windowsize" => request.window = number(),
            _ => {} // what is not known is not answered
        }
    }
    Some(request)
}

/// A block of a file.
pub fn data(block: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + content.len());
    bytes.extend([0, 3]);
    bytes.extend(block.to_be_bytes());
    bytes.extend(content);
    bytes
}

/// The options that are granted.
pub fn options(granted: &[(&str, u64)]) -> Vec<u8> {
    let mut bytes = vec![0, 6];
    for (name, value) in granted {
        bytes.extend(format!("{name}\0{value}\0").bytes());
    }
    bytes
}

/// Why a request is not carried out (RFC 1350, appendix I).
pub fn error(code: u16, message: &str) -> Vec<u8> {
    let mut bytes = vec![0, 5];
    bytes.extend(code.to_be_bytes());
    bytes.extend(message.bytes());
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0..8u8, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let bytes = [&[0, kind][..], &bytes].concat();
            let _ = ClientPacket::decode(&bytes);
        }
    }

    #[test]
    fn a_request_says_what_is_wished() {
        let bytes =
            b"\0\x01snponly.efi\0OCTET\0tsize\x000\0blksize\x001468\0windowsize\x004\0x\0y\0";
        let Some(ClientPacket::Read(request)) = ClientPacket::decode(bytes) else {
            panic!("no request")
        };
        assert_eq!((request.name, request.binary), ("snponly.efi", true));
        assert_eq!((request.block_size, request.window), (Some(1468), Some(4)));
        assert!(request.wants_size);
        assert_eq!(ClientPacket::decode(b"\0\x01name\0octet"), None, "no zero at the end");
        assert_eq!(ClientPacket::decode(b"\0\x01name\0"), None, "no mode");
    }
}
