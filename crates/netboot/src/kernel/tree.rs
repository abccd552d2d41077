//! Files and directories of one part of a disk, read-only.

use super::partitions::DiskPart;
use super::source::DiskBytes;
use block::{Error, Result};
use ext4_view::{Ext4, Ext4Error, Ext4Read};
use std::error::Error as StdError;

/// The most names of a directory that are looked at.
const MOST_NAMES: usize = 4096;
/// Bytes read of a file at a time.
const PIECE: usize = 1 << 20;

/// A file system that a kernel may lie in.
pub trait FileTree {
    /// What the kernel calls its UUID, in lower case.
    fn uuid(&self) -> String;

    /// What it is called.
    fn label(&self) -> String;

    /// The names in a directory; none when it is not there.
    ///
    /// # Errors
    /// Damage, and any error from reading.
    fn names(&self, directory: &str) -> Result<Vec<String>>;

    /// The length of a file, in bytes, as the file system has it; `None` when there is none.
    ///
    /// # Errors
    /// Damage, and any error from reading.
    fn length(&self, path: &str) -> Result<Option<u64>>;

    /// Appends a whole file of at most so many bytes; `false` when there is none.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is longer; damage, and any error from reading.
    fn append(&self, path: &str, longest: u64, to: &mut Vec<u8>) -> Result<bool>;

    /// Whether a file or directory is there.
    fn has(&self, path: &str) -> bool;
}

/// The file system of a part; `None` when it is none that is known here.
///
/// # Errors
/// Any error from reading.
pub fn open(disk: &DiskBytes, part: &DiskPart) -> Result<Option<Box<dyn FileTree>>> {
    let mut magic = [0; 2];
    if part.length < 4096 {
        return Ok(None);
    }
    disk.read(part.start + 1024 + 56, &mut magic)?;
    if magic != [0x53, 0xef] {
        return Ok(None);
    }
    let window = PartBytes { disk: disk.clone(), start: part.start, length: part.length };
    match Ext4::load(Box::new(window)) {
        Ok(system) => Ok(Some(Box::new(Ext(system)))),
        // A log or a feature that is not known: other parts may do.
        Err(error) => {
            tracing::debug!(part = part.number, %error, "an ext file system cannot be read");
            Ok(None)
        }
    }
}

struct PartBytes {
    disk: DiskBytes,
    start: u64,
    length: u64,
}

impl Ext4Read for PartBytes {
    fn read(&mut self, start: u64, to: &mut [u8]) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let end = start.checked_add(to.len() as u64).filter(|end| *end <= self.length);
        end.ok_or_else(|| Error::invalid("its file system leads beyond its partition"))?;
        self.disk.read(self.start + start, to)?;
        Ok(())
    }
}

/// ext2, ext3, ext4.
struct Ext(Ext4);

fn damaged(path: &str, error: &Ext4Error) -> Error {
    Error::corrupt(format!("{path} of the disk cannot be read: {error}"))
}

fn missing(error: &Ext4Error) -> bool {
    matches!(error, Ext4Error::NotFound | Ext4Error::NotADirectory)
}

impl FileTree for Ext {
    fn uuid(&self) -> String {
        self.0.uuid().to_string().to_ascii_lowercase()
    }

    fn label(&self) -> String {
        self.0.label().to_str().unwrap_or_default().to_owned()
    }

    fn names(&self, directory: &str) -> Result<Vec<String>> {
        let entries = match self.0.read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(damaged(directory, &error)),
        };
        let mut names = Vec::new();
        for entry in entries.take(MOST_NAMES) {
            let entry = entry.map_err(|error| damaged(directory, &error))?;
            if let Ok(name) = entry.file_name().as_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn length(&self, path: &str) -> Result<Option<u64>> {
        match self.0.metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if missing(&error) => Ok(None),
            Err(error) => Err(damaged(path, &error)),
        }
    }

    fn append(&self, path: &str, longest: u64, to: &mut Vec<u8>) -> Result<bool> {
        let mut file = match self.0.open(path) {
            Ok(file) => file,
            Err(error) if missing(&error) => return Ok(false),
            Err(error) => return Err(damaged(path, &error)),
        };
        let length = file.metadata().len();
        if length > longest {
            return Err(Error::invalid(format!(
                "{path} of the disk has {length} bytes, more than {longest}"
            )));
        }
        let end = to.len() + length as usize;
        // Exactly: growing by doubling would take twice of what was reckoned with.
        to.reserve_exact(length as usize);
        while to.len() < end {
            let at = to.len();
            to.resize((at + PIECE).min(end), 0);
            match file.read_bytes(&mut to[at..]).map_err(|error| damaged(path, &error))? {
                0 => return Err(Error::corrupt(format!("{path} of the disk ends early"))),
                read => to.truncate(at + read),
            }
        }
        Ok(true)
    }

    fn has(&self, path: &str) -> bool {
        self.0.exists(path).unwrap_or(false)
    }
}
