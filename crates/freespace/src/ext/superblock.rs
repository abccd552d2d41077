//! The superblock: geometry, features, and whether the file system was left in order.
//!
//! Offsets after `fs/ext4/ext4.h` of Linux and `lib/ext2fs/ext2_fs.h` of e2fsprogs.

use super::checksum::crc32c;
use crate::bytes::{label, le16, le32, le64, uuid};
use crate::refusal::refuse;
use crate::{FileSystem, Refusal, Volume, Window};

/// Where the superblock is, in bytes.
pub(super) const OFFSET: u64 = 1024;
/// Its length in bytes.
pub(super) const LEN: usize = 1024;
/// At byte 0x38 of the superblock.
pub(super) const MAGIC: u16 = 0xEF53;

/// More groups than this are not read (64 TiB with blocks of 4 KiB): memory is bounded.
const MAX_GROUPS: u64 = 512 << 10;

pub(super) const COMPAT_JOURNAL: u32 = 0x4;
pub(super) const COMPAT_RESIZE_INODE: u32 = 0x10;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
/// directory preallocation, imagic inodes, journal, extended attributes, resize inode, indexed
/// directories, sparse_super2, fast commit, stable inodes, orphan file.
const COMPAT_KNOWN: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x200 | 0x400 | 0x800 | 0x1000;

const INCOMPAT_COMPRESSION: u32 = 0x1;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_MMP: u32 = 0x100;
const INCOMPAT_FLEX_BG: u32 = 0x200;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
/// file types in directories, meta_bg, extents, 64bit, mmp, flex_bg, attributes in inodes,
/// checksum seed, large directories, inline data, encryption, case folding.
const INCOMPAT_KNOWN: u32 = 0x2
    | 0x10
    | 0x40
    | 0x80
    | 0x100
    | 0x200
    | 0x400
    | 0x2000
    | 0x4000
    | 0x8000
    | 0x1_0000
    | 0x2_0000;

const RO_SPARSE_SUPER: u32 = 0x1;
const RO_GDT_CSUM: u32 = 0x10;
const RO_BIGALLOC: u32 = 0x200;
const RO_METADATA_CSUM: u32 = 0x400;
const RO_SHARED_BLOCKS: u32 = 0x4000;
const RO_ORPHAN_PRESENT: u32 = 0x1_0000;
/// sparse_super, large files, directory trees, gdt_csum, huge files, many links, larger inodes,
/// quota, bigalloc, metadata_csum, projects, verity.
const RO_KNOWN: u32 =
    0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x8000;

/// How the group descriptors and what they describe are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    None,
    /// CRC-16 of the descriptors.
    Descriptors,
    /// CRC-32C of everything.
    Everything,
}

/// A superblock that has passed every check.
#[derive(Debug, Clone)]
pub(super) struct ExtSuperblock {
    pub(super) kind: FileSystem,
    pub(super) volume: Volume,
    /// Bytes of a block, 1 KiB to 64 KiB.
    pub(super) block_size: u32,
    /// Blocks of a cluster; 1 without bigalloc.
    pub(super) ratio: u32,
    pub(super) blocks: u64,
    /// Free blocks; with bigalloc, in whole clusters.
    pub(super) free: u64,
    pub(super) first_data: u64,
    pub(super) blocks_per_group: u32,
    pub(super) clusters_per_group: u32,
    pub(super) groups: u32,
    pub(super) inodes_per_group: u32,
    pub(super) inode_size: u32,
    pub(super) first_inode: u32,
    pub(super) descriptor_size: u32,
    pub(super) reserved_descriptor_blocks: u32,
    pub(super) meta_bg: bool,
    pub(super) first_meta_bg: u32,
    pub(super) flex_bg: bool,
    pub(super) wide: bool,
    pub(super) checksums: Checksums,
    /// The CRC-32C that every checksum starts from.
    pub(super) seed: u32,
    pub(super) uuid: [u8; 16],
    /// The block of the multiple mount protection, with that feature.
    pub(super) mmp: Option<u64>,
    /// The inode of the journal.
    pub(super) journal: Option<u32>,
    pub(super) resize_inode: bool,
    sparse_super: bool,
    /// The groups with copies, with sparse_super2.
    backups: Option<[u32; 2]>,
}

impl ExtSuperblock {
    /// Reads and judges it.
    ///
    /// # Errors
    /// Whatever makes the file system's own word no proof.
    pub(super) fn read(window: &Window<'_>) -> Result<Self, Refusal> {
        let raw = raw(window)?;
        features(le32(&raw, 0x5C), le32(&raw, 0x60), le32(&raw, 0x64))?;
        let sb = Self::parse(&raw, window)?;
        state(&raw, le32(&raw, 0x64))?;
        Ok(sb)
    }

    /// Reads it without asking for its state and features: good enough to find files, never to
    /// say what is free.
    pub(super) fn read_in_any_state(window: &Window<'_>) -> Result<Self, Refusal> {
        Self::parse(&raw(window)?, window)
    }

    fn parse(raw: &[u8], window: &Window<'_>) -> Result<Self, Refusal> {
        let compat = le32(raw, 0x5C);
        let incompat = le32(raw, 0x60);
        let ro_compat = le32(raw, 0x64);
        let everything = ro_compat & RO_METADATA_CSUM != 0;
        if everything {
            if raw[0x175] != 1 {
                refuse!(
                    UnknownFeature,
                    "checksum type {} is not known; only 1 (CRC-32C) is",
                    raw[0x175]
                );
            }
            if crc32c(!0, &raw[..0x3FC]) != le32(raw, 0x3FC) {
                refuse!(Checksum, "the superblock's checksum does not match; run e2fsck");
            }
        }
        let mut id = [0; 16];
        id.copy_from_slice(&raw[0x68..0x78]);
        let seed = match incompat & INCOMPAT_CSUM_SEED {
            0 => crc32c(!0, &id),
            _ => le32(raw, 0x270),
        };
        let kind =
            match (incompat & !0x6 & INCOMPAT_KNOWN, ro_compat & !0x7, compat & COMPAT_JOURNAL) {
                (0, 0, 0) => FileSystem::EXT2,
                (0, 0, _) => FileSystem::EXT3,
                _ => FileSystem::EXT4,
            };
        let geometry = Geometry::read(raw, incompat, ro_compat, window.size())?;
        let descriptor_blocks =
            geometry.groups.div_ceil(geometry.block_size / geometry.descriptor_size);
        if incompat & INCOMPAT_META_BG != 0 && le32(raw, 0x104) > descriptor_blocks {
            refuse!(Geometry, "its first meta group is {}, behind the last one", le32(raw, 0x104));
        }
        let mmp = (incompat & INCOMPAT_MMP != 0).then(|| le64(raw, 0x168));
        let checksums = match (everything, ro_compat & RO_GDT_CSUM != 0) {
            (true, _) => Checksums::Everything,
            (false, true) => Checksums::Descriptors,
            (false, false) => Checksums::None,
        };
        Ok(Self {
            kind,
            volume: Volume { uuid: uuid(&id), label: label(&raw[0x78..0x88]) },
            block_size: geometry.block_size,
            ratio: geometry.ratio,
            blocks: geometry.blocks,
            free: geometry.free,
            first_data: geometry.first_data,
            blocks_per_group: geometry.blocks_per_group,
            clusters_per_group: geometry.clusters_per_group,
            groups: geometry.groups,
            inodes_per_group: geometry.inodes_per_group,
            inode_size: geometry.inode_size,
            first_inode: geometry.first_inode,
            descriptor_size: geometry.descriptor_size,
            reserved_descriptor_blocks: u32::from(le16(raw, 0xCE)),
            meta_bg: incompat & INCOMPAT_META_BG != 0,
            first_meta_bg: le32(raw, 0x104),
            flex_bg: incompat & INCOMPAT_FLEX_BG != 0,
            wide: incompat & INCOMPAT_64BIT != 0,
            checksums,
            seed,
            uuid: id,
            mmp,
            journal: (compat & COMPAT_JOURNAL != 0).then(|| le32(raw, 0xE0)),
            resize_inode: compat & COMPAT_RESIZE_INODE != 0,
            sparse_super: ro_compat & RO_SPARSE_SUPER != 0,
            backups: (compat & COMPAT_SPARSE_SUPER2 != 0)
                .then(|| [le32(raw, 0x24C), le32(raw, 0x250)]),
        })
    }

    /// The first block of a group.
    pub(super) fn group_start(&self, group: u32) -> u64 {
        self.first_data + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// The block behind a group's last one.
    pub(super) fn group_end(&self, group: u32) -> u64 {
        (self.group_start(group) + u64::from(self.blocks_per_group)).min(self.blocks)
    }

    /// How many clusters a group has.
    pub(super) fn clusters_in(&self, group: u32) -> u32 {
        let blocks = self.group_end(group) - self.group_start(group);
        blocks.div_ceil(u64::from(self.ratio)) as u32
    }

    /// Whether a group holds a copy of the superblock.
    pub(super) fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if let Some(backups) = self.backups {
            return backups.contains(&group);
        }
        !self.sparse_super || group == 1 || [3, 5, 7].iter().any(|base| is_power(group, *base))
    }

    /// Descriptors in one block.
    pub(super) fn descriptors_per_block(&self) -> u32 {
        self.block_size / self.descriptor_size
    }

    /// Blocks of an inode table.
    pub(super) fn table_blocks(&self) -> u64 {
        let bytes = u64::from(self.inodes_per_group) * u64::from(self.inode_size);
        bytes.div_ceil(u64::from(self.block_size))
    }

    /// Blocks of 1 KiB in clusters: the superblock is in block 1, yet groups start at block 0.
    fn shifted(&self) -> u64 {
        u64::from(self.block_size == 1024 && self.first_data == 0)
    }

    /// The blocks of the table of group descriptors that lie one behind the other after the
    /// superblock.
    fn old_descriptor_blocks(&self) -> u32 {
        let all = self.groups.div_ceil(self.descriptors_per_block());
        if self.meta_bg { all.min(self.first_meta_bg) } else { all }
    }

    /// How many blocks a group gives to the copy of the superblock and the descriptors, from its
    /// first block on.
    pub(super) fn base_blocks(&self, group: u32) -> u64 {
        let super_blocks = match (group, self.has_super(group)) {
            (0, _) => 1 + self.shifted(),
            (_, true) => 1,
            (_, false) => 0,
        };
        let per_block = self.descriptors_per_block();
        if !self.meta_bg || group / per_block < self.first_meta_bg {
            return match super_blocks {
                0 => 0,
                n => {
                    n + u64::from(self.old_descriptor_blocks())
                        + u64::from(self.reserved_descriptor_blocks)
                }
            };
        }
        let place = group % per_block;
        super_blocks + u64::from(place <= 1 || place == per_block - 1)
    }

    /// The block that holds the `index`th block of the table of group descriptors.
    pub(super) fn descriptor_block(&self, index: u32) -> u64 {
        if !self.meta_bg || index < self.first_meta_bg {
            return self.first_data + self.shifted() + 1 + u64::from(index);
        }
        let group = index * self.descriptors_per_block();
        let shifted = if index == 0 { self.shifted() } else { 0 };
        self.group_start(group) + u64::from(self.has_super(group)) + shifted
    }
}

/// The bytes of the superblock.
fn raw(window: &Window<'_>) -> Result<Vec<u8>, Refusal> {
    let raw = window.bytes(OFFSET, LEN)?;
    if le16(&raw, 0x38) != MAGIC {
        refuse!(Unknown, "there is no ext superblock");
    }
    Ok(raw)
}

fn is_power(mut n: u32, base: u32) -> bool {
    while n > 1 && n.is_multiple_of(base) {
        n /= base;
    }
    n == 1
}

fn features(compat: u32, incompat: u32, ro_compat: u32) -> Result<(), Refusal> {
    if incompat & INCOMPAT_JOURNAL_DEV != 0 {
        refuse!(UnsupportedFeature, "it is, or needs, the journal of another device");
    }
    if incompat & INCOMPAT_RECOVER != 0 {
        refuse!(
            NeedsReplay,
            "its journal holds changes that are not in place yet; mount it once and unmount it, or run e2fsck"
        );
    }
    if incompat & INCOMPAT_COMPRESSION != 0 {
        refuse!(UnsupportedFeature, "it uses compression");
    }
    if ro_compat & RO_SHARED_BLOCKS != 0 {
        refuse!(UnsupportedFeature, "its files share blocks");
    }
    let unknown = [("incompat", incompat & !INCOMPAT_KNOWN), ("compat", compat & !COMPAT_KNOWN)];
    for (word, bits) in unknown {
        if bits != 0 {
            refuse!(UnknownFeature, "it uses {word} features that are not known: {bits:#x}");
        }
    }
    let unknown = ro_compat & !RO_KNOWN & !RO_ORPHAN_PRESENT;
    if unknown != 0 {
        refuse!(UnknownFeature, "it uses ro_compat features that are not known: {unknown:#x}");
    }
    Ok(())
}

fn state(raw: &[u8], ro_compat: u32) -> Result<(), Refusal> {
    let state = le16(raw, 0x3A);
    if state & 2 != 0 || le32(raw, 0x194) != 0 {
        refuse!(Errors, "it has recorded errors; run e2fsck");
    }
    if state & 4 != 0 || le32(raw, 0xE8) != 0 || ro_compat & RO_ORPHAN_PRESENT != 0 {
        refuse!(Orphans, "files are deleted but not given back yet; mount it once, or run e2fsck");
    }
    if state != 1 {
        refuse!(Unclean, "it was not unmounted cleanly (state {state:#x}); run e2fsck");
    }
    Ok(())
}

/// The part of the superblock that is numbers about sizes.
struct Geometry {
    block_size: u32,
    ratio: u32,
    blocks: u64,
    free: u64,
    first_data: u64,
    blocks_per_group: u32,
    clusters_per_group: u32,
    groups: u32,
    inodes_per_group: u32,
    inode_size: u32,
    first_inode: u32,
    descriptor_size: u32,
}

impl Geometry {
    fn read(raw: &[u8], incompat: u32, ro_compat: u32, window: u64) -> Result<Self, Refusal> {
        let wide = incompat & INCOMPAT_64BIT != 0;
        let high = |at| if wide { u64::from(le32(raw, at)) << 32 } else { 0 };
        let log = le32(raw, 0x18);
        if log > 6 {
            refuse!(
                Geometry,
                "a block of 2^{} bytes is too large; at most 64 KiB is",
                u64::from(log) + 10
            );
        }
        let block_size = 1024 << log;
        let bigalloc = ro_compat & RO_BIGALLOC != 0;
        let log_cluster = le32(raw, 0x1C);
        let ratio = match bigalloc {
            true if (log..=19).contains(&log_cluster) => 1u32 << (log_cluster - log),
            true => refuse!(
                Geometry,
                "a cluster of 2^{} bytes is impossible",
                u64::from(log_cluster) + 10
            ),
            false => 1,
        };
        let blocks = u64::from(le32(raw, 0x4)) | high(0x150);
        let free = u64::from(le32(raw, 0xC)) | high(0x158);
        let first_data = u64::from(le32(raw, 0x14));
        if first_data != u64::from(block_size == 1024 && !bigalloc) {
            refuse!(
                Geometry,
                "its first data block is {first_data}, which does not fit its block size"
            );
        }
        if blocks.checked_mul(u64::from(block_size)).is_none_or(|bytes| bytes > window) {
            refuse!(
                Geometry,
                "it says it has {blocks} blocks of {block_size} bytes, more than the {window} bytes it lies in"
            );
        }
        let blocks_per_group = le32(raw, 0x20);
        let clusters_per_group = if bigalloc { le32(raw, 0x24) } else { blocks_per_group };
        if clusters_per_group == 0
            || !clusters_per_group.is_multiple_of(8)
            || clusters_per_group > block_size * 8
            || u64::from(clusters_per_group) * u64::from(ratio) != u64::from(blocks_per_group)
        {
            refuse!(Geometry, "groups of {blocks_per_group} blocks are impossible");
        }
        let groups = match blocks.checked_sub(first_data) {
            None | Some(0) => refuse!(Geometry, "it has no block"),
            Some(n) => n.div_ceil(u64::from(blocks_per_group)),
        };
        if groups > MAX_GROUPS {
            refuse!(TooMuchWork, "it has {groups} groups; at most {MAX_GROUPS} are read");
        }
        let groups = groups as u32;
        let (inode_size, first_inode) = match le32(raw, 0x4C) {
            0 => (128, 11),
            1 => (u32::from(le16(raw, 0x58)), le32(raw, 0x54)),
            n => refuse!(UnknownFeature, "revision {n} is not known; 0 and 1 are"),
        };
        if !inode_size.is_power_of_two() || inode_size < 128 || inode_size > block_size {
            refuse!(Geometry, "inodes of {inode_size} bytes are impossible");
        }
        let inodes_per_group = le32(raw, 0x28);
        if inodes_per_group == 0
            || inodes_per_group > block_size * 8
            || u64::from(inodes_per_group) * u64::from(groups) != u64::from(le32(raw, 0))
        {
            refuse!(Geometry, "{inodes_per_group} inodes in each of {groups} groups do not add up");
        }
        let descriptor_size = match wide {
            true => u32::from(le16(raw, 0xFE)),
            false => 32,
        };
        if !descriptor_size.is_power_of_two()
            || descriptor_size > 1024
            || descriptor_size < if wide { 64 } else { 32 }
        {
            refuse!(Geometry, "group descriptors of {descriptor_size} bytes are impossible");
        }
        Ok(Self {
            block_size,
            ratio,
            blocks,
            free,
            first_data,
            blocks_per_group,
            clusters_per_group,
            groups,
            inodes_per_group,
            inode_size,
            first_inode,
            descriptor_size,
        })
    }
}
