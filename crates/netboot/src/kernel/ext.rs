//! ext2, ext3 and ext4.

use super::partitions::PartBytes;
use super::tree::{FileTree, MOST_NAMES, PIECE};
use block::{Error, Result};
use ext4_view::{Ext4, Ext4Error, Ext4Read};
use std::error::Error as StdError;
use std::ops::Range;

impl Ext4Read for PartBytes {
    fn read(&mut self, start: u64, to: &mut [u8]) -> Result<(), Box<dyn StdError + Send + Sync>> {
        self.fill(start, to)?;
        Ok(())
    }
}

/// One of them.
pub struct Ext(Ext4);

impl Ext {
    /// The file system of a part that begins as one of them does; `None` when it has a log or a feature that is not
    /// known here.
    pub fn open(bytes: PartBytes) -> Option<Self> {
        match Ext4::load(Box::new(bytes)) {
            Ok(system) => Some(Self(system)),
            Err(error) => {
                tracing::debug!(%error, "an ext file system cannot be read");
                None
            }
        }
    }
}

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

    fn append_range(&self, path: &str, range: Range<u64>, to: &mut Vec<u8>) -> Result<bool> {
        let mut file = match self.0.open(path) {
            Ok(file) => file,
            Err(error) if missing(&error) => return Ok(false),
            Err(error) => return Err(damaged(path, &error)),
        };
        let ends_early = || Error::corrupt(format!("{path} of the disk ends early"));
        if range.start > range.end || range.end > file.metadata().len() {
            return Err(ends_early());
        }
        if range.start > 0 {
            file.seek_to(range.start).map_err(|error| damaged(path, &error))?;
        }
        let length = (range.end - range.start) as usize;
        let end = to.len() + length;
        // Exactly: growing by doubling would take twice of what was reckoned with.
        to.reserve_exact(length);
        while to.len() < end {
            let at = to.len();
            to.resize((at + PIECE).min(end), 0);
            match file.read_bytes(&mut to[at..]).map_err(|error| damaged(path, &error))? {
                0 => return Err(ends_early()),
                read => to.truncate(at + read),
            }
        }
        Ok(true)
    }

    fn has(&self, path: &str) -> bool {
        self.0.exists(path).unwrap_or(false)
    }
}
