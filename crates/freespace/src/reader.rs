//! The table of readers: what the rest of the project has to know of each file system.

use crate::probe::PartHead;
use crate::{
    FileSystem, FreeSpace, Options, Refusal, Window, btrfs, exfat, ext, fat, ntfs, swap, xfs,
};

/// How the free space of a file system is read. Everything that depends on which one it is stands
/// here.
#[derive(Debug)]
pub struct FileSystemReader {
    /// What it reads.
    pub kinds: &'static [FileSystem],
    /// What the marks at the beginning say that it is, if it is one of these.
    pub(crate) recognize: fn(&PartHead) -> Option<FileSystem>,
    /// Reads what is free.
    pub(crate) read: fn(&Window<'_>, &Options) -> Result<FreeSpace, Refusal>,
    /// Whether one that was mounted when the power went or the system slept can be told from one that
    /// was unmounted.
    pub shows_mounted: bool,
    /// Where in it a suspended system may be stored.
    pub suspended: SuspendedIn,
}

/// Where in a file system a suspended system may be stored, and who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendedIn {
    /// In no file, or in one that the reader looks for whatever else is there.
    Nothing,
    /// In a file that the reader comes by while it reads all others.
    OwnFile,
    /// In swap files, which [`in_swap_files`](crate::suspended::in_swap_files) looks into.
    SwapFiles,
    /// In files, which nobody looks into.
    UnreadFiles,
}

/// All readers, in the order in which what they recognise is named.
pub const READERS: &[FileSystemReader] = &[
    ext::READER,
    ntfs::READER,
    exfat::READER,
    xfs::READER,
    btrfs::READER,
    swap::READER,
    fat::READER,
];

impl FileSystem {
    /// Its reader.
    pub fn reader(self) -> &'static FileSystemReader {
        let of = READERS.iter().find(|reader| reader.kinds.contains(&self));
        // Kinds are made where readers are.
        of.unwrap_or(&READERS[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_reader_and_a_name_of_its_own() {
        let kinds: Vec<FileSystem> =
            READERS.iter().flat_map(|reader| reader.kinds).copied().collect();
        for (number, kind) in kinds.iter().enumerate() {
            assert!(kind.reader().kinds.contains(kind), "{kind}");
            assert!(!kinds[..number].contains(kind), "{kind} is named twice");
        }
    }

    #[test]
    fn the_page_has_every_file_system_of_the_table() {
        let page = include_str!("../../../docs/borrow.md").to_lowercase();
        let headings: Vec<_> = page.lines().filter(|line| line.starts_with("### ")).collect();
        for kind in READERS.iter().flat_map(|reader| reader.kinds) {
            let name = kind.as_str().trim_end_matches(char::is_numeric);
            assert!(headings.iter().any(|line| line.contains(name)), "docs/borrow.md: no {name}");
        }
    }
}
