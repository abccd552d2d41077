//! Segments by column: how a segment is sent over a link that may be thin.
//!
//! The rows of a [segment](crate::Manifest) do not compress well as they lie: more than half of each is the hash of
//! a chunk, and what stands between two hashes repeats itself only by column. Sent by column, each but
//! for the hashes as the difference to what the row before lets expect, a segment has little more bytes than its
//! hashes: 0.62 of what it has in the store.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | p, number of packs, at most 65536 |
//! | 4 | 4 | e, number of entries, at most 65536 |
//! | 8 | 4 | z, length of the next field |
//! | 12 | z | one zstd frame: the first 32 bytes of the object, then the columns |
//! | 12 + z | 32 × p | pack ids |
//! | 12 + z + 32p | 32 × e | chunk ids |
//!
//! A column has a byte of each row: first the lowest byte of the first field of all rows, then its next
//! byte, and so on. *Start* is sent as the difference to the end of the row before, *blocks of the
//! chunk* to the row's blocks, *pack* to the row before, *offset* to the end of the row before, or to 16 when
//! the pack is another one; each difference is taken in the field's own width. The other fields are sent as they are.
//!
//! Any object of the right length can be sent so and is the same again: whether it is a sound segment is
//! seen by its hash, as always.

use crate::chunk;
use crate::object_kind::ObjectKind;
use crate::segment::{HEADER, SegmentEntry, SegmentHeader};
use crate::wire::{FRAME, damaged};
use block::Result;
use bytes::Bytes;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What an HTTP answer calls this in its `Content-Encoding`.
pub const CODING: &str = "x-sojourn-segment";
/// The level of zstd: higher ones save less than a hundredth.
const LEVEL: i32 = 3;
/// Bytes of an object that are sent before the columns.
const HEAD: usize = FRAME + HEADER;
/// Bytes of a row that are sent by column.
const COLUMNS: usize = size_of::<SegmentEntry>() - ID;
/// Bytes of an id.
const ID: usize = 32;
/// Where the first chunk of a pack lies.
const FIRST: u32 = 16;
/// The most packs, and entries, of a segment.
const MOST: usize = 1 << 16;
/// The name in errors.
const NAME: &str = "a segment that was sent by column";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ColumnsHead {
    packs: U32,
    entries: U32,
    packed: U32,
}

/// The longest form of a segment by column, in bytes.
pub const MAX_LEN: u64 = (size_of::<ColumnsHead>() + HEAD + MOST * (COLUMNS + ID + ID)) as u64;

/// The object of a segment by column; `None` when it is sealed, no segment, or would not be shorter.
pub fn pack(object: &[u8]) -> Option<Vec<u8>> {
    let head = object.get(..HEAD)?;
    let (frame, header) = head.split_at(FRAME);
    let header = SegmentHeader::ref_from_bytes(header).ok()?;
    let (packs, entries) = (header.packs.get() as usize, header.entries.get() as usize);
    if !frame.starts_with(&ObjectKind::Segment.magic()) || packs > MOST || entries > MOST {
        return None;
    }
    let (table, rows) = object[HEAD..].split_at_checked(packs * ID)?;
    let rows = <[SegmentEntry]>::ref_from_bytes(rows).ok().filter(|rows| rows.len() == entries)?;
    let mut plain = vec![0; HEAD + entries * COLUMNS];
    plain[..HEAD].copy_from_slice(head);
    let mut before = ExpectedRow::default();
    for (n, row) in rows.iter().enumerate() {
        let sent = before.less(row);
        for (column, byte) in sent.as_bytes()[..COLUMNS].iter().enumerate() {
            plain[HEAD + column * entries + n] = *byte;
        }
        before = ExpectedRow::behind(row);
    }
    let packed = chunk::compress(&plain, LEVEL).ok()??;
    let head = ColumnsHead {
        packs: U32::new(packs as u32),
        entries: U32::new(entries as u32),
        packed: U32::new(packed.len() as u32),
    };
    let mut sent = [head.as_bytes(), &packed, table].concat();
    sent.extend(rows.iter().flat_map(|row| row.id));
    (sent.len() < object.len()).then_some(sent)
}

/// The length in bytes of the object of which the beginning was sent; `None` when that is too short to say.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it is longer than a segment.
pub fn object_len(sent: &[u8]) -> Result<Option<u64>> {
    let Ok((head, _)) = ColumnsHead::ref_from_prefix(sent) else { return Ok(None) };
    let (packs, entries) = counts(head)?;
    Ok(Some((HEAD + packs * ID + entries * size_of::<SegmentEntry>()) as u64))
}

/// How many packs and entries there are.
fn counts(head: &ColumnsHead) -> Result<(usize, usize)> {
    let (packs, entries) = (head.packs.get() as usize, head.entries.get() as usize);
    if packs > MOST || entries > MOST {
        return Err(damaged(NAME, "it has more packs or entries than a segment"));
    }
    Ok((packs, entries))
}

/// The object of a segment that was sent by column.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for what [`pack`] never gives.
pub fn unpack(sent: &[u8]) -> Result<Bytes> {
    let bad = |why| damaged(NAME, why);
    let (head, rest) = ColumnsHead::ref_from_prefix(sent).map_err(|_| bad("it is too short"))?;
    let (packs, entries) = counts(head)?;
    let parts = rest.split_at_checked(head.packed.get() as usize);
    let (packed, ids) = parts.ok_or_else(|| bad("it is too short"))?;
    if ids.len() != (packs + entries) * ID {
        return Err(bad("its length is not what its numbers of packs and entries make"));
    }
    let (table, ids) = ids.split_at(packs * ID);
    let len = HEAD + entries * COLUMNS;
    let plain =
        chunk::decompress(packed, len).map_err(|_| bad("its columns cannot be decompressed"))?;
    if plain.len() != len {
        return Err(bad("its columns are too short"));
    }
    let mut object = Vec::with_capacity(HEAD + ids.len() + table.len() + entries * COLUMNS);
    object.extend_from_slice(&plain[..HEAD]);
    object.extend_from_slice(table);
    let mut before = ExpectedRow::default();
    for (n, id) in ids.as_chunks::<ID>().0.iter().enumerate() {
        let mut row = SegmentEntry::new_zeroed();
        for (column, byte) in row.as_mut_bytes()[..COLUMNS].iter_mut().enumerate() {
            *byte = plain[HEAD + column * entries + n];
        }
        let mut row = before.more(&row);
        row.id = *id;
        object.extend_from_slice(row.as_bytes());
        before = ExpectedRow::behind(&row);
    }
    Ok(object.into())
}

/// What a row lets expect of the next one.
#[derive(Default)]
struct ExpectedRow {
    start: u16,
    pack: u32,
    offset: u32,
}

impl ExpectedRow {
    fn behind(row: &SegmentEntry) -> Self {
        Self {
            start: row.start.get().wrapping_add(row.blocks.get()),
            pack: row.pack.get(),
            offset: row.offset.get().wrapping_add(row.stored.get()),
        }
    }

    /// Where the row's chunk is expected in its pack.
    fn offset(&self, pack: u32) -> u32 {
        if pack == self.pack && self.offset != 0 { self.offset } else { FIRST }
    }

    /// The row without what was expected.
    fn less(&self, row: &SegmentEntry) -> SegmentEntry {
        let pack = row.pack.get();
        SegmentEntry {
            start: row.start.get().wrapping_sub(self.start).into(),
            chunk_blocks: row.chunk_blocks.get().wrapping_sub(row.blocks.get()).into(),
            pack: pack.wrapping_sub(self.pack).into(),
            offset: row.offset.get().wrapping_sub(self.offset(pack)).into(),
            ..row.clone()
        }
    }

    /// The row with it.
    fn more(&self, sent: &SegmentEntry) -> SegmentEntry {
        let pack = sent.pack.get().wrapping_add(self.pack);
        SegmentEntry {
            start: sent.start.get().wrapping_add(self.start).into(),
            chunk_blocks: sent.chunk_blocks.get().wrapping_add(sent.blocks.get()).into(),
            pack: pack.into(),
            offset: sent.offset.get().wrapping_add(self.offset(pack)).into(),
            ..sent.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, import, testing};
    use block::{ErrorKind, Memory};
    use object_store::memory::InMemory;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// An object with these packs and rows, sound or not.
    fn object(packs: usize, rows: &[[u8; 56]]) -> Vec<u8> {
        let mut object = b"SOJSEGM\n".to_vec();
        object.extend([7; FRAME - 8]);
        object.extend((packs as u32).to_le_bytes());
        object.extend((rows.len() as u32).to_le_bytes());
        object.extend([3; 8]);
        object.extend((0..packs * ID).map(|n| n as u8));
        object.extend(rows.iter().flatten());
        object
    }

    #[tokio::test]
    async fn the_map_of_an_image_has_a_third_less_by_column() {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        let image = Memory::from(testing::noise(5, 16 << 20));
        let done = import::from_device(&session, &image, &()).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        for map in &manifest.maps()[1..] {
            let stored = store.map_object(map).await.unwrap();
            let sent = pack(&stored).unwrap();
            assert!(sent.len() * 10 < stored.len() * 7, "{} of {}", sent.len(), stored.len());
            assert_eq!(unpack(&sent).unwrap(), stored);
            assert_eq!(object_len(&sent[..12]).unwrap(), Some(stored.len() as u64));
            assert_eq!(object_len(&sent[..11]).unwrap(), None);
        }
        let root = store.map_object(&manifest.maps()[0]).await.unwrap();
        assert_eq!(pack(&root), None, "it is no segment");
    }

    #[test]
    fn what_is_no_segment_in_clear_is_sent_as_it_is() {
        let sound = object(1, &[[0; 56]; 40]);
        assert_eq!(unpack(&pack(&sound).unwrap()).unwrap(), sound);
        assert_eq!(pack(&sound[..sound.len() - 1]), None);
        assert_eq!(pack(&[&sound[..], &[0]].concat()), None);
        assert_eq!(pack(&sound[1..]), None);
        assert_eq!(pack(&[]), None);
        assert_eq!(pack(&object(MOST + 1, &[])), None);
    }

    #[test]
    fn what_claims_to_be_longer_than_a_segment_is_refused_before_it_is_unpacked() {
        let sent = pack(&object(2, &[[1; 56]; 100])).unwrap();
        let with = |at: usize, value: u32| {
            let mut sent = sent.clone();
            sent[at..at + 4].copy_from_slice(&value.to_le_bytes());
            unpack(&sent)
        };
        let huge = [&(MOST as u32 + 1).to_le_bytes()[..], &[0; 8]].concat();
        assert_eq!(object_len(&huge).unwrap_err().kind(), ErrorKind::Corrupt);
        for at in [0, 4, 8] {
            for value in [0, 1, 99, MOST as u32 + 1, u32::MAX] {
                assert_eq!(with(at, value).unwrap_err().kind(), ErrorKind::Corrupt, "{at} {value}");
            }
        }
        for end in 0..sent.len() {
            assert!(unpack(&sent[..end]).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn any_rows_are_the_same_again(
            packs in 0usize..4,
            rows in proptest::collection::vec(any::<[u8; 56]>(), 0..40),
            pad in 40usize..80,
        ) {
            // So many equal rows that all together are shorter by column.
            let rows: Vec<_> = rows.iter().copied().chain(vec![[9; 56]; pad * 8]).collect();
            let object = object(packs, &rows);
            let sent = pack(&object).unwrap();
            prop_assert!(sent.len() as u64 <= MAX_LEN);
            prop_assert_eq!(unpack(&sent).unwrap(), object);
        }

        #[test]
        fn damage_gives_an_error_or_something_else_and_never_more_than_a_segment(
            at in 0usize..1000, value in any::<u8>(),
        ) {
            let whole = object(2, &[[1; 56]; 100]);
            let mut sent = pack(&whole).unwrap();
            let at = at % sent.len();
            sent[at] = value;
            if let Ok(object) = unpack(&sent) {
                prop_assert_eq!(object.len(), whole.len());
            }
        }
    }
}
