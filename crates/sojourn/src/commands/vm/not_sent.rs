//! Why nothing sends a suspension that is kept here, and nothing is to unless somebody asks for it.
//!
//! It is a file: the word `stopped` when somebody had the sending end, else the exit code of what failed in a line, and
//! why in words. An empty one says nothing.

use block::{Error, ErrorKind, Result};
use std::fs::File;
use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// The longest text, in bytes.
const LONGEST: u64 = 4096;
/// What the file says when somebody had the sending end.
const STOPPED: &str = "stopped";

/// Why a suspension is not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    /// Somebody had that end.
    Stopped,
    /// It was given up for good.
    GivenUp(Error),
}

impl NotSent {
    /// Writes it into the file at `path`, which has it whole, or what it had before.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = match self {
            Self::Stopped => STOPPED.to_owned(),
            Self::GivenUp(why) => format!("{}\n{}", why.kind().exit_code(), why.message()),
        };
        let written = || {
            let mut file = NamedTempFile::new_in(directory(path))?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|e| e.error)?;
            sync_directory(path)
        };
        written().map_err(|e| Error::io(path.display(), e))
    }

    /// What the file at `path` says; `None` when there is none.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        match text.as_ref() {
            // Of an earlier build, whose disk may have been full: it is tried again.
            "" => return None,
            STOPPED => return Some(Self::Stopped),
            _ => {}
        }
        let parts = text.split_once('\n').and_then(|(code, why)| Some((code.parse().ok()?, why)));
        Some(Self::GivenUp(match parts {
            Some((code, why)) => Error::new(ErrorKind::of_exit_code(code), why),
            // An earlier build wrote no code.
            None => Error::conflict(text.into_owned()),
        }))
    }

    /// Removes the file at `path`, if it is there.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn clear(path: &Path) -> Result<()> {
        let removed = match std::fs::remove_file(path) {
            Err(e) if e.kind() == IoKind::NotFound => Ok(()),
            other => other.and_then(|()| sync_directory(path)),
        };
        removed.map_err(|e| Error::io(path.display(), e))
    }
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
        let path = dir.path().join("not-sent");
        std::fs::write(&path, "").unwrap();
        assert!(NotSent::read(&path).is_none(), "nobody had anything end");
        NotSent::Stopped.write(&path).unwrap();
        let other = dir.path().join("other");
        std::fs::hard_link(&path, &other).unwrap();
        NotSent::GivenUp(Error::fenced("another home has the machine")).write(&path).unwrap();
        assert!(matches!(NotSent::read(&other), Some(NotSent::Stopped)), "it was written over");
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 2, "nothing else is left there");
    }

    #[test]
    fn what_kept_a_suspension_from_the_store_is_read_back_with_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not-sent");
        assert!(NotSent::read(&path).is_none());
        NotSent::clear(&path).unwrap();
        NotSent::GivenUp(Error::fenced("another home\nhas the machine")).write(&path).unwrap();
        let Some(NotSent::GivenUp(why)) = NotSent::read(&path) else { panic!("nothing") };
        assert_eq!(
            (why.kind(), why.message()),
            (ErrorKind::Fenced, "another home\nhas the machine")
        );
        NotSent::Stopped.write(&path).unwrap();
        assert!(matches!(NotSent::read(&path), Some(NotSent::Stopped)));
        std::fs::write(&path, "the disk was written").unwrap();
        let Some(NotSent::GivenUp(why)) = NotSent::read(&path) else { panic!("nothing") };
        assert_eq!((why.kind(), why.message()), (ErrorKind::Conflict, "the disk was written"));
        NotSent::clear(&path).unwrap();
        assert!(NotSent::read(&path).is_none());
    }
}
