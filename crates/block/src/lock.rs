//! A lock file that names the process which holds it.

use crate::Result;
use crate::fs::{File, FsPath, Open};

/// A held lock, given back on drop. The kernel drops it with the file when the process dies.
#[derive(Debug)]
pub struct LockFile {
    file: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing is not enough: the child of a fork has the same open file until its exec.
        let _ = self.file.unlock();
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
    /// Any error from the file system, naming the path.
    pub fn take(path: impl Into<FsPath>) -> Result<Taking> {
        let path = path.into();
        let failed = |e| path.error(e);
        let file = path.open(Open::IF_MISSING.private()).map_err(failed)?;
        if !file.try_lock().map_err(failed)? {
            let holder = file.read_to_end(0, 20).unwrap_or_default();
            return Ok(Taking::Held(match String::from_utf8_lossy(&holder).trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            }));
        }
        // Who had it may have removed the file, and another may have made a new one in its place.
        let there = path.metadata().ok().map(|there| there.identity);
        if there != Some(file.metadata().map_err(failed)?.identity) {
            return Ok(Taking::Replaced);
        }
        // For the message of the next one; the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
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
        use std::os::fd::AsFd;
        let childs = lock.file.as_fd().try_clone_to_owned().unwrap();
        drop(lock);
        assert!(matches!(LockFile::take(&path).unwrap(), Taking::Ours(_)));
        drop(childs);
    }
}
