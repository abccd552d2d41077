//! Locks that keep two programs from using the same disk image or block device at once.
//!
//! This is the only place that knows the protocol. Every image and device of others that we open
//! goes through [`lock`] before its first byte is read; the lock lives as long as the open file.
//!
//! # The protocol
//! Two kinds of lock are taken, since programs look at one or the other:
//!
//! - `flock(2)` on the whole file: other processes of ours, and the tools of util-linux. Shared to read,
//!   exclusive otherwise. Not on block devices: udev has it there for a moment whenever a device
//!   appears, and `O_EXCL` says more.
//! - QEMU's byte ranges (`block/file-posix.c`, `RAW_LOCK_PERM_BASE`, `RAW_LOCK_SHARED_BASE`), as read
//!   locks of the open file description (`F_OFD_SETLK`). Byte 100 + *n* says "I use permission *n*",
//!   byte 200 + *n* says "I do not let others use permission *n*". The permissions are 0 consistent
//!   read, 1 write, 2 write unchanged, 3 resize. Whoever wants permission *n* first locks its own
//!   bytes, then asks whether anybody else holds byte 200 + *n*, and, for everything that it denies
//!   to others, byte 100 + *n*. Nobody waits.
//!
//! | [`Usage`] | uses | denies | conflicts with |
//! |---|---|---|---|
//! | [`Read`](Usage::Read) | read | write, resize | writers |
//! | [`Write`](Usage::Write) | read, write, resize | write, resize | readers and writers |
//! | [`Exclusive`](Usage::Exclusive) | read, write, resize | all | everybody who holds any range |
//! | [`Around`](Usage::Around) | write | nothing | everybody but another `Around` |
//!
//! QEMU opens an image for a guest in the way of `Read` or `Write`, so readers of both kinds go
//! together and a writer is alone. Its `share-rw=on` denies nothing: two writers who both say so
//! are their own business, but we never share with one.
//!
//! A kernel that mounts, or swaps to, a block device takes no such lock: that is what `O_EXCL` finds
//! ([`open_device`]).

mod ofd;

use crate::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// What the holder of a lock does with an image or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Reads it, and relies on nobody changing it.
    Read,
    /// Reads and writes it.
    Write,
    /// Writes to it, and lets nobody use it in any way.
    Exclusive,
    /// Writes to a device that is a part of it, such as a partition; others may write to other parts.
    Around,
}

/// The first byte of the permissions in use, and of those denied to others.
const USES: u64 = 100;
const DENIES: u64 = 200;

/// QEMU's permissions, by number.
const READ: u64 = 0;
const WRITE: u64 = 1;
const WRITE_UNCHANGED: u64 = 2;
const RESIZE: u64 = 3;
const PERMISSIONS: u64 = 4;

impl Usage {
    const fn uses(self) -> &'static [u64] {
        match self {
            Self::Read => &[READ],
            Self::Write | Self::Exclusive => &[READ, WRITE, RESIZE],
            Self::Around => &[WRITE],
        }
    }

    const fn denies(self) -> &'static [u64] {
        match self {
            Self::Read | Self::Write => &[WRITE, RESIZE],
            Self::Exclusive => &[READ, WRITE, WRITE_UNCHANGED, RESIZE],
            Self::Around => &[],
        }
    }

    /// The ranges of bytes that nobody else may have locked: where they start, and how long they are;
    /// 0 is up to the end of all files.
    fn forbidden(self) -> Vec<(u64, u64)> {
        match self {
            Self::Read | Self::Write => {
                let denied = self.uses().iter().map(|permission| DENIES + permission);
                let used = self.denies().iter().map(|permission| USES + permission);
                denied.chain(used).map(|byte| (byte, 1)).collect()
            }
            Self::Exclusive => vec![(0, 0)],
            Self::Around => {
                let used = (0..PERMISSIONS).filter(|n| *n != WRITE).map(|n| (USES + n, 1));
                used.chain([(DENIES, PERMISSIONS)]).collect()
            }
        }
    }
}

/// An open image file or block device whose lock is given back when the last clone is dropped.
///
/// Closing the file alone would not do: a child process that is just being started has a duplicate
/// of every open file until it executes its program, and the lock lives as long as that.
#[derive(Debug, Clone)]
pub struct LockedFile(Arc<UnlockedOnDrop>);

#[derive(Debug)]
struct UnlockedOnDrop(File);

impl LockedFile {
    /// Takes over a file; whether it is locked yet does not matter.
    pub fn new(file: File) -> Self {
        Self(Arc::new(UnlockedOnDrop(file)))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0.0
    }
}

impl Drop for UnlockedOnDrop {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

/// Locks an open image file or block device, named `path` in messages, without waiting. The lock
/// lives until every duplicate of `file` is closed, or [`unlock`] is called.
///
/// # Errors
/// [`Conflict`](crate::ErrorKind::Conflict) when another program has it;
/// [`Unsupported`](crate::ErrorKind::Unsupported) on a file system without locks, where nothing
/// protects an image; [`Unavailable`](crate::ErrorKind::Unavailable) when asking fails.
pub fn lock(file: &File, path: &Path, usage: Usage) -> Result<()> {
    let locked = whole(file, path, usage).and_then(|()| ranges(file, path, usage));
    if locked.is_err() {
        unlock(file);
    }
    locked
}

/// Gives a lock back at once, even if a child process that is being started still has a duplicate
/// of `file`.
pub fn unlock(file: &File) {
    let _ = ofd::unlock(file);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Opens a block device that nobody has exclusively: that is not mounted, not active swap space, not
/// part of a larger device. A writer holds it exclusively as long as the file is open; readers
/// do not, since there may be several.
///
/// # Errors
/// [`Conflict`](crate::ErrorKind::Conflict) when somebody has it; any error from opening.
pub fn open_device(path: &Path, usage: Usage) -> Result<File> {
    // So many readers may look at the same moment before one of them is refused.
    const TRIES: usize = 100;
    let failed = |e: io::Error| match e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
        true => Error::conflict(format!(
            "{}: in use: mounted (perhaps elsewhere), active swap space, part of something larger, or \
             open in another program; stop that first",
            path.display()
        )),
        false => Error::io(path.display(), e),
    };
    let open = |flags: OFlags, write: bool| {
        let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
        File::options().read(true).write(write).custom_flags(flags).open(path).map_err(failed)
    };
    match usage {
        Usage::Write => open(OFlags::EXCL, true),
        Usage::Exclusive => open(OFlags::EXCL, false),
        Usage::Around => open(OFlags::empty(), false),
        Usage::Read => {
            let mut tried = open(OFlags::EXCL, false);
            for _ in 1..TRIES {
                match &tried {
                    Err(e) if e.kind() == crate::ErrorKind::Conflict => std::thread::yield_now(),
                    _ => break,
                }
                tried = open(OFlags::EXCL, false);
            }
            drop(tried?);
            open(OFlags::empty(), false)
        }
    }
}

/// Opens another description of an open file: the same file, wherever its path leads by now.
///
/// # Errors
/// Any error from opening.
pub fn open_again(file: &File, flags: OFlags) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?))
}

fn whole(file: &File, path: &Path, usage: Usage) -> Result<()> {
    let is_device = file.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    let operation = match usage {
        _ if is_device => return Ok(()),
        Usage::Read => FlockOperation::NonBlockingLockShared,
        Usage::Write | Usage::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Usage::Around => return Ok(()),
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(taken(path, "in use by another process")),
        Err(e) => Err(failed(path, &e.into())),
    }
}

fn ranges(file: &File, path: &Path, usage: Usage) -> Result<()> {
    let own = usage.uses().iter().map(|n| USES + n);
    for byte in own.chain(usage.denies().iter().map(|n| DENIES + n)) {
        match ofd::share(file, byte) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(taken(path, "locked by another program"));
            }
            Err(e) => return Err(failed(path, &e)),
        }
    }
    // Looked at only now: of two who come at once, at least one sees the other.
    for (start, len) in usage.forbidden() {
        if ofd::is_locked(file, start, len).map_err(|e| failed(path, &e))? {
            return Err(taken(path, "in use by QEMU or another program that locks as QEMU does"));
        }
    }
    Ok(())
}

fn taken(path: &Path, how: &str) -> Error {
    Error::conflict(format!("{}: {how}; stop that first", path.display()))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let without = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL];
    if without.iter().any(|e| error.raw_os_error() == Some(e.raw_os_error())) {
        return Error::unsupported(format!("{}: its file system has no locks", path.display()));
    }
    Error::unavailable(format!("{}: cannot be locked: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn readers_go_together_and_a_writer_is_alone() {
        use Usage::{Around, Exclusive, Read, Write};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap();
        let open = || File::open(&path).unwrap();
        for (first, second, together) in [
            (Read, Read, true),
            (Read, Write, false),
            (Write, Write, false),
            (Read, Exclusive, false),
            (Write, Exclusive, false),
            (Exclusive, Exclusive, false),
            (Around, Around, true),
            (Around, Read, false),
            (Around, Write, false),
            (Around, Exclusive, false),
        ] {
            for (first, second) in [(first, second), (second, first)] {
                let (one, other) = (open(), open());
                lock(&one, &path, first).unwrap();
                let outcome = lock(&other, &path, second).map_err(|e| e.kind());
                let expected = if together { Ok(()) } else { Err(ErrorKind::Conflict) };
                assert_eq!(outcome, expected, "{second:?} beside {first:?}");
                // Who was refused holds nothing.
                unlock(&one);
                assert!(lock(&open(), &path, Exclusive).is_ok() != together, "{second:?}");
            }
        }
    }

    #[test]
    fn a_lock_is_given_back_although_a_child_that_is_started_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap();
        let file = LockedFile::new(File::options().read(true).write(true).open(&path).unwrap());
        lock(&file, &path, Usage::Write).unwrap();
        // What a child has between fork and exec.
        let _of_child = file.try_clone().unwrap();
        let still_used = file.clone();
        drop(file);
        let again = File::open(&path).unwrap();
        assert_eq!(lock(&again, &path, Usage::Read).unwrap_err().kind(), ErrorKind::Conflict);
        drop(still_used);
        lock(&again, &path, Usage::Read).unwrap();
    }

    #[test]
    fn a_lock_on_any_byte_keeps_an_exclusive_user_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap();
        let other = File::open(&path).unwrap();
        ofd::share(&other, 7_000_000).unwrap();
        let ours = File::open(&path).unwrap();
        assert_eq!(lock(&ours, &path, Usage::Exclusive).unwrap_err().kind(), ErrorKind::Conflict);
        assert!(lock(&ours, &path, Usage::Write).is_ok(), "that byte means nothing to a writer");
    }
}
