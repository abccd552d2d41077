//! File systems: what a disk's home and a store in a directory need of one.
//!
//! Code that keeps data takes an [`FsPath`], a path together with the file system that it is on. That is
//! the system's, or, in tests, a [simulated](simulated) one that tells what is *visible* from what is
//! *durable*, fails on request and loses power.
//!
//! Nothing here is durable by itself. The bytes of a file are after [`File::sync_data`]; a name that was
//! made, renamed or removed is after [`FileSystem::sync_directory`] of the directory that has it. A sync
//! that failed is not to be repeated: the kernel calls what it could not write clean, and the next sync
//! succeeds without it (A. Rebello et al., "Can Applications Recover from fsync Failures?", USENIX
//! ATC 2020).
//!
//! | module | concept |
//! |---|---|
//! | `path` | [`FsPath`], a path on a file system |
//! | `file` | [`File`], an open one; [`OpenFile`], one that is not of the system |
//! | `network` | which kinds come over a network |
//! | `position` | [`BlockDevice`], and where on it the bytes of a file are |
//! | `system` | [`System`], the file system of this process |
//! | [`simulated`] | [`SimulatedFs`], one in memory that crashes (for tests) |

mod file;
mod network;
mod path;
mod position;
pub mod simulated;
mod system;
#[cfg(test)]
mod tests;

pub use file::{File, OpenFile};
pub use network::{FUSE, is_network};
pub use path::FsPath;
pub use position::BlockDevice;
pub use simulated::SimulatedFs;
pub use system::System;

use crate::page_cache::PageCacheId;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// It can be written.
    pub write: bool,
    /// What is done when there is none, or one.
    pub creation: Creation,
    /// The permissions of a file that is made, before the process's mask.
    pub mode: u32,
}

/// What opening does about a file that is missing or there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// It must be there.
    Never,
    /// It is made if need be.
    IfMissing,
    /// It must not be there, and is made.
    New,
    /// It is made if need be, and emptied.
    Replace,
}

impl Open {
    /// One that is there, for reading.
    pub const READ: Self = Self { write: false, creation: Creation::Never, mode: 0o666 };
    /// One that is there, for reading and writing.
    pub const WRITE: Self = Self { write: true, ..Self::READ };
    /// One that is not there yet, for reading and writing.
    pub const NEW: Self = Self { creation: Creation::New, ..Self::WRITE };
    /// One that may be there, for reading and writing.
    pub const IF_MISSING: Self = Self { creation: Creation::IfMissing, ..Self::WRITE };
    /// One that is empty then, for reading and writing.
    pub const REPLACE: Self = Self { creation: Creation::Replace, ..Self::WRITE };

    /// The same, for the owner alone.
    #[must_use]
    pub const fn private(self) -> Self {
        Self { mode: 0o600, ..self }
    }
}

/// What something in a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else.
    Other,
}

/// What is known of a file or directory. Links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileType,
    /// Bytes of a file.
    pub len: u64,
    /// Room that it takes, in bytes.
    pub room: u64,
    /// Tells it apart: device and number.
    pub identity: (u64, u64),
    /// When its bytes changed last.
    pub modified: SystemTime,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name.
    pub name: OsString,
    /// What it names; links are not followed.
    pub kind: FileType,
}

/// A file system. Calls may wait for the disk. Errors are what the system calls of the same name report.
///
/// The tests of this module hold every implementation to the same answers.
#[allow(clippy::missing_errors_doc)] // said once, above
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Opens a file, or, for reading, a directory.
    fn open(&self, path: &Path, how: Open) -> io::Result<File>;
    /// What is in a directory, in no order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>>;
    /// What is known of what a path leads to.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;
    /// Gives something another name; a file that has that name loses it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file another name, which nothing has yet. At no time does it keep both, where the file system
    /// can do that.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives two files the names of each other. [`Unsupported`](io::ErrorKind::Unsupported) where the file
    /// system cannot.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Takes a name from a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Puts the names in a directory on stable storage.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Tells apart what is held in memory of the file system that the path is on; `None` where nobody can.
    fn page_cache(&self, path: &Path) -> io::Result<Option<PageCacheId>>;
    /// The path without links and relative parts.
    fn canonicalize(&self, path: &Path) -> io::Result<std::path::PathBuf>;
}
