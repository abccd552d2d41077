//! Chunks: where a range of logical addresses lies on the device.

use super::key::{TreeKey, kind};
use super::superblock::BtrfsSuperblock;
use crate::Refusal;
use crate::bytes::{le16, le64};
use crate::refusal::refuse;

/// Bytes of a chunk before its stripes, and of a stripe.
const HEAD: usize = 48;
const STRIPE: usize = 32;
/// What a chunk holds (data, system, metadata), and two copies on one device.
const CONTENT: u64 = 0x7;
const DUP: u64 = 0x20;
/// The most chunks that are kept: 1 GiB each on any large file system.
const MAX_CHUNKS: usize = 1 << 19;

/// A range of logical addresses in one piece on the device, once or twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) len: u64,
    pub(super) places: [Option<u64>; 2],
}

impl Chunk {
    /// The chunk of an item; all of it must lie on the one device.
    pub(super) fn new(
        key: TreeKey,
        data: &[u8],
        superblock: &BtrfsSuperblock,
    ) -> Result<Self, Refusal> {
        let stripes = if data.len() >= HEAD { usize::from(le16(data, 44)) } else { 0 };
        if stripes == 0 || data.len() != HEAD + stripes * STRIPE {
            refuse!(Structure, "chunk {} is damaged; check it with btrfs check", key.offset);
        }
        let profile = le64(data, 24) & !CONTENT;
        let copies = match (profile, stripes) {
            (0, 1) => 1,
            (DUP, 2) => 2,
            _ => refuse!(MultiDevice, "its chunks are of a RAID profile ({profile:#x})"),
        };
        let len = le64(data, 0);
        let mut places = [None; 2];
        for (place, stripe) in places.iter_mut().zip(data[HEAD..].chunks_exact(STRIPE)).take(copies)
        {
            let at = le64(stripe, 8);
            if le64(stripe, 0) != superblock.device {
                refuse!(MultiDevice, "chunk {} is on another device", key.offset);
            }
            if at.checked_add(len).is_none_or(|end| end > superblock.size) {
                refuse!(OutsideFileSystem, "chunk {} lies outside of the device", key.offset);
            }
            *place = Some(at);
        }
        let aligned = [key.offset, len].iter().all(|n| n.is_multiple_of(superblock.sector));
        if len == 0 || !aligned || key.offset.checked_add(len).is_none() {
            refuse!(Structure, "chunk {} is damaged; check it with btrfs check", key.offset);
        }
        Ok(Self { logical: key.offset, len, places })
    }

    pub(super) fn end(&self) -> u64 {
        self.logical + self.len
    }
}

/// All chunks known so far, by logical address.
#[derive(Debug, Default)]
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// The chunks of the superblock's own array.
    pub(super) fn system(superblock: &BtrfsSuperblock) -> Result<Self, Refusal> {
        let mut chunks = Self::default();
        let mut rest = superblock.system_chunks.as_slice();
        while !rest.is_empty() {
            let stripes = if rest.len() >= TreeKey::SIZE + HEAD {
                le16(&rest[TreeKey::SIZE..], 44)
            } else {
                0
            };
            let len = TreeKey::SIZE + HEAD + usize::from(stripes) * STRIPE;
            if stripes == 0 || len > rest.len() || TreeKey::new(rest).kind != kind::CHUNK {
                refuse!(
                    Structure,
                    "the superblock's chunks are damaged; check it with btrfs check"
                );
            }
            chunks.add(Chunk::new(TreeKey::new(rest), &rest[TreeKey::SIZE..len], superblock)?)?;
            rest = &rest[len..];
        }
        Ok(chunks)
    }

    /// Adds a chunk; the superblock's are met again in their tree.
    pub(super) fn add(&mut self, chunk: Chunk) -> Result<(), Refusal> {
        let at = self.0.partition_point(|known| known.logical < chunk.logical);
        if self.0.get(at) == Some(&chunk) {
            return Ok(());
        }
        let before = at.checked_sub(1).and_then(|at| self.0.get(at));
        let apart = before.is_none_or(|before| before.end() <= chunk.logical)
            && self.0.get(at).is_none_or(|next| chunk.end() <= next.logical);
        if !apart || self.0.len() >= MAX_CHUNKS {
            refuse!(Structure, "chunks overlap or are too many; check it with btrfs check");
        }
        self.0.insert(at, chunk);
        Ok(())
    }

    pub(super) fn all(&self) -> &[Chunk] {
        &self.0
    }

    /// Where `len` bytes at a logical address lie.
    pub(super) fn place(&self, logical: u64, len: u64) -> Result<u64, Refusal> {
        let after = self.0.partition_point(|chunk| chunk.logical <= logical);
        let chunk = after.checked_sub(1).and_then(|at| self.0.get(at));
        match chunk {
            Some(chunk @ Chunk { places: [Some(place), _], .. })
                if logical.checked_add(len).is_some_and(|end| end <= chunk.end()) =>
            {
                Ok(place + (logical - chunk.logical))
            }
            _ => refuse!(
                OutsideFileSystem,
                "logical address {logical} is in no chunk; check it with btrfs check"
            ),
        }
    }
}
