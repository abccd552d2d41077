//! The state of a machine: what processes see of its files, what fails, and what is counted.

use super::bytes::Bytes;
use super::names::{DirectoryNames, NameKey, Nature, Node};
use crate::conformance::Sequence;
use crate::fs::{FileType, Metadata};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory that everything is in.
const ROOT: Node = 1;
/// One in how many calls has the kernel write something back early.
const WRITES_BACK: u64 = 24;

/// How often calls fail, in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A call that needs room finds none.
    pub no_space: u64,
    /// The sync of a file fails.
    pub sync_file: u64,
    /// The sync of a directory fails.
    pub sync_directory: u64,
}

#[derive(Debug)]
pub(super) struct Inode {
    /// The bytes of a file; none for a directory.
    pub(super) bytes: Option<Bytes>,
    handles: u64,
    modified: Duration,
    /// Its room counts: something names it, or somebody has it open.
    counted: bool,
}

impl Inode {
    fn pages(&self) -> u64 {
        self.bytes.as_ref().map_or(0, Bytes::pages)
    }
}

/// Who has the lock of a file, by the number of the handle.
#[derive(Debug, Default)]
pub(super) struct Lock {
    pub(super) alone: Option<u64>,
    pub(super) shared: BTreeSet<u64>,
}

/// Memory and disk of a machine, behind one lock.
pub(super) struct MachineState {
    pub(super) random: Sequence,
    pub(super) names: DirectoryNames,
    inodes: BTreeMap<Node, Inode>,
    next: Node,
    pub(super) locks: BTreeMap<Node, Lock>,
    /// The process that lives.
    pub(super) process: u64,
    pub(super) dies_at: Option<u64>,
    pub(super) calls: u64,
    pub(super) course: u64,
    pub(super) failed_syncs: u64,
    pub(super) faults: FaultRates,
    /// Pages that there are, and those that are taken.
    pub(super) room: u64,
    pub(super) used: u64,
    pub(super) ended: bool,
    pub(super) power_cuts: u64,
    pub(super) now: u64,
}

impl fmt::Debug for MachineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachineState")
    }
}

impl MachineState {
    /// That of a machine with an empty file system of a nature; the seed decides all that is left to chance.
    pub(super) fn new(nature: Nature, seed: u64) -> Self {
        let directory = Inode { bytes: None, handles: 0, modified: Duration::ZERO, counted: true };
        Self {
            random: Sequence::new(seed),
            names: DirectoryNames::new(nature),
            inodes: BTreeMap::from([(ROOT, directory)]),
            next: ROOT + 1,
            locks: BTreeMap::new(),
            process: 0,
            dies_at: None,
            calls: 0,
            course: 0,
            failed_syncs: 0,
            faults: FaultRates::default(),
            room: u64::MAX,
            used: 0,
            ended: false,
            power_cuts: 0,
            now: 0,
        }
    }

    /// The process that lives is killed: its locks and open files are gone.
    pub(super) fn kill(&mut self) {
        self.process += 1;
        self.dies_at = None;
        self.locks.clear();
        self.forget_unnamed();
    }

    /// Cuts the power: of what was not durable, any part stays that may.
    pub(super) fn lose_power(&mut self) {
        self.kill();
        let Self { random, names, inodes, .. } = self;
        names.lose_power(random);
        inodes.values_mut().filter_map(|node| node.bytes.as_mut()).for_each(|bytes| {
            bytes.lose_power(random);
        });
        self.ended = false;
        self.power_cuts += 1;
        self.forget_unnamed();
        self.inodes.values_mut().for_each(|inode| inode.counted = true);
        self.used = self.inodes.values().map(Inode::pages).sum();
    }

    /// A process calls.
    pub(super) fn enter(&mut self, process: u64, what: &str) -> io::Result<()> {
        let dead = || Err(io::Error::other("the process was killed"));
        if process != self.process {
            return dead();
        }
        if self.dies_at.is_some_and(|at| self.calls >= at) {
            return dead();
        }
        self.calls += 1;
        for byte in what.bytes() {
            self.course = (self.course ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.random.below(WRITES_BACK) == 0 {
            self.write_back();
        }
        Ok(())
    }

    /// The same, for a call that changes something.
    pub(super) fn enter_changing(&mut self, process: u64, what: &str) -> io::Result<()> {
        self.enter(process, what)?;
        match self.ended {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(()),
        }
    }

    fn write_back(&mut self) {
        if self.ended {
            return;
        }
        match self.random.below(2) {
            0 => self.names.write_back(&mut self.random),
            _ => {
                let at = self.random.below(self.inodes.len() as u64) as usize;
                let bytes = self.inodes.values_mut().nth(at).and_then(|node| node.bytes.as_mut());
                if let Some(bytes) = bytes {
                    bytes.write_back(&mut self.random);
                }
            }
        }
    }

    fn strikes(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.random.below(1000) < thousandths
    }

    /// Fails as the sync of a file may.
    pub(super) fn sync_fails(&mut self) -> bool {
        let thousandths = self.faults.sync_file;
        let fails = self.strikes(thousandths);
        self.failed_syncs += u64::from(fails);
        fails
    }

    /// Fails as the sync of a directory may.
    pub(super) fn directory_sync_fails(&mut self) -> bool {
        let thousandths = self.faults.sync_directory;
        self.strikes(thousandths)
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Refuses what finds no room.
    pub(super) fn need(&mut self, pages: u64) -> io::Result<()> {
        let thousandths = self.faults.no_space;
        if self.used.saturating_add(pages) > self.room || self.strikes(thousandths) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()));
        }
        Ok(())
    }

    pub(super) fn metadata(&self, node: Node) -> io::Result<Metadata> {
        let inode = self.inodes.get(&node).ok_or(io::ErrorKind::NotFound)?;
        Ok(Metadata {
            kind: if inode.bytes.is_some() { FileType::File } else { FileType::Directory },
            len: inode.bytes.as_ref().map_or(0, Bytes::len),
            room: inode.pages() * crate::BLOCK,
            identity: (1, node),
            modified: SystemTime::UNIX_EPOCH + inode.modified,
        })
    }

    pub(super) fn is_directory(&self, node: Node) -> bool {
        self.inodes.get(&node).is_some_and(|inode| inode.bytes.is_none())
    }

    pub(super) fn bytes(&self, node: Node) -> io::Result<&Bytes> {
        let bytes = self.inodes.get(&node).and_then(|inode| inode.bytes.as_ref());
        bytes.ok_or(io::ErrorKind::IsADirectory.into())
    }

    /// Now: later with each call.
    fn time(&self) -> Duration {
        Duration::from_secs(self.now) + Duration::from_nanos(self.calls)
    }

    /// Changes names, all at once.
    pub(super) fn change_names(&mut self, sets: Vec<(NameKey, Option<Node>)>) {
        let now = self.time();
        for ((directory, _), _) in &sets {
            if let Some(inode) = self.inodes.get_mut(directory) {
                inode.modified = now;
            }
        }
        self.names.change(sets);
    }

    /// Changes the bytes of a file, and counts the room that it takes.
    pub(super) fn change<T>(
        &mut self,
        node: Node,
        change: impl FnOnce(&mut Bytes, &mut Sequence) -> T,
    ) -> io::Result<T> {
        let now = self.time();
        let inode = self.inodes.get_mut(&node).ok_or(io::ErrorKind::NotFound)?;
        inode.modified = now;
        let bytes = inode.bytes.as_mut().ok_or(io::ErrorKind::IsADirectory)?;
        let before = bytes.pages();
        let changed = change(bytes, &mut self.random);
        self.used = self.used - before + bytes.pages();
        Ok(changed)
    }

    pub(super) fn pages_needed(&self, node: Node, range: Range<u64>) -> io::Result<u64> {
        Ok(self.bytes(node)?.pages_needed(range))
    }

    /// Makes a file or directory without a name.
    pub(super) fn make(&mut self, directory: bool) -> Node {
        let node = self.next;
        self.next += 1;
        let bytes = (!directory).then(Bytes::default);
        let (modified, counted) = (self.time(), true);
        self.inodes.insert(node, Inode { bytes, handles: 0, modified, counted });
        node
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn hold(&mut self, node: Node) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.handles += 1;
        }
    }

    /// A handle is closed, by a process that may be dead.
    pub(super) fn let_go(&mut self, process: u64, node: Node, handle: u64) {
        if process != self.process {
            return;
        }
        if let Some(lock) = self.locks.get_mut(&node) {
            lock.shared.remove(&handle);
            lock.alone = lock.alone.filter(|alone| *alone != handle);
        }
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.handles -= 1;
        }
        self.forget_if_gone(node);
    }

    /// Gives back the room of a file that nothing names and nobody has open. It is kept as long as a
    /// power cut may bring its name back.
    pub(super) fn forget_if_gone(&mut self, node: Node) {
        if node == ROOT || self.names.is_named(node) {
            return;
        }
        let Some(inode) = self.inodes.get_mut(&node).filter(|inode| inode.handles == 0) else {
            return;
        };
        if std::mem::take(&mut inode.counted) {
            self.used -= inode.pages();
        }
        if !self.names.is_kept(node) {
            self.inodes.remove(&node);
        }
    }

    fn forget_unnamed(&mut self) {
        let all: Vec<Node> = self.inodes.keys().copied().collect();
        for node in all {
            if let Some(inode) = self.inodes.get_mut(&node) {
                inode.handles = 0;
            }
            self.forget_if_gone(node);
        }
    }

    /// The directory and the name at the end of a path.
    pub(super) fn place(&self, path: &Path) -> io::Result<NameKey> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.find(path.parent().unwrap_or(Path::new("")))?;
        match self.is_directory(parent) {
            true => Ok((parent, name.to_owned())),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// What a path leads to. All paths begin at the root.
    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut at = ROOT;
        for part in parts(path) {
            if !self.is_directory(at) {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            at = self.names.get(&(at, part.to_owned())).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }
}

fn parts(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// A path from the root.
pub(super) fn absolute(path: &Path) -> PathBuf {
    Path::new("/").join(parts(path).collect::<PathBuf>())
}
