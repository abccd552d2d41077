//! Room of a file system that is kept for what must be written even when there is none left: a file
//! of nothing, which is given up then.
//!
//! Maps, leases, pins and the records that say that something was removed are small. Without them
//! nothing can be freed, and what was answered cannot be kept: who has filled a file system could not
//! even empty it.

use crate::fs::FsPath;
use crate::{Error, ErrorKind, Result, Span};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The smallest and the largest reserve, in bytes; in between it is this part of the file system.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 16 << 20;
const PART: u64 = 64;
/// What is written at once where room cannot be reserved.
const PIECE: usize = 64 << 10;

/// The size of a file system and what this process may still use of it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// The size; 0 where there is no limit.
    pub total: u64,
    /// What is left for this user.
    pub available: u64,
}

impl Volume {
    /// That of the file system which `path` is on. Waits for the file system.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) or [`Denied`](ErrorKind::Denied), naming the path;
    /// [`Unavailable`](ErrorKind::Unavailable) when the file system does not answer.
    pub fn of(path: &Path) -> Result<Self> {
        let found = rustix::fs::statvfs(path).map_err(|e| Error::io(path.display(), e.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { total: bytes(found.f_blocks), available: bytes(found.f_bavail) })
    }

    /// Whether there is any number of bytes, as far as the file system says.
    pub fn is_unlimited(&self) -> bool {
        self.total == 0
    }

    /// How much of it a [`Reserve`] takes, in bytes.
    pub fn reserve(&self) -> u64 {
        (self.total / PART).clamp(LEAST, MOST)
    }
}

/// Room that is kept by a file. Processes may share it.
#[derive(Debug)]
pub struct Reserve {
    /// None on a file system that is not this process's own: there is no room to keep.
    path: Option<PathBuf>,
    /// The file was whole when it was looked at last.
    kept: AtomicBool,
}

impl Reserve {
    /// The reserve in the file `path`, in a directory that exists by the time it is used. Nothing is
    /// done yet.
    pub fn new(path: &FsPath) -> Self {
        let path = path.of_system().map(Path::to_owned);
        Self { kept: AtomicBool::new(path.is_none()), path }
    }

    /// Makes sure that the room is kept: a look at the file, or making it. `false` when there is not
    /// enough left for it. Waits for the file system.
    ///
    /// # Errors
    /// Any error from the file system, when it cannot be made for another reason.
    pub fn keep(&self) -> Result<bool> {
        let Some(path) = &self.path else { return Ok(true) };
        let kept = try_keep(path)?;
        self.kept.store(kept, Ordering::Release);
        Ok(kept)
    }

    /// Whether the room was kept when this process looked last; asks nobody.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// Gives the room up, for what must be written now. `false` when there was none to give up. Waits
    /// for the file system.
    pub fn give_up(&self) -> bool {
        let Some(path) = &self.path else { return false };
        self.kept.store(false, Ordering::Release);
        remove(path)
    }

    /// Does what must be done with the reserve's room, if there is no other. Waits for the file
    /// system.
    ///
    /// # Errors
    /// Any error from `work`.
    pub fn spend<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(e) if e.kind() == ErrorKind::NoSpace && self.give_up() => work(),
            other => other,
        }
    }
}

/// Gives the room of a file back, and removes it; whether it had some.
fn remove(path: &Path) -> bool {
    // First its blocks: they are free when this returns, whoever else has the file open.
    let emptied = OpenOptions::new().write(true).open(path).and_then(|file| {
        let had = file.metadata()?.blocks() > 0;
        file.set_len(0)?;
        Ok(had)
    });
    let _ = std::fs::remove_file(path);
    emptied.unwrap_or(false)
}

fn try_keep(path: &Path) -> Result<bool> {
    let failed = |e| Error::io(path.display(), e);
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let volume = Volume::of(above.unwrap_or(Path::new(".")))?;
    let bytes = volume.reserve();
    match std::fs::metadata(path) {
        Ok(found) if found.blocks() * 512 >= bytes => return Ok(true),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    // Others are to have some, too.
    if !volume.is_unlimited() && volume.available < 2 * bytes {
        return Ok(false);
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(failed)?;
    match take(&file, bytes).map_err(failed) {
        Ok(()) => Ok(true),
        Err(error) => {
            remove(path);
            if error.kind() == ErrorKind::NoSpace { Ok(false) } else { Err(error) }
        }
    }
}

/// Takes the room for the first `bytes` of a file.
fn take(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(file, bytes),
        other => other.map_err(Into::into),
    }
}

/// The same where the file system cannot reserve room. Not zeroes, and not alike: it might keep little
/// of those.
fn fill(file: &File, bytes: u64) -> std::io::Result<()> {
    let mut piece = [0; PIECE];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for part in Span::whole(bytes).pieces(PIECE as u64) {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all_at(&piece[..part.len() as usize], part.offset())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_takes_room_until_it_is_given_up_and_can_be_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve = Reserve::new(&FsPath::from(&path));
        assert!(!reserve.is_kept() && !reserve.give_up());
        for _ in 0..2 {
            assert!(reserve.keep().unwrap() && reserve.is_kept() && reserve.keep().unwrap());
            let volume = Volume::of(dir.path()).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert!(found.blocks() * 512 >= volume.reserve());
            assert_eq!(found.mode() & 0o777, 0o600);
            assert!(reserve.give_up());
            assert!(!path.exists() && !reserve.is_kept());
        }
    }

    #[test]
    fn only_what_finds_no_room_is_done_again_without_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve = Reserve::new(&FsPath::from(&path));
        assert!(reserve.keep().unwrap());
        let work = || if path.exists() { Err(Error::no_space("full")) } else { Ok(7) };
        let other = || Err::<(), _>(Error::unavailable("gone"));
        assert_eq!(reserve.spend(other).unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(path.exists());
        assert_eq!(reserve.spend(work).unwrap(), 7);
        let full = || Err::<(), _>(Error::no_space("full"));
        assert_eq!(reserve.spend(full).unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn room_is_taken_where_it_cannot_be_reserved() {
        let file = tempfile::tempfile().unwrap();
        let bytes = 3 * PIECE as u64 + 5;
        fill(&file, bytes).unwrap();
        let found = file.metadata().unwrap();
        assert!(found.len() == bytes && found.blocks() * 512 >= bytes);
    }

    #[test]
    fn the_reserve_is_a_small_part_of_the_file_system() {
        let of = |total| Volume { total, available: 0 }.reserve();
        assert_eq!(of(0), LEAST);
        assert_eq!(of(400 << 20), (400 << 20) / 64);
        assert_eq!(of(1 << 50), MOST);
    }
}
