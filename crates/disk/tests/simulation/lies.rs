//! A file system that lies about the homes: what relies on nothing that it lies about goes on as before.

use block::FsPath;
use block::fs::simulated::Machine;
use block::fs::{Creation, DirectoryEntry, File, FileSystem, Metadata, Open, SimulatedFs};
use block::page_cache::PageCacheId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What lies in it is not lied about: it is the store's, which has tests of its own.
const STORE: &str = "/store";

/// What is lied about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Nothing.
    None,
    /// The sync of a directory does nothing.
    NoDirectoryIsSynced,
    /// It does something only where this process changed a name. So does a process that believes what
    /// the one before it made visible and may not have made durable.
    NamesOfOthersAreNotSynced,
}

/// What processes find beside what its nature says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) lie: Lie,
    /// Two files can get the names of each other. File systems may refuse that; one of the nature
    /// `None` that does may lose what is replaced, and nothing is promised on it.
    pub(crate) exchanges: bool,
}

impl Manners {
    /// Those of ext4, XFS and btrfs.
    pub(crate) const GOOD: Self = Self { lie: Lie::None, exchanges: true };
}

/// The file system of a process that is lied to.
#[derive(Debug)]
struct LyingFs {
    machine: Machine,
    fs: SimulatedFs,
    manners: Manners,
    /// Directories in which this process changed a name.
    changed: Mutex<BTreeSet<PathBuf>>,
    /// So many more changes of names, and it is killed.
    left: Option<AtomicU64>,
}

/// The file system of a process that starts now.
pub(crate) fn start(machine: &Machine, manners: Manners) -> Arc<dyn FileSystem> {
    match manners {
        Manners { lie: Lie::None, exchanges: true } => Arc::new(machine.start()),
        _ => Arc::new(LyingFs::new(machine, manners, None)),
    }
}

/// The same, of one that is killed once it has changed so many names in the homes.
pub(crate) fn start_dying(machine: &Machine, manners: Manners, names: u64) -> Arc<dyn FileSystem> {
    Arc::new(LyingFs::new(machine, manners, Some(names.into())))
}

/// A path on it.
pub(crate) fn at(fs: &Arc<dyn FileSystem>, path: &str) -> FsPath {
    FsPath::on(Arc::clone(fs), path)
}

impl LyingFs {
    fn new(machine: &Machine, manners: Manners, left: Option<AtomicU64>) -> Self {
        let (machine, fs) = (machine.clone(), machine.start());
        Self { machine, fs, manners, changed: Mutex::default(), left }
    }

    /// The call changed these names, or failed.
    fn changes<T>(&self, paths: &[&Path], outcome: io::Result<T>) -> io::Result<T> {
        if outcome.is_err() || paths.iter().all(|path| path.starts_with(STORE)) {
            return outcome;
        }
        let directories = paths.iter().filter_map(|path| path.parent());
        self.changed.lock().extend(directories.map(Path::to_owned));
        if let Some(left) = &self.left
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.machine.kill_after(0);
        }
        outcome
    }

    fn is_honest(&self, directory: &Path) -> bool {
        match self.manners.lie {
            _ if directory.starts_with(STORE) => true,
            Lie::None => true,
            Lie::NoDirectoryIsSynced => false,
            Lie::NamesOfOthersAreNotSynced => self.changed.lock().contains(directory),
        }
    }
}

impl FileSystem for LyingFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<File> {
        let makes = how.creation != Creation::Never && self.fs.metadata(path).is_err();
        let opened = self.fs.open(path, how);
        if makes { self.changes(&[path], opened) } else { opened }
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.fs.read_dir(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.fs.metadata(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.changes(&[from, to], self.fs.rename(from, to))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.changes(&[from, to], self.fs.rename_new(from, to))
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        match self.manners.exchanges {
            true => self.changes(&[one, other], self.fs.exchange(one, other)),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.changes(&[path], self.fs.remove_file(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.changes(&[path], self.fs.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.changes(&[path], self.fs.remove_dir(path))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match self.is_honest(path) {
            true => self.fs.sync_directory(path),
            false => self.fs.metadata(path).map(drop),
        }
    }

    fn page_cache(&self, path: &Path) -> io::Result<Option<PageCacheId>> {
        self.fs.page_cache(path)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.fs.canonicalize(path)
    }
}
