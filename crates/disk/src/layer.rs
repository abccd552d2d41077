//! One layer of a shadow: a data file, in which block n lies at n times 4096, and the map that
//! says which of its blocks count.

use crate::blockmap::{BlockMap, GROUP, State};
use crate::doubt::{self, Doubt};
use crate::maplog::{Failure, Identity, MapLog, REMEDY};
use block::{BLOCK, Error, RandomFile, Result, Span};
use parking_lot::Mutex;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// How a round of flushing ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Work goes on.
    Flush,
    /// The layer is being closed: its log is checkpointed and sealed.
    Close,
}

pub(crate) struct Layer {
    pub(crate) number: u32,
    pub(crate) data: RandomFile,
    pub(crate) map: BlockMap,
    log: Mutex<MapLog>,
    /// The data file has bytes that may not be on stable storage.
    unsynced: AtomicBool,
}

/// The paths of a layer's data and map.
pub(crate) fn paths(directory: &Path, number: u32) -> (PathBuf, PathBuf) {
    (directory.join(format!("{number:04}.data")), directory.join(format!("{number:04}.map")))
}

impl Layer {
    /// Makes an empty layer whose files are on stable storage, names included. Waits for the disk.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn create(directory: &Path, identity: Identity) -> Result<Self> {
        let (data, map) = paths(directory, identity.layer);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let data = RandomFile::open(data, &options)?;
        data.file().sync_all().map_err(|e| Error::io(data.path().display(), e))?;
        let log = MapLog::create(&map, identity, [])?;
        block::file::sync_directory(directory)?;
        Ok(Self {
            number: identity.layer,
            data,
            map: BlockMap::new(),
            log: Mutex::new(log),
            unsynced: AtomicBool::new(false),
        })
    }

    /// Opens a layer of a disk of `size` bytes. Waits for the disk. After a sync that failed the layer is
    /// what stable storage has of it, as it would be after a power failure.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when a file is missing or the map is damaged,
    /// [`Unavailable`](block::ErrorKind::Unavailable) when syncs still fail.
    pub(crate) fn open(directory: &Path, identity: Identity, size: u64) -> Result<Self> {
        let (data, path) = paths(directory, identity.layer);
        let data = RandomFile::open(data, OpenOptions::new().read(true).write(true)).map_err(
            |e| match e.kind() {
                block::ErrorKind::NotFound => Error::corrupt(format!(
                    "{e}: the private blocks of the disk are gone; {REMEDY}"
                )),
                _ => e,
            },
        )?;
        let doubt = Doubt::of(&path);
        let doubted = doubt.is_raised()?;
        if doubted {
            doubt::reread(&data)?;
        }
        let map = BlockMap::new();
        let groups = size.div_ceil(BLOCK).div_ceil(GROUP);
        let mut log = MapLog::open(&path, identity, groups, doubted, &mut |group, word| {
            map.restore(group, word);
        })?;
        let (length, last) = (data.len()?, map.last_private());
        if let Some(last) = last.filter(|last| length <= last * BLOCK) {
            return Err(Error::corrupt(format!(
                "{}: ends at byte {length}, before the private block at {}; {REMEDY}",
                data.path().display(),
                last * BLOCK
            )));
        }
        if doubted {
            // From now on in a file and under a name that were synced without a failure.
            match log.checkpoint(map.groups()) {
                Ok(()) => doubt.settle()?,
                Err(Failure::Retry(error)) => {
                    // The mark stays: the next opening tries it again.
                    tracing::warn!(%error, "cannot checkpoint a shadow's map after a failed sync");
                    block::file::sync_directory(directory)?;
                }
                Err(Failure::Lost(error)) => return Err(error),
            }
        }
        // What a killed process wrote may be in the page cache alone.
        Ok(Self {
            number: identity.layer,
            data,
            map,
            log: Mutex::new(log),
            unsynced: AtomicBool::new(true),
        })
    }

    /// Removes the files. Those that read from the layer go on.
    pub(crate) fn remove(&self, directory: &Path) {
        let (data, map) = paths(directory, self.number);
        let _ = Doubt::of(&map).settle();
        for path in [data, map] {
            if let Err(error) = std::fs::remove_file(&path) {
                // The next opening removes it.
                tracing::warn!(path = %path.display(), %error, "cannot remove a dropped layer");
            }
        }
    }

    /// Writes bytes of blocks; the caller holds the lock of their region.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.data.write(offset, data)?;
        // Before the state: a round that sees the state sees that there is something to sync.
        self.touch();
        Ok(())
    }

    /// Takes in a whole block of a layer that nobody else has yet.
    pub(crate) fn take_in(&self, block: Span, bytes: &[u8]) -> Result<()> {
        let blocks = block.offset() / BLOCK..block.offset() / BLOCK + 1;
        if bytes.iter().all(|byte| *byte == 0) {
            self.map.set(blocks, State::Zero);
        } else {
            self.write(block.offset(), bytes)?;
            self.map.set(blocks, State::Private);
        }
        Ok(())
    }

    /// Notes that the data file changed.
    pub(crate) fn touch(&self) {
        if !self.unsynced.load(Ordering::Acquire) {
            self.unsynced.store(true, Ordering::Release);
        }
    }

    /// Makes durable what was written: data first, then the map. Waits for the disk.
    ///
    /// The caller has waited for the writers that were inside a region's lock.
    pub(crate) fn sync(&self, round: Round) -> Result<(), Failure> {
        self.sync_once(round).inspect_err(|failure| {
            if let Failure::Lost(_) = failure {
                Doubt::of(self.data.path()).raise();
            }
        })
    }

    fn sync_once(&self, round: Round) -> Result<(), Failure> {
        let mut log = self.log.lock();
        let changed = self.map.collect();
        let checkpoint = log.wants_checkpoint()
            || round == Round::Close
                && (log.has_records_behind_checkpoint() || !changed.is_empty());
        // Taken before the data is synced, as the changes were: a state must not reach the log
        // before the bytes that it stands for are safe.
        let all: Option<Vec<(u64, u64)>> = checkpoint.then(|| self.map.groups().collect());
        if self.unsynced.swap(false, Ordering::AcqRel)
            && let Err(error) = self.data.file().sync_data()
        {
            return Err(Failure::Lost(Error::io(self.data.path().display(), error)));
        }
        if let Some(all) = all {
            match log.checkpoint(all) {
                Ok(()) => return self.seal(&mut log, round),
                Err(Failure::Retry(error)) => {
                    tracing::warn!(%error, "cannot checkpoint a shadow's map; its log grows on");
                }
                Err(lost) => return Err(lost),
            }
        }
        match log.append(changed.iter().map(|(group, word)| (*group, *word))) {
            Ok(()) => self.seal(&mut log, round),
            Err(failure) => {
                changed.keys().for_each(|group| self.map.mark(*group));
                Err(failure)
            }
        }
    }

    fn seal(&self, log: &mut MapLog, round: Round) -> Result<(), Failure> {
        if round == Round::Close { log.seal() } else { Ok(()) }
    }

    /// Room that the data file takes, in bytes.
    pub(crate) fn room(&self) -> u64 {
        self.data.file().metadata().map_or(0, |m| m.blocks() * 512)
    }

    /// Whether the layer says nothing of any block.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.groups().next().is_none()
    }

    /// Runs of `blocks` that the layer holds, in order.
    pub(crate) fn held(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut list: Vec<Range<u64>> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let (state, end) = self.map.run(at..blocks.end);
            if state != State::Below {
                match list.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => list.push(at..end),
                }
            }
            at = end;
        }
        list
    }
}
