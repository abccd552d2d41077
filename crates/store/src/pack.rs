//! Packs: immutable objects that hold many chunks in image order.
//!
//! A pack is written once and whole. Its index stands at its end, so that chunks can be appended
//! while their lengths are not known yet; its id is the hash of the index, so that the same chunks
//! in the same order are the same pack.

use crate::chunker::{MAX_CHUNK, MAX_PAGES, PAGE};
use crate::encoding::TAG;
use crate::wire::{self, SEALED, damaged, unknown};
use crate::{ChunkId, ChunkRef, Encoding, PackId, Settings};
use block::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use objects::Hint;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"SOJPACK\n";
const VERSION: u16 = 1;
/// The longest pack that is read: 32 MiB.
pub const MAX_LEN: u64 = 32 << 20;
/// A pack is full with this many bytes of chunks, or this many chunks.
pub(crate) const FULL: usize = 8 << 20;
const FULL_CHUNKS: usize = 16384;
/// A pack that gets longer than this gets memory for all of it: most of a snapshot stay below.
const SMALL: usize = 1 << 20;
/// The prefix of the keys of packs.
pub(crate) const PREFIX: &str = "packs";
/// Read first of a pack's end: enough for the index of most packs.
const TAIL: u64 = 16 << 10;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PackHead {
    magic: [u8; 8],
    version: U16,
    flags: U16,
    /// Of a newer format: of the bytes before it. Else 0.
    checksum: U32,
}

/// Where a chunk is, in the index of its pack.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PackEntry {
    id: [u8; 32],
    offset: U32,
    stored: U32,
    blocks: U16,
    encoding: u8,
    reserved: u8,
    /// CRC-32C of the stored bytes: whether they are as they were written shows without opening or
    /// decompressing them.
    checksum: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Trailer {
    entries: U32,
    version: U16,
    flags: U16,
    len: U64,
    /// Any number: gives the pack another id, and is 0 unless that is needed.
    salt: U32,
    /// Of the index and of the trailer's fields before this one.
    checksum: U32,
    magic: [u8; 8],
}

const TRAILER: usize = size_of::<Trailer>();
const ENTRY: usize = size_of::<PackEntry>();
/// Bytes that a pack has for each chunk beside what is stored of it.
pub(crate) const OVERHEAD: u64 = ENTRY as u64;
/// Bytes of a pack of some length that are its chunks' own, [`OVERHEAD`] of each included.
pub(crate) fn content_len(settings: &Settings, len: u64) -> u64 {
    let tag = if settings.is_encrypted() { TAG } else { 0 };
    len.saturating_sub((size_of::<PackHead>() + TRAILER + tag) as u64)
}

/// Bytes of the trailer that are bound to the index: all but checksum and magic.
const HEAD: usize = 20;

/// The id of the pack that a listing showed.
pub(crate) fn id_of_key(key: &str) -> Result<PackId> {
    key.strip_prefix(PREFIX)
        .and_then(|name| name.strip_prefix('/'))
        .and_then(|name| name.parse().ok())
        .ok_or_else(|| damaged(key, "its name is not a pack's"))
}

/// The key of a pack.
pub(crate) fn path(id: &PackId) -> Path {
    Path::from(format!("{PREFIX}/{id}"))
}

/// A pack in the making.
#[derive(Debug)]
pub struct Builder {
    bytes: BytesMut,
    index: Vec<PackEntry>,
}

/// A pack that is ready to be written.
#[derive(Debug, Clone)]
pub struct Finished {
    /// What it is called: the hash of its index.
    pub id: PackId,
    /// All of it.
    pub bytes: Bytes,
    /// Bytes of index and trailer.
    pub(crate) tail: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A pack without chunks.
    pub fn new() -> Self {
        Self::reusing(BytesMut::new())
    }

    /// As [`new`](Self::new), in the memory of a pack that was written.
    pub(crate) fn reusing(mut bytes: BytesMut) -> Self {
        bytes.clear();
        let head =
            PackHead { magic: MAGIC, version: VERSION.into(), flags: 0.into(), checksum: 0.into() };
        bytes.extend_from_slice(head.as_bytes());
        Self { bytes, index: Vec::new() }
    }

    /// Appends a chunk of `len` plain bytes; returns its offset.
    pub fn add(&mut self, id: ChunkId, len: u32, encoding: Encoding, stored: &[u8]) -> u32 {
        let have = self.bytes.len();
        if have + stored.len() > self.bytes.capacity() && have >= SMALL {
            self.bytes.reserve((FULL + 2 * MAX_CHUNK as usize).saturating_sub(have));
        }
        let offset = have as u32;
        self.bytes.extend_from_slice(stored);
        self.index.push(PackEntry {
            id: id.0,
            offset: offset.into(),
            stored: (stored.len() as u32).into(),
            blocks: U16::new((len / PAGE as u32) as u16),
            encoding: encoding as u8,
            reserved: 0,
            checksum: crc32c::crc32c(stored).into(),
        });
        offset
    }

    /// Whether it has no chunk.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether it is time to finish it.
    pub fn is_full(&self) -> bool {
        self.has(FULL)
    }

    /// Whether it has this many bytes of chunks, or as many chunks as a pack holds.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.bytes.len() >= bytes || self.index.len() >= FULL_CHUNKS
    }

    /// Ends the pack. It gets an id of which `taken` says no: the first one, unless that is of a
    /// pack that is about to be deleted.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) when the index cannot be sealed.
    pub fn finish(
        mut self,
        settings: &Settings,
        taken: impl Fn(&PackId) -> bool,
    ) -> Result<Finished> {
        let index = self.index.as_bytes();
        let sealer = settings.sealer();
        let mut salt = 0;
        let mut id = id_of(settings, index, salt);
        while taken(&id) {
            salt += 1;
            id = id_of(settings, index, salt);
        }
        let mut trailer = Trailer {
            entries: (self.index.len() as u32).into(),
            version: VERSION.into(),
            flags: if sealer.is_some() { SEALED } else { 0 }.into(),
            len: 0.into(),
            salt: salt.into(),
            checksum: 0.into(),
            magic: MAGIC,
        };
        let tail = index_len(&trailer) as usize + TRAILER;
        trailer.len = ((self.bytes.len() + tail) as u64).into();
        let mut index = index.to_vec();
        if let Some(sealer) = sealer {
            let head = &trailer.as_bytes()[..HEAD];
            sealer.seal_object(path(&id).as_ref(), head, &mut index)?;
        }
        trailer.checksum = checksum(&index, &trailer).into();
        self.bytes.extend_from_slice(&index);
        self.bytes.extend_from_slice(trailer.as_bytes());
        Ok(Finished { id, tail, bytes: self.bytes.freeze() })
    }
}

fn id_of(settings: &Settings, index: &[u8], salt: u32) -> PackId {
    let mut hasher = blake3::Hasher::new_keyed(settings.pack_key());
    PackId(*hasher.update(index).update(&salt.to_le_bytes()).finalize().as_bytes())
}

fn checksum(index: &[u8], trailer: &Trailer) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(index), &trailer.as_bytes()[..HEAD])
}

/// Bytes of the index as it is stored.
fn index_len(trailer: &Trailer) -> u64 {
    let tag = if trailer.flags.get() & SEALED == 0 { 0 } else { TAG };
    u64::from(trailer.entries.get()) * ENTRY as u64 + tag as u64
}

/// A checked index.
#[derive(Debug)]
pub struct PackIndex {
    /// The pack.
    pub id: PackId,
    entries: Vec<PackEntry>,
}

impl PackIndex {
    /// Reads the index of a pack that a listing named.
    pub(crate) async fn load(
        backend: &dyn ObjectStore,
        settings: &Settings,
        meta: &ObjectMeta,
    ) -> Result<Self> {
        let key = meta.location.as_ref();
        let id = key
            .strip_prefix(PREFIX)
            .and_then(|name| name.strip_prefix('/'))
            .and_then(|name| name.parse::<PackId>().ok())
            .ok_or_else(|| damaged(key, "its name is not a pack's"))?;
        match Self::load_known(backend, settings, meta, id).await {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                check_stored_version(backend, &meta.location, meta.size).await?;
                Err(e)
            }
            other => other,
        }
    }

    /// As [`load`](Self::load); one of a newer format counts as damaged.
    async fn load_known(
        backend: &dyn ObjectStore,
        settings: &Settings,
        meta: &ObjectMeta,
        id: PackId,
    ) -> Result<Self> {
        let (key, size) = (meta.location.as_ref(), meta.size);
        if size > MAX_LEN {
            return Err(damaged(key, "it is longer than a pack can be"));
        }
        let len = TAIL.min(size);
        // Without the chunks before it: many packs' indexes are read for an import.
        let end = async |len| {
            let at = size - len;
            objects::get_range_with(backend, &meta.location, at, len, Hint::Exact).await
        };
        let tail = end(len).await?;
        let trailer = trailer(key, &tail, size)?;
        let needed = index_len(trailer) + TRAILER as u64;
        let tail = if needed <= len { tail } else { end(needed).await? };
        Self::decode(settings, id, key, &tail, size)
    }

    /// Checks an index: `tail` is the end of a pack of `size` bytes, at least index and trailer.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when it is damaged, cut off or another pack's;
    /// [`Unsupported`](ErrorKind::Unsupported) when its format is newer.
    pub fn decode(
        settings: &Settings,
        id: PackId,
        key: &str,
        tail: &[u8],
        size: u64,
    ) -> Result<Self> {
        let trailer = trailer(key, tail, size)?;
        let end = tail.len() - TRAILER;
        let start = end
            .checked_sub(index_len(trailer) as usize)
            .ok_or_else(|| damaged(key, "its index is cut off"))?;
        let index = &tail[start..end];
        if checksum(index, trailer) != trailer.checksum.get() {
            return Err(damaged(key, "checksum mismatch"));
        }
        wire::check_sealed(key, trailer.flags.get(), settings.is_encrypted())?;
        let opened = settings.sealer().map(|sealer| {
            sealer
                .open_object(path(&id).as_ref(), &trailer.as_bytes()[..HEAD], index)
                .map_err(|_| damaged(key, "its index is not what was sealed under its name"))
        });
        let opened = opened.transpose()?;
        let index = opened.as_deref().unwrap_or(index);
        if id_of(settings, index, trailer.salt.get()) != id {
            return Err(damaged(key, "its hash is wrong"));
        }
        let entries = <[PackEntry]>::ref_from_bytes(index)
            .map_err(|_| damaged(key, "its index is cut off"))?
            .to_vec();
        let mut next = size_of::<PackHead>() as u64;
        for entry in &entries {
            let encoding = Encoding::from_number(entry.encoding)
                .ok_or_else(|| unknown(key, &format!("encoding {}", entry.encoding)))?;
            check(entry, encoding, next).map_err(|why| damaged(key, why))?;
            next += u64::from(entry.stored.get());
        }
        if next + (tail.len() - start) as u64 != size {
            return Err(damaged(key, "its chunks do not fill it"));
        }
        Ok(Self { id, entries })
    }

    /// As [`decode`](Self::decode), of a whole pack whose name is that of its index.
    pub(crate) fn decode_unnamed(settings: &Settings, bytes: &[u8]) -> Result<Self> {
        let salt = Trailer::ref_from_suffix(bytes).map_or(0, |(_, trailer)| trailer.salt.get());
        let id = id_of(settings, index_in(bytes).unwrap_or_default(), salt);
        Self::decode(settings, id, "pack", bytes, bytes.len() as u64)
    }

    /// Its chunks, in order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = ChunkRef> + '_ {
        self.entries.iter().map(|entry| ChunkRef {
            id: ChunkId(entry.id),
            len: u32::from(entry.blocks.get()) * PAGE as u32,
            pack: self.id,
            offset: entry.offset.get(),
            stored: entry.stored.get(),
            encoding: Encoding::from_number(entry.encoding).unwrap_or(Encoding::Plain),
        })
    }

    /// The checksums of what is stored of its chunks, in order.
    pub fn checksums(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.checksum.get())
    }
}

/// Bytes of the end of a pack that hold its index and trailer, as the last `tail` of its bytes say: at
/// least 32 of them.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) when there is no trailer; [`Unsupported`](ErrorKind::Unsupported)
/// when its format is newer.
pub fn tail_len(key: &str, tail: &[u8], size: u64) -> Result<u64> {
    Ok(index_len(trailer(key, tail, size)?) + TRAILER as u64)
}

/// Checks the first bytes of a whole pack, which readers of chunks never look at.
pub(crate) fn check_head(key: &str, bytes: &[u8]) -> Result<()> {
    let (head, _) =
        PackHead::ref_from_prefix(bytes).map_err(|_| damaged(key, "it is too short"))?;
    let plain =
        PackHead { magic: MAGIC, version: VERSION.into(), flags: 0.into(), checksum: 0.into() };
    if head.as_bytes() != plain.as_bytes() {
        return Err(damaged(key, "it does not begin as a pack does"));
    }
    Ok(())
}

/// Refuses a pack of a newer format. Its head says so, and has a checksum: a version or a flag without
/// one is damage.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported), naming the version that is needed.
pub(crate) fn check_version(key: &str, first: &[u8]) -> Result<()> {
    let Ok((head, _)) = PackHead::ref_from_prefix(first) else { return Ok(()) };
    let is_newer = head.version.get() > VERSION || head.flags.get() & !SEALED != 0;
    if head.magic == MAGIC
        && is_newer
        && crc32c::crc32c(&head.as_bytes()[..12]) == head.checksum.get()
    {
        return Err(Error::unsupported(format!(
            "object {key} has format version {} with features {:#x}, this build reads up to \
             {VERSION} with features {SEALED:#x}; use a newer sojourn",
            head.version, head.flags
        )));
    }
    Ok(())
}

/// As [`check_version`], of a pack of `size` bytes that is in a store. It may be longer than those that
/// this build reads.
///
/// # Errors
/// As [`check_version`]; the backend's.
pub(crate) async fn check_stored_version(
    backend: &dyn ObjectStore,
    path: &Path,
    size: u64,
) -> Result<()> {
    let len = size_of::<PackHead>() as u64;
    if size < len {
        return Ok(());
    }
    let first = objects::get_range_with(backend, path, 0, len, Hint::Fresh).await?;
    check_version(path.as_ref(), &first)
}

/// Writes a pack. One of its id that is there already is kept when it is the same, and replaced when it
/// is damaged.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) when the one that is there is of a newer format: nobody here
/// can tell what would be lost with it. Else the backend's.
pub(crate) async fn put(
    backend: &dyn ObjectStore,
    id: &PackId,
    bytes: Bytes,
    tail: usize,
) -> Result<()> {
    let path = path(id);
    if objects::create_content(backend, path.as_ref(), &bytes, tail).await? {
        return Ok(());
    }
    let found = async {
        let there = objects::head(backend, path.as_ref()).await?;
        check_stored_version(backend, &path, there.size).await
    };
    match found.await {
        Ok(()) => {}
        // Deleted or changed since.
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
        Err(e) => return Err(e),
    }
    objects::replace_damaged(backend, path.as_ref(), bytes).await
}

/// Makes a whole pack one of a newer format, for tests.
#[cfg(test)]
pub(crate) fn make_newer(bytes: &mut [u8], version: u16, flags: u16) {
    let Ok((head, _)) = PackHead::mut_from_prefix(bytes) else { return };
    (head.version, head.flags) = (version.into(), flags.into());
    head.checksum = crc32c::crc32c(&head.as_bytes()[..12]).into();
    if let Ok((_, trailer)) = Trailer::mut_from_suffix(bytes) {
        (trailer.version, trailer.flags) = (version.into(), flags.into());
    }
}

/// The index of a whole pack, as long as its trailer says.
fn index_in(bytes: &[u8]) -> Option<&[u8]> {
    let (before, trailer) = Trailer::ref_from_suffix(bytes).ok()?;
    before.get(before.len().checked_sub(index_len(trailer) as usize)?..)
}

/// Puts the right checksum into a whole pack that was changed.
pub(crate) fn seal(bytes: &mut [u8]) {
    let sum = match (index_in(bytes), Trailer::ref_from_suffix(bytes)) {
        (Some(index), Ok((_, trailer))) => checksum(index, trailer),
        _ => return,
    };
    let at = bytes.len() - 12;
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The trailer at the end of `tail`, checked but for what the index is needed for.
fn trailer<'a>(key: &str, tail: &'a [u8], size: u64) -> Result<&'a Trailer> {
    let (_, trailer) =
        Trailer::ref_from_suffix(tail).map_err(|_| damaged(key, "it is too short"))?;
    if trailer.magic != MAGIC {
        return Err(damaged(key, "it does not end with its magic"));
    }
    if trailer.version.get() != VERSION || trailer.flags.get() & !SEALED != 0 {
        return Err(damaged(key, "its trailer names a format that its head does not"));
    }
    let index = index_len(trailer);
    let fits = index + (size_of::<PackHead>() + TRAILER) as u64 <= size;
    if trailer.len.get() != size || !fits || trailer.entries.get() == 0 {
        return Err(damaged(key, "its lengths do not match its size"));
    }
    Ok(trailer)
}

fn check(entry: &PackEntry, encoding: Encoding, next: u64) -> Result<(), &'static str> {
    let blocks = u32::from(entry.blocks.get());
    if blocks == 0 || blocks > MAX_PAGES || entry.reserved != 0 {
        return Err("a chunk's length is not possible");
    }
    let len = blocks * PAGE as u32;
    if !encoding.allows(entry.stored.get(), len) || u64::from(entry.offset.get()) != next {
        return Err("a chunk's place is not possible");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk;
    use crate::testing;
    use block::ErrorKind;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_small_pack_takes_little_memory_and_a_large_one_no_more_than_it_may_need() {
        let (mut pack, chunk) = (Builder::new(), vec![1; MAX_CHUNK as usize]);
        let add = |pack: &mut Builder| {
            pack.add(ChunkId([1; 32]), MAX_CHUNK, Encoding::Plain, &chunk);
            pack.bytes.capacity()
        };
        assert!(add(&mut pack) < SMALL);
        while !pack.is_full() {
            assert!(add(&mut pack) <= FULL + 2 * MAX_CHUNK as usize);
        }
    }

    fn sample(chunks: usize) -> (Settings, Finished) {
        let settings = testing::settings();
        let pack = filled(&settings, chunks).finish(&settings, |_| false).unwrap();
        (settings, pack)
    }

    fn filled(settings: &Settings, chunks: usize) -> Builder {
        let mut builder = Builder::new();
        for i in 0..chunks {
            add(&mut builder, settings, Bytes::from(vec![i as u8 + 1; 4096]));
        }
        builder
    }

    fn add(builder: &mut Builder, settings: &Settings, plain: Bytes) -> ChunkId {
        let (id, len) = (chunk::id_of(settings, &plain), plain.len() as u32);
        let (encoding, stored) = chunk::encode(settings, &id, plain).unwrap();
        builder.add(id, len, encoding, &stored);
        id
    }

    fn decode(settings: &Settings, id: PackId, bytes: &[u8]) -> Result<PackIndex> {
        PackIndex::decode(settings, id, "packs/x", bytes, bytes.len() as u64)
    }

    #[test]
    fn any_truncation_or_flipped_bit_of_a_pack_is_refused_or_harmless() {
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let pack = filled(&settings, 3).finish(&settings, |_| false).unwrap();
            any_change_is_refused_or_harmless(&settings, &pack);
        }
    }

    fn any_change_is_refused_or_harmless(settings: &Settings, pack: &Finished) {
        let whole = decode(settings, pack.id, &pack.bytes).unwrap();
        assert_eq!(whole.chunks().len(), 3);
        for len in 0..pack.bytes.len() {
            assert!(decode(settings, pack.id, &pack.bytes[..len]).is_err(), "{len} bytes");
        }
        for at in 0..pack.bytes.len() {
            for bit in 0..8 {
                let mut bad = pack.bytes.to_vec();
                bad[at] ^= 1 << bit;
                let bad = Bytes::from(bad);
                // The index is refused, or still true: then each chunk gives its bytes or refuses.
                let Ok(index) = decode(settings, pack.id, &bad) else { continue };
                for (chunk, original) in index.chunks().zip(whole.chunks()) {
                    assert_eq!(chunk, original);
                    let (start, end) =
                        (chunk.offset as usize, (chunk.offset + chunk.stored) as usize);
                    if let Ok(plain) = chunk.decode(settings, bad.slice(start..end)) {
                        assert_eq!(chunk::id_of(settings, &plain), chunk.id);
                    }
                }
            }
        }
    }

    #[test]
    fn a_pack_whose_id_is_taken_gets_another_one_and_is_read() {
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let first = filled(&settings, 2).finish(&settings, |_| false).unwrap();
            let second = filled(&settings, 2).finish(&settings, |id| *id == first.id).unwrap();
            assert_ne!(first.id, second.id);
            let read = decode(&settings, second.id, &second.bytes).unwrap();
            assert_eq!(read.chunks().len(), 2);
            assert!(decode(&settings, first.id, &second.bytes).is_err());
        }
    }

    #[test]
    fn a_pack_in_clear_does_not_pass_in_an_encrypted_store_nor_the_reverse() {
        let (plain, encrypted) = (testing::settings(), testing::encrypted_settings());
        for (writer, reader) in [(&plain, &encrypted), (&encrypted, &plain)] {
            let pack = filled(writer, 2).finish(writer, |_| false).unwrap();
            let error = decode(reader, pack.id, &pack.bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains("encrypted"), "{error}");
        }
    }

    #[test]
    fn the_same_chunks_are_the_same_pack() {
        let ((_, a), (_, b), (_, c)) = (sample(4), sample(4), sample(5));
        assert_eq!((a.id, &a.bytes), (b.id, &b.bytes));
        assert_ne!(a.id, c.id);
    }

    async fn load(settings: &Settings, id: &PackId, bytes: Vec<u8>) -> Result<PackIndex> {
        let backend = object_store::memory::InMemory::new();
        objects::put_over(&backend, path(id).as_ref(), bytes.into()).await.unwrap();
        let meta = objects::head(&backend, path(id).as_ref()).await.unwrap();
        PackIndex::load(&backend, settings, &meta).await
    }

    #[tokio::test]
    async fn a_newer_version_is_refused_by_its_number_and_a_flipped_bit_is_no_newer_version() {
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let pack = filled(&settings, 2).finish(&settings, |_| false).unwrap();
            let mut newer = pack.bytes.to_vec();
            make_newer(&mut newer, 7, 0);
            let error = load(&settings, &pack.id, newer).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("version 7"), "{error}");
            let end = pack.bytes.len();
            for at in (0..16).chain(end - TRAILER..end) {
                for bit in 0..8 {
                    let mut bad = pack.bytes.to_vec();
                    bad[at] ^= 1 << bit;
                    // Readers of chunks do not look at the head, and the head alone says nothing.
                    let error = match check_head("packs/x", &bad) {
                        Err(error) => error,
                        Ok(()) => load(&settings, &pack.id, bad).await.unwrap_err(),
                    };
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_pack_is_written_over_a_damaged_one_and_never_over_one_of_a_newer_format() {
        let backend = object_store::memory::InMemory::new();
        let (_, pack) = sample(3);
        let Finished { id, bytes, tail } = pack;
        let there = async || {
            let found = objects::get(&backend, path(&id).as_ref(), 2 * MAX_LEN).await;
            found.unwrap().to_vec()
        };
        let is_put = async |found: Vec<u8>| {
            objects::put_over(&backend, path(&id).as_ref(), found.into()).await.unwrap();
            put(&backend, &id, bytes.clone(), tail).await
        };
        put(&backend, &id, bytes.clone(), tail).await.unwrap();
        assert_eq!(there().await, bytes);
        let end = bytes.len();
        for at in [end - 1, end - TRAILER + 1, end - TRAILER - 5] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            is_put(damaged).await.unwrap();
            assert_eq!(there().await, bytes, "byte {at}");
        }
        is_put(Vec::new()).await.unwrap();
        assert_eq!(there().await, bytes);
        let mut newer = bytes.to_vec();
        make_newer(&mut newer, 2, 0);
        let mut longer = newer[..100].to_vec();
        longer.resize(MAX_LEN as usize + 1, 0);
        longer.extend_from_slice(&newer[100..]);
        // The end of a format that looks otherwise: only the start says what it is.
        let mut other = vec![0; 300];
        other[..16].copy_from_slice(&newer[..16]);
        for found in [newer, longer, other] {
            let error = is_put(found.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("version 2"), "{error}");
            assert!(there().await == found, "it was replaced");
        }
    }

    #[test]
    fn an_unknown_encoding_asks_for_a_newer_build() {
        let (settings, pack) = sample(1);
        let mut newer = pack.bytes.to_vec();
        let at = newer.len() - TRAILER - 6;
        newer[at] = 4;
        seal(&mut newer);
        let error = PackIndex::decode_unnamed(&settings, &newer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("encoding 4"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_pack_gives_back_what_a_map_does(
            chunks in prop::collection::vec((1usize..=64, any::<u8>(), any::<bool>()), 1..40),
            encrypted in any::<bool>(),
        ) {
            let settings =
                if encrypted { testing::encrypted_settings() } else { testing::settings() };
            let mut builder = Builder::new();
            let mut model = HashMap::new();
            for (blocks, byte, noisy) in chunks {
                let mut plain = vec![byte; blocks * PAGE];
                if noisy {
                    plain = testing::noise(u64::from(byte), blocks * PAGE);
                }
                let id = add(&mut builder, &settings, Bytes::from(plain.clone()));
                model.insert(id, plain);
            }
            let pack = builder.finish(&settings, |_| false).unwrap();
            let index = decode(&settings, pack.id, &pack.bytes).unwrap();
            let found: HashMap<_, _> = index
                .chunks()
                .map(|at| {
                    let place = at.offset as usize..(at.offset + at.stored) as usize;
                    (at.id, at.decode(&settings, pack.bytes.slice(place)).unwrap().to_vec())
                })
                .collect();
            prop_assert_eq!(found, model);
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut bytes = bytes;
            let settings = testing::settings();
            prop_assert!(decode(&settings, PackId([0; 32]), &bytes).is_err());
            bytes.extend_from_slice(&MAGIC);
            prop_assert!(decode(&settings, PackId([0; 32]), &bytes).is_err());
        }
    }
}
