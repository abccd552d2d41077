//! The walk over all directories of a FAT: every file begins in a cluster of its own, and together
//! they need exactly the clusters that are in use.

use super::boot::{FIRST, FatBoot, RootDirectory};
use super::table::FatTable;
use super::{FatEntry, FatMap, reach};
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{FileSystem, Refusal, Window};
use block::Span;

/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// The most entries of a directory (specification, "FAT directory structure").
const MAX_ENTRIES: u64 = 65_536;
/// The most directories that wait to be walked.
const MAX_WAITING: usize = 1 << 20;

mod attribute {
    pub(super) const LABEL: u8 = 0x08;
    pub(super) const DIRECTORY: u8 = 0x10;
    pub(super) const LONG_NAME: u8 = 0x0F;
}

/// A directory and the one that holds it; 0 is the root.
#[derive(Debug, Clone, Copy)]
struct FatDirectory {
    first: u32,
    parent: u32,
}

struct FatWalk<'a, 'm> {
    window: &'a Window<'a>,
    boot: &'m FatBoot,
    map: &'m mut FatMap,
    fat: FatTable<'a>,
    waiting: Vec<FatDirectory>,
    /// Clusters that the files and directories seen so far need.
    needed: u64,
}

pub(super) fn walk(window: &Window<'_>, boot: &FatBoot, map: &mut FatMap) -> Result<(), Refusal> {
    // A chain leads only to clusters in use; whether a whole chain is in use is seen here, as each
    // of its links was noted.
    for cluster in 0..boot.clusters {
        if map.reached.is_set(cluster) && !map.used.is_set(cluster) {
            free_but_used(cluster + FIRST, "a chain")?;
        }
    }
    let fat = FatTable::new(window, boot.fat, boot.width(), boot.clusters + FIRST);
    let mut walk = FatWalk { window, boot, map, fat, waiting: Vec::new(), needed: 0 };
    match boot.root {
        RootDirectory::Fixed { offset, len } => {
            let span = Span::between(offset, offset + len);
            walk.scan(&[span], None)?;
        }
        RootDirectory::Chain(first) => {
            let pieces = walk.chain(first)?;
            walk.scan(&pieces, None)?;
        }
    }
    while let Some(directory) = walk.waiting.pop() {
        let pieces = walk.chain(directory.first)?;
        walk.scan(&pieces, Some(directory))?;
    }
    if walk.needed != walk.map.in_use {
        refuse!(
            Counts,
            "its files need {} clusters, and {} are in use; check it with its own tool",
            walk.needed,
            walk.map.in_use
        );
    }
    Ok(())
}

fn free_but_used(cluster: u64, what: &str) -> Result<(), Refusal> {
    refuse!(
        Conflict,
        "cluster {cluster} belongs to {what}, but is marked free; check it with its own tool"
    )
}

impl FatWalk<'_, '_> {
    /// Notes that a file or directory begins at `first`.
    fn begin(&mut self, first: u32, what: &str) -> Result<(), Refusal> {
        let first = u64::from(first);
        if !self.boot.exists(first) {
            refuse!(
                Structure,
                "{what} begins at cluster {first}, which does not exist; check it with its own tool"
            );
        }
        if !self.map.used.is_set(first - FIRST) {
            free_but_used(first, what)?;
        }
        reach(self.map, first, what)
    }

    /// Where a directory lies: the bytes of its chain.
    fn chain(&mut self, first: u32) -> Result<Vec<Span>, Refusal> {
        self.begin(first, "a directory")?;
        let most = (MAX_ENTRIES * ENTRY as u64).div_ceil(self.boot.cluster);
        let mut pieces: Vec<Span> = Vec::new();
        let mut at = u64::from(first);
        for _ in 0..most {
            let start = self.boot.offset(at);
            let end = start + self.boot.cluster;
            match pieces.last_mut() {
                Some(last) if last.end() == start => *last = Span::between(last.offset(), end),
                _ => pieces.push(Span::between(start, end)),
            }
            self.needed += 1;
            let raw = self.fat.get(at)?;
            match self.boot.entry(at, raw)? {
                FatEntry::End => return Ok(pieces),
                FatEntry::Next(next) => at = next,
                FatEntry::Free | FatEntry::Bad => free_but_used(at, "a directory")?,
            }
        }
        refuse!(
            Structure,
            "the directory at cluster {first} does not end; check it with its own tool"
        )
    }

    /// Reads the entries of one directory; the root has no entries for itself and its parent.
    fn scan(&mut self, pieces: &[Span], directory: Option<FatDirectory>) -> Result<(), Refusal> {
        let mut index = 0;
        for piece in pieces.iter().flat_map(|piece| piece.pieces(256 << 10)) {
            let bytes = self.window.bytes(piece.offset(), piece.len() as usize)?;
            for entry in bytes.chunks_exact(ENTRY) {
                if let Some(directory) = directory.filter(|_| index < 2) {
                    self.own_entry(entry, index, directory)?;
                } else if entry[0] == 0 {
                    return Ok(());
                } else {
                    let own = directory.map_or(0, |directory| directory.first);
                    self.entry(entry, own)?;
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn first_cluster(&self, entry: &[u8]) -> u32 {
        // FAT16 keeps other things in the upper half.
        let high = if self.boot.kind == FileSystem::FAT32 { le16(entry, 20) } else { 0 };
        u32::from(high) << 16 | u32::from(le16(entry, 26))
    }

    /// The first two entries of a directory: `.` leads to itself, `..` to the one that holds it.
    fn own_entry(&self, entry: &[u8], index: u64, directory: FatDirectory) -> Result<(), Refusal> {
        let (name, leads_to) = match index {
            0 => (b".          ", directory.first),
            _ => (b"..         ", directory.parent),
        };
        let found = self.first_cluster(entry);
        let root =
            matches!(self.boot.root, RootDirectory::Chain(root) if root == found && leads_to == 0);
        if &entry[..11] != name
            || entry[11] & attribute::DIRECTORY == 0
            || (found != leads_to && !root)
        {
            refuse!(
                Structure,
                "what should be the directory at cluster {} does not begin as one; check it with its own tool",
                directory.first
            );
        }
        Ok(())
    }

    fn entry(&mut self, entry: &[u8], own: u32) -> Result<(), Refusal> {
        let flags = entry[11] & 0x3F;
        if entry[0] == 0xE5 || flags == attribute::LONG_NAME {
            return Ok(());
        }
        let first = self.first_cluster(entry);
        let size = le32(entry, 28);
        if flags & attribute::LABEL != 0 {
            return if first == 0 && size == 0 {
                Ok(())
            } else {
                refuse!(Structure, "a label has clusters; check it with its own tool")
            };
        }
        if flags & attribute::DIRECTORY != 0 {
            if self.waiting.len() >= MAX_WAITING {
                refuse!(TooMuchWork, "it has more than {MAX_WAITING} directories side by side");
            }
            self.waiting.push(FatDirectory { first, parent: own });
            return Ok(());
        }
        if (first == 0) != (size == 0) {
            refuse!(
                Structure,
                "a file has clusters without a length or the reverse; check it with its own tool"
            );
        }
        if first != 0 {
            self.begin(first, "a file")?;
            self.needed += u64::from(size).div_ceil(self.boot.cluster);
        }
        Ok(())
    }
}
