//! Where recordings lie: one file that the user named, or a directory of files that each go on where
//! the one before was full, of which the oldest are removed.

use block::{Error, Result};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// What a recording is written to.
pub(super) type RecordingFile = BufWriter<File>;

/// Where a recording goes.
#[derive(Debug)]
pub(crate) enum RecordingTarget {
    /// Into this file, and no other.
    File(PathBuf),
    /// Into files of a directory.
    Directory(RecordingDirectory),
}

impl RecordingTarget {
    /// The directory of files, if it is one.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::File(_) => None,
            Self::Directory(directory) => Some(&directory.dir),
        }
    }

    /// The first file and its path.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is such a file; any error from the file.
    pub(super) fn first(&mut self) -> Result<(RecordingFile, PathBuf)> {
        match self {
            Self::File(path) => Ok((create(path)?, path.clone())),
            Self::Directory(directory) => directory.file(),
        }
    }

    /// The file behind one that is full.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when there is to be only one; any error from [`first`](Self::first).
    pub(super) fn next(&mut self) -> Result<(RecordingFile, PathBuf)> {
        match self {
            Self::File(path) => Err(Error::no_space(format!(
                "{}: the trace has reached its limit; move it away and record again, or set \
                 trace.dir to record into one file after the other",
                path.display()
            ))),
            Self::Directory(directory) => directory.file(),
        }
    }
}

/// A directory of recordings.
#[derive(Debug)]
pub(crate) struct RecordingDirectory {
    dir: PathBuf,
    /// What the files of this recording are called, up to their number.
    name: String,
    /// The number of the next.
    number: u32,
    /// How many files are kept, earlier recordings included; 0: all.
    keep: u32,
}

impl RecordingDirectory {
    /// The recording that begins at `now` (Unix seconds) in `dir`, where `keep` files are kept.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub(super) fn new(dir: PathBuf, now: u64, keep: u32) -> Result<Self> {
        std::fs::create_dir_all(&dir).map_err(|e| Error::io(dir.display(), e))?;
        let moment = engine::world::moment(now).replace(['-', ':'], "").replace(' ', "-");
        let name = format!("{moment}-{}", std::process::id());
        Ok(Self { dir, name, number: 1, keep })
    }

    /// The next file, for which the oldest ones make room.
    fn file(&mut self) -> Result<(RecordingFile, PathBuf)> {
        let path = self.dir.join(format!("{}-{:06}.sjt", self.name, self.number));
        let out = create(&path)?;
        self.number += 1;
        if self.keep > 0 {
            let mut others = recordings(&self.dir)?;
            others.retain(|other| *other != path);
            let excess = (others.len() + 1).saturating_sub(self.keep as usize);
            for old in others.iter().take(excess) {
                match std::fs::remove_file(old) {
                    Ok(()) => tracing::info!(file = %old.display(), "removed the oldest recording"),
                    // It is in nobody's way but of the next one.
                    Err(e) => tracing::warn!(file = %old.display(), error = %e, "cannot remove"),
                }
            }
        }
        Ok((out, path))
    }
}

fn create(path: &Path) -> Result<RecordingFile> {
    let file = File::options().write(true).create_new(true).open(path);
    let file = file.map_err(|e| Error::io(path.display(), e))?;
    Ok(BufWriter::with_capacity(256 << 10, file))
}

/// The recordings of a directory, the oldest first. What is called otherwise is nobody's business.
pub(crate) fn recordings(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io(dir.display(), e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_recording(name)) {
            names.push(name.to_owned());
        }
    }
    names.sort_by_key(|name| key(name));
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// `DATE-TIME-PROCESS-NUMBER.sjt`.
fn is_recording(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".sjt") else { return false };
    let parts: Vec<&str> = name.split('-').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts[..], [date, time, _, number] if (date.len(), time.len()) == (8, 6) && number.len() >= 6)
        && parts.iter().all(digits)
}

/// What recordings are ordered by: when they began, and their number.
fn key(name: &str) -> (String, u64) {
    let number = name.trim_end_matches(".sjt").rsplit('-').next().and_then(|n| n.parse().ok());
    (name.get(..15).unwrap_or_default().to_owned(), number.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_recordings_make_room_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        for name in ["mine.sjt", "20200101-000000-7-000009.sjt", "20200101-000000-7-000010.sjt"] {
            std::fs::write(path.join(name), "").unwrap();
        }
        let dir = RecordingDirectory::new(path.to_owned(), 1_600_000_000, 3).unwrap();
        let mut place = RecordingTarget::Directory(dir);
        let (_, first) = place.first().unwrap();
        assert_eq!(recordings(path).unwrap().len(), 3);
        let (_, second) = place.next().unwrap();
        let kept = path.join("20200101-000000-7-000010.sjt");
        assert_eq!(recordings(path).unwrap(), [kept, first.clone(), second.clone()]);
        let (_, third) = place.next().unwrap();
        assert_eq!(recordings(path).unwrap(), [first, second, third]);
        assert!(path.join("mine.sjt").exists());
    }

    #[test]
    fn one_file_ends_where_it_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let mut place = RecordingTarget::File(dir.path().join("t.sjt"));
        place.first().unwrap();
        assert_eq!(place.next().unwrap_err().kind(), block::ErrorKind::NoSpace);
        assert_eq!(place.first().unwrap_err().kind(), block::ErrorKind::Conflict);
    }
}
