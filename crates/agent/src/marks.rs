//! Wishes that outlive the process: an empty file each, named like the disk, in a directory of the home.

use block::{Error, Result};
use engine::Home;
use std::io::ErrorKind as IoKind;
use std::path::PathBuf;

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
    /// Those of the file system.
    pub(crate) fn set(self, home: &Home, disk: &str, set: bool) -> Result<()> {
        let path = self.path(home, disk);
        let dir = path.parent().unwrap_or(&path);
        let done = match set {
            true => std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, "")),
            false => std::fs::remove_file(&path),
        };
        match done {
            Err(e) if set || e.kind() != IoKind::NotFound => Err(Error::io(path.display(), e)),
            Err(_) => Ok(()),
            Ok(()) => block::file::sync_directory(dir),
        }
    }
}
