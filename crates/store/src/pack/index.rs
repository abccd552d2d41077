//! The index of a pack, read and checked.

use super::format::{
    HEAD, PackEntry, PackHead, TRAILER, Trailer, check, check_stored_version, checksum, id_of,
    index_in, index_len, trailer,
};
use super::names::{PREFIX, path};
use crate::chunker::PAGE;
use crate::wire::{self, damaged, unknown};
use crate::{ChunkId, ChunkRef, Encoding, PackId, Settings};
use block::{ErrorKind, Result};
use object_store::{ObjectMeta, ObjectStore};
use objects::Hint;
use zerocopy::{FromBytes, IntoBytes};

/// The longest pack that is read: 32 MiB.
pub const MAX_LEN: u64 = 32 << 20;
/// Read first of a pack's end: enough for the index of most packs.
const TAIL: u64 = 16 << 10;

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

    /// Loads as [`load`](Self::load) does; one of a newer format counts as damaged.
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

    /// Decodes, as [`decode`](Self::decode) does, a whole pack whose name is that of its index.
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
