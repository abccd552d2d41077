//! XFS, version 5: the trees of free space of every allocation group, protected by checksums, and
//! only when the log ends with an unmount.
//!
//! Source: `fs/xfs/libxfs/xfs_format.h` and `xfs_log_format.h` of the kernel.

mod group;
mod log;
mod superblock;
mod tree;

use crate::reader::SuspendedIn;
use crate::{
    FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp,
    Window,
};
use block::Span;

/// The most groups whose headers are read again before the first write.
const STAMPED: u64 = 512;

impl FileSystem {
    /// XFS, version 5.
    pub const XFS: Self = Self("xfs");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::XFS],
    recognize: |head| head.has(0, b"XFSB").then_some(FileSystem::XFS),
    read,
    shows_mounted: true,
    suspended: SuspendedIn::UnreadFiles,
};

/// Reads what is free.
fn read(window: &Window<'_>, _options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let superblock = superblock::read(window)?;
    let head_of_log = log::check(window, &superblock)?;
    let mut list = FreeList::new();
    for number in 0..superblock.groups {
        group::read(window, &superblock, number, &mut list)?;
    }
    // A mounted XFS writes its log and these headers.
    let step = superblock.groups.div_ceil(STAMPED).max(1);
    let mut ranges: Vec<Span> = (0..superblock.groups)
        .step_by(step as usize)
        .map(|group| superblock.offset(group, 0))
        .map(|start| Span::between(start, start + 4 * superblock.sector))
        .collect();
    ranges.extend(head_of_log);
    let (free, dropped) = list.finish();
    Ok(FreeSpace {
        kind: FileSystem::XFS,
        level: Level::Fast,
        usual: Level::Fast,
        unit: superblock.block as u32,
        size: superblock.blocks * superblock.block,
        free,
        dropped,
        stamp: Stamp::take(window, ranges)?,
        volume: superblock.volume,
    })
}
