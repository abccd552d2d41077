//! The bytes of the map log. Integers are little-endian.

use crate::blockmap;
use block::{Error, Result};

const MAGIC: &[u8; 8] = b"SOJSHMAP";
const VERSION: u16 = 1;
const RECORD_MAGIC: &[u8; 4] = b"SJMR";
/// Where the acknowledgement slots are: each in a sector of its own, so that one write can tear
/// only one of them.
pub(super) const SLOTS: [u64; 2] = [512, 1024];
/// Where the records begin.
pub(super) const RECORDS: u64 = 4096;
/// Length of a record's header.
pub(super) const RECORD_HEADER: usize = 32;
/// The longest payload of a record.
const MAX_PAYLOAD: usize = 1 << 20;
const ENTRY_HEADER: usize = 16;
const LITERAL: u32 = 0;
const REPEATED: u32 = 1;

/// Whose map a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The disk.
    pub(crate) disk: [u8; 16],
    /// The number of the layer.
    pub(crate) layer: u32,
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// The first sector.
#[derive(Debug)]
pub(super) struct MapLogHeader {
    pub(super) identity: Identity,
}

impl MapLogHeader {
    pub(super) fn encode(&self) -> [u8; 512] {
        let mut out = [0; 512];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(block::BLOCK as u32).to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.disk);
        out[32..36].copy_from_slice(&self.identity.layer.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..508]);
        out[508..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; 512]) -> Result<Self> {
        if &bytes[..8] != MAGIC {
            return Err(Error::corrupt("this is not a shadow map"));
        }
        if u32_at(bytes, 508) != crc32c::crc32c(&bytes[..508]) {
            return Err(Error::corrupt("the header's checksum does not match"));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        let block = u32_at(bytes, 12);
        if version != VERSION || flags != 0 || u64::from(block) != block::BLOCK {
            return Err(Error::unsupported(format!(
                "shadow map of version {version}, flags {flags:#x}, block size {block}: this \
                 program reads version {VERSION}, flags 0, block size {}; use a newer one",
                block::BLOCK
            )));
        }
        let mut disk = [0; 16];
        disk.copy_from_slice(&bytes[16..32]);
        Ok(Self { identity: Identity { disk, layer: u32_at(bytes, 32) } })
    }

    /// What seeds the checksum of the first record.
    pub(super) fn chain(bytes: &[u8; 512]) -> u32 {
        u32_at(bytes, 508)
    }
}

/// A record's place: its number, where it ends, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CheckpointSlot {
    pub(super) sequence: u64,
    pub(super) end: u64,
    pub(super) chain: u32,
}

impl CheckpointSlot {
    pub(super) const LEN: usize = 24;

    pub(super) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.sequence.to_le_bytes());
        out[8..16].copy_from_slice(&self.end.to_le_bytes());
        out[16..20].copy_from_slice(&self.chain.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..20]);
        out[20..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        // All zeroes would not check: the CRC-32C of 20 zero bytes is not zero.
        (u32_at(bytes, 20) == crc32c::crc32c(&bytes[..20])).then(|| Self {
            sequence: u64_at(bytes, 0),
            end: u64_at(bytes, 8),
            chain: u32_at(bytes, 16),
        })
    }
}

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) payload: u32,
    pub(super) sequence: u64,
    /// The last record that was on stable storage when this one was written.
    pub(super) acknowledged: u64,
    pub(super) chain: u32,
}

impl RecordHeader {
    /// Reads a header that checks by itself; the chain is for the caller to check.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if &bytes[..4] != RECORD_MAGIC || u32_at(bytes, 24) != crc32c::crc32c(&bytes[..24]) {
            return None;
        }
        let record = Self {
            payload: u32_at(bytes, 4),
            sequence: u64_at(bytes, 8),
            acknowledged: u64_at(bytes, 16),
            chain: u32_at(bytes, 28),
        };
        (record.payload as usize <= MAX_PAYLOAD).then_some(record)
    }

    /// The checksum of a record whose predecessor's is `seed`.
    pub(super) fn chain_of(seed: u32, head: &[u8], payload: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(seed, &head[..28]), payload)
    }
}

/// Builds the records of one batch: what one sync makes durable.
pub(super) struct RecordBatch {
    bytes: Vec<u8>,
    sequence: u64,
    acknowledged: u64,
    chain: u32,
    /// Where the open record starts.
    record: Option<usize>,
    /// The open entry: where it starts, its first group, its words.
    entry: Option<MapLogEntry>,
}

struct MapLogEntry {
    at: usize,
    first: u64,
    count: u32,
    word: u64,
    kind: u32,
}

impl RecordBatch {
    /// A batch behind the record `sequence` with the checksum `chain`.
    pub(super) fn new(sequence: u64, acknowledged: u64, chain: u32) -> Self {
        Self { bytes: Vec::new(), sequence, acknowledged, chain, record: None, entry: None }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of all closed records.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number and checksum of the last record.
    pub(super) fn last(&self) -> (u64, u32) {
        (self.sequence, self.chain)
    }

    /// Adds the word of a group; groups come in ascending order.
    pub(super) fn push(&mut self, group: u64, word: u64) {
        if let Some(start) = self.record
            && self.bytes.len() - start >= MAX_PAYLOAD
        {
            self.close();
        }
        let start = *self.record.get_or_insert_with(|| {
            let start = self.bytes.len();
            self.bytes.resize(start + RECORD_HEADER, 0);
            start
        });
        debug_assert!(self.bytes.len() >= start + RECORD_HEADER);
        if let Some(entry) = &mut self.entry
            && entry.first + u64::from(entry.count) == group
            && entry.count < u32::MAX
        {
            if entry.kind == REPEATED && entry.word == word {
                entry.count += 1;
                return;
            }
            if entry.kind == REPEATED && entry.count == 1 {
                entry.kind = LITERAL;
            }
            if entry.kind == LITERAL {
                entry.count += 1;
                entry.word = word;
                self.bytes.extend_from_slice(&word.to_le_bytes());
                return;
            }
        }
        self.close_entry();
        let at = self.bytes.len();
        self.bytes.resize(at + ENTRY_HEADER, 0);
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self.entry = Some(MapLogEntry { at, first: group, count: 1, word, kind: REPEATED });
    }

    fn close_entry(&mut self) {
        if let Some(entry) = self.entry.take() {
            let head = &mut self.bytes[entry.at..entry.at + ENTRY_HEADER];
            head[..8].copy_from_slice(&entry.first.to_le_bytes());
            head[8..12].copy_from_slice(&entry.count.to_le_bytes());
            head[12..].copy_from_slice(&entry.kind.to_le_bytes());
        }
    }

    /// Completes the open record, if there is one.
    pub(super) fn close(&mut self) {
        self.close_entry();
        let Some(start) = self.record.take() else { return };
        self.sequence += 1;
        let (head, payload) = self.bytes[start..].split_at_mut(RECORD_HEADER);
        head[..4].copy_from_slice(RECORD_MAGIC);
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        head[16..24].copy_from_slice(&self.acknowledged.to_le_bytes());
        let checksum = crc32c::crc32c(&head[..24]);
        head[24..28].copy_from_slice(&checksum.to_le_bytes());
        self.chain = RecordHeader::chain_of(self.chain, head, payload);
        head[28..].copy_from_slice(&self.chain.to_le_bytes());
    }

    /// Forgets the bytes, which were written, and goes on behind them.
    pub(super) fn restart(&mut self) {
        self.bytes.clear();
    }
}

/// Reads the payload of a record, telling `each` every group and its word. Groups are below
/// `limit`.
///
/// # Errors
/// In words, when it breaks a rule of the format.
pub(crate) fn decode_entries(
    payload: &[u8],
    limit: u64,
    each: &mut dyn FnMut(u64, u64),
) -> Result<(), String> {
    let mut rest = payload;
    while !rest.is_empty() {
        let Some((head, behind)) = rest.split_at_checked(ENTRY_HEADER) else {
            return Err("an entry ends early".into());
        };
        let (first, count, kind) = (u64_at(head, 0), u32_at(head, 8), u32_at(head, 12));
        if count == 0 || first.checked_add(u64::from(count)).is_none_or(|end| end > limit) {
            return Err(format!("groups {first} + {count} lie beyond the disk's {limit}"));
        }
        let words = match kind {
            LITERAL => count as usize,
            REPEATED => 1,
            _ => return Err(format!("an entry is of the unknown kind {kind}")),
        };
        let Some((words, behind)) =
            words.checked_mul(8).and_then(|len| behind.split_at_checked(len))
        else {
            return Err("an entry ends early".into());
        };
        for i in 0..u64::from(count) {
            let at = if kind == LITERAL { i as usize * 8 } else { 0 };
            let word = u64_at(words, at);
            if !blockmap::is_valid(word) {
                return Err(format!("group {} holds a block of an unknown state", first + i));
            }
            each(first + i, word);
        }
        rest = behind;
    }
    Ok(())
}
