//! FAT, read-only: EFI system partitions, and whatever else firmware has to read.
//!
//! Written here as no crate can be held to a bound: `fatfs` 0.3.6, which others use (January 2023), wants a device to
//! write to, follows chains of clusters for as long as they lead, in circles, too, and reads of the table between any
//! two clusters, which costs a piece of the disk each time. Here a chain is followed as far as the length of its file
//! says, or a directory can be long, before anything of it is read.
//!
//! Numbers in brackets are sections of Microsoft's *FAT: General Overview of On-Disk Format*, 1.03. Where that leaves
//! room, it is read as Linux does.

use super::partitions::{PartBytes, le16, le32};
use super::tree::{FileTree, MOST_NAMES, PIECE};
use block::{Error, Result};
use std::iter;
use std::ops::Range;

/// The longest directory in bytes: 65,536 entries.
const LONGEST_DIRECTORY: u64 = 2 << 20;
/// The longest file of which anything is read: a kernel and an initial RAM disk in one, with room to spare.
const LONGEST_FILE: u64 = 1 << 30;
/// The boot sector's bytes.
const BOOT_SECTOR: usize = 512;
/// The bytes of an entry in a directory.
const ENTRY: usize = 32;
/// The first cluster; smaller numbers in the table say other things.
const FIRST_CLUSTER: u32 = 2;
/// The most clusters with 12 bits, and with 16, as Linux has it.
const MOST_OF_12: u64 = 0xff4;
const MOST_OF_16: u64 = 0xfff4;
const MOST_OF_32: u64 = 0x0fff_fff6;
/// Characters of a long name in one entry, and the most such entries of a name.
const NAME_PART: usize = 13;
const MOST_NAME_PARTS: u8 = 20;

/// What an entry in a directory is.
mod attribute {
    pub(super) const LABEL: u8 = 0x08;
    pub(super) const DIRECTORY: u8 = 0x10;
    pub(super) const LONG_NAME: u8 = 0x0f;
}

/// The bits of an entry in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Bits12,
    Bits16,
    Bits32,
}

/// Where a directory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryStart {
    /// The root directory where that has room of its own.
    Area { start: u64, length: u64 },
    /// A chain that begins with this cluster.
    Chain(u32),
}

/// What a boot sector says (3).
#[derive(Debug, Clone, PartialEq, Eq)]
struct FatLayout {
    width: Width,
    /// The bytes of a cluster.
    cluster: u64,
    /// How many clusters there are.
    clusters: u32,
    /// Where the first table begins.
    table: u64,
    /// Where the first cluster begins.
    data: u64,
    root: DirectoryStart,
    uuid: String,
    label: String,
}

impl FatLayout {
    /// Reads the boot sector of a part of so many bytes; `None` when it is of no FAT.
    fn of(boot: &[u8; BOOT_SECTOR], length: u64) -> Option<Self> {
        let sector = u64::from(le16(boot, 11));
        let sectors_of_cluster = u64::from(boot[13]);
        let (reserved, copies) = (u64::from(le16(boot, 14)), u64::from(boot[16]));
        let plausible = boot[BOOT_SECTOR - 2..] == [0x55, 0xaa]
            && matches!(sector, 512 | 1024 | 2048 | 4096)
            && sectors_of_cluster.is_power_of_two()
            && reserved > 0
            && matches!(copies, 1 | 2);
        if !plausible {
            return None;
        }
        let sectors = match le16(boot, 19) {
            0 => u64::from(le32(boot, 32)),
            sectors => u64::from(sectors),
        };
        // Linux goes by this, and not by the number of clusters.
        let is_32 = le16(boot, 22) == 0;
        let sectors_of_table =
            if is_32 { u64::from(le32(boot, 36)) } else { u64::from(le16(boot, 22)) };
        let cluster = sectors_of_cluster * sector;
        let root = (reserved + copies * sectors_of_table) * sector;
        let root_length = u64::from(le16(boot, 17)) * ENTRY as u64;
        let data = root + root_length.next_multiple_of(sector);
        let clusters = (sectors * sector).checked_sub(data)? / cluster;
        let (width, bits, most) = match (is_32, clusters) {
            (true, _) => (Width::Bits32, 32, MOST_OF_32),
            (false, ..=MOST_OF_12) => (Width::Bits12, 12, MOST_OF_12),
            (false, _) => (Width::Bits16, 16, MOST_OF_16),
        };
        let in_table = (sectors_of_table * sector * 8 / bits).saturating_sub(2);
        let in_part = length.checked_sub(data)? / cluster;
        let clusters = u32::try_from(clusters.min(in_table).min(in_part)).ok()?;
        if clusters == 0 || u64::from(clusters) > most {
            return None;
        }
        let names = if is_32 { 64 } else { 36 };
        let (uuid, label) = names_of(&boot[names..names + 26]);
        Some(Self {
            width,
            cluster,
            clusters,
            table: reserved * sector,
            data,
            root: match is_32 {
                true => DirectoryStart::Chain(le32(boot, 44)),
                false => DirectoryStart::Area { start: root, length: root_length },
            },
            uuid,
            label,
        })
    }

    /// The bytes of all clusters.
    fn room(&self) -> u64 {
        u64::from(self.clusters) * self.cluster
    }
}

/// UUID and label in the last fields of a boot sector, from the drive's number on.
fn names_of(fields: &[u8]) -> (String, String) {
    let serial = le32(fields, 3);
    let label = match fields[2] {
        0x29 => String::from_utf8_lossy(&fields[7..18]).trim_end().to_owned(),
        _ => String::new(),
    };
    (format!("{:04x}-{:04x}", serial >> 16, serial & 0xffff), label)
}

/// A FAT with 12, 16 or 32 bits.
pub struct Fat {
    bytes: PartBytes,
    layout: FatLayout,
}

/// A file or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FatEntry {
    name: String,
    is_directory: bool,
    first: u32,
    length: u64,
}

fn damaged(path: &str, why: &str) -> Error {
    Error::corrupt(format!("{path} of the disk cannot be read: {why}"))
}

impl Fat {
    /// The FAT of a part; `None` when there is none.
    ///
    /// # Errors
    /// Any error from reading.
    pub fn open(bytes: PartBytes) -> Result<Option<Self>> {
        let mut boot = [0; BOOT_SECTOR];
        if bytes.length() < boot.len() as u64 {
            return Ok(None);
        }
        bytes.fill(0, &mut boot)?;
        let layout = FatLayout::of(&boot, bytes.length());
        Ok(layout.map(|layout| Self { bytes, layout }))
    }

    /// What the table says of a cluster (4): the next one, or something else that is none.
    fn next(&self, cluster: u32) -> Result<u32> {
        let at = u64::from(cluster);
        let (at, length) = match self.layout.width {
            Width::Bits12 => (at + at / 2, 2),
            Width::Bits16 => (at * 2, 2),
            Width::Bits32 => (at * 4, 4),
        };
        let mut entry = [0; 4];
        self.bytes.fill(self.layout.table + at, &mut entry[..length])?;
        let entry = u32::from_le_bytes(entry);
        Ok(match self.layout.width {
            Width::Bits12 if cluster % 2 == 1 => entry >> 4,
            Width::Bits12 => entry & 0xfff,
            Width::Bits16 => entry,
            Width::Bits32 => entry & 0x0fff_ffff,
        })
    }

    /// Where the first so many bytes of a chain are, rounded up to clusters; fewer when it ends before.
    fn runs(&self, first: u32, length: u64) -> Result<Vec<Range<u64>>> {
        let FatLayout { cluster: step, clusters, data, .. } = self.layout;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut cluster, mut covered) = (first, 0);
        // One that leads in circles comes to an end, too.
        let length = length.min(self.layout.room());
        while covered < length && (FIRST_CLUSTER..clusters + FIRST_CLUSTER).contains(&cluster) {
            let start = data + u64::from(cluster - FIRST_CLUSTER) * step;
            match runs.last_mut() {
                Some(run) if run.end == start => run.end += step,
                _ => runs.push(start..start + step),
            }
            covered += step;
            cluster = self.next(cluster)?;
        }
        Ok(runs)
    }

    /// All entries of a directory.
    fn entries(&self, place: DirectoryStart) -> Result<Vec<FatEntry>> {
        let runs = match place {
            DirectoryStart::Area { start, length } => iter::once(start..start + length).collect(),
            DirectoryStart::Chain(first) => self.runs(first, LONGEST_DIRECTORY)?,
        };
        let mut bytes = Vec::new();
        for run in runs {
            let at = bytes.len();
            bytes.resize(at + (run.end - run.start) as usize, 0);
            self.bytes.fill(run.start, &mut bytes[at..])?;
        }
        let mut entries = entries(&bytes);
        if self.layout.width != Width::Bits32 {
            // The upper half is used for other things.
            entries.iter_mut().for_each(|entry| entry.first &= 0xffff);
        }
        Ok(entries)
    }

    /// What a path leads to; `None` when there is nothing. Letters are equal whatever their case.
    fn find(&self, path: &str) -> Result<Option<FatEntry>> {
        let root = FatEntry { name: String::new(), is_directory: true, first: 0, length: 0 };
        let mut at = (root, self.layout.root);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if !at.0.is_directory {
                return Ok(None);
            }
            let entries = self.entries(at.1)?;
            let found = entries.into_iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
            let Some(found) = found else { return Ok(None) };
            let place = DirectoryStart::Chain(found.first);
            at = (found, place);
        }
        Ok(Some(at.0))
    }

    fn file(&self, path: &str) -> Result<Option<FatEntry>> {
        Ok(self.find(path)?.filter(|entry| !entry.is_directory))
    }
}

impl FileTree for Fat {
    fn uuid(&self) -> String {
        self.layout.uuid.clone()
    }

    fn label(&self) -> String {
        self.layout.label.clone()
    }

    fn names(&self, directory: &str) -> Result<Vec<String>> {
        let place = match self.find(directory)? {
            Some(root) if root.name.is_empty() => self.layout.root,
            Some(entry) if entry.is_directory => DirectoryStart::Chain(entry.first),
            _ => return Ok(Vec::new()),
        };
        let entries = self.entries(place)?;
        Ok(entries.into_iter().take(MOST_NAMES).map(|entry| entry.name).collect())
    }

    fn length(&self, path: &str) -> Result<Option<u64>> {
        Ok(self.file(path)?.map(|file| file.length))
    }

    fn append_range(&self, path: &str, range: Range<u64>, to: &mut Vec<u8>) -> Result<bool> {
        let Some(file) = self.file(path)? else { return Ok(false) };
        if range.start > range.end || range.end > file.length {
            return Err(damaged(path, "it ends early"));
        }
        if range.end > LONGEST_FILE {
            return Err(Error::invalid(format!("{path} of the disk is longer than 1 GiB")));
        }
        let runs = self.runs(file.first, range.end)?;
        if runs.iter().map(|run| run.end - run.start).sum::<u64>() < range.end {
            return Err(damaged(path, "its clusters end before its bytes do"));
        }
        // Exactly: growing by doubling would take twice of what was reckoned with.
        to.reserve_exact((range.end - range.start) as usize);
        let mut offset = 0;
        for run in runs {
            let length = run.end - run.start;
            let (from, until) = (range.start.max(offset), range.end.min(offset + length));
            let mut at = from;
            while at < until {
                let piece = (until - at).min(PIECE as u64);
                let end = to.len();
                to.resize(end + piece as usize, 0);
                self.bytes.fill(run.start + (at - offset), &mut to[end..])?;
                at += piece;
            }
            offset += length;
        }
        Ok(true)
    }

    fn has(&self, path: &str) -> bool {
        matches!(self.find(path), Ok(Some(_)))
    }
}

/// The files and directories that the bytes of a directory name (6, 7).
fn entries(bytes: &[u8]) -> Vec<FatEntry> {
    let mut found = Vec::new();
    let mut long = LongName::default();
    for entry in bytes.chunks_exact(ENTRY) {
        let kind = entry[11];
        match entry[0] {
            0 => break,
            0xe5 => long = LongName::default(),
            _ if kind & 0x3f == attribute::LONG_NAME => long.add(entry),
            _ if kind & attribute::LABEL != 0 => long = LongName::default(),
            _ => {
                let name = long.take(entry).unwrap_or_else(|| short_name(entry));
                // Nobody needs the directory itself, nor that above it.
                if !matches!(name.as_str(), "" | "." | "..") {
                    let first = (u32::from(le16(entry, 20)) << 16) | u32::from(le16(entry, 26));
                    let is_directory = kind & attribute::DIRECTORY != 0;
                    let length = u64::from(le32(entry, 28));
                    found.push(FatEntry { name, is_directory, first, length });
                }
            }
        }
    }
    found
}

/// A name of eight characters and three; two bits say which of them stand for small letters, as Windows NT has it.
fn short_name(entry: &[u8]) -> String {
    let text = |bytes: &[u8], small: bool| {
        let ascii = |byte: &u8| match byte.is_ascii() {
            true => char::from(*byte),
            false => char::REPLACEMENT_CHARACTER,
        };
        let text: String = bytes.iter().map(ascii).collect();
        match small {
            true => text.trim_end().to_ascii_lowercase(),
            false => text.trim_end().to_owned(),
        }
    };
    let name = text(&entry[..8], entry[12] & 0x08 != 0);
    match text(&entry[8..11], entry[12] & 0x10 != 0) {
        extension if extension.is_empty() => name,
        extension => format!("{name}.{extension}"),
    }
}

/// A long name, which comes in parts before the entry that it is of, the last one first (7).
#[derive(Default)]
struct LongName {
    units: Vec<u16>,
    /// How many parts are still to come.
    missing: u8,
    checksum: u8,
}

impl LongName {
    fn add(&mut self, entry: &[u8]) {
        let (order, checksum) = (entry[0] & 0x3f, entry[13]);
        if entry[0] & 0x40 != 0 && (1..=MOST_NAME_PARTS).contains(&order) {
            let units = vec![0; usize::from(order) * NAME_PART];
            *self = Self { units, missing: order, checksum };
        }
        if order == 0 || order != self.missing || checksum != self.checksum {
            *self = Self::default();
            return;
        }
        self.missing -= 1;
        let part = entry[1..11].chunks_exact(2).chain(entry[14..26].chunks_exact(2));
        let part = part.chain(entry[28..32].chunks_exact(2)).map(|unit| le16(unit, 0));
        let start = usize::from(self.missing) * NAME_PART;
        for (to, unit) in self.units[start..].iter_mut().zip(part) {
            *to = unit;
        }
    }

    /// The name, if all of it is there and of this entry.
    fn take(&mut self, entry: &[u8]) -> Option<String> {
        let Self { units, missing, checksum } = std::mem::take(self);
        let sum =
            entry[..11].iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let is_whole = missing == 0 && !units.is_empty() && sum == checksum;
        let end = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
        is_whole.then(|| String::from_utf16_lossy(&units[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(name: &[u8; 11], kind: u8) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        entry[..11].copy_from_slice(name);
        entry[11] = kind;
        entry[26] = 5;
        entry[28] = 7;
        entry
    }

    fn long(order: u8, checksum: u8, text: &str) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        (entry[0], entry[11], entry[13]) = (order, attribute::LONG_NAME, checksum);
        let places = (1..11).step_by(2).chain((14..26).step_by(2)).chain((28..32).step_by(2));
        for (at, unit) in places.zip(text.encode_utf16().chain([0])) {
            entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
        }
        entry
    }

    fn names(bytes: &[[u8; ENTRY]]) -> Vec<String> {
        entries(&bytes.concat()).into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn a_long_name_is_taken_when_it_is_whole_and_of_its_entry() {
        let entry = short(b"ARCH~1  CON", 0x20);
        let sum = entry[..11].iter().fold(0_u8, |sum, b| sum.rotate_right(1).wrapping_add(*b));
        let parts = [long(0x42, sum, "conf"), long(1, sum, "arch-6.1-amd.")];
        assert_eq!(names(&[parts[0], parts[1], entry]), ["arch-6.1-amd.conf"]);
        assert_eq!(names(&[parts[1], entry]), ["ARCH~1.CON"]);
        assert_eq!(names(&[parts[0], entry]), ["ARCH~1.CON"]);
        assert_eq!(names(&[parts[0], long(1, sum ^ 1, "arch-6.1-amd."), entry]), ["ARCH~1.CON"]);
        assert_eq!(names(&[parts[0], parts[1], short(b"OTHER      ", 0x20)]), ["OTHER"]);
    }

    #[test]
    fn labels_removed_files_and_what_stands_behind_the_end_are_no_files() {
        let mut small = short(b"LINUX   EFI", 0x20);
        small[12] = 0x18;
        let all = [
            short(b"ESP        ", attribute::LABEL),
            short(b"\xe5LD     TXT", 0x20),
            short(b".          ", attribute::DIRECTORY),
            small,
            short(b"EFI        ", attribute::DIRECTORY),
            [0; ENTRY],
            short(b"GHOST      ", 0x20),
        ];
        assert_eq!(names(&all), ["linux.efi", "EFI"]);
        let found = entries(&all.concat());
        assert_eq!((found[0].first, found[0].length, found[0].is_directory), (5, 7, false));
        assert!(found[1].is_directory);
    }

    #[test]
    fn other_boot_sectors_are_of_no_fat() {
        let mut ntfs = [0; BOOT_SECTOR];
        ntfs[3..11].copy_from_slice(b"NTFS    ");
        (ntfs[12], ntfs[13], ntfs[510], ntfs[511]) = (2, 8, 0x55, 0xaa);
        assert_eq!(FatLayout::of(&ntfs, 1 << 30), None);
        let mut exfat = [0; BOOT_SECTOR];
        exfat[3..11].copy_from_slice(b"EXFAT   ");
        (exfat[510], exfat[511]) = (0x55, 0xaa);
        assert_eq!(FatLayout::of(&exfat, 1 << 30), None);
        assert_eq!(FatLayout::of(&[0x55; BOOT_SECTOR], 1 << 30), None);
    }

    proptest! {
        #[test]
        fn no_boot_sector_and_no_directory_panics(
            boot in proptest::collection::vec(any::<u8>(), BOOT_SECTOR),
            sector in prop_oneof![Just(512_u16), Just(4096)],
            directory in proptest::collection::vec(any::<u8>(), 0..512),
            length in any::<u64>(),
        ) {
            let mut boot: [u8; BOOT_SECTOR] = boot.try_into().unwrap();
            boot[11..13].copy_from_slice(&sector.to_le_bytes());
            (boot[13], boot[16], boot[510], boot[511]) = (8, 2, 0x55, 0xaa);
            if let Some(layout) = FatLayout::of(&boot, length) {
                prop_assert!(layout.data + layout.room() <= length);
            }
            let _ = entries(&directory);
        }
    }
}
