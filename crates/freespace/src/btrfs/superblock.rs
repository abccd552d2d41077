//! The superblock of btrfs: which device, which trees, which features.
//!
//! Source: `fs/btrfs/` and `include/uapi/linux/btrfs_tree.h` of the kernel. Little-endian.

use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Volume, Window};

/// Where the superblock is, and its size, in bytes.
const AT: u64 = 64 << 10;
const SIZE: usize = 4096;
/// Where its copies are.
pub(super) const COPIES: [u64; 2] = [64 << 20, 256 << 30];
const MAGIC: &[u8] = b"_BHRfS_M";
/// The first chunks, which lead to all others: in the superblock itself.
const SYSTEM_ARRAY: usize = 811;
const SYSTEM_ARRAY_MAX: usize = 2048;

/// Feature bits that change nothing of what is read here, or that are handled.
mod known {
    /// Free space tree, that it is valid, verity, block group tree.
    pub(super) const READ_ONLY: u64 = 0x1 | 0x2 | 0x4 | 0x8;
    pub(super) const FREE_SPACE_TREE: u64 = 0x1 | 0x2;
    pub(super) const BLOCK_GROUP_TREE: u64 = 0x8;
    /// Back references, default subvolume, mixed groups, LZO, Zstandard, large metadata, long
    /// references, skinny metadata, no holes, metadata UUID, simple quotas.
    pub(super) const INCOMPATIBLE: u64 =
        0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x1_0000;
    pub(super) const METADATA_UUID: u64 = 0x400;
}

/// Superblock flags: written, and found in error.
const WRITTEN: u64 = 0x1;
const IN_ERROR: u64 = 0x4;

/// Where a tree begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeRoot {
    pub(super) logical: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
}

#[derive(Debug)]
pub(super) struct BtrfsSuperblock {
    pub(super) sector: u64,
    pub(super) node: usize,
    /// Bytes of the device that it uses.
    pub(super) size: u64,
    pub(super) device: u64,
    pub(super) generation: u64,
    pub(super) root: TreeRoot,
    pub(super) chunk_root: TreeRoot,
    pub(super) free_space_tree: bool,
    pub(super) block_group_tree: bool,
    /// The UUID that every tree block carries.
    pub(super) tree_uuid: [u8; 16],
    /// Key and chunk of the system's chunks, one after the other.
    pub(super) system_chunks: Vec<u8>,
    pub(super) volume: Volume,
}

/// Whether the CRC-32C at the beginning of a superblock or tree block is right.
pub(super) fn check_sum(bytes: &[u8]) -> bool {
    crc32c::crc32c(&bytes[32..]) == le32(bytes, 0)
}

pub(super) fn read(window: &Window<'_>) -> Result<BtrfsSuperblock, Refusal> {
    let head = window.bytes(AT, SIZE)?;
    if &head[64..72] != MAGIC {
        refuse!(Structure, "no superblock of a btrfs");
    }
    let kind = le16(&head, 196);
    if kind != 0 {
        refuse!(UnsupportedFeature, "its checksums are of kind {kind}; only CRC-32C (0) is read");
    }
    if !check_sum(&head) {
        refuse!(
            Checksum,
            "the checksum of the superblock does not match; check it with btrfs check"
        );
    }
    state(&head)?;
    let sector = u64::from(le32(&head, 144));
    let node = le32(&head, 148) as usize;
    let size = le64(&head, 112);
    let device = &head[201..299];
    let array = le32(&head, 160) as usize;
    let sane = le64(&head, 48) == AT
        && matches!(sector, 4096 | 8192 | 16_384 | 32_768 | 65_536)
        && node.is_power_of_two()
        && (sector as usize..=64 << 10).contains(&node)
        && array <= SYSTEM_ARRAY_MAX
        && size.is_multiple_of(sector);
    if !sane || size > window.size() || le64(device, 8) != size {
        refuse!(
            Geometry,
            "it has {size} bytes, its device {} and the partition {}",
            le64(device, 8),
            window.size()
        );
    }
    let read_only = le64(&head, 180);
    let tree_uuid = if le64(&head, 188) & known::METADATA_UUID != 0 { 571 } else { 32 };
    let root = |at, level, generation| TreeRoot { logical: le64(&head, at), level, generation };
    let superblock = BtrfsSuperblock {
        sector,
        node,
        size,
        device: le64(device, 0),
        generation: le64(&head, 72),
        root: root(80, head[198], le64(&head, 72)),
        chunk_root: root(88, head[199], le64(&head, 164)),
        free_space_tree: read_only & known::FREE_SPACE_TREE == known::FREE_SPACE_TREE,
        block_group_tree: read_only & known::BLOCK_GROUP_TREE != 0,
        tree_uuid: array_of(&head[tree_uuid..tree_uuid + 16]),
        system_chunks: head[SYSTEM_ARRAY..SYSTEM_ARRAY + array].to_vec(),
        volume: Volume {
            uuid: crate::bytes::uuid(&head[32..48]),
            label: crate::bytes::label(&head[299..555]),
        },
    };
    copies(window, &head, &superblock)?;
    Ok(superblock)
}

fn array_of(bytes: &[u8]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[..16]);
    uuid
}

fn state(head: &[u8]) -> Result<(), Refusal> {
    let flags = le64(head, 56);
    if flags & IN_ERROR != 0 {
        refuse!(Errors, "it has met errors; check it with btrfs check");
    }
    // Seeds, dumps of metadata, a change of the UUID that did not come to its end.
    if flags & !WRITTEN != 0 {
        refuse!(UnsupportedFeature, "it is a seed, a dump or half changed (flags {flags:#x})");
    }
    let unknown = (le64(head, 180) & !known::READ_ONLY, le64(head, 188) & !known::INCOMPATIBLE);
    if unknown != (0, 0) {
        refuse!(UnknownFeature, "unknown feature bits {:#x} and {:#x}", unknown.0, unknown.1);
    }
    let devices = le64(head, 136);
    if devices != 1 {
        refuse!(MultiDevice, "it spans {devices} devices");
    }
    if le64(head, 96) != 0 {
        refuse!(NeedsReplay, "its log of synced files is not in place; mount and unmount it");
    }
    Ok(())
}

/// A copy of the superblock must not be newer.
fn copies(window: &Window<'_>, head: &[u8], superblock: &BtrfsSuperblock) -> Result<(), Refusal> {
    for at in COPIES.into_iter().filter(|at| at + SIZE as u64 <= superblock.size) {
        let copy = window.bytes(at, SIZE)?;
        let ours = &copy[64..72] == MAGIC && copy[32..48] == head[32..48] && check_sum(&copy);
        if ours && le64(&copy, 72) > superblock.generation {
            refuse!(Structure, "a copy of the superblock is newer; check it with btrfs check");
        }
    }
    Ok(())
}
