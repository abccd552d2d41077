//! The file system of this process.

use super::file::{kind, known};
use super::{Creation, DirectoryEntry, File, FileSystem, Metadata, Open};
use crate::page_cache::PageCacheId;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What the system's calls do.
#[derive(Debug, Clone, Copy)]
pub struct System;

impl FileSystem for System {
    fn open(&self, path: &Path, how: Open) -> io::Result<File> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(how.write).mode(how.mode);
        match how.creation {
            Creation::Never => {}
            Creation::IfMissing => {
                options.create(true);
            }
            Creation::New => {
                options.create_new(true);
            }
            Creation::Replace => {
                options.create(true).truncate(true);
            }
        }
        options.open(path).map(File::from)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok(DirectoryEntry { name: entry.file_name(), kind: kind(entry.file_type()?) })
        };
        fs::read_dir(path)?.map(entry).collect()
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        known(&fs::metadata(path)?)
    }

    fn page_cache(&self, path: &Path) -> io::Result<Option<PageCacheId>> {
        PageCacheId::of(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // NFS, FUSE, and old kernels. Without a journal a power cut may leave both names and a count of
            // one: whoever removes one of them then removes the file, unless the file system was checked.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::hard_link(from, to)?;
                fs::remove_file(from)
            }
            other => other.map_err(io::Error::from),
        }
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            other => other.map_err(io::Error::from),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }
}
