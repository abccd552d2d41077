//! The superblock of XFS: geometry, version, features.
//!
//! Source: `fs/xfs/libxfs/xfs_format.h` of the kernel. Numbers are big-endian, checksums little.

use crate::bytes::{be16, be32, be64, le32};
use crate::refusal::refuse;
use crate::{Refusal, Volume, Window};

/// The magic number `XFSB`.
const MAGIC: &[u8] = b"XFSB";

/// Feature bits that change nothing of what is read here, or that are handled.
mod known {
    /// Free inode tree, reverse map, reflink, inode tree counters.
    pub(super) const READ_ONLY: u32 = 0x1 | 0x2 | 0x4 | 0x8;
    /// File types, sparse inodes, own metadata UUID, big times, 64-bit extent counts, exchange of
    /// ranges, parent pointers.
    pub(super) const INCOMPATIBLE: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80;
    pub(super) const SPARSE_INODES: u32 = 0x2;
    pub(super) const META_UUID: u32 = 0x4;
    pub(super) const NEEDS_REPAIR: u32 = 0x10;
}

/// The geometry, checked against the window.
#[derive(Debug)]
pub(super) struct XfsSuperblock {
    /// Bytes of a block.
    pub(super) block: u64,
    pub(super) sector: u64,
    pub(super) blocks: u64,
    pub(super) group_blocks: u64,
    pub(super) groups: u64,
    pub(super) log_group: u64,
    pub(super) log_block: u64,
    pub(super) log_blocks: u64,
    pub(super) inodes_per_block: u64,
    pub(super) sparse_inodes: bool,
    /// The UUID that structures carry, and the log.
    pub(super) meta_uuid: [u8; 16],
    pub(super) uuid: [u8; 16],
    pub(super) volume: Volume,
}

impl XfsSuperblock {
    /// Blocks of a group; the last one may be smaller.
    pub(super) fn blocks_of(&self, group: u64) -> u64 {
        self.group_blocks.min(self.blocks - group * self.group_blocks)
    }

    /// Where a block of a group lies, in bytes.
    pub(super) fn offset(&self, group: u64, block: u64) -> u64 {
        (group * self.group_blocks + block) * self.block
    }
}

/// A CRC-32C with the four bytes at `at` taken as zero, as all of XFS has it.
pub(super) fn check_sum(bytes: &[u8], at: usize, what: &str) -> Result<(), Refusal> {
    let sum = crc32c::crc32c(&bytes[..at]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    let sum = crc32c::crc32c_append(sum, &bytes[at + 4..]);
    if sum != le32(bytes, at) {
        refuse!(Checksum, "the checksum of {what} does not match; check it with xfs_repair");
    }
    Ok(())
}

fn array(bytes: &[u8]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[..16]);
    uuid
}

pub(super) fn read(window: &Window<'_>) -> Result<XfsSuperblock, Refusal> {
    let head = window.bytes(0, 512)?;
    let sector = u64::from(be16(&head, 102));
    let block = u64::from(be32(&head, 4));
    if &head[..4] != MAGIC
        || !(512..=32 << 10).contains(&sector)
        || !(512..=64 << 10).contains(&block)
        || !sector.is_power_of_two()
        || !block.is_power_of_two()
        || sector > block
    {
        refuse!(Geometry, "no superblock of an XFS");
    }
    let features = features(window, &head, sector)?;
    let blocks = be64(&head, 8);
    let group_blocks = u64::from(be32(&head, 84));
    let groups = u64::from(be32(&head, 88));
    let inode = u64::from(be16(&head, 104));
    let shifts = [(120, block), (121, sector), (122, inode)];
    let group_shift = u32::from(head[124]);
    let log = be64(&head, 48);
    let sane =
        shifts.iter().all(|(at, size)| 1u64.checked_shl(u32::from(head[*at])) == Some(*size))
            && (256..=2048).contains(&inode)
            && inode <= block
            && u64::from(be16(&head, 106)) == block / inode
            && group_shift < 32
            && group_blocks >= 16
            && group_blocks <= 1 << group_shift
            && group_blocks * 2 > 1 << group_shift
            && groups == blocks.div_ceil(group_blocks)
            && group_blocks.saturating_mul(block) <= 1 << 40;
    if !sane || blocks.checked_mul(block).is_none_or(|size| size > window.size()) {
        refuse!(
            Geometry,
            "{groups} groups of {group_blocks} blocks of {block} bytes do not fit {blocks} blocks in {} bytes",
            window.size()
        );
    }
    let uuid = array(&head[32..48]);
    let superblock = XfsSuperblock {
        block,
        sector,
        blocks,
        group_blocks,
        groups,
        log_group: log >> group_shift,
        log_block: log & ((1 << group_shift) - 1),
        log_blocks: u64::from(be32(&head, 96)),
        inodes_per_block: block / inode,
        sparse_inodes: features & known::SPARSE_INODES != 0,
        meta_uuid: if features & known::META_UUID != 0 { array(&head[248..264]) } else { uuid },
        uuid,
        volume: Volume {
            uuid: crate::bytes::uuid(&uuid),
            label: crate::bytes::label(&head[108..120]),
        },
    };
    let log_fits = superblock.log_group < groups
        && superblock.log_blocks > 0
        && superblock.log_block + superblock.log_blocks
            <= superblock.blocks_of(superblock.log_group);
    if log == 0 || !log_fits {
        refuse!(UnsupportedFeature, "its log is on another device, or nowhere");
    }
    Ok(superblock)
}

/// Checks version and features; returns the incompatible ones.
fn features(window: &Window<'_>, head: &[u8], sector: u64) -> Result<u32, Refusal> {
    match be16(head, 100) & 15 {
        5 => {}
        4 => refuse!(
            UnsupportedFeature,
            "version 4 of XFS has no checksums, so its map of free space is no proof"
        ),
        version => refuse!(UnknownFeature, "version {version} of XFS; only 5 is known"),
    }
    let whole = window.bytes(0, sector as usize)?;
    check_sum(&whole, 224, "the superblock")?;
    if head[126] != 0 {
        refuse!(Unclean, "its mkfs or xfs_growfs did not come to its end");
    }
    let [read_only, incompatible, log] = [212, 216, 220].map(|at| be32(head, at));
    if incompatible & known::NEEDS_REPAIR != 0 {
        refuse!(Errors, "it is marked as in need of repair; run xfs_repair");
    }
    let unknown = (read_only & !known::READ_ONLY, incompatible & !known::INCOMPATIBLE);
    if unknown != (0, 0) {
        refuse!(UnknownFeature, "unknown feature bits {:#x} and {:#x}", unknown.0, unknown.1);
    }
    if log != 0 {
        refuse!(
            NeedsReplay,
            "its log may hold changes (feature bits {log:#x}); mount and unmount it"
        );
    }
    if be64(head, 16) != 0 || be64(head, 24) != 0 {
        refuse!(MultiDevice, "a part of its files is on a real-time device");
    }
    Ok(incompatible)
}
