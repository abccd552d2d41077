//! One segment of a manifest: what 256 MiB of an image hold.
//!
//! The loaded object is the index: entries have a fixed size and are searched where they lie; a small
//! table says where the search begins. All rules are checked once, at loading, so that a lookup
//! cannot fail.

use crate::chunker::{MAX_PAGES, PAGE, SEGMENT_PAGES};
use crate::object_kind::ObjectKind;
use crate::pack;
use crate::wire::{FRAME, damaged, unknown};
use crate::{ChunkId, ChunkRef, Encoding, PackId, SegmentId};
use block::{Error, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a body before its packs.
pub(crate) const HEADER: usize = size_of::<SegmentHeader>();
/// The longest segment: one entry and one pack for each block.
const MAX_LEN: u64 = HEADER as u64 + SEGMENT_PAGES * (32 + size_of::<SegmentEntry>() as u64);
const _: () = assert!(SEGMENT_PAGES <= u16::MAX as u64 + 1);
const _: () = assert!(MAX_LEN == ObjectKind::Segment.max_body());

/// Blocks of the image that one piece of a chunk fills.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentEntry {
    pub(crate) start: U16,
    pub(crate) blocks: U16,
    pub(crate) skip: U16,
    pub(crate) chunk_blocks: U16,
    pub(crate) pack: U32,
    pub(crate) offset: U32,
    pub(crate) stored: U32,
    pub(crate) encoding: u8,
    pub(crate) reserved: [u8; 3],
    pub(crate) id: [u8; 32],
}

impl SegmentEntry {
    /// The first block behind it.
    fn end(&self) -> u32 {
        u32::from(self.start.get()) + u32::from(self.blocks.get())
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentHeader {
    pub(crate) packs: U32,
    pub(crate) entries: U32,
    /// Any number: gives the segment another id, and is 0 unless that is needed.
    salt: U32,
    reserved: [u8; 4],
}

/// A piece of a chunk at its place in a segment; numbers are blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The first block, from the segment's start.
    pub(crate) start: u32,
    /// How many.
    pub(crate) blocks: u32,
    /// Where in the chunk they start.
    pub(crate) skip: u32,
    /// The chunk.
    pub(crate) at: ChunkRef,
}

impl Placed {
    /// The first block behind it.
    pub(crate) const fn end(&self) -> u32 {
        self.start + self.blocks
    }

    /// The part of it between two blocks that lie in it.
    pub(crate) const fn part(self, start: u32, end: u32) -> Self {
        Self { start, blocks: end - start, skip: self.skip + start - self.start, ..self }
    }
}

/// A loaded and checked segment.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The body of the object.
    bytes: Bytes,
    packs: usize,
    starts: Starts,
}

/// Where the search for a block begins: the blocks in equal parts, about as many as there are
/// entries, and for each part the first entry that ends behind the part's start. A search through
/// all entries would miss the processor's caches once for each of its last steps.
#[derive(Debug)]
struct Starts {
    /// The first entry of each part, and the number of entries behind the last one.
    first: Box<[u32]>,
    /// A part has 2^shift blocks.
    shift: u32,
}

impl Starts {
    /// Makes the table of entries in order that do not overlap.
    fn of(entries: &[SegmentEntry]) -> Self {
        let parts = entries.len().next_power_of_two().min(SEGMENT_PAGES as usize);
        let shift = (SEGMENT_PAGES as usize / parts).ilog2();
        let mut next = 0;
        let first = (0..parts).map(|part| {
            let start = (part as u32) << shift;
            next += entries[next..].iter().take_while(|entry| entry.end() <= start).count();
            next as u32
        });
        Self { first: first.chain([entries.len() as u32]).collect(), shift }
    }

    /// Among which entries the first one is that ends behind `block`; it may be the one behind them.
    #[inline]
    fn around(&self, block: u32) -> Range<usize> {
        let part = ((block >> self.shift) as usize).min(self.first.len() - 2);
        self.first[part] as usize..self.first[part + 1] as usize
    }
}

impl Segment {
    /// The body of entries in order. There is none for a segment without entries.
    pub(crate) fn encode(entries: &[Placed], salt: u32) -> Vec<u8> {
        let mut table: Vec<PackId> = Vec::new();
        let mut numbers: HashMap<PackId, u32> = HashMap::new();
        let mut rows = Vec::with_capacity(entries.len() * size_of::<SegmentEntry>());
        for placed in entries {
            let at = &placed.at;
            let pack = *numbers.entry(at.pack).or_insert_with(|| {
                table.push(at.pack);
                table.len() as u32 - 1
            });
            let entry = SegmentEntry {
                start: U16::new(placed.start as u16),
                blocks: U16::new(placed.blocks as u16),
                skip: U16::new(placed.skip as u16),
                chunk_blocks: U16::new((at.len / PAGE as u32) as u16),
                pack: pack.into(),
                offset: at.offset.into(),
                stored: at.stored.into(),
                encoding: at.encoding as u8,
                reserved: [0; 3],
                id: at.id.0,
            };
            rows.extend_from_slice(entry.as_bytes());
        }
        let mut bytes = Vec::with_capacity(HEADER + table.len() * 32 + rows.len());
        let header = SegmentHeader {
            packs: (table.len() as u32).into(),
            entries: (entries.len() as u32).into(),
            salt: salt.into(),
            reserved: [0; 4],
        };
        bytes.extend_from_slice(header.as_bytes());
        table.iter().for_each(|id| bytes.extend_from_slice(&id.0));
        bytes.extend_from_slice(&rows);
        bytes
    }

    /// Checks a body that covers at most `blocks` blocks of an image. Its hash was checked.
    pub(crate) fn decode(key: &str, bytes: Bytes, blocks: u32) -> Result<Self> {
        let (header, tables) =
            SegmentHeader::ref_from_prefix(&bytes).map_err(|_| damaged(key, "it is too short"))?;
        let packs = header.packs.get() as usize;
        let entries = header.entries.get() as usize;
        let expected = packs
            .checked_mul(32)
            .zip(entries.checked_mul(size_of::<SegmentEntry>()))
            .and_then(|(packs, entries)| packs.checked_add(entries));
        if expected != Some(tables.len()) || header.reserved != [0; 4] || entries == 0 {
            return Err(damaged(key, "its lengths do not match its size"));
        }
        let rows = &bytes[HEADER + packs * 32..];
        let rows = <[SegmentEntry]>::ref_from_bytes(rows)
            .map_err(|_| damaged(key, "its entries are cut off"))?;
        let mut next = 0;
        let mut next_pack = 0;
        for entry in rows {
            let encoding = Encoding::from_number(entry.encoding)
                .ok_or_else(|| unknown(key, &format!("encoding {}", entry.encoding)))?;
            check(entry, encoding, next, blocks).map_err(|why| damaged(key, why))?;
            // The table has the packs in the order of their first use, each once.
            if entry.pack.get() > next_pack || entry.pack.get() as usize >= packs {
                return Err(damaged(key, "an entry names a pack that is not in its table"));
            }
            next_pack = next_pack.max(entry.pack.get() + 1);
            next = entry.end();
        }
        if next_pack as usize != packs {
            return Err(damaged(key, "its table has a pack that no entry names"));
        }
        let starts = Starts::of(rows);
        Ok(Self { bytes, packs, starts })
    }

    /// The entries; the slice was checked at loading.
    fn checked(&self) -> &[SegmentEntry] {
        <[SegmentEntry]>::ref_from_bytes(&self.bytes[HEADER + self.packs * 32..]).unwrap_or(&[])
    }

    fn placed(&self, entry: &SegmentEntry) -> Placed {
        let mut pack = [0; 32];
        let at = HEADER + entry.pack.get() as usize * 32;
        pack.copy_from_slice(&self.bytes[at..at + 32]);
        Placed {
            start: entry.start.get().into(),
            blocks: entry.blocks.get().into(),
            skip: entry.skip.get().into(),
            at: ChunkRef {
                id: ChunkId(entry.id),
                len: u32::from(entry.chunk_blocks.get()) * PAGE as u32,
                pack: PackId(pack),
                offset: entry.offset.get(),
                stored: entry.stored.get(),
                encoding: Encoding::from_number(entry.encoding).unwrap_or(Encoding::Plain),
            },
        }
    }

    /// The pieces that touch the blocks from `start` to `end`, in order, not clipped.
    pub(crate) fn range(&self, start: u32, end: u32) -> impl Iterator<Item = Placed> + '_ {
        let entries = self.checked();
        let around = self.starts.around(start);
        let first = around.start + entries[around].partition_point(|entry| entry.end() <= start);
        entries[first..]
            .iter()
            .take_while(move |entry| u32::from(entry.start.get()) < end)
            .map(|entry| self.placed(entry))
    }

    /// All pieces.
    pub(crate) fn all(&self) -> impl Iterator<Item = Placed> + '_ {
        self.range(0, SEGMENT_PAGES as u32)
    }
}

/// The rules of one entry: `next` is the first block that may be used, `blocks` the end.
fn check(
    entry: &SegmentEntry,
    encoding: Encoding,
    next: u32,
    blocks: u32,
) -> Result<(), &'static str> {
    let (start, count) = (u32::from(entry.start.get()), u32::from(entry.blocks.get()));
    let (skip, whole) = (u32::from(entry.skip.get()), u32::from(entry.chunk_blocks.get()));
    let len = whole * PAGE as u32;
    let stored_right = encoding.allows(entry.stored.get(), len);
    if start < next || count == 0 || start + count > blocks {
        return Err("its entries are out of order or beyond the image's end");
    }
    if whole == 0 || whole > MAX_PAGES || skip + count > whole || entry.reserved != [0; 3] {
        return Err("an entry does not lie in its chunk");
    }
    let end = u64::from(entry.offset.get()) + u64::from(entry.stored.get());
    if !stored_right || (entry.offset.get() as usize) < FRAME || end > pack::MAX_LEN {
        return Err("an entry's place in its pack is not possible");
    }
    Ok(())
}

/// The key of a segment.
pub(crate) fn key(id: &SegmentId) -> String {
    ObjectKind::Segment.key(id)
}

/// The blocks that segment number `index` of an image of `size` bytes has.
pub(crate) fn blocks_of(size: u64, index: u64) -> Result<u32> {
    let blocks = size.div_ceil(PAGE as u64);
    blocks
        .checked_sub(index * SEGMENT_PAGES)
        .filter(|rest| *rest > 0)
        .map(|rest| rest.min(SEGMENT_PAGES) as u32)
        .ok_or_else(|| Error::internal("a segment beyond the image's end"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{object, testing};
    use proptest::prelude::*;

    fn chunk(seed: u32, blocks: u32, encoding: Encoding) -> ChunkRef {
        let len = blocks * PAGE as u32;
        ChunkRef {
            id: ChunkId([seed as u8; 32]),
            len,
            pack: PackId([(seed % 3) as u8; 32]),
            offset: 16 + seed,
            stored: if encoding == Encoding::Plain { len } else { len / 2 },
            encoding,
        }
    }

    /// Entries from gaps and lengths.
    fn entries(rows: &[(u32, u32, u32, bool)]) -> Vec<Placed> {
        let mut at = 0;
        rows.iter()
            .enumerate()
            .map(|(i, (gap, whole, skip, plain))| {
                let skip = skip % whole;
                let encoding = if *plain { Encoding::Plain } else { Encoding::Zstd };
                let placed = Placed {
                    start: at + gap,
                    blocks: whole - skip,
                    skip,
                    at: chunk(i as u32, *whole, encoding),
                };
                at = placed.end();
                placed
            })
            .collect()
    }

    fn sample() -> (Vec<Placed>, Bytes) {
        let list = entries(&[(0, 16, 0, true), (3, 9, 4, false), (0, 64, 0, false)]);
        let bytes = Segment::encode(&list, 0);
        (list, bytes.into())
    }

    #[test]
    fn any_truncation_or_flipped_bit_is_refused() {
        let (list, good) = sample();
        let end = list.last().unwrap().end();
        let read = Segment::decode("s", good.clone(), end).unwrap();
        assert_eq!(read.all().collect::<Vec<_>>(), list);
        assert!(Segment::decode("s", good.clone(), end - 1).is_err(), "beyond the image");
        for len in 0..good.len() {
            assert!(Segment::decode("s", good.slice(..len), end).is_err(), "{len} bytes");
        }
        let settings = testing::settings();
        let good = object::encode(&settings, ObjectKind::Segment, "s", &good).unwrap();
        for len in 0..good.len() {
            let short = good.slice(..len);
            assert!(object::decode(&settings, ObjectKind::Segment, "s", short).is_err());
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                let read = object::decode(&settings, ObjectKind::Segment, "s", bad.into());
                assert!(read.is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn broken_rules_are_refused() {
        let (list, good) = sample();
        let end = list.last().unwrap().end();
        let table = HEADER + 3 * 32;
        // Field, its place in the first entry, a value that breaks a rule.
        let cases: [(&str, usize, &[u8]); 8] = [
            ("start", 0, &[200, 0]),
            ("blocks", 2, &[0, 0]),
            ("skip", 4, &[1, 0]),
            ("chunk blocks", 6, &[65, 0]),
            ("pack", 8, &[1, 0, 0, 0]),
            ("offset", 12, &[0, 0, 0, 0]),
            ("offset", 12, &[0, 0, 0, 255]),
            ("stored", 16, &[0, 0, 0, 0]),
        ];
        for (field, at, value) in cases {
            let mut bad = good.to_vec();
            bad[table + at..table + at + value.len()].copy_from_slice(value);
            let error = Segment::decode("s", bad.into(), end).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Corrupt, "{field}");
        }
        assert!(Segment::decode("s", Segment::encode(&[], 0).into(), 10).is_err(), "no entries");
        let mut newer = good.to_vec();
        newer[table + 20] = 4;
        let error = Segment::decode("s", newer.into(), end).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Unsupported);
        assert!(error.message().contains("encoding 4"), "{error}");
    }

    proptest! {
        #[test]
        fn a_range_is_what_a_search_through_all_finds(
            rows in prop::collection::vec(
                (prop_oneof![0u32..40, 0u32..900], 1u32..=64, 0u32..64, any::<bool>()), 1..60,
            ),
            start in any::<prop::sample::Index>(),
            len in 0u32..500,
        ) {
            let list = entries(&rows);
            let end = list.last().unwrap().end();
            let start = start.index(end as usize + 100) as u32;
            let segment = Segment::decode("s", Segment::encode(&list, 7).into(), end).unwrap();
            prop_assert_eq!(segment.all().collect::<Vec<_>>(), list.clone());
            let found: Vec<_> = segment.range(start, start + len).collect();
            let expected: Vec<_> = list
                .into_iter()
                .filter(|p| p.end() > start && p.start < start + len)
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_body_is_refused_or_keeps_the_rules(
            packs in 0u8..3,
            rows in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut bytes = Vec::new();
            let entries = (rows.len() / size_of::<SegmentEntry>()) as u32;
            let counts = SegmentHeader {
                packs: u32::from(packs).into(),
                entries: entries.into(),
                salt: 0.into(),
                reserved: [0; 4],
            };
            bytes.extend_from_slice(counts.as_bytes());
            bytes.resize(HEADER + usize::from(packs) * 32, 1);
            bytes.extend_from_slice(&rows[..entries as usize * size_of::<SegmentEntry>()]);
            if let Ok(segment) = Segment::decode("s", bytes.into(), 65536) {
                let mut next = 0;
                for placed in segment.all() {
                    prop_assert!(placed.start >= next && placed.blocks > 0);
                    prop_assert!((placed.skip + placed.blocks) * PAGE as u32 <= placed.at.len);
                    next = placed.end();
                }
            }
        }
    }
}
