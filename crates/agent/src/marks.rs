//! Wishes that outlive the process, an empty file each: those for a disk are named like it, in a directory of
//! the home.

use block::{Error, Result};
use engine::Home;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

/// What a disk is to be given up for, once that is possible, or to be done for it from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskMark {
    /// It is given up when everything is in the store.
    Detaching,
    /// Everything that it stands on comes here.
    Hoarding,
}

impl DiskMark {
    fn path(self, home: &Home, disk: &str) -> PathBuf {
        let dir = match self {
            Self::Detaching => "detaching",
            Self::Hoarding => "hoarding",
        };
        home.dir().join(dir).join(disk)
    }

    /// Whether it is set for a disk.
    pub(crate) fn is_set(self, home: &Home, disk: &str) -> bool {
        self.path(home, disk).exists()
    }

    /// Sets it, or takes it away.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn set(self, home: &Home, disk: &str, set: bool) -> Result<()> {
        put(home, &self.path(home, disk), set)
    }
}

/// Whether nothing is to go up to the home's store.
pub(crate) fn is_paused(home: &Home) -> bool {
    paused(home).exists()
}

/// Has nothing go up, or everything again.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn set_paused(home: &Home, set: bool) -> Result<()> {
    put(home, &paused(home), set)
}

/// Whether the process that looks after the disks, if one runs, has not read what counts from its start on.
pub(crate) fn wants_restart(home: &Home) -> bool {
    restart_wanted(home).exists()
}

/// Notes that it has not, or that the next one begins.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn set_wants_restart(home: &Home, set: bool) -> Result<()> {
    put(home, &restart_wanted(home), set)
}

fn restart_wanted(home: &Home) -> PathBuf {
    home.dir().join("restart-wanted")
}

fn paused(home: &Home) -> PathBuf {
    home.dir().join("paused")
}

fn put(home: &Home, path: &Path, set: bool) -> Result<()> {
    let dir = path.parent().unwrap_or(path);
    let done = match set {
        true => std::fs::create_dir_all(dir).and_then(|()| std::fs::write(path, "")),
        false => std::fs::remove_file(path),
    };
    match done {
        Err(e) if set || e.kind() != IoKind::NotFound => Err(Error::io(path.display(), e)),
        Err(_) => Ok(()),
        Ok(()) => block::file::sync_directory(dir)
            // The first mark makes its directory.
            .and_then(|()| block::file::sync_directory(home.dir())),
    }
}
