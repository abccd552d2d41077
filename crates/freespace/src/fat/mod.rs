//! FAT16 and FAT32: a cluster is free when its entry in the table is zero.
//!
//! Nothing protects the table but its copy. So every link of every chain and every file's first
//! cluster must lead to a cluster that is in use and that nothing else leads to, and there must be
//! as many clusters in use as the files and directories need. The hints of the FSInfo sector are
//! not used: a crash leaves them wrong.
//!
//! Source: Microsoft's FAT32 file system specification 1.03.

mod boot;
pub(crate) mod table;
mod walk;

use crate::bytes::{le16, le32};
use crate::clusters::Clusters;
use crate::head::PartHead;
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp,
    Window,
};
use block::Span;
use boot::{FIRST, FatBoot, RootDirectory};

/// How much of a table is read at once, in bytes.
const CHUNK: u64 = 256 << 10;

/// What an entry of the table says of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FatEntry {
    Free,
    Bad,
    /// In use, the last of its chain.
    End,
    /// In use, followed by this cluster.
    Next(u64),
}

impl FatBoot {
    /// Bytes of a table entry.
    fn width(&self) -> u64 {
        if self.kind == FileSystem::FAT32 { 4 } else { 2 }
    }

    /// Where a cluster lies, in bytes.
    fn offset(&self, cluster: u64) -> u64 {
        self.data + (cluster - FIRST) * self.cluster
    }

    /// Whether a cluster of this number exists.
    fn exists(&self, cluster: u64) -> bool {
        (FIRST..FIRST + self.clusters).contains(&cluster)
    }

    /// What the raw entry of `cluster` means.
    fn entry(&self, cluster: u64, raw: u32) -> Result<FatEntry, Refusal> {
        // The marks of FAT16 are those of FAT32, cut to 16 bits.
        let value = match self.kind {
            FileSystem::FAT32 => raw & 0x0FFF_FFFF,
            _ if raw >= 0xFFF0 => raw | 0x0FFF_0000,
            _ => raw,
        };
        match value {
            0 => Ok(FatEntry::Free),
            0x0FFF_FFF7 => Ok(FatEntry::Bad),
            0x0FFF_FFF8.. => Ok(FatEntry::End),
            next if self.exists(u64::from(next)) => Ok(FatEntry::Next(u64::from(next))),
            next => refuse!(
                Structure,
                "cluster {cluster} is followed by {next:#x}, which does not exist; check it with its own tool"
            ),
        }
    }
}

/// What the pass over the table found.
struct FatMap {
    /// Clusters that are in use.
    used: Clusters,
    /// Clusters that something leads to.
    reached: Clusters,
    /// How many are in use, bad ones not counted.
    in_use: u64,
    bad: Vec<u64>,
}

impl FileSystem {
    /// FAT with 16 bits for each cluster.
    pub const FAT16: Self = Self("fat16");
    /// FAT with 32 bits for each cluster.
    pub const FAT32: Self = Self("fat32");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::FAT16, FileSystem::FAT32],
    recognize,
    read,
    shows_mounted: false,
    suspended: SuspendedIn::Nothing,
};

/// FAT has no magic number: its boot sector must make sense.
fn recognize(head: &PartHead) -> Option<FileSystem> {
    let raw = head.at(0, 512)?;
    let sector = le16(raw, 11);
    let (per_cluster, reserved, tables) = (raw[13], le16(raw, 14), raw[16]);
    let sensible = le16(raw, 510) == 0xAA55
        && matches!(raw[0], 0xEB | 0xE9 | 0)
        && matches!(sector, 512 | 1024 | 2048 | 4096)
        && per_cluster.is_power_of_two()
        && reserved > 0
        && matches!(tables, 1 | 2)
        && (raw[21] == 0xF0 || raw[21] >= 0xF8)
        && !head.has(3, b"NTFS    ")
        && !head.has(3, b"-FVE-FS-");
    if !sensible || (le16(raw, 19) == 0 && le32(raw, 32) == 0) {
        return None;
    }
    Some(if le16(raw, 22) == 0 { FileSystem::FAT32 } else { FileSystem::FAT16 })
}

/// Reads what is free.
fn read(window: &Window<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let boot = boot::read(window)?;
    state(window, &boot)?;
    let level = options.level.unwrap_or(Level::Deep);
    let mut map = table(window, &boot)?;
    let mut list = FreeList::new();
    for cluster in std::mem::take(&mut map.bad) {
        map.used.set(cluster - FIRST);
        reach(&mut map, cluster, "the mark of a bad cluster")?;
    }
    map.used.push_free(&mut list, boot.data, boot.cluster)?;
    let mut ranges = vec![Span::between(0, boot.fat)];
    if level == Level::Deep {
        walk::walk(window, &boot, &mut map)?;
    }
    // Whoever writes a file changes the state, the table and some directory.
    ranges.push(Span::between(boot.fat, boot.fat + boot.fat_size.min(8 << 20)));
    match boot.root {
        RootDirectory::Fixed { offset, len } => ranges.push(Span::between(offset, offset + len)),
        RootDirectory::Chain(root) if !boot.exists(u64::from(root)) => {
            refuse!(Structure, "its root directory begins at cluster {root}, which does not exist")
        }
        RootDirectory::Chain(root) => {
            let start = boot.offset(u64::from(root));
            ranges.push(Span::between(start, start + boot.cluster));
        }
    }
    let (free, dropped) = list.finish();
    Ok(FreeSpace {
        kind: boot.kind,
        level,
        usual: Level::Deep,
        unit: boot.cluster as u32,
        size: boot.size,
        free,
        dropped,
        stamp: Stamp::take(window, ranges)?,
        volume: boot.volume,
    })
}

/// The marks of the first two entries: the medium, and how Windows left it.
fn state(window: &Window<'_>, boot: &FatBoot) -> Result<(), Refusal> {
    let head = window.bytes(boot.fat, 8)?;
    let (media, marks, clean, sound) = match boot.kind {
        FileSystem::FAT32 => (
            le32(&head, 0) & 0x0FFF_FFFF == 0x0FFF_FF00 | u32::from(boot.media),
            le32(&head, 4),
            1 << 27,
            1 << 26,
        ),
        _ => (
            le16(&head, 0) == 0xFF00 | u16::from(boot.media),
            u32::from(le16(&head, 2)),
            1 << 15,
            1 << 14,
        ),
    };
    if !media || boot.media < 0xF0 {
        refuse!(
            Structure,
            "the table does not begin with the mark of its medium; check it with its own tool"
        );
    }
    if marks & clean == 0 {
        refuse!(Unclean, "it was not unmounted; unmount or check it in its own system");
    }
    if marks & sound == 0 {
        refuse!(Errors, "its own system met read or write errors on it; check it there");
    }
    Ok(())
}

/// One pass over the table and its copy: what is free, and where the chains lead.
fn table(window: &Window<'_>, boot: &FatBoot) -> Result<FatMap, Refusal> {
    let mut map = FatMap {
        used: Clusters::new(boot.clusters),
        reached: Clusters::new(boot.clusters),
        in_use: 0,
        bad: Vec::new(),
    };
    let width = boot.width();
    let length = (boot.clusters + FIRST) * width;
    for piece in Span::whole(length).pieces(CHUNK) {
        let bytes = window.bytes(boot.fat + piece.offset(), piece.len() as usize)?;
        for copy in 1..boot.fats {
            let at = boot.fat + copy * boot.fat_size + piece.offset();
            if window.bytes(at, bytes.len())? != bytes {
                refuse!(Structure, "the two tables differ; check it with its own tool");
            }
        }
        let first = piece.offset() / width;
        for (index, raw) in bytes.chunks_exact(width as usize).enumerate() {
            let cluster = first + index as u64;
            if cluster < FIRST {
                continue;
            }
            let raw = if width == 4 { le32(raw, 0) } else { u32::from(le16(raw, 0)) };
            match boot.entry(cluster, raw)? {
                FatEntry::Free => continue,
                FatEntry::Bad => {
                    map.bad.push(cluster);
                    if map.bad.len() > 1 << 20 {
                        refuse!(Errors, "more than {} clusters are bad", 1 << 20);
                    }
                    continue;
                }
                FatEntry::End => {}
                FatEntry::Next(next) => reach(&mut map, next, "a chain")?,
            }
            map.in_use += 1;
            map.used.set(cluster - FIRST);
        }
    }
    Ok(map)
}

/// Notes that `what` leads to `cluster`, which nothing else may do.
fn reach(map: &mut FatMap, cluster: u64, what: &str) -> Result<(), Refusal> {
    if map.reached.set(cluster - FIRST) {
        refuse!(
            Conflict,
            "{what} leads to cluster {cluster}, and something else does so too; check it with its own tool"
        );
    }
    Ok(())
}
