//! Which disks of a home are to be block devices of this machine: a file for each disk, with the device's path.
//! It outlives restarts, so that whoever looks after the disks brings the devices up again.

use crate::Home;
use block::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The longest path of a device.
const LONGEST: u64 = 64;
/// What the name of the file ends with that the keeper of a device holds locked.
const KEEPER: &str = ".keeper";

fn directory(home: &Home) -> PathBuf {
    home.dir().join("devices")
}

/// The device that a disk is to be.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for what is no name of a disk; any error from the file system.
pub fn of(home: &Home, disk: &str) -> Result<Option<String>> {
    store::check_name("disk", disk)?;
    let path = directory(home).join(disk);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(e) if e.kind() == IoKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path.display(), e)),
    }
}

/// All disks that are to be devices, with these, by name.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
pub fn all(home: &Home) -> Result<Vec<(String, String)>> {
    let dir = directory(home);
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == IoKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(dir.display(), e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(dir.display(), e))?.file_name();
        let is_disk = |name: &&str| store::check_name("disk", name).is_ok();
        let Some(disk) = name.to_str().filter(is_disk) else { continue };
        found.extend(of(home, disk)?.map(|device| (disk.to_owned(), device)));
    }
    found.sort();
    Ok(found)
}

/// Says which device a disk is to be, or that it is to be none.
///
/// # Errors
/// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
/// [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
pub fn set(home: &Home, disk: &str, device: Option<&str>) -> Result<()> {
    let dir = directory(home);
    let path = dir.join(disk);
    let write = |device: &str| {
        std::fs::create_dir_all(&dir)?;
        let fresh = dir.join(format!(".{disk}.new"));
        let mut file = File::create(&fresh)?;
        file.write_all(device.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)
    };
    let done = match device {
        Some(device) => write(device),
        None => std::fs::remove_file(&path),
    };
    match done {
        Err(e) if device.is_none() && e.kind() == IoKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(path.display(), e)),
        Ok(()) => block::file::sync_directory(&dir)
            // The first one makes it.
            .and_then(|()| block::file::sync_directory(home.dir())),
    }
}

/// Refuses to change what a disk holds below a block device, also while its keeper is between two
/// connections: the kernel has part of the old content in memory, and would write it into the new one.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the disk is to be a device; any error from the file system.
pub fn must_be_none(home: &Home, disk: &str) -> Result<()> {
    match of(home, disk)? {
        None => Ok(()),
        Some(device) => Err(Error::conflict(format!(
            "{device} is disk {disk} as it is; give it up first: umount it, then `sojourn detach {disk}`"
        ))),
    }
}

/// The lock that the keeper of a disk's device has as long as it lives, given back on drop.
#[derive(Debug)]
pub struct KeeperLock(Option<File>);

impl KeeperLock {
    /// What the keeper has to hold open: it is locked until it closes that, or ends.
    pub fn pass(mut self) -> Option<OwnedFd> {
        self.0.take().map(OwnedFd::from)
    }
}

impl Drop for KeeperLock {
    fn drop(&mut self) {
        // Closing is not enough: the child of a fork has the same open file until its exec.
        let _ = self.0.as_ref().map(File::unlock);
    }
}

/// The lock of the keeper of a disk's device, taken now; `None` when there is a keeper.
///
/// # Errors
/// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
/// [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
pub fn lock_keeper(home: &Home, disk: &str) -> Result<Option<KeeperLock>> {
    let dir = directory(home);
    let path = dir.join(format!(".{disk}{KEEPER}"));
    let failed = |e| Error::io(path.display(), e);
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(KeeperLock(Some(file)))),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(e)) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_remembered_and_have_one_keeper_each() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        assert_eq!((of(&home, "alice").unwrap(), all(&home).unwrap().len()), (None, 0));
        set(&home, "bob", Some("/dev/nbd1")).unwrap();
        set(&home, "alice", Some("/dev/nbd0")).unwrap();
        let keeper = lock_keeper(&home, "alice").unwrap();
        assert!(keeper.is_some() && lock_keeper(&home, "alice").unwrap().is_none());
        assert!(lock_keeper(&home, "bob").unwrap().is_some());
        let both = [("alice", "/dev/nbd0"), ("bob", "/dev/nbd1")];
        assert_eq!(all(&home).unwrap(), both.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(of(&home, "../alice").unwrap_err().kind(), block::ErrorKind::Invalid);
        let refused = must_be_none(&home, "alice").unwrap_err();
        assert_eq!(refused.kind(), block::ErrorKind::Conflict);
        assert!(refused.message().contains("/dev/nbd0"), "{refused}");
        set(&home, "alice", None).unwrap();
        set(&home, "alice", None).unwrap();
        must_be_none(&home, "alice").unwrap();
        assert_eq!(of(&home, "alice").unwrap(), None);
        drop(keeper);
        assert!(lock_keeper(&home, "alice").unwrap().is_some());
    }
}
