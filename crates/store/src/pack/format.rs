//! What is where in a pack: its head, its index, its trailer, and what is checked of each.

use crate::chunker::{MAX_PAGES, PAGE};
use crate::encoding::TAG;
use crate::wire::{SEALED, damaged};
use crate::{Encoding, PackId, Settings};
use block::{Error, Result};
use object_store::ObjectStore;
use object_store::path::Path;
use objects::Hint;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const MAGIC: [u8; 8] = *b"SOJPACK\n";
pub(super) const VERSION: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct PackHead {
    pub(super) magic: [u8; 8],
    pub(super) version: U16,
    pub(super) flags: U16,
    /// Checksum of the bytes before it, in a newer format; else 0.
    pub(super) checksum: U32,
}

/// Where a chunk is, in the index of its pack.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct PackEntry {
    pub(super) id: [u8; 32],
    pub(super) offset: U32,
    pub(super) stored: U32,
    pub(super) blocks: U16,
    pub(super) encoding: u8,
    pub(super) reserved: u8,
    /// CRC-32C of the stored bytes: whether they are as they were written shows without opening or
    /// decompressing them.
    pub(super) checksum: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Trailer {
    pub(super) entries: U32,
    pub(super) version: U16,
    pub(super) flags: U16,
    pub(super) len: U64,
    /// Any number: gives the pack another id, and is 0 unless that is needed.
    pub(super) salt: U32,
    /// Checksum of the index and of the trailer's fields before this one.
    pub(super) checksum: U32,
    pub(super) magic: [u8; 8],
}

pub(super) const TRAILER: usize = size_of::<Trailer>();
pub(super) const ENTRY: usize = size_of::<PackEntry>();
/// Bytes that a pack has for each chunk beside what is stored of it.
pub(crate) const OVERHEAD: u64 = ENTRY as u64;
/// Bytes of a pack of some length that are its chunks' own, [`OVERHEAD`] of each included.
pub(crate) fn content_len(settings: &Settings, len: u64) -> u64 {
    let tag = if settings.is_encrypted() { TAG } else { 0 };
    len.saturating_sub((size_of::<PackHead>() + TRAILER + tag) as u64)
}

/// Bytes of the trailer that are bound to the index: all but checksum and magic.
pub(super) const HEAD: usize = 20;

pub(super) fn id_of(settings: &Settings, index: &[u8], salt: u32) -> PackId {
    let mut hasher = blake3::Hasher::new_keyed(settings.pack_key());
    PackId(*hasher.update(index).update(&salt.to_le_bytes()).finalize().as_bytes())
}

pub(super) fn checksum(index: &[u8], trailer: &Trailer) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(index), &trailer.as_bytes()[..HEAD])
}

/// Bytes of the index as it is stored.
pub(super) fn index_len(trailer: &Trailer) -> u64 {
    let tag = if trailer.flags.get() & SEALED == 0 { 0 } else { TAG };
    u64::from(trailer.entries.get()) * ENTRY as u64 + tag as u64
}

/// Bytes of the end of a pack that hold its index and trailer, as the last `tail` of its bytes say: at
/// least 32 of them.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when there is no trailer;
/// [`Unsupported`](block::ErrorKind::Unsupported) when its format is newer.
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
/// [`Unsupported`](block::ErrorKind::Unsupported), naming the version that is needed.
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

/// Checks, as [`check_version`] does, a pack of `size` bytes that is in a store. It may be longer than the ones that
/// this build reads.
///
/// # Errors
/// Any error from [`check_version`]; [`Unavailable`](block::ErrorKind::Unavailable) or
/// [`Denied`](block::ErrorKind::Denied) from the backend.
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
pub(super) fn index_in(bytes: &[u8]) -> Option<&[u8]> {
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
pub(super) fn trailer<'a>(key: &str, tail: &'a [u8], size: u64) -> Result<&'a Trailer> {
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

pub(super) fn check(entry: &PackEntry, encoding: Encoding, next: u64) -> Result<(), &'static str> {
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
