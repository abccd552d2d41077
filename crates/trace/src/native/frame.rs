//! The file as a row of checked frames: a prologue, headers, names, blocks, an index, a trailer.

use super::{END, MAGIC, VERSION};
use crate::Header;
use crate::bytes::{u32_at, u64_at};
use block::{Error, Result};
use std::io::{self, Read};

/// Bytes of the prologue and of a frame's head.
pub(crate) const HEAD: usize = 16;
/// Bytes of the trailer.
pub(crate) const TRAILER: usize = 24;
/// The longest payload of a frame, in bytes.
pub(crate) const MAX_PAYLOAD: u32 = 64 << 20;
/// Bytes of the index before its entries, and of an entry.
pub(crate) const INDEX_HEAD: usize = 32;
pub(crate) const ENTRY: usize = 28;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    Header = 1,
    Block = 2,
    Index = 3,
    Names = 4,
}

/// A frame's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    pub(crate) length: u32,
    crc: u32,
}

/// The first bytes of a file.
pub(crate) fn prologue() -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks the first bytes of a file.
pub(crate) fn check_prologue(bytes: &[u8; HEAD]) -> Result<()> {
    if bytes[..8] != MAGIC {
        return Err(Error::invalid("not a trace in Sojourn's format"));
    }
    if u32_at(bytes, 12) != crc32c::crc32c(&bytes[..12]) {
        return Err(Error::corrupt("offset 0: the checksum of the prologue does not match"));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != VERSION || bytes[10..12] != [0, 0] {
        return Err(Error::unsupported(format!(
            "trace format version {version}; this program reads version {VERSION}, use a newer one"
        )));
    }
    Ok(())
}

/// A frame's head for a payload.
pub(crate) fn head(kind: FrameKind, payload: &[u8]) -> Result<[u8; HEAD]> {
    let length = u32::try_from(payload.len()).ok().filter(|l| *l <= MAX_PAYLOAD);
    let length = length.ok_or_else(|| {
        Error::invalid(format!(
            "{} bytes of notes, names or index are more than a trace can hold ({MAX_PAYLOAD})",
            payload.len()
        ))
    })?;
    let mut bytes = [0; HEAD];
    bytes[0] = kind as u8;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..12].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

impl FrameHead {
    /// Reads a head; `at` is where it stands.
    pub(crate) fn parse(bytes: &[u8; HEAD], at: u64) -> Result<Self> {
        if u32_at(bytes, 12) != crc32c::crc32c(&bytes[..12]) {
            return Err(Error::corrupt(format!(
                "offset {at}: the checksum of the frame's head does not match"
            )));
        }
        let kind = match bytes[..4] {
            [1, 0, 0, 0] => FrameKind::Header,
            [2, 0, 0, 0] => FrameKind::Block,
            [3, 0, 0, 0] => FrameKind::Index,
            [4, 0, 0, 0] => FrameKind::Names,
            _ => {
                return Err(Error::unsupported(format!(
                    "offset {at}: a frame of kind {}, which this version does not know",
                    bytes[0]
                )));
            }
        };
        let length = u32_at(bytes, 4);
        if length > MAX_PAYLOAD {
            return Err(Error::corrupt(format!(
                "offset {at}: a frame of {length} bytes, where {MAX_PAYLOAD} are the limit"
            )));
        }
        Ok(Self { kind, length, crc: u32_at(bytes, 8) })
    }

    /// Checks a payload; `at` is where the frame stands.
    pub(crate) fn check(&self, payload: &[u8], at: u64) -> Result<()> {
        if crc32c::crc32c(payload) == self.crc {
            return Ok(());
        }
        Err(Error::corrupt(format!("offset {at}: the frame's checksum does not match")))
    }
}

/// Reads a payload of `length` bytes: grows as data come, whatever the head claims. `false` when
/// the input ends before.
pub(crate) fn payload(
    input: &mut impl Read,
    length: u32,
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    buffer.clear();
    input.take(u64::from(length)).read_to_end(buffer).map(|n| n == length as usize)
}

/// A header as a frame's payload.
pub(crate) fn header_payload(header: &Header) -> Result<Vec<u8>> {
    serde_json::to_vec(header)
        .map_err(|e| Error::internal("a trace's header cannot be written").with_source(e))
}

/// Reads a header frame's payload; who is in the trace is told by other frames.
pub(crate) fn parse_header(payload: &[u8], at: u64) -> Result<Header> {
    let header: Header = serde_json::from_slice(payload).map_err(|e| {
        Error::corrupt(format!("offset {at}: the trace's header cannot be read: {e}"))
    })?;
    if header.alignment == 0 {
        return Err(Error::corrupt(format!(
            "offset {at}: the trace's header says an alignment of 0"
        )));
    }
    Ok(header)
}

/// Where a block stands and what it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockEntry {
    /// Where its frame begins, in bytes.
    pub(crate) offset: u64,
    pub(crate) requests: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// What is at the end of a finished file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TraceIndex {
    pub(crate) requests: u64,
    /// Where the last header's frame begins, in bytes.
    pub(crate) header: u64,
    /// Where the last names frame begins; 0 when there is none.
    pub(crate) names: u64,
    pub(crate) entries: Vec<BlockEntry>,
}

impl TraceIndex {
    /// Encodes it as a frame's payload.
    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(INDEX_HEAD + ENTRY * self.entries.len());
        bytes.extend_from_slice(&self.requests.to_le_bytes());
        bytes.extend_from_slice(&self.header.to_le_bytes());
        bytes.extend_from_slice(&self.names.to_le_bytes());
        bytes.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.offset.to_le_bytes());
            bytes.extend_from_slice(&entry.requests.to_le_bytes());
            bytes.extend_from_slice(&entry.first.to_le_bytes());
            bytes.extend_from_slice(&entry.last.to_le_bytes());
        }
        bytes
    }

    /// Reads an index; `at` is where its frame stands.
    pub(crate) fn parse(payload: &[u8], at: u64) -> Result<Self> {
        let wrong = |what: &str| Error::corrupt(format!("offset {at}: the index {what}"));
        if payload.len() < INDEX_HEAD || !(payload.len() - INDEX_HEAD).is_multiple_of(ENTRY) {
            return Err(wrong("is of no possible length"));
        }
        let entry = |bytes: &[u8]| BlockEntry {
            offset: u64_at(bytes, 0),
            requests: u32_at(bytes, 8),
            first: u64_at(bytes, 12),
            last: u64_at(bytes, 20),
        };
        let entries: Vec<BlockEntry> =
            payload[INDEX_HEAD..].chunks_exact(ENTRY).map(entry).collect();
        let (requests, header) = (u64_at(payload, 0), u64_at(payload, 8));
        let index = Self { requests, header, names: u64_at(payload, 16), entries };
        if u64_at(payload, 24) != index.entries.len() as u64 {
            return Err(wrong("does not hold as many blocks as it says"));
        }
        let ordered = index
            .entries
            .windows(2)
            .all(|pair| pair[0].offset < pair[1].offset && pair[0].last <= pair[1].first);
        let sane = index.entries.iter().all(|e| e.first <= e.last && e.offset < at);
        let sum: u64 = index.entries.iter().map(|e| u64::from(e.requests)).sum();
        if !ordered || !sane || sum != index.requests || index.header.max(index.names) >= at {
            return Err(wrong("contradicts itself"));
        }
        Ok(index)
    }
}

/// The last bytes of a finished file.
pub(crate) fn trailer(index: u64) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&index.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..8]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes[16..].copy_from_slice(&END);
    bytes
}

/// Where the index stands, when these are the last bytes of a finished file.
pub(crate) fn parse_trailer(bytes: &[u8; TRAILER]) -> Option<u64> {
    let whole = bytes[16..] == END && u32_at(bytes, 8) == crc32c::crc32c(&bytes[..8]);
    whole.then(|| u64_at(bytes, 0))
}
