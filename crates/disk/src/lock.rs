//! One process has a disk open at a time.

use block::{Error, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The lock of a disk's directory; the kernel drops it with the file, also when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the disk `name`.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict), naming the process, when another one has it.
    pub(crate) fn take(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join("lock");
        let failed = |e| Error::io(path.display(), e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = Read::by_ref(&mut file).take(20).read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    pid => format!("process {pid}"),
                };
                return Err(Error::conflict(format!(
                    "disk {name:?} is in use by {holder}; stop it, or ask it to do this"
                )));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Who had it may have removed the disk, and another may have made a new one in its place.
        let same = std::fs::metadata(&path)
            .and_then(|there| {
                file.metadata().map(|here| (there.dev(), there.ino()) == (here.dev(), here.ino()))
            })
            .unwrap_or(false);
        if !same {
            return Err(Error::conflict(format!(
                "disk {name:?} was removed or replaced just now; see 'sojourn disk list'"
            )));
        }
        // For the message of the next one; a disk can be used without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(Self { _file: file })
    }
}
