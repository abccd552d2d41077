//! The bytes of the protocol (RFC 7143, 11): PDUs cut from a stream, requests decoded, answers encoded,
//! text keys. Pure.
//!
//! | module | concept |
//! |---|---|
//! | [`request`] | what initiators send |
//! | [`response`] | what a target sends |
//! | [`text`] | keys and values |

pub mod request;
pub mod response;
pub mod text;

pub use request::RequestPdu;

use std::fmt;

/// The length of a basic header segment, in bytes.
pub const HEADER: usize = 48;

/// The tag that stands for none.
pub const NO_TAG: u32 = 0xffff_ffff;

/// The digests of a connection (CRC32C).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digests {
    /// Behind each header.
    pub header: bool,
    /// Behind each data segment that is not empty.
    pub data: bool,
}

/// A PDU of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pdu<'a> {
    /// The basic header segment.
    pub header: &'a [u8; HEADER],
    /// The data segment, without padding.
    pub data: &'a [u8],
}

/// What is wrong with a stream. Only [`DataDigest`](Self::DataDigest) leaves it in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// A header's digest does not match.
    HeaderDigest,
    /// The digest of a data segment does not match.
    DataDigest,
    /// A data segment is longer than was agreed; its length in bytes.
    TooLong(usize),
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderDigest => f.write_str("the digest of a header does not match"),
            Self::DataDigest => f.write_str("the digest of a data segment does not match"),
            Self::TooLong(length) => {
                write!(f, "a data segment of {length} bytes is longer than was agreed")
            }
        }
    }
}

/// The big-endian numbers of a header.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}

pub(crate) fn u24_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 3).map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Cuts the first PDU from `stream`: the PDU and how many bytes of the stream it takes, or how many
/// bytes must be there before there is more to say.
///
/// # Errors
/// A [`StreamFault`] of the stream. A data segment may be `longest` bytes long.
pub fn cut(stream: &[u8], digests: Digests, longest: usize) -> Result<PduCut<'_>, StreamFault> {
    let Some(header) = stream.first_chunk::<HEADER>() else {
        return Ok(PduCut::Short(HEADER));
    };
    let length = u24_at(header, 5) as usize;
    if length > longest {
        return Err(StreamFault::TooLong(length));
    }
    let digest = |wanted: bool| if wanted { 4 } else { 0 };
    let headers = HEADER + 4 * usize::from(header[4]);
    let data = headers + digest(digests.header);
    let padded = length.next_multiple_of(4);
    let end = data + padded + if length > 0 { digest(digests.data) } else { 0 };
    if stream.len() < end {
        return Ok(PduCut::Short(end));
    }
    let matches = |covered: &[u8], at: usize| {
        stream.get(at..at + 4).and_then(|sum| sum.try_into().ok()).map(u32::from_le_bytes)
            == Some(crc32c::crc32c(covered))
    };
    if digests.header && !matches(&stream[..headers], headers) {
        return Err(StreamFault::HeaderDigest);
    }
    if digests.data && length > 0 && !matches(&stream[data..data + padded], data + padded) {
        return Err(StreamFault::DataDigest);
    }
    Ok(PduCut::Whole(Pdu { header, data: &stream[data..data + length] }, end))
}

/// What [`cut`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PduCut<'a> {
    /// A PDU, and how many bytes it takes.
    Whole(Pdu<'a>, usize),
    /// So many bytes are needed.
    Short(usize),
}

#[cfg(test)]
mod tests {
    use super::response::Output;
    use super::*;
    use proptest::prelude::*;

    fn digests() -> impl Strategy<Value = Digests> {
        any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
    }

    proptest! {
        #[test]
        fn what_was_put_is_cut_out_again(
            header in prop::array::uniform32(any::<u8>()),
            data in prop::collection::vec(any::<u8>(), 0..300),
            digests in digests(),
        ) {
            let mut bhs = [0; HEADER];
            bhs[16..].copy_from_slice(&header);
            let mut output = Output::new(digests);
            output.put(bhs, &data);
            let bytes = output.unsent().to_vec();
            for short in 0..bytes.len() {
                let needs = matches!(cut(&bytes[..short], digests, 300), Ok(PduCut::Short(n)) if n > short);
                prop_assert!(needs);
            }
            let Ok(PduCut::Whole(pdu, length)) = cut(&bytes, digests, 300) else { panic!("not whole") };
            prop_assert_eq!(length, bytes.len());
            prop_assert_eq!(pdu.data, data.as_slice());
            prop_assert_eq!(&pdu.header[16..], &bhs[16..]);
        }

        #[test]
        fn a_changed_bit_is_found_by_the_digests(
            data in prop::collection::vec(any::<u8>(), 1..64),
            bit in any::<prop::sample::Index>(),
        ) {
            let digests = Digests { header: true, data: true };
            let mut output = Output::new(digests);
            output.put([0; HEADER], &data);
            let mut bytes = output.unsent().to_vec();
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let cut_out = cut(&bytes, digests, 64);
            prop_assert!(!matches!(cut_out, Ok(PduCut::Whole(..))), "{:?}", cut_out);
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..400), d in digests()) {
            if let Ok(PduCut::Whole(pdu, length)) = cut(&bytes, d, 256) {
                prop_assert!(length <= bytes.len() && pdu.data.len() <= 256);
                let _ = RequestPdu::decode(pdu.header);
            }
        }
    }

    #[test]
    fn a_segment_that_is_too_long_is_refused_before_it_is_there() {
        let mut header = [0; HEADER];
        header[5..8].copy_from_slice(&[0xff; 3]);
        assert_eq!(cut(&header, Digests::default(), 8192), Err(StreamFault::TooLong(0xff_ffff)));
    }
}
