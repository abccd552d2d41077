//! Media: a directory on a key, a disc or another disk that holds chunks as the store has them.
//!
//! All is in the directory `sojourn.med` of the place that the user names, under names that FAT keeps.
//! No reader relies on atomic renames or on syncs: a file is sound or it does not count, whatever of it is
//! there. The layout is described byte by byte in `docs/media.md`.
//!
//! | module | concept |
//! |---|---|
//! | `head` | what stands before a pack or a map in a file |
//! | `pack_file` | a pack of chunks in a file |
//! | `map_file` | a root, a segment or a boot list in a file |
//! | `index` | what is in all pack files, in one: only quicker to read |
//! | `record` | [`MediaRecord`]: an image, a disk or a machine that was written |
//! | `contents` | [`MediaImage`]: what is to be on a medium, and in which order |
//! | `room` | what files take on its file system, and how much may still be written |
//! | `write` | [`write()`], [`remove`]: what fits, and what may go |
//! | `files` | making and deleting files |
//! | `lock` | one command at a time changes a medium |
//! | `check` | [`verify`]: reading all of it |
//! | `answer` | [`MediaSource`] |

mod answer;
mod check;
mod contents;
mod files;
mod head;
pub(crate) mod index;
mod lock;
pub(crate) mod map_file;
mod pack_file;
pub(crate) mod record;
mod room;
#[cfg(test)]
mod tests;
mod write;

pub use answer::MediaSource;
pub use check::{MediaVerifyReport, verify};
pub use contents::MediaImage;
pub use record::{MediaRecord, RecordKind};
pub use write::{MediaWriteReport, WrittenImage, remove, write};

use crate::regular::{self, open_regular};
use block::{Error, ErrorKind, Result};
use map_file::MapFile;
use pack_file::{ChunkRow, PackFile};
use record::StoredRecord;
use room::BlockSize;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use store::Settings;

/// The directory in the place that the user names.
pub const DIRECTORY: &str = "sojourn.med";
/// What tells people what this is.
const README: &str = "readme.txt";
const README_TEXT: &str = "\
This directory holds pieces of disk images for sojourn (sojourn serve --source, sojourn media).\r\n\
Every piece is checked when it is used. It is safe to unplug this medium at any time, and to delete\r\n\
this directory: what is missing is read from elsewhere.\r\n";

/// The most chunks of a medium that are known at a time, 52 bytes of memory for each: those of 2 TiB.
const MOST_CHUNKS: u64 = 32 << 20;

/// What a medium holds of one store.
#[derive(Debug)]
pub struct Media {
    directory: PathBuf,
    packs: Vec<PackFile>,
    /// In all packs.
    chunks: u64,
    maps: Vec<MapFile>,
    records: Vec<StoredRecord>,
    /// Records of this store that only a newer build reads, and why: nobody here knows what they need.
    newer: Vec<(PathBuf, Error)>,
    /// Files of this store that are damaged or incomplete.
    broken: Vec<PathBuf>,
    /// Files that cannot be read now, and why: what is in them may be sound.
    unreadable: Vec<(PathBuf, Error)>,
    blocks: BlockSize,
    /// Files, of other stores, too.
    files: u64,
    /// What they take on the file system.
    used: u64,
}

/// An image, a disk or a machine on a medium.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaListing {
    /// What was written.
    #[serde(flatten)]
    pub record: MediaRecord,
    /// Distinct chunks that it has.
    pub chunks: u64,
    /// How many of them are on the medium.
    pub present: u64,
    /// How many of the chunks that come first are there.
    pub boot_present: u64,
    /// Its maps: manifests and boot list.
    pub maps: u64,
    /// How many of them are on the medium.
    pub maps_present: u64,
}

/// Whether there is a medium at a place.
pub fn is_at(place: &Path) -> bool {
    std::fs::symlink_metadata(place.join(DIRECTORY)).is_ok_and(|found| found.is_dir())
}

/// Refuses a place without a medium.
fn must_be_there(place: &Path) -> Result<()> {
    match is_at(place) {
        true => Ok(()),
        false => Err(no_medium(place)),
    }
}

fn no_medium(place: &Path) -> Error {
    Error::not_found(format!(
        "there is no medium at {}; make one with `sojourn media write`",
        place.display()
    ))
}

impl Media {
    /// Reads what is on the medium at `place`, of the store with these settings. Waits for the medium.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none; the system's when its directory cannot be
    /// read. A file that is damaged, or cannot be read, counts as missing.
    pub fn open(settings: &Settings, place: &Path) -> Result<Self> {
        Self::look(settings, place, true)
    }

    /// The same without its records, which only say what was meant to be there: anybody's medium may have any number
    /// of them.
    ///
    /// # Errors
    /// Any error from [`open`](Self::open).
    fn open_content(settings: &Settings, place: &Path) -> Result<Self> {
        Self::look(settings, place, false)
    }

    fn look(settings: &Settings, place: &Path, with_records: bool) -> Result<Self> {
        let directory = place.join(DIRECTORY);
        let names = regular::names_in(&directory).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => no_medium(place),
            _ => Error::io(directory.display(), e),
        })?;
        let mut media = Self {
            directory: directory.clone(),
            packs: Vec::new(),
            chunks: 0,
            maps: Vec::new(),
            records: Vec::new(),
            newer: Vec::new(),
            broken: Vec::new(),
            unreadable: Vec::new(),
            blocks: BlockSize::of(&directory),
            files: 0,
            used: 0,
        };
        let lengths = pack_lengths(&directory, &names);
        let mut known = index::read(settings, &directory, lengths).unwrap_or_default();
        for name in names {
            let path = directory.join(&name);
            let metadata = match regular::metadata(&path) {
                Ok(metadata) => metadata,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // It may be anything: a record that nobody sees would have its packs deleted.
                Err(e) => {
                    media.files += 1;
                    let error = Error::io(path.display(), e);
                    media.unreadable.push((path, error));
                    continue;
                }
            };
            if !metadata.is_file() {
                continue;
            }
            media.files += 1;
            media.used += media.blocks.taken(metadata.len());
            let Some((number, kind)) = name.to_str().and_then(parse_name) else { continue };
            let outcome = match kind {
                FileKind::Pack => match known.remove(&number) {
                    Some(pack) if pack.len == metadata.len() => media.add(pack),
                    _ => pack_file::read_index(settings, &path, number, metadata.len())
                        .and_then(|pack| media.add(pack)),
                },
                FileKind::Map => map_file::read_head(settings, &path, number, metadata.len())
                    .map(|map| media.maps.push(map)),
                FileKind::Record if !with_records => Ok(()),
                FileKind::Record => {
                    record::read(settings, &path, number).map(|record| media.records.push(record))
                }
            };
            if let Err(error) = outcome {
                tracing::debug!(file = %path.display(), %error, "left out of the medium");
                match FileFault::of(&error) {
                    FileFault::Foreign if is_newer_record(kind, &error) => {
                        media.newer.push((path, error));
                    }
                    FileFault::Foreign | FileFault::Missing => {}
                    FileFault::Damaged => media.broken.push(path),
                    FileFault::Unreadable => media.unreadable.push((path, error)),
                }
            }
        }
        media.used += media.blocks.directory(media.files);
        Ok(media)
    }

    fn add(&mut self, pack: PackFile) -> Result<()> {
        let chunks = self.chunks + pack.rows.len() as u64;
        if chunks > MOST_CHUNKS {
            return Err(Error::unsupported(format!(
                "the medium has more than {MOST_CHUNKS} chunks; the rest is left out"
            )));
        }
        self.chunks = chunks;
        self.packs.push(pack);
        Ok(())
    }

    /// What was written, and how much of it is there.
    pub fn list(&self) -> Vec<MediaListing> {
        let (there, maps) = (self.short_ids(), self.short_map_ids());
        let count_in = |there: &HashSet<[u8; 8]>, ids: &[[u8; 8]]| {
            ids.iter().filter(|id| there.contains(*id)).count() as u64
        };
        let count = |ids: &[[u8; 8]]| count_in(&there, ids);
        (self.records.iter())
            .map(|stored| MediaListing {
                record: stored.record.clone(),
                chunks: stored.ids.len() as u64,
                present: count(&stored.ids),
                boot_present: count(&stored.ids[..stored.boot_chunks()]),
                maps: stored.maps.len() as u64,
                maps_present: count_in(&maps, &stored.maps),
            })
            .collect()
    }

    /// Bytes that all its files take, in whole blocks of the file system.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Files that are damaged or incomplete, and count as missing.
    pub fn broken(&self) -> &[PathBuf] {
        &self.broken
    }

    /// Files that cannot be read now, and why. What is in them may be sound.
    pub fn unreadable(&self) -> &[(PathBuf, Error)] {
        &self.unreadable
    }

    fn short_ids(&self) -> HashSet<[u8; 8]> {
        self.packs.iter().flat_map(|pack| &pack.rows).map(ChunkRow::short).collect()
    }

    fn short_map_ids(&self) -> HashSet<[u8; 8]> {
        self.maps.iter().map(MapFile::short).collect()
    }
}

/// What is the matter with a file of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileFault {
    /// It is another store's, or a newer build's: not ours to judge.
    Foreign,
    /// It is not there any more.
    Missing,
    /// What is in it is not what was written.
    Damaged,
    /// It cannot be read now, and nothing is known of what is in it: the device fails, is away, or does not
    /// let us.
    Unreadable,
}

impl FileFault {
    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Corrupt => Self::Damaged,
            ErrorKind::Invalid | ErrorKind::Unsupported => Self::Foreign,
            ErrorKind::NotFound => Self::Missing,
            _ => Self::Unreadable,
        }
    }
}

/// Whether a file is a record of this store that a newer build wrote.
fn is_newer_record(kind: FileKind, error: &Error) -> bool {
    kind == FileKind::Record && error.kind() == ErrorKind::Unsupported
}

/// The error of reading a file: one that ends too early is damaged.
fn read_error(path: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Error::corrupt(format!("{} is cut off", path.display())).with_source(error)
        }
        _ => Error::io(path.display(), error),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Pack,
    Map,
    Record,
}

/// The lengths of the pack files among these, by their numbers.
fn pack_lengths(directory: &Path, names: &[OsString]) -> HashMap<u32, u64> {
    let length = |name: &OsString| {
        let (number, kind) = parse_name(name.to_str()?)?;
        (kind == FileKind::Pack).then_some(())?;
        let found = regular::metadata(&directory.join(name)).ok()?;
        found.is_file().then_some((number, found.len()))
    };
    names.iter().filter_map(length).collect()
}

/// A name of eight hexadecimal digits and three letters; file systems may have changed its case.
fn parse_name(name: &str) -> Option<(u32, FileKind)> {
    let (stem, extension) = name.split_once('.')?;
    if stem.len() != 8 || !stem.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = u32::from_str_radix(stem, 16).ok()?;
    match () {
        () if extension.eq_ignore_ascii_case("pck") => Some((number, FileKind::Pack)),
        () if extension.eq_ignore_ascii_case("map") => Some((number, FileKind::Map)),
        () if extension.eq_ignore_ascii_case("img") => Some((number, FileKind::Record)),
        () => None,
    }
}

/// Reads a file of at most `most` bytes.
fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>> {
    let at_path = |e| Error::io(path.display(), e);
    let (file, _) = open_regular(path).map_err(at_path)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(at_path)?;
    match bytes.len() as u64 > most {
        true => Err(Error::corrupt(format!("{} is longer than it can be", path.display()))),
        false => Ok(bytes),
    }
}

/// Packs by the numbers of their files.
type PacksByNumber = HashMap<u32, PackFile>;
