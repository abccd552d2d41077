//! A lock file that names the process which holds it.

use crate::{Error, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A held lock, given back on drop. The kernel drops it with the file when the process dies.
#[derive(Debug)]
pub struct LockFile {
    file: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing is not enough: the child of a fork has the same open file until its exec.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum Taking {
    /// It is ours.
    Ours(LockFile),
    /// Another process has it: its number, as text for a message.
    Held(String),
    /// The file was removed or replaced while we took it, so the lock is worth nothing.
    Replaced,
}

impl LockFile {
    /// Takes the lock of the file at `path`, which is made if need be, without waiting.
    ///
    /// # Errors
    /// Those of the file system, naming the path.
    pub fn take(path: &Path) -> Result<Taking> {
        let failed = |e| Error::io(path.display(), e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = Read::by_ref(&mut file).take(20).read_to_string(&mut holder);
                return Ok(Taking::Held(match holder.trim() {
                    "" => "another process".to_owned(),
                    pid => format!("process {pid}"),
                }));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Who had it may have removed the file, and another may have made a new one in its place.
        let there = std::fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
        let here = file.metadata().map_err(failed)?;
        if there != Some((here.dev(), here.ino())) {
            return Ok(Taking::Replaced);
        }
        // For the message of the next one; the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0))
            .and_then(|()| file.flush());
        Ok(Taking::Ours(Self { file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_the_holder_until_the_lock_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let Taking::Ours(lock) = LockFile::take(&path).unwrap() else { panic!("not free") };
        let Taking::Held(holder) = LockFile::take(&path).unwrap() else { panic!("taken twice") };
        assert_eq!(holder, format!("process {}", std::process::id()));
        drop(lock);
        assert!(matches!(LockFile::take(&path).unwrap(), Taking::Ours(_)));
    }

    #[test]
    fn a_dropped_lock_is_free_though_a_child_of_a_fork_still_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let Taking::Ours(lock) = LockFile::take(&path).unwrap() else { panic!("not free") };
        let childs = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(matches!(LockFile::take(&path).unwrap(), Taking::Ours(_)));
        drop(childs);
    }
}
