//! A pack in the making.

use super::format::{
    HEAD, MAGIC, PackEntry, PackHead, TRAILER, Trailer, VERSION, checksum, id_of, index_len,
};
use super::names::path;
use crate::chunker::{MAX_CHUNK, PAGE};
use crate::wire::SEALED;
use crate::{ChunkId, Encoding, PackId, Settings};
use block::Result;
use bytes::{Bytes, BytesMut};
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U16;

/// A pack is full with this many bytes of chunks, or this many chunks.
pub(crate) const FULL: usize = 8 << 20;
pub(crate) const FULL_CHUNKS: usize = 16384;
/// A pack that gets longer than this gets memory for all of it: most of a snapshot stay below.
pub(super) const SMALL: usize = 1 << 20;

/// A pack in the making.
#[derive(Debug)]
pub struct Builder {
    pub(super) bytes: BytesMut,
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

    /// Begins a pack as [`new`](Self::new) does, in the memory of one that was written.
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
    /// [`Internal`](block::ErrorKind::Internal) when the index cannot be sealed.
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
