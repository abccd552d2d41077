//! The directory of all disks, and what a crash leaves in it.
//!
//! A disk is made in a directory `.new-NAME`, which then gets the disk's name, and removed in one that
//! lost it, `.gone-NAME`. Several processes may do so in one home: a server, and commands that began
//! before it did. The lock of the home, which a server has, says nothing of those. So whoever makes or
//! removes a disk shares a lock (`flock`) of this directory meanwhile, and whoever sweeps has it alone.

use block::fs::{File, FileType, FsPath, Open};
use block::lock::{LockFile, Taking};
use block::{Result, offload};
use std::io::ErrorKind;
use store::check_name;

/// What the name of a directory begins with in which a disk is being made.
const NEW: &str = ".new-";
/// And of one in which a disk is being removed.
const GONE: &str = ".gone-";

/// Where the disk `name` is being made.
pub(crate) fn new(home: &FsPath, name: &str) -> FsPath {
    home.join(format!("{NEW}{name}"))
}

/// Where the disk `name` is being removed.
pub(crate) fn gone(home: &FsPath, name: &str) -> FsPath {
    home.join(format!("{GONE}{name}"))
}

/// Makes the directory of all disks, and those above it that are missing; what was made survives a
/// power failure. Waits for the disk.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn make(home: &FsPath) -> Result<()> {
    make_synced(home, &FsPath::sync_directory)
}

fn make_synced(home: &FsPath, sync: &dyn Fn(&FsPath) -> Result<()>) -> Result<()> {
    let mut missing = Vec::new();
    let mut path = home.clone();
    // Above the root, and above a bare name's, is nothing.
    while path.parent().is_some() && !path.exists() {
        missing.push(path.clone());
        path = path.above();
    }
    if !missing.is_empty() && may_be_left(&path) {
        match sync(&path.above()) {
            // Who may not read what is above did not make this.
            Err(e) if e.kind() == block::ErrorKind::Denied => {}
            other => other?,
        }
    }
    // One after the other: what has something in it has a durable name.
    for path in missing.iter().rev() {
        match path.create_dir() {
            Err(_) if path.is_dir() => {}
            other => other.map_err(|e| path.error(e))?,
        }
        sync(&path.above())?;
    }
    Ok(())
}

/// Whether a process may have made the directory that was killed before its name was durable: then nothing
/// is in it, and it is no mount point.
fn may_be_left(path: &FsPath) -> bool {
    let device = |path: &FsPath| path.metadata().map(|found| found.identity.0).ok();
    path.read_dir().is_ok_and(|names| names.is_empty()) && device(path) == device(&path.above())
}

/// Puts the name of the directory of all disks on stable storage, whoever made it. Waits for the disk.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn sync_name(home: &FsPath) -> Result<()> {
    home.above().sync_directory()
}

/// Keeps the sweeping away while a disk is made or removed, until it is dropped. Waits for a sweeping
/// of one directory, and for the disk.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn at_work(home: &FsPath) -> Result<File> {
    let failed = |e| home.error(e);
    let directory = home.open(Open::READ).map_err(failed)?;
    directory.lock_shared().map_err(failed)?;
    Ok(directory)
}

/// Keeps those away that make or remove a disk; `None` when there is one at work.
fn alone(home: &FsPath) -> Result<Option<File>> {
    let failed = |e| home.error(e);
    let directory = home.open(Open::READ).map_err(failed)?;
    Ok(directory.try_lock().map_err(failed)?.then_some(directory))
}

/// Removes a directory with all that is in it, if it is there. Waits for the disk.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn remove_all(path: &FsPath) -> Result<()> {
    match path.remove_dir_all() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => {
            other.map_err(|e| path.error(e))?;
            // As `FsPath::remove_synced`.
            let _ = path.above().sync_directory();
            Ok(())
        }
    }
}

/// Removes what a crash left of disks that were being made or removed, unless somebody is making or
/// removing one right now. What is not removed is left for the next time, and an error is logged.
pub(crate) async fn sweep(home: &FsPath) {
    let at = home.clone();
    let found = match offload(move || leftovers(&at)).await {
        Ok(found) => found,
        Err(error) => {
            return tracing::warn!(%error, "cannot look for what interrupted removals left");
        }
    };
    // One after the other, so that whoever waits for this waits for one.
    for path in found {
        let (at, left) = (home.clone(), path.clone());
        match offload(move || sweep_one(&at, &left)).await {
            Ok(true) => tracing::info!(path = %path.display(), "removed what a crash left"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot remove what a crash left"),
        }
    }
}

/// The directories in a home whose names say that a disk is being made or removed there.
fn leftovers(home: &FsPath) -> Result<Vec<FsPath>> {
    let entries = match home.read_dir() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| home.error(e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let disk = entry.name.to_str().and_then(|n| n.strip_prefix(NEW).or(n.strip_prefix(GONE)));
        let named = disk.is_some_and(|disk| check_name("disk", disk).is_ok());
        if named && entry.kind == FileType::Directory {
            found.push(home.join(&entry.name));
        }
    }
    Ok(found)
}

/// Removes one of them; `false` when somebody is at work.
fn sweep_one(home: &FsPath, left: &FsPath) -> Result<bool> {
    let Some(_alone) = alone(home)? else { return Ok(false) };
    // Whoever was at work may have done it.
    if !left.exists() {
        return Ok(false);
    }
    // A server of an earlier version, whose successor this may be, has only the lock of the new disk.
    let _lock = match LockFile::take(left.join("lock"))? {
        Taking::Ours(lock) => lock,
        Taking::Held(_) | Taking::Replaced => return Ok(false),
    };
    remove_all(left)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_directory_that_was_made_has_its_name_synced_once() {
        let dir = tempfile::tempdir().unwrap();
        let home = FsPath::from(dir.path().join("home/disks"));
        let synced = RefCell::new(Vec::new());
        let sync = |path: &FsPath| {
            synced.borrow_mut().push(path.to_path_buf());
            path.sync_directory()
        };
        make_synced(&home, &sync).unwrap();
        // The directory was empty: it may be what another process left.
        let above = dir.path().parent().unwrap().to_owned();
        assert_eq!(synced.take(), [above, dir.path().to_owned(), dir.path().join("home")]);
        assert!(home.is_dir());
        make_synced(&home, &sync).unwrap();
        assert!(synced.take().is_empty(), "it was there");
        make_synced(&FsPath::from(dir.path().join("other")), &sync).unwrap();
        assert_eq!(synced.take(), [dir.path()], "something else is in there");
    }

    /// A home with what crashes left in it, and with what is none of that.
    fn left_by_a_crash() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for name in [".gone-a", ".new-b", "c", ".gone-.hidden", ".newer"] {
            fs::create_dir(home.path().join(name)).unwrap();
            fs::write(home.path().join(name).join("0001.data"), "private").unwrap();
        }
        fs::write(home.path().join(".server"), "id").unwrap();
        fs::write(home.path().join(".gone-file"), "").unwrap();
        home
    }

    fn names(home: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(home)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn sweeping_removes_what_a_crash_left_and_nothing_else() {
        let home = left_by_a_crash();
        sweep(&home.path().into()).await;
        assert_eq!(names(home.path()), [".gone-.hidden", ".gone-file", ".newer", ".server", "c"]);
        sweep(&home.path().join("not-there").into()).await;
    }

    #[tokio::test]
    async fn nothing_is_swept_while_somebody_makes_or_removes_a_disk() {
        let home = left_by_a_crash();
        let before = names(home.path());
        let (one, other) =
            (at_work(&home.path().into()).unwrap(), at_work(&home.path().into()).unwrap());
        sweep(&home.path().into()).await;
        assert_eq!(names(home.path()), before);
        drop(one);
        sweep(&home.path().into()).await;
        assert_eq!(names(home.path()), before);
        drop(other);
        sweep(&home.path().into()).await;
        assert!(names(home.path()).len() < before.len());
    }

    #[tokio::test]
    async fn a_disk_that_an_earlier_version_makes_is_not_swept() {
        let home = left_by_a_crash();
        let lock = crate::lock::take(&new(&home.path().into(), "b"), "b").unwrap();
        sweep(&home.path().into()).await;
        assert!(new(&home.path().into(), "b").exists() && !gone(&home.path().into(), "a").exists());
        drop(lock);
        sweep(&home.path().into()).await;
        assert!(!new(&home.path().into(), "b").exists());
    }
}
