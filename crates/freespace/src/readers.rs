//! The table of readers.

use crate::{FileSystem, FileSystemReader, btrfs, exfat, ext, fat, ntfs, swap, xfs};

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
