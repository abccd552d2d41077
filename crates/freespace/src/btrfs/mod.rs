//! btrfs on a single device, when asked for: no mark says that it is mounted, so the caller must be
//! sure that nothing sleeps on this machine.
//!
//! Free are the logical addresses that no extent has, and what no chunk has; never the first MiB
//! and the copies of the superblock, which may lie in either.
//!
//! Source: `fs/btrfs/` of the kernel, and the on-disk format pages of btrfs' documentation.

mod chunk;
mod key;
mod space;
mod superblock;
mod tree;

use crate::bytes::le64;
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp,
    Window,
};
use block::Span;
use chunk::{Chunk, Chunks};
use key::{TreeKey, kind};
use space::Space;
use superblock::{BtrfsSuperblock, COPIES, TreeRoot};
use tree::TreeReader;

/// Numbers of the trees.
mod object {
    pub(super) const EXTENT_TREE: u64 = 2;
    pub(super) const DEVICE_TREE: u64 = 4;
    pub(super) const FREE_SPACE_TREE: u64 = 10;
    pub(super) const BLOCK_GROUP_TREE: u64 = 11;
}

/// Never lent: the first MiB, and as much for each copy of the superblock as the kernel reserves.
const FIRST: u64 = 1 << 20;
const RESERVED: u64 = 64 << 10;

impl FileSystem {
    /// btrfs on one device.
    pub const BTRFS: Self = Self("btrfs");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::BTRFS],
    recognize: |head| head.has(0x1_0040, b"_BHRfS_M").then_some(FileSystem::BTRFS),
    read,
    shows_mounted: false,
    suspended: SuspendedIn::UnreadFiles,
};

/// Reads what is free.
fn read(window: &Window<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    if !options.btrfs {
        refuse!(
            NeedsConsent,
            "btrfs has no mark of being mounted or asleep; it is lent only when asked for"
        );
    }
    let superblock = superblock::read(window)?;
    let chunks = all_chunks(window, &superblock)?;
    let reader = TreeReader { window, superblock: &superblock, chunks: &chunks };
    let space = Space {
        reader: &reader,
        extents: tree_root(&reader, object::EXTENT_TREE)?,
        groups: tree_root(
            &reader,
            if superblock.block_group_tree {
                object::BLOCK_GROUP_TREE
            } else {
                object::EXTENT_TREE
            },
        )?,
        free_space: superblock
            .free_space_tree
            .then(|| tree_root(&reader, object::FREE_SPACE_TREE))
            .transpose()?,
    };
    // Trees that were sealed with wrong content agree with their checksums, but not with each other.
    let level = options.level.unwrap_or(Level::Deep);
    let mut list = FreeList::new();
    let mut at = 0;
    for (place, chunk) in device_extents(&reader)? {
        push(&mut list, at, place)?;
        for span in space.free(&chunk, level == Level::Deep)? {
            let start = place + (span.offset() - chunk.logical);
            push(&mut list, start, start + span.len())?;
        }
        at = place + chunk.len;
    }
    push(&mut list, at, superblock.size)?;
    let (free, dropped) = list.finish();
    Ok(FreeSpace {
        kind: FileSystem::BTRFS,
        level,
        usual: Level::Deep,
        unit: superblock.sector as u32,
        size: superblock.size,
        free,
        dropped,
        // Every commit writes the superblock.
        stamp: Stamp::take(window, vec![Span::between(64 << 10, 68 << 10)])?,
        volume: superblock.volume,
    })
}

/// All chunks: the superblock's lead to the tree of all of them.
fn all_chunks(window: &Window<'_>, superblock: &BtrfsSuperblock) -> Result<Chunks, Refusal> {
    let system = Chunks::system(superblock)?;
    let reader = TreeReader { window, superblock, chunks: &system };
    let mut all = Chunks::default();
    reader.walk(superblock.chunk_root, TreeKey::objects(0, u64::MAX), |key, data| {
        if key.kind == kind::CHUNK { all.add(Chunk::new(key, data, superblock)?) } else { Ok(()) }
    })?;
    if system.all().iter().any(|chunk| !all.all().contains(chunk)) {
        refuse!(Structure, "superblock and chunk tree differ; check it with btrfs check");
    }
    Ok(all)
}

/// Where the tree of this number begins.
fn tree_root(reader: &TreeReader<'_>, object: u64) -> Result<TreeRoot, Refusal> {
    let mut root = None;
    let key = TreeKey { object, kind: kind::ROOT, offset: 0 };
    reader.walk(reader.superblock.root, (key, key), |_, data| {
        // Generation at 160, address at 176, level at 238.
        root = (data.len() >= 239).then(|| TreeRoot {
            logical: le64(data, 176),
            level: data[238],
            generation: le64(data, 160),
        });
        Ok(())
    })?;
    match root {
        Some(root) => Ok(root),
        None => refuse!(Structure, "tree {object} is missing; check it with btrfs check"),
    }
}

/// Every place of the device that a chunk has, rising: the device's own list must be that of the
/// chunks.
fn device_extents(reader: &TreeReader<'_>) -> Result<Vec<(u64, Chunk)>, Refusal> {
    let mut places: Vec<(u64, Chunk)> = reader
        .chunks
        .all()
        .iter()
        .flat_map(|chunk| chunk.places.iter().flatten().map(|place| (*place, *chunk)))
        .collect();
    places.sort_unstable_by_key(|(place, _)| *place);
    if places.windows(2).any(|pair| pair[0].0 + pair[0].1.len > pair[1].0) {
        refuse!(Conflict, "two chunks share a part of the device; check it with btrfs check");
    }
    let root = tree_root(reader, object::DEVICE_TREE)?;
    let device = reader.superblock.device;
    let mut left = places.iter();
    reader.walk(root, TreeKey::objects(device, device), |key, data| {
        if key.kind != kind::DEVICE_EXTENT {
            return Ok(());
        }
        // Chunk address at 16, length at 24.
        let same = left.next().is_some_and(|(place, chunk)| {
            data.len() >= 32
                && key.offset == *place
                && le64(data, 16) == chunk.logical
                && le64(data, 24) == chunk.len
        });
        if !same {
            refuse!(
                Conflict,
                "the device's extents are not those of the chunks; check it with btrfs check"
            );
        }
        Ok(())
    })?;
    if left.next().is_some() {
        refuse!(
            Conflict,
            "a chunk is missing among the device's extents; check it with btrfs check"
        );
    }
    Ok(places)
}

/// Adds free bytes, without those that are never lent.
fn push(list: &mut FreeList, start: u64, end: u64) -> Result<(), Refusal> {
    let mut at = start.max(FIRST);
    for copy in COPIES {
        list.push(at, end.min(copy))?;
        at = at.max(copy + RESERVED);
    }
    list.push(at, end)
}
