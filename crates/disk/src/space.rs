//! Room in the file system of a home that the private blocks of its disks do not get.
//!
//! Guests fill what they are given. Without room for maps, records, leases and the marks of what was
//! removed, what they were answered could not be kept, and nothing could be removed either. So new
//! private blocks are refused while the file system has no more left than a sixteenth of its size, 256
//! MiB at the most. Whoever else fills it is not held up by that: against those a file keeps some room
//! too ([`Reserve`]), which is given up for what must be written.

use block::fs::FsPath;
use block::reserve::{Reserve, Volume};
use block::{ByteSize, Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is kept from guests: this part of the file system, and so many bytes at the most.
const PART: u64 = 16;
const MOST: u64 = 256 << 20;
/// Bytes that guests may take before the file system is asked again: others use it, too.
const GRANT: u64 = 64 << 20;
/// The reserve, in the directory of the disks.
const RESERVE: &str = ".reserve";

/// The room of a home, shared by its disks.
#[derive(Debug)]
pub(crate) struct HomeSpace {
    directory: FsPath,
    /// Bytes that may still be taken without asking.
    granted: AtomicU64,
    /// Held by who asks.
    asking: Mutex<()>,
    reserve: Reserve,
}

/// What guests may not have of a file system, in bytes.
fn kept(volume: &Volume) -> u64 {
    (volume.total / PART).min(MOST)
}

/// What they may still take of it.
fn left(volume: &Volume) -> u64 {
    match volume.is_unlimited() {
        true => u64::MAX,
        false => volume.available.saturating_sub(kept(volume)),
    }
}

impl HomeSpace {
    /// That of the disks in `directory`.
    pub(crate) fn new(directory: &FsPath) -> Self {
        Self {
            directory: directory.clone(),
            granted: AtomicU64::new(0),
            asking: Mutex::new(()),
            reserve: Reserve::new(&directory.join(RESERVE)),
        }
    }

    /// Counts `bytes` of new private blocks in.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when they would take what is kept.
    #[inline]
    pub(crate) fn take(&self, bytes: u64) -> Result<()> {
        if self.take_granted(bytes) { Ok(()) } else { self.ask(bytes) }
    }

    fn take_granted(&self, bytes: u64) -> bool {
        let take = |granted: u64| granted.checked_sub(bytes);
        self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    #[cold]
    fn ask(&self, bytes: u64) -> Result<()> {
        let _alone = self.asking.lock();
        if self.take_granted(bytes) {
            return Ok(());
        }
        let left = self.check(bytes)?;
        // Half of what is left at a time, so that the last of it is looked at closely.
        self.granted.store((left / 2).min(GRANT).saturating_sub(bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Refuses `bytes` of new private blocks that would take what is kept; else says how many there
    /// may be now. Waits for the file system.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace).
    pub(crate) fn check(&self, bytes: u64) -> Result<u64> {
        // Where nobody can say, the write itself finds out.
        let volume = self.directory.of_system().and_then(|path| Volume::of(path).ok());
        let Some(volume) = volume else { return Ok(bytes) };
        let left = left(&volume);
        if bytes <= left {
            return Ok(left);
        }
        Err(Error::no_space(format!(
            "{}: the file system has {} left, and the last {} are not for private blocks; free \
             some room, reset or remove disks, or collect garbage",
            self.directory.display(),
            ByteSize(volume.available),
            ByteSize(kept(&volume))
        )))
    }

    /// Keeps room for what must be written when there is none. Waits for the file system.
    ///
    /// # Errors
    /// Any error from [`Reserve::keep`].
    pub(crate) fn keep(&self) -> Result<bool> {
        self.reserve.keep()
    }

    /// Whether it was kept when this process looked last.
    pub(crate) fn is_kept(&self) -> bool {
        self.reserve.is_kept()
    }

    /// Gives the reserve up; whether there was one. Waits for the file system.
    pub(crate) fn give_up(&self) -> bool {
        self.reserve.give_up()
    }

    /// Does what must be done with the room of the reserve, if there is no other.
    ///
    /// # Errors
    /// Any error from `work`.
    pub(crate) fn spend<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        self.reserve.spend(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn the_last_sixteenth_of_a_file_system_is_kept_from_guests() {
        let of = |total, available| left(&Volume { total, available });
        assert_eq!(of(1600, 1600), 1500);
        assert_eq!(of(1600, 100), 0);
        assert_eq!(of(1600, 101), 1);
        assert_eq!(of(1 << 50, 1 << 40), (1 << 40) - MOST);
        assert_eq!(of(0, 0), u64::MAX);
    }

    #[test]
    fn what_was_granted_is_taken_without_asking_and_more_than_there_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let space = HomeSpace::new(&dir.path().into());
        space.take(4096).unwrap();
        let granted = space.granted.load(Ordering::Relaxed);
        space.take(4096).unwrap();
        assert_eq!(space.granted.load(Ordering::Relaxed), granted - 4096);
        let error = space.take(u64::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("not for private blocks"), "{error}");
        assert_eq!(space.granted.load(Ordering::Relaxed), granted - 4096);
    }
}
