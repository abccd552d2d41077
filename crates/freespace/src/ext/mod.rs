//! Ext2, ext3 and ext4.
//!
//! Free is what the block bitmaps say is free, after everything that could make them wrong was
//! looked at: state, journal, orphans, features, checksums, counts, and the file system's own
//! blocks. Where the bitmaps have no checksum, every inode's list of blocks is walked as well
//! ([`deep`]).

mod bitmap;
mod checksum;
mod deep;
mod files;
mod groups;
mod inode;
mod journal;
mod superblock;

use crate::bytes::le16;
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    FileSystem, FileSystemReader, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp, Window,
};
use block::Span;
use groups::Groups;
use superblock::{Checksums, ExtSuperblock};

pub(crate) use files::ExtFiles;

impl FileSystem {
    /// Ext without a journal.
    pub const EXT2: Self = Self("ext2");
    /// Ext2 with a journal.
    pub const EXT3: Self = Self("ext3");
    /// Ext with features that ext3 does not have.
    pub const EXT4: Self = Self("ext4");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::EXT2, FileSystem::EXT3, FileSystem::EXT4],
    recognize: |head| {
        let magic = head.at(1024 + 0x38, 2)?;
        // Which of the three is known once it was read.
        (le16(magic, 0) == superblock::MAGIC).then_some(FileSystem::EXT4)
    },
    read,
    shows_mounted: true,
    suspended: SuspendedIn::SwapFiles,
};

/// Reads what is free.
fn read(window: &Window<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let sb = ExtSuperblock::read(window)?;
    groups::mount_protection(window, &sb)?;
    let groups = Groups::read(window, &sb)?;
    let own = groups.own_blocks(&sb)?;
    journal::check(window, &sb, &groups)?;
    let (free, dropped) = bitmap::free(window, &sb, &groups)?.finish();
    disjoint(&free, &own, &sb)?;
    let default = match sb.checksums {
        Checksums::Everything => Level::Fast,
        Checksums::None | Checksums::Descriptors => Level::Deep,
    };
    let level = options.level.unwrap_or(default);
    if level == Level::Deep {
        deep::check(window, &sb, &groups, &own, &free)?;
    }
    let superblock = Span::between(superblock::OFFSET, superblock::OFFSET + superblock::LEN as u64);
    let stamp = std::iter::once(superblock).chain(groups.read_from).collect();
    Ok(FreeSpace {
        kind: sb.kind,
        level,
        usual: default,
        unit: sb.block_size * sb.ratio,
        size: sb.blocks * u64::from(sb.block_size),
        free,
        dropped,
        stamp: Stamp::take(window, stamp)?,
        volume: sb.volume,
    })
}

/// Refuses when one of the file system's own blocks is said to be free. Both lists are sorted.
fn disjoint(free: &[Span], own: &[Span], sb: &ExtSuperblock) -> Result<(), Refusal> {
    let size = u64::from(sb.block_size);
    let mut free = free.iter().peekable();
    for span in own {
        let (start, end) = (span.offset() * size, span.end() * size);
        while free.next_if(|f| f.end() <= start).is_some() {}
        if free.peek().is_some_and(|f| f.offset() < end) {
            refuse!(
                Conflict,
                "block {} holds its own structures although its map says free; run e2fsck",
                span.offset()
            );
        }
    }
    Ok(())
}
