//! One process has a disk open at a time.

use block::fs::FsPath;
use block::lock::{LockFile, Taking};
use block::{Error, Result};

/// Takes the lock of the directory of the disk `name`.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict), naming the process, when another one has it.
pub(crate) fn take(directory: &FsPath, name: &str) -> Result<LockFile> {
    match LockFile::take(directory.join("lock"))? {
        Taking::Ours(lock) => Ok(lock),
        Taking::Held(holder) => Err(Error::conflict(format!(
            "disk {name:?} is in use by {holder}; stop it, or ask it to do this"
        ))),
        Taking::Replaced => Err(Error::conflict(format!(
            "disk {name:?} was removed or replaced just now; see 'sojourn disk list'"
        ))),
    }
}
