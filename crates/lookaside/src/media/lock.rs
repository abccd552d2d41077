//! One command at a time changes a medium: what another one has written and not yet recorded is needed by nothing that
//! its records name, and would be deleted.

use super::DIRECTORY;
use block::{Error, Result};
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A medium that is being changed. The lock is the kernel's, on the directory of the medium: nothing of it is on the
/// medium, and it ends with the process.
#[derive(Debug)]
pub(super) struct MediaLock {
    /// `None` where the file system has no locks for directories, as some network file systems.
    directory: Option<File>,
}

impl MediaLock {
    /// Takes the medium at `place`, whose directory is there.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when it is being changed already; the system's when its directory
    /// cannot be opened.
    pub(super) fn take(place: &Path) -> Result<Self> {
        let path = place.join(DIRECTORY);
        let failed = |e| Error::io(path.display(), e);
        let directory = File::open(&path).map_err(failed)?;
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(is_being_changed(place)),
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path = %path.display(), "changed without a lock");
                return Ok(Self { directory: None });
            }
        }
        let lock = Self { directory: Some(directory) };
        // Who had it may have deleted the medium, and another one may have been made.
        let there = std::fs::symlink_metadata(&path).map_err(failed)?;
        let own = lock.directory.as_ref().map(File::metadata).transpose().map_err(failed)?;
        match own.is_some_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino())) {
            true => Ok(lock),
            false => Err(is_being_changed(place)),
        }
    }
}

impl Drop for MediaLock {
    fn drop(&mut self) {
        // Closing is not enough: the child of a fork has the same open file until its exec.
        if let Some(directory) = &self.directory {
            let _ = directory.unlock();
        }
    }
}

fn is_being_changed(place: &Path) -> Error {
    Error::conflict(format!(
        "the medium at {} is being changed by another command; wait for that, and try again",
        place.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn a_medium_is_changed_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
        let lock = MediaLock::take(dir.path()).unwrap();
        let error = MediaLock::take(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        drop(lock);
        drop(MediaLock::take(dir.path()).unwrap());
    }

    #[test]
    fn a_lock_that_was_dropped_is_free_though_a_child_of_a_fork_still_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
        let lock = MediaLock::take(dir.path()).unwrap();
        let childs = lock.directory.as_ref().unwrap().try_clone().unwrap();
        drop(lock);
        drop(MediaLock::take(dir.path()).unwrap());
        drop(childs);
    }
}
