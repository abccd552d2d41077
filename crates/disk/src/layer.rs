//! One layer of a shadow: a data file, in which block n lies at n times 4096, and the map that
//! says which of its blocks count.

use crate::blockmap::{BlockMap, BlockState, GROUP};
use crate::maplog::{
    self, Failure, Identity, MapLog, Notes, NotesHandle, RECENT, REMEDY, WordOrigin, sync_notes,
};
use crate::unsynced::{self, UnsyncedMark};
use block::fs::{FsPath, Open};
use block::{BLOCK, Error, ErrorKind, RandomFile, Result, Span};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Groups whose states change one after the other: a region of the shadow, 1 MiB.
const CHANGED_TOGETHER: u64 = 8;
/// Locks of these; regions far apart share one.
const LOCKS: usize = 64;

/// Whose turn it is to change states, with the notes that it has at hand. It has a cache line of its own:
/// threads that write to different places of a disk must not wait for one another's.
#[derive(Debug, Default)]
#[repr(align(64))]
struct GroupLock(Mutex<NotesHandle>);

/// How a round of flushing ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Work goes on.
    Flush,
    /// The layer is being closed: its log is checkpointed and sealed.
    Close,
}

pub(crate) struct ShadowLayer {
    pub(crate) number: u32,
    doubt: UnsyncedMark,
    pub(crate) data: RandomFile,
    pub(crate) map: BlockMap,
    log: Mutex<MapLog>,
    notes: Arc<Notes>,
    /// Who holds one changes states in its groups: what is noted is never older than what counts.
    changing: Box<[GroupLock; LOCKS]>,
    /// The data file has bytes that may not be on stable storage.
    unsynced: AtomicBool,
    /// The mark of a sync that failed before the layer was opened is there still: notes count for nothing.
    doubted: AtomicBool,
}

fn turns() -> Box<[GroupLock; LOCKS]> {
    Box::new(std::array::from_fn(|_| GroupLock::default()))
}

/// The paths of a layer's data and map.
pub(crate) fn paths(directory: &FsPath, number: u32) -> (FsPath, FsPath) {
    (directory.join(format!("{number:04}.data")), directory.join(format!("{number:04}.map")))
}

impl ShadowLayer {
    /// Makes an empty layer whose files are on stable storage, names included. Waits for the disk.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when a file has its name already; any error from the file
    /// system. Nothing is left behind then.
    pub(crate) fn create(directory: &FsPath, identity: Identity) -> Result<Self> {
        let (data, map) = paths(directory, identity.layer);
        let place = data;
        let data = RandomFile::open_on(&place, Open::NEW)?;
        let made = || {
            data.file().sync_all().map_err(|e| place.error(e))?;
            MapLog::create(&map, identity, [])
        };
        let log = made().inspect_err(|_| drop(place.remove_file()))?;
        if let Err(error) = directory.sync_directory() {
            let _ = map.remove_file();
            let _ = place.remove_file();
            return Err(error);
        }
        Ok(Self {
            number: identity.layer,
            doubt: UnsyncedMark::of(&map),
            data,
            map: BlockMap::new(),
            notes: Arc::clone(log.notes()),
            log: Mutex::new(log),
            changing: turns(),
            unsynced: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
        })
    }

    /// Removes what a step that was given up left of a layer that nobody has. Waits for the disk.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn clear(directory: &FsPath, number: u32) -> Result<()> {
        let (data, map) = paths(directory, number);
        let recent = map.with_extension(RECENT);
        for path in [data, map, recent] {
            match path.remove_file() {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.map_err(|e| path.error(e))?,
            }
        }
        directory.sync_directory()
    }

    /// Opens a layer of a disk of `size` bytes. Waits for the disk. After a sync that failed the layer is
    /// what stable storage has of it, as it would be after a power failure.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when a file is missing or the map is damaged,
    /// [`Unavailable`](block::ErrorKind::Unavailable) when syncs still fail.
    pub(crate) fn open(directory: &FsPath, identity: Identity, size: u64) -> Result<Self> {
        let (data, path) = paths(directory, identity.layer);
        let data = RandomFile::open_on(&data, Open::WRITE).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::corrupt(format!("{e}: the private blocks of the disk are gone; {REMEDY}"))
            }
            _ => e,
        })?;
        let doubt = UnsyncedMark::of(&path);
        let mut doubted = doubt.is_raised()?;
        if !doubted && !sync_notes(&path)? {
            doubt.raise();
            doubted = true;
        }
        if doubted {
            unsynced::reread(&data)?;
        }
        let map = BlockMap::new();
        let groups = size.div_ceil(BLOCK).div_ceil(GROUP);
        let mut log = MapLog::open(&path, identity, groups, doubted, &mut |group, word, known| {
            if known == WordOrigin::Recent && map.word(group) != word {
                // The next flush has it.
                map.mark(group);
            }
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
        let mut still_doubted = false;
        if doubted {
            // From now on in a file and under a name that were synced without a failure.
            match log.checkpoint(map.groups()) {
                Ok(()) => doubt.settle()?,
                Err(Failure::Retry(error)) => {
                    // The mark stays: the next flush tries it again, or the next opening.
                    still_doubted = true;
                    tracing::warn!(%error, "cannot checkpoint a shadow's map after a failed sync");
                    directory.sync_directory()?;
                }
                Err(Failure::Lost(error)) => return Err(error),
            }
        }
        // What a killed process wrote may be in the page cache alone.
        Ok(Self {
            number: identity.layer,
            doubt,
            data,
            map,
            notes: Arc::clone(log.notes()),
            log: Mutex::new(log),
            changing: turns(),
            unsynced: AtomicBool::new(true),
            doubted: AtomicBool::new(still_doubted),
        })
    }

    /// Which blocks a layer of a disk of `size` bytes holds that nobody has open. It is not opened: nothing is
    /// changed. Waits for the disk.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when the map is damaged; any error from the file system.
    pub(crate) fn look(directory: &FsPath, identity: Identity, size: u64) -> Result<BlockMap> {
        let map = BlockMap::new();
        let groups = size.div_ceil(BLOCK).div_ceil(GROUP);
        let path = paths(directory, identity.layer).1;
        maplog::look(&path, identity, groups, &mut |group, word| map.restore(group, word))?;
        Ok(map)
    }

    /// Removes the files. Those that read from the layer go on.
    pub(crate) fn remove(&self, directory: &FsPath) {
        let (data, map) = paths(directory, self.number);
        let _ = self.doubt.settle();
        let recent = map.with_extension(RECENT);
        for path in [data, map, recent] {
            if let Err(error) = path.remove_file()
                && error.kind() != std::io::ErrorKind::NotFound
            {
                // The next opening removes it.
                tracing::warn!(path = %path.display(), %error, "cannot remove a dropped layer");
            }
        }
        // As `FsPath::remove_synced`.
        let _ = directory.sync_directory();
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
            self.set(blocks, BlockState::Zero)
        } else {
            self.write(block.offset(), bytes)?;
            self.set(blocks, BlockState::Private)
        }
    }

    /// Puts blocks into a state, which the next process has too, should this one be killed. The caller
    /// holds the lock of their region.
    ///
    /// # Errors
    /// Any error from the file system, [`NoSpace`](block::ErrorKind::NoSpace) for one: the rest of the blocks
    /// keep their states then.
    pub(crate) fn set(&self, blocks: Range<u64>, state: BlockState) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let part = at / GROUP / CHANGED_TOGETHER;
            let end = blocks.end.min((part + 1) * CHANGED_TOGETHER * GROUP);
            if self.map.run(at..end) != (state, end) {
                self.change(part, at..end, state)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Changes the states of blocks whose groups change together.
    fn change(&self, part: u64, blocks: Range<u64>, state: BlockState) -> Result<()> {
        let mut hand = self.changing[part as usize % LOCKS].0.lock();
        let groups = blocks.start / GROUP..blocks.end.div_ceil(GROUP);
        let mut words = [0; CHANGED_TOGETHER as usize];
        let count = (groups.end - groups.start) as usize;
        for (word, group) in words.iter_mut().zip(groups.clone()) {
            *word = self.map.word_with(group, &blocks, state);
        }
        // Before they count: who finds the new state does not note it again.
        match self.notes.put(&mut hand, groups.start, &words[..count]) {
            // Giving room back must not want any. Private blocks that were given back read as zeroes, too.
            Err(e) if e.kind() == ErrorKind::NoSpace && state == BlockState::Zero => {
                if self.map.fresh(blocks.clone()) > 0 {
                    return Err(e);
                }
            }
            other => other?,
        }
        self.map.set(blocks, state);
        Ok(())
    }

    /// Gives up the notes, if the log has all that they say.
    fn forget_notes(&self) {
        let mut all: Vec<_> = self.changing.iter().map(|turn| turn.0.lock()).collect();
        if !self.map.has_changes() {
            self.notes.forget(all.iter_mut().map(|hand| &mut **hand));
        }
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
                self.doubt.raise();
            }
        })
    }

    fn sync_once(&self, round: Round) -> Result<(), Failure> {
        let mut log = self.log.lock();
        let changed = self.map.collect();
        self.notes.grew(changed.len());
        let checkpoint = log.wants_checkpoint()
            || self.doubted.load(Ordering::Acquire)
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
                Ok(()) => {
                    self.settle_doubt();
                    return self.seal(&mut log, round);
                }
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

    /// The log is one under a name that was synced without a failure.
    fn settle_doubt(&self) {
        if self.doubted.load(Ordering::Acquire) {
            match self.doubt.settle() {
                Ok(()) => self.doubted.store(false, Ordering::Release),
                Err(error) => tracing::warn!(%error, "cannot take the mark of a failed sync away"),
            }
        }
    }

    /// The log has all that changed before the round.
    fn seal(&self, log: &mut MapLog, round: Round) -> Result<(), Failure> {
        if round == Round::Close {
            log.seal()?;
        }
        if round == Round::Close || self.notes.are_long() {
            self.forget_notes();
        }
        Ok(())
    }

    /// Room that the data file takes, in bytes.
    pub(crate) fn room(&self) -> u64 {
        self.data.file().metadata().map_or(0, |found| found.room)
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
            if state != BlockState::Below {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_never_made_over_files_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let directory = FsPath::from(dir.path());
        let identity = Identity { disk: [7; 16], layer: 1 };
        let layer = ShadowLayer::create(&directory, identity).unwrap();
        layer.take_in(Span::between(4096, 8192), &[3; 4096]).unwrap();
        layer.sync(Round::Close).unwrap();
        let again = ShadowLayer::create(&directory, identity).err().unwrap();
        assert_eq!(again.kind(), block::ErrorKind::Conflict);
        let map = paths(&directory, 1).1;
        assert_eq!(MapLog::create(&map, identity, []).err().unwrap().kind(), again.kind());
        drop(layer);
        let layer = ShadowLayer::open(&directory, identity, 1 << 20).unwrap();
        assert_eq!(layer.held(0..256), vec![1..2]);
        // A map alone is enough, and what was made beside it goes.
        layer.data.file().sync_all().unwrap();
        let (data, _) = paths(&directory, 1);
        data.remove_file().unwrap();
        assert!(
            ShadowLayer::create(&directory, identity).is_err() && !data.exists() && map.exists()
        );
        ShadowLayer::clear(&directory, 1).unwrap();
        ShadowLayer::create(&directory, identity).unwrap();
    }
}
