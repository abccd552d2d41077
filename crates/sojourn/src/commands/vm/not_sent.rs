//! Why nothing sends a suspension that is kept here, and nothing is to unless somebody asks for it.
//!
//! It is a file: the word `stopped` when somebody had the sending end, else the exit code of what failed in a line, and
//! why in words. An empty one says nothing.

use super::note;
use block::{Error, ErrorKind, Result};
use std::path::Path;

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
    /// Any error from the file system.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = match self {
            Self::Stopped => STOPPED.to_owned(),
            Self::GivenUp(why) => format!("{}\n{}", why.kind().exit_code(), why.message()),
        };
        note::write(path, &text)
    }

    /// What the file at `path` says; `None` when there is none.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = note::read(path)?;
        if text == STOPPED {
            return Some(Self::Stopped);
        }
        let parts = text.split_once('\n').and_then(|(code, why)| Some((code.parse().ok()?, why)));
        Some(Self::GivenUp(match parts {
            Some((code, why)) => Error::new(ErrorKind::of_exit_code(code), why),
            // An earlier build wrote no code.
            None => Error::conflict(text),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kept_a_suspension_from_the_store_is_read_back_with_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not-sent");
        assert!(NotSent::read(&path).is_none());
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
        std::fs::write(&path, "").unwrap();
        assert!(NotSent::read(&path).is_none(), "nobody had anything end");
    }
}
