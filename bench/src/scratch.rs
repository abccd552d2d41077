//! The directory that a run puts its files into: whether there is room, and what killed runs left.

use anyhow::{Context, Result, ensure};
use block::ByteSize;
use rustix::fs::{FlockOperation, flock, statvfs};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const PREFIX: &str = "sojourn-bench-";
/// Locked while its run lives.
const LOCK: &str = "lock";

/// A directory of this run's own. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct Scratch {
    // Dropped first: what is not locked is anybody's to delete.
    dir: TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes one in `parent`, after what killed runs left there was deleted.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn make(parent: &Path) -> Result<Self> {
        for left in left_over(parent) {
            eprintln!("deleting {}, which a run that was killed left", left.display());
            // A file system that was mounted for a server holds what lies in it.
            let _ = Command::new("umount").arg("-lq").arg(left.join("mounted")).output();
            fs::remove_dir_all(&left)
                .with_context(|| format!("cannot delete {}", left.display()))?;
        }
        let dir =
            tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).with_context(|| {
                format!(
                    "cannot make a directory in {}; choose another with --dir",
                    parent.display()
                )
            })?;
        let lock = File::create(dir.path().join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { dir, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Refuses a run that needs more room than its file system has.
    ///
    /// # Errors
    /// When there is less than `bytes` bytes.
    pub(crate) fn must_hold(&self, bytes: u64) -> Result<()> {
        let found = statvfs(self.path())?;
        let free = found.f_bavail * found.f_frsize;
        ensure!(
            free >= bytes,
            "this run needs up to {} in {}, and {} are free; make room, choose another place with --dir, or a \
             smaller disk with --size",
            ByteSize(bytes),
            self.path().display(),
            ByteSize(free)
        );
        Ok(())
    }
}

/// Directories of runs that ended without deleting them.
fn left_over(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let ended = |path: &PathBuf| {
        let lock = File::open(path.join(LOCK));
        lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
    };
    ours.map(|entry| entry.path()).filter(ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_deleted_and_no_run_that_lives() {
        let parent = tempfile::tempdir().unwrap();
        let lives = Scratch::make(parent.path()).unwrap();
        let (killed, lock) = {
            let scratch = Scratch::make(parent.path()).unwrap();
            let Scratch { dir, _lock } = scratch;
            (dir.keep(), _lock)
        };
        drop(lock);
        fs::write(killed.join("disk"), "left").unwrap();
        let other = parent.path().join("sojourn-bench-of-somebody");
        fs::create_dir(&other).unwrap();
        let new = Scratch::make(parent.path()).unwrap();
        assert!(!killed.exists());
        assert!(lives.path().exists() && new.path().exists() && other.exists());
    }

    #[test]
    fn a_run_without_room_is_refused_before_it_begins() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(parent.path()).unwrap();
        scratch.must_hold(1).unwrap();
        let refused = scratch.must_hold(u64::MAX).unwrap_err().to_string();
        assert!(refused.contains("are free") && refused.contains("--dir"), "{refused}");
    }
}
