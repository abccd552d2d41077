//! A path on a file system.

use super::{DirectoryEntry, File, FileSystem, FileType, Metadata, Open, System};
use crate::page_cache::PageCacheId;
use crate::{Error, Result};
use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// A path, and the file system that it is on. Cheap enough to clone where files are opened.
#[derive(Clone)]
pub struct FsPath {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
}

/// A file that is made and removed to change a directory. A store takes it for what a writer left.
const UNSYNCED: &str = "unsynced#0";

static SYSTEM: LazyLock<Arc<dyn FileSystem>> = LazyLock::new(|| Arc::new(System));

impl FsPath {
    /// A path on a file system that is not this process's own.
    pub fn on(fs: Arc<dyn FileSystem>, path: impl Into<PathBuf>) -> Self {
        Self { fs, path: path.into() }
    }

    /// The path for system calls; `None` when it is on a file system that is not this process's own.
    pub fn of_system(&self) -> Option<&Path> {
        Arc::ptr_eq(&self.fs, &SYSTEM).then_some(&*self.path)
    }

    fn with(&self, path: PathBuf) -> Self {
        Self { fs: Arc::clone(&self.fs), path }
    }

    /// The path `name` in this directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        self.with(self.path.join(name))
    }

    /// The directory that has the name at the end of this path; that of a bare name is `.`.
    #[must_use]
    pub fn above(&self) -> Self {
        match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => self.with(PathBuf::from(".")),
            Some(parent) => self.with(parent.to_owned()),
            None => self.clone(),
        }
    }

    /// The path with another extension.
    #[must_use]
    pub fn with_extension(&self, extension: &str) -> Self {
        self.with(self.path.with_extension(extension))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) or [`PermissionDenied`](io::ErrorKind::PermissionDenied);
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) and [`StorageFull`](io::ErrorKind::StorageFull) where
    /// `how` makes a file.
    pub fn open(&self, how: Open) -> io::Result<File> {
        self.fs.open(&self.path, how)
    }

    /// What is in this directory, in no order.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied) or
    /// [`NotADirectory`](io::ErrorKind::NotADirectory).
    pub fn read_dir(&self) -> io::Result<Vec<DirectoryEntry>> {
        self.fs.read_dir(&self.path)
    }

    /// What is known of it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), or [`PermissionDenied`](io::ErrorKind::PermissionDenied) when a
    /// directory above it may not be searched.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.fs.metadata(&self.path)
    }

    /// Whether there is something.
    ///
    /// # Errors
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) when a directory above it may not be searched;
    /// never [`NotFound`](io::ErrorKind::NotFound).
    pub fn try_exists(&self) -> io::Result<bool> {
        match self.metadata() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether there is something; `false` also when nobody can tell.
    pub fn exists(&self) -> bool {
        self.metadata().is_ok()
    }

    /// Whether there is a directory; `false` also when nobody can tell.
    pub fn is_dir(&self) -> bool {
        self.metadata().is_ok_and(|found| found.kind == FileType::Directory)
    }

    /// Renames it to `to`, which is on the same file system.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied), or
    /// [`CrossesDevices`](io::ErrorKind::CrossesDevices) when `to` is on another file system.
    pub fn rename(&self, to: &Self) -> io::Result<()> {
        self.fs.rename(&self.path, &to.path)
    }

    /// Renames the file to `to`, on the same file system.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when something has that name;
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied) or
    /// [`CrossesDevices`](io::ErrorKind::CrossesDevices).
    pub fn rename_new(&self, to: &Self) -> io::Result<()> {
        self.fs.rename_new(&self.path, &to.path)
    }

    /// Gives the file the name `to`, on the same file system. A file that has that name gets the name of
    /// this one, where the file system can do that, until [`settle`](Self::settle) removes it: without a
    /// journal a power cut may leave the old names in the directory, and a file that lost its last name is
    /// gone then. Says whether there is such a file; else this name is free, and anybody may take it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied), or
    /// [`CrossesDevices`](io::ErrorKind::CrossesDevices) when `to` is on another file system.
    pub fn replace(&self, to: &Self) -> io::Result<bool> {
        match self.fs.exchange(&self.path, &to.path) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => {
                self.rename(to).map(|()| false)
            }
            other => other.map(|()| true),
        }
    }

    /// Puts the new names on stable storage after a [`replace`](Self::replace), and removes the file that
    /// this name has since, if that `left` one. Waits for the disk.
    ///
    /// # Errors
    /// Any error from [`sync_directory`](Self::sync_directory).
    pub fn settle(&self, left: bool) -> Result<()> {
        self.above().sync_directory()?;
        if left {
            // What stays is swept away another time.
            let _ = self.remove_synced();
        }
        Ok(())
    }

    /// Removes the file, and its name from stable storage, too: without a journal a power cut may bring
    /// back the name with the number of the file, which a new directory may have got since. The check of
    /// the file system then takes the name of one of them. Waits for the disk.
    ///
    /// # Errors
    /// That of the removal; whether it is durable was not promised to anybody.
    pub fn remove_synced(&self) -> io::Result<()> {
        self.remove_file()?;
        let _ = self.above().sync_directory();
        Ok(())
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied), or
    /// [`IsADirectory`](io::ErrorKind::IsADirectory).
    pub fn remove_file(&self) -> io::Result<()> {
        self.fs.remove_file(&self.path)
    }

    /// Makes the directory; the one above it must be there.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when something has that name,
    /// [`NotFound`](io::ErrorKind::NotFound) when the directory above is missing,
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) or [`StorageFull`](io::ErrorKind::StorageFull).
    pub fn create_dir(&self) -> io::Result<()> {
        self.fs.create_dir(&self.path)
    }

    /// Makes the directory and those above it that are missing.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) or [`NotADirectory`](io::ErrorKind::NotADirectory)
    /// when a file has one of the names; [`PermissionDenied`](io::ErrorKind::PermissionDenied) or
    /// [`StorageFull`](io::ErrorKind::StorageFull).
    pub fn create_dir_all(&self) -> io::Result<()> {
        if self.path.as_os_str().is_empty() {
            return Ok(());
        }
        match self.create_dir() {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.path.parent().is_some() => {
                self.above().create_dir_all()?;
                self.create_dir()
            }
            Err(_) if self.is_dir() => Ok(()),
            other => other,
        }
    }

    /// Removes the directory with all that is in it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`PermissionDenied`](io::ErrorKind::PermissionDenied), or
    /// [`DirectoryNotEmpty`](io::ErrorKind::DirectoryNotEmpty) when somebody puts more there meanwhile.
    pub fn remove_dir_all(&self) -> io::Result<()> {
        for entry in self.read_dir()? {
            let path = self.join(&entry.name);
            let removed = match entry.kind {
                FileType::Directory => path.remove_dir_all(),
                _ => path.remove_file(),
            };
            match removed {
                // Somebody was quicker.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        self.fs.remove_dir(&self.path)
    }

    /// Tells apart what is held in memory of its file system; `None` where nobody can.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) or [`Denied`](crate::ErrorKind::Denied), naming the path.
    pub fn page_cache(&self) -> Result<Option<PageCacheId>> {
        self.fs.page_cache(&self.path).map_err(|e| self.error(e))
    }

    /// Puts the names in this directory on stable storage: those made, renamed or removed, by whichever
    /// process. Waits for the disk.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) or [`Denied`](crate::ErrorKind::Denied) when it cannot be
    /// opened, [`NoSpace`](crate::ErrorKind::NoSpace) or [`Unavailable`](crate::ErrorKind::Unavailable) when
    /// the disk fails; each names the path. The kernel calls names clean that it could not write, so the
    /// directory is changed once more: then the next sync writes them again, also that of another process,
    /// and does not succeed without.
    pub fn sync_directory(&self) -> Result<()> {
        self.fs.sync_directory(&self.path).map_err(|e| {
            let mark = self.join(UNSYNCED);
            let _ = mark.open(Open::REPLACE).and_then(|_| mark.remove_file());
            self.error(e)
        })
    }

    /// The path without links and relative parts.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) or [`PermissionDenied`](io::ErrorKind::PermissionDenied).
    pub fn canonicalize(&self) -> io::Result<Self> {
        self.fs.canonicalize(&self.path).map(|path| self.with(path))
    }

    /// An error that names the path.
    pub fn error(&self, error: io::Error) -> Error {
        Error::io(self.path.display(), error)
    }
}

impl Deref for FsPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for FsPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl From<PathBuf> for FsPath {
    fn from(path: PathBuf) -> Self {
        Self { fs: Arc::clone(&SYSTEM), path }
    }
}

impl From<&Path> for FsPath {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<&str> for FsPath {
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

impl From<&PathBuf> for FsPath {
    fn from(path: &PathBuf) -> Self {
        path.clone().into()
    }
}

impl From<&Self> for FsPath {
    fn from(path: &Self) -> Self {
        path.clone()
    }
}
