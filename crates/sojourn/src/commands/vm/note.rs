//! Notes in the directory of a machine: small texts, each a file of its own that is there as a whole or not at all, and
//! on stable storage.

use block::{Error, Result};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// The longest note that is read, in bytes; what is behind it is left out.
const LONGEST: u64 = 4096;

/// Writes a note into the file at `path`, which has it whole, or what it had before.
///
/// # Errors
/// Any error from the file system.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let written = || {
        let mut file = NamedTempFile::new_in(directory(path))?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        sync_directory(path)
    };
    written().map_err(|e| Error::io(path.display(), e))
}

/// The note in the file at `path`; `None` when there is none, or it is empty, as an earlier build left it on a full disk.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !text.is_empty())
}

/// Removes the file at `path`, if it is there.
///
/// # Errors
/// Any error from the file system.
pub(super) fn clear(path: &Path) -> Result<()> {
    let removed = match std::fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.and_then(|()| sync_directory(path)),
    };
    removed.map_err(|e| Error::io(path.display(), e))
}

/// The directory of the file at `path`.
fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Puts the name of the file at `path` on stable storage, or that it is gone.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_takes_the_place_of_the_one_before_whole_and_an_empty_one_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note");
        clear(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&path), None);
        write(&path, "stopped").unwrap();
        let other = dir.path().join("other");
        std::fs::hard_link(&path, &other).unwrap();
        write(&path, "work@5").unwrap();
        assert_eq!(read(&other).as_deref(), Some("stopped"), "it was written over");
        assert_eq!(read(&path).as_deref(), Some("work@5"));
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 2, "nothing else is left there");
        clear(&path).unwrap();
        assert_eq!(read(&path), None);
    }
}
