//! The group descriptors, and the map of the file system's own blocks.

use super::checksum::{crc16, crc32c};
use super::superblock::{self, Checksums, ExtSuperblock};
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

/// The inode table was never written.
pub(super) const INODE_UNINIT: u16 = 0x1;
/// The block bitmap was never written.
pub(super) const BLOCK_UNINIT: u16 = 0x2;

/// One group, as its descriptor has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockGroup {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
    /// Free clusters.
    pub(super) free: u32,
    pub(super) bitmap_checksum: u32,
    pub(super) inode_bitmap_checksum: u32,
    pub(super) flags: u16,
    /// Inodes at the end of the table that were never used.
    pub(super) unused_inodes: u32,
}

/// Every group, and where the descriptors were read from (bytes).
pub(super) struct Groups {
    pub(super) list: Vec<BlockGroup>,
    pub(super) read_from: Vec<Span>,
}

impl Groups {
    /// Reads and verifies all descriptors.
    ///
    /// # Errors
    /// Checksum mismatches, positions outside of the file system.
    pub(super) fn read(window: &Window<'_>, sb: &ExtSuperblock) -> Result<Self, Refusal> {
        let per_block = sb.descriptors_per_block();
        let size = sb.descriptor_size as usize;
        let mut list = Vec::with_capacity(sb.groups as usize);
        let mut read_from: Vec<Span> = Vec::new();
        let mut block = vec![0; sb.block_size as usize];
        for index in 0..sb.groups.div_ceil(per_block) {
            let at = sb.descriptor_block(index) * u64::from(sb.block_size);
            window.read(at, &mut block)?;
            let end = at + u64::from(sb.block_size);
            match read_from.last_mut() {
                Some(last) if last.end() == at => *last = Span::between(last.offset(), end),
                _ => read_from.push(Span::between(at, end)),
            }
            let first = index * per_block;
            for (i, raw) in block.chunks_exact(size).enumerate() {
                let number = first + i as u32;
                if number < sb.groups {
                    list.push(BlockGroup::read(raw, number, sb)?);
                }
            }
        }
        Ok(Self { list, read_from })
    }

    /// The file system's own blocks: sorted ranges that do not overlap.
    ///
    /// # Errors
    /// [`Code::Structure`](crate::Code::Structure) when some lie outside, outside of their group
    /// (without flex_bg), or on each other.
    pub(super) fn own_blocks(&self, sb: &ExtSuperblock) -> Result<Vec<Span>, Refusal> {
        let mut own = Vec::with_capacity(self.list.len() * 4 + 1);
        let table_blocks = sb.table_blocks();
        for (number, group) in self.list.iter().enumerate() {
            let number = number as u32;
            let (start, end) = (sb.group_start(number), sb.group_end(number));
            let base = sb.base_blocks(number);
            if base > 0 {
                if base > end - start {
                    refuse!(Geometry, "group {number} is too small for its own descriptors");
                }
                own.push(Span::between(start, start + base));
            }
            let pieces = [
                (group.block_bitmap, 1),
                (group.inode_bitmap, 1),
                (group.inode_table, table_blocks),
            ];
            for (at, count) in pieces {
                let (low, high) =
                    if sb.flex_bg { (sb.first_data, sb.blocks) } else { (start, end) };
                match at.checked_add(count) {
                    Some(last) if at >= low && last <= high => own.push(Span::between(at, last)),
                    _ => refuse!(
                        Structure,
                        "group {number} places its own blocks at {at}, outside of it"
                    ),
                }
            }
        }
        if let Some(at) = sb.mmp {
            if at <= sb.first_data || at >= sb.blocks {
                refuse!(Structure, "its mount protection lies at block {at}, outside of it");
            }
            own.push(Span::between(at, at + 1));
        }
        own.sort_unstable();
        if let Some(pair) = own.windows(2).find(|pair| pair[0].end() > pair[1].offset()) {
            refuse!(Conflict, "block {} is used for two of its own structures", pair[1].offset());
        }
        Ok(own)
    }
}

impl BlockGroup {
    fn read(raw: &[u8], number: u32, sb: &ExtSuperblock) -> Result<Self, Refusal> {
        verify(raw, number, sb)?;
        let wide = sb.wide;
        let high32 = |at| if wide { u64::from(le32(raw, at)) << 32 } else { 0 };
        let high16 = |at| if wide { u32::from(le16(raw, at)) << 16 } else { 0 };
        Ok(Self {
            block_bitmap: u64::from(le32(raw, 0x0)) | high32(0x20),
            inode_bitmap: u64::from(le32(raw, 0x4)) | high32(0x24),
            inode_table: u64::from(le32(raw, 0x8)) | high32(0x28),
            free: u32::from(le16(raw, 0xC)) | high16(0x2C),
            bitmap_checksum: u32::from(le16(raw, 0x18)) | high16(0x38),
            inode_bitmap_checksum: u32::from(le16(raw, 0x1A)) | high16(0x3A),
            // Without checksums the kernel ignores both.
            flags: if sb.checksums == Checksums::None { 0 } else { le16(raw, 0x12) },
            unused_inodes: match sb.checksums {
                Checksums::None => 0,
                _ => u32::from(le16(raw, 0x1C)) | high16(0x32),
            },
        })
    }
}

/// Verifies a descriptor's checksum, which lies at its bytes 0x1E and 0x1F.
fn verify(raw: &[u8], number: u32, sb: &ExtSuperblock) -> Result<(), Refusal> {
    let id = number.to_le_bytes();
    let right = match sb.checksums {
        Checksums::None => return Ok(()),
        Checksums::Descriptors => {
            let crc = crc16(crc16(crc16(!0, &sb.uuid), &id), &raw[..0x1E]);
            if raw.len() > 0x20 { crc16(crc, &raw[0x20..]) } else { crc }
        }
        Checksums::Everything => {
            let crc = crc32c(crc32c(crc32c(sb.seed, &id), &raw[..0x1E]), &[0; 2]);
            crc32c(crc, &raw[0x20..]) as u16
        }
    };
    if le16(raw, 0x1E) != right {
        refuse!(Checksum, "the checksum of group {number}'s descriptor does not match; run e2fsck");
    }
    Ok(())
}

/// Refuses unless the multiple mount protection says that nobody has it mounted.
///
/// # Errors
/// [`Code::InUse`](crate::Code::InUse) and what is wrong with the block.
pub(super) fn mount_protection(window: &Window<'_>, sb: &ExtSuperblock) -> Result<(), Refusal> {
    let Some(at) = sb.mmp else { return Ok(()) };
    if at <= sb.first_data || at >= sb.blocks {
        refuse!(Structure, "its mount protection lies at block {at}, outside of it");
    }
    let raw = window.bytes(at * u64::from(sb.block_size), superblock::LEN)?;
    if le32(&raw, 0) != 0x004D_4D50 {
        refuse!(Structure, "its mount protection (block {at}) is damaged; run e2fsck");
    }
    if sb.checksums == Checksums::Everything && crc32c(sb.seed, &raw[..0x3FC]) != le32(&raw, 0x3FC)
    {
        refuse!(Checksum, "the checksum of its mount protection does not match; run e2fsck");
    }
    match le32(&raw, 4) {
        0xFF4D_4D50 => Ok(()),
        0xE24D_4D50 => refuse!(InUse, "e2fsck is at work on it, perhaps on another machine"),
        _ => refuse!(
            InUse,
            "its mount protection says that it is mounted, perhaps on another machine"
        ),
    }
}
