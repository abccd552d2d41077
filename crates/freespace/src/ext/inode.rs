//! One inode, and the blocks that it says are its own.

use super::checksum::crc32c;
use super::superblock::{Checksums, ExtSuperblock};
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{Refusal, Window};

const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE: u32 = 0x1000_0000;

const EXTENT_MAGIC: u16 = 0xF30A;
/// The kernel's limit of the depth of a tree of extents.
const MAX_DEPTH: u16 = 5;
/// Longer extents are `len - MAX_LEN` blocks that were never written.
const MAX_LEN: u16 = 32768;

/// Blocks that a file says are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first block in the file; `None` for the blocks of the file's own tree.
    pub(super) logical: Option<u64>,
    /// The first block on the disk.
    pub(super) start: u64,
    /// How many blocks.
    pub(super) count: u64,
}

/// Whom the pieces of a file are shown to; it may refuse.
pub(super) type VisitPiece<'v> = &'v mut dyn FnMut(Piece) -> Result<(), Refusal>;

/// An inode as it lies in its table.
pub(super) struct Inode<'a> {
    raw: &'a [u8],
    number: u32,
    window: &'a Window<'a>,
    sb: &'a ExtSuperblock,
    seed: u32,
}

impl<'a> Inode<'a> {
    /// `raw` is a whole inode of the table.
    pub(super) fn new(
        window: &'a Window<'a>,
        sb: &'a ExtSuperblock,
        number: u32,
        raw: &'a [u8],
    ) -> Self {
        let seed = crc32c(crc32c(sb.seed, &number.to_le_bytes()), &raw[0x64..0x68]);
        Self { raw, number, window, sb, seed }
    }

    /// Whether it was never used.
    pub(super) fn is_blank(&self) -> bool {
        self.raw.iter().all(|byte| *byte == 0)
    }

    /// What lies in the inode itself instead of in blocks: its first part, and the rest, which is an
    /// extended attribute.
    pub(super) fn inline(&self) -> Option<(&[u8], &[u8])> {
        let inline = le32(self.raw, 0x20) & FLAG_INLINE != 0;
        inline.then(|| (&self.raw[0x28..0x64], self.inline_rest().unwrap_or_default()))
    }

    /// The value of the attribute `system.data` behind the inode's fields.
    fn inline_rest(&self) -> Option<&[u8]> {
        const MAGIC: u32 = 0xEA02_0000;
        const SYSTEM: u8 = 7;
        const ENTRY: usize = 16;
        let extra = usize::from(le16(self.raw.get(128..130)?, 0));
        let attributes = self.raw.get(128 + extra..)?;
        if le32(attributes.get(..4)?, 0) != MAGIC {
            return None;
        }
        let values = &attributes[4..];
        let mut at = 0;
        loop {
            let entry = values.get(at..at + ENTRY)?;
            let len = usize::from(entry[0]);
            if le32(entry, 0) == 0 {
                return None;
            }
            let name = values.get(at + ENTRY..at + ENTRY + len)?;
            if entry[1] == SYSTEM && name == b"data" {
                let start = usize::from(le16(entry, 2));
                return values.get(start..start.checked_add(le32(entry, 8) as usize)?);
            }
            at += (ENTRY + len).next_multiple_of(4);
        }
    }

    /// Whether its blocks, or its short content, are not a tree of extents.
    pub(super) fn has_no_extents(&self) -> bool {
        le32(self.raw, 0x20) & FLAG_EXTENTS == 0
    }

    /// Verifies its checksum, where inodes have one.
    pub(super) fn verify(&self) -> Result<(), Refusal> {
        if self.sb.checksums != Checksums::Everything {
            return Ok(());
        }
        let raw = self.raw;
        let crc = crc32c(crc32c(crc32c(self.seed, &raw[..0x7C]), &[0; 2]), &raw[0x7E..0x80]);
        let mut provided = u32::from(le16(raw, 0x7C));
        let mut right = crc;
        let mut mask = 0xFFFF;
        if raw.len() > 128 {
            right = crc32c(right, &raw[0x80..0x82]);
            if le16(raw, 0x80) >= 4 {
                provided |= u32::from(le16(raw, 0x82)) << 16;
                mask = u32::MAX;
                right = crc32c(crc32c(right, &[0; 2]), &raw[0x84..]);
            } else {
                right = crc32c(right, &raw[0x82..]);
            }
        }
        if provided != right & mask {
            refuse!(Checksum, "the checksum of inode {} does not match; run e2fsck", self.number);
        }
        Ok(())
    }

    /// The block of its extended attributes, which several files may share.
    pub(super) fn attributes(&self) -> Result<Option<u64>, Refusal> {
        let high = if self.sb.wide { u64::from(le16(self.raw, 0x76)) << 32 } else { 0 };
        match u64::from(le32(self.raw, 0x68)) | high {
            0 => Ok(None),
            at => self.check(at, 1).map(|()| Some(at)),
        }
    }

    /// Shows every range of blocks that it says is its own, its tree's blocks before what they
    /// lead to. Without the block of attributes.
    ///
    /// # Errors
    /// A broken tree, ranges outside of the file system, and what `visit` refuses.
    pub(super) fn pieces(&self, visit: VisitPiece<'_>) -> Result<(), Refusal> {
        let flags = le32(self.raw, 0x20);
        let size = u64::from(le32(self.raw, 0x4)) | u64::from(le32(self.raw, 0x6C)) << 32;
        let root = &self.raw[0x28..0x64];
        match le16(self.raw, 0) >> 12 {
            // FIFO, character device, block device, socket.
            0x1 | 0x2 | 0x6 | 0xC => Ok(()),
            _ if flags & FLAG_INLINE != 0 => Ok(()),
            // A symbolic link whose target lies in the inode.
            0xA if size < 60 && flags & FLAG_EXTENTS == 0 => Ok(()),
            _ if flags & FLAG_EXTENTS != 0 => self.extents(root, None, visit),
            _ => self.map(root, visit),
        }
    }

    /// The table of reserved descriptor blocks (inode 7): its tree's one block, then, as pieces of
    /// the file, the descriptor blocks that it says are reserved, in all groups.
    pub(super) fn resize_pieces(&self, visit: VisitPiece<'_>) -> Result<(), Refusal> {
        let root = &self.raw[0x28..0x64];
        if (0..15).any(|slot| slot != 13 && le32(root, slot * 4) != 0) {
            refuse!(Structure, "inode 7 holds more than reserved descriptors; run e2fsck");
        }
        self.indirect(u64::from(le32(root, 52)), 2, &mut 0, visit)
    }

    fn check(&self, start: u64, count: u64) -> Result<(), Refusal> {
        let end = start.checked_add(count);
        if start <= self.sb.first_data || end.is_none_or(|end| end > self.sb.blocks) {
            refuse!(
                Structure,
                "inode {} points at block {start}, outside of the file system; run e2fsck",
                self.number
            );
        }
        Ok(())
    }

    fn load(&self, block: u64) -> Result<Vec<u8>, Refusal> {
        let size = u64::from(self.sb.block_size);
        self.window.bytes(block * size, self.sb.block_size as usize)
    }

    /// A node of a tree of extents. `depth` is what its parent says; none for the root.
    fn extents(
        &self,
        node: &[u8],
        depth: Option<u16>,
        visit: VisitPiece<'_>,
    ) -> Result<(), Refusal> {
        let (magic, entries, most) = (le16(node, 0), le16(node, 2), le16(node, 4));
        let own = le16(node, 6);
        let room = (node.len() - 12) / 12;
        if magic != EXTENT_MAGIC
            || entries > most
            || usize::from(most) > room
            || own > MAX_DEPTH
            || depth.is_some_and(|depth| depth != own)
        {
            refuse!(
                Structure,
                "the tree of extents of inode {} is broken; run e2fsck",
                self.number
            );
        }
        if depth.is_some() && self.sb.checksums == Checksums::Everything {
            let tail = 12 + 12 * usize::from(most);
            if tail + 4 > node.len() || crc32c(self.seed, &node[..tail]) != le32(node, tail) {
                refuse!(
                    Checksum,
                    "a checksum in the extents of inode {} does not match",
                    self.number
                );
            }
        }
        for entry in node[12..].chunks_exact(12).take(usize::from(entries)) {
            let logical = u64::from(le32(entry, 0));
            if own > 0 {
                let child = u64::from(le32(entry, 4)) | u64::from(le16(entry, 8)) << 32;
                self.check(child, 1)?;
                visit(Piece { logical: None, start: child, count: 1 })?;
                self.extents(&self.load(child)?, Some(own - 1), visit)?;
                continue;
            }
            let len = le16(entry, 4);
            let count = u64::from(if len > MAX_LEN { len - MAX_LEN } else { len });
            let start = u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32;
            if count == 0 {
                refuse!(Structure, "inode {} has an extent of no block; run e2fsck", self.number);
            }
            self.check(start, count)?;
            visit(Piece { logical: Some(logical), start, count })?;
        }
        Ok(())
    }

    /// The map of ext2 and ext3: twelve blocks, then trees of one, two and three levels.
    fn map(&self, root: &[u8], visit: VisitPiece<'_>) -> Result<(), Refusal> {
        let mut logical = 0;
        self.blocks(&root[..48], &mut logical, visit)?;
        for level in 1..=3 {
            let at = u64::from(le32(root, 44 + 4 * level as usize));
            self.indirect(at, level, &mut logical, visit)?;
        }
        Ok(())
    }

    /// A block of pointers, `level` levels above the data.
    fn indirect(
        &self,
        at: u64,
        level: u32,
        logical: &mut u64,
        visit: VisitPiece<'_>,
    ) -> Result<(), Refusal> {
        let per_block = u64::from(self.sb.block_size / 4);
        if at == 0 {
            *logical += per_block.pow(level);
            return Ok(());
        }
        self.check(at, 1)?;
        visit(Piece { logical: None, start: at, count: 1 })?;
        let pointers = self.load(at)?;
        if level == 1 {
            return self.blocks(&pointers, logical, visit);
        }
        for slot in 0..per_block as usize {
            self.indirect(u64::from(le32(&pointers, slot * 4)), level - 1, logical, visit)?;
        }
        Ok(())
    }

    /// Pointers to data; blocks that follow each other are shown as one piece.
    fn blocks(
        &self,
        pointers: &[u8],
        logical: &mut u64,
        visit: VisitPiece<'_>,
    ) -> Result<(), Refusal> {
        let mut run = Piece { logical: Some(0), start: 0, count: 0 };
        for pointer in pointers.chunks_exact(4) {
            let at = u64::from(le32(pointer, 0));
            if at != 0 {
                self.check(at, 1)?;
                if run.count > 0 && run.start + run.count == at {
                    run.count += 1;
                } else {
                    if run.count > 0 {
                        visit(run)?;
                    }
                    run = Piece { logical: Some(*logical), start: at, count: 1 };
                }
            }
            *logical += 1;
        }
        if run.count > 0 {
            visit(run)?;
        }
        Ok(())
    }
}
