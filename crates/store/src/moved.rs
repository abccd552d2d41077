//! Where the chunks of a rewritten pack are now: `moved/<pack id>`.
//!
//! Segments name packs and offsets, and are never changed. When a pack is rewritten (because most
//! of it is garbage, or because a part of it is damaged), this object leads readers on. It may be
//! replaced by one that is as true.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | p, number of packs |
//! | 4 | 4 | e, number of chunks |
//! | 8 | 8 | reserved |
//! | 16 | 32 × p | pack ids, in the order of their first use, each once |
//! | 16 + 32p | 48 × e | chunks, by rising id |
//!
//! and of each chunk:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 32 | chunk id |
//! | 32 | 4 | pack: an index into the table |
//! | 36 | 4 | offset in the pack |
//! | 40 | 4 | stored length |
//! | 44 | 2 | plain length in blocks |
//! | 46 | 1 | encoding |
//! | 47 | 1 | reserved |

use crate::chunker::{MAX_PAGES, PAGE};
use crate::object_kind::ObjectKind;
use crate::wire::{FRAME, damaged, unknown};
use crate::{ChunkId, ChunkRef, Encoding, PackId, pack};
use block::Result;
use bytes::Bytes;
use std::collections::HashMap;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Steps from pack to pack that a reader follows.
pub(crate) const MAX_STEPS: usize = 8;
/// The most chunks: as many as a pack has.
const MAX_CHUNKS: usize = 1 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MovedHeader {
    packs: U32,
    entries: U32,
    reserved: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MovedEntry {
    id: [u8; 32],
    pack: U32,
    offset: U32,
    stored: U32,
    blocks: U16,
    encoding: u8,
    reserved: u8,
}

const HEADER: usize = size_of::<MovedHeader>();

/// The key of the object about a pack.
pub(crate) fn key(pack: &PackId) -> String {
    ObjectKind::Moved.key(pack)
}

/// Where chunks of a pack are now, checked: searched where it lies.
#[derive(Debug)]
pub(crate) struct Moved {
    body: Bytes,
    packs: usize,
}

impl Moved {
    /// The body of the object that says that these chunks are there now. Of two places of a chunk
    /// the first one given counts.
    pub(crate) fn encode(chunks: impl IntoIterator<Item = ChunkRef>) -> Vec<u8> {
        let mut chunks: Vec<ChunkRef> = chunks.into_iter().collect();
        chunks.sort_by_key(|at| at.id);
        chunks.dedup_by_key(|at| at.id);
        let mut table: Vec<PackId> = Vec::new();
        let mut numbers: HashMap<PackId, u32> = HashMap::new();
        let mut rows = Vec::with_capacity(chunks.len() * size_of::<MovedEntry>());
        for at in &chunks {
            let number = *numbers.entry(at.pack).or_insert_with(|| {
                table.push(at.pack);
                table.len() as u32 - 1
            });
            let entry = MovedEntry {
                id: at.id.0,
                pack: number.into(),
                offset: at.offset.into(),
                stored: at.stored.into(),
                blocks: U16::new((at.len / PAGE as u32) as u16),
                encoding: at.encoding as u8,
                reserved: 0,
            };
            rows.extend_from_slice(entry.as_bytes());
        }
        let header = MovedHeader {
            packs: (table.len() as u32).into(),
            entries: (chunks.len() as u32).into(),
            reserved: [0; 8],
        };
        let mut body = Vec::with_capacity(HEADER + table.len() * 32 + rows.len());
        body.extend_from_slice(header.as_bytes());
        table.iter().for_each(|id| body.extend_from_slice(&id.0));
        body.extend_from_slice(&rows);
        body
    }

    /// Checks a body.
    pub(crate) fn decode(key: &str, body: Bytes) -> Result<Self> {
        let (header, tables) =
            MovedHeader::ref_from_prefix(&body).map_err(|_| damaged(key, "it is too short"))?;
        let (packs, count) = (header.packs.get() as usize, header.entries.get() as usize);
        let expected = packs
            .checked_mul(32)
            .zip(count.checked_mul(size_of::<MovedEntry>()))
            .and_then(|(packs, entries)| packs.checked_add(entries));
        if expected != Some(tables.len()) || header.reserved != [0; 8] || count > MAX_CHUNKS {
            return Err(damaged(key, "its lengths do not match its size"));
        }
        let moved = Self { body, packs };
        let (mut last, mut next_pack): (Option<&[u8; 32]>, u32) = (None, 0);
        for entry in moved.entries() {
            let encoding = Encoding::from_number(entry.encoding)
                .ok_or_else(|| unknown(key, &format!("encoding {}", entry.encoding)))?;
            let blocks = u32::from(entry.blocks.get());
            let end = u64::from(entry.offset.get()) + u64::from(entry.stored.get());
            if blocks == 0
                || blocks > MAX_PAGES
                || entry.reserved != 0
                || !encoding.allows(entry.stored.get(), blocks * PAGE as u32)
                || (entry.offset.get() as usize) < FRAME
                || end > pack::MAX_LEN
            {
                return Err(damaged(key, "a chunk's place is not possible"));
            }
            if last.is_some_and(|last| *last >= entry.id) {
                return Err(damaged(key, "its chunks are not in order"));
            }
            if entry.pack.get() > next_pack || entry.pack.get() as usize >= packs {
                return Err(damaged(key, "a chunk names a pack that is not in its table"));
            }
            next_pack = next_pack.max(entry.pack.get() + 1);
            last = Some(&entry.id);
        }
        if next_pack as usize != packs {
            return Err(damaged(key, "its table has a pack that no chunk names"));
        }
        Ok(moved)
    }

    fn entries(&self) -> &[MovedEntry] {
        let rows = self.body.get(HEADER + self.packs * 32..).unwrap_or_default();
        // The lengths were checked when it was read.
        <[MovedEntry]>::ref_from_bytes(rows).unwrap_or_default()
    }

    fn place(&self, entry: &MovedEntry) -> ChunkRef {
        let mut pack = [0; 32];
        let at = HEADER + entry.pack.get() as usize * 32;
        pack.copy_from_slice(&self.body[at..at + 32]);
        ChunkRef {
            id: ChunkId(entry.id),
            len: u32::from(entry.blocks.get()) * PAGE as u32,
            pack: PackId(pack),
            offset: entry.offset.get(),
            stored: entry.stored.get(),
            encoding: Encoding::from_number(entry.encoding).unwrap_or(Encoding::Plain),
        }
    }

    /// Where a chunk is now, if the object knows.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<ChunkRef> {
        let entries = self.entries();
        let index = entries.binary_search_by(|entry| entry.id.cmp(&id.0)).ok()?;
        Some(self.place(&entries[index]))
    }

    /// All chunks, by id.
    pub(crate) fn chunks(&self) -> impl ExactSizeIterator<Item = ChunkRef> + '_ {
        self.entries().iter().map(|entry| self.place(entry))
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory(&self) -> usize {
        self.body.len() + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests;
