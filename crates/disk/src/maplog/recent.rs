//! Notes beside a map log, `NNNN.recent`: the states of blocks that changed, for the next process should
//! this one be killed.
//!
//! A kill takes nothing from the page cache. The blocks that were written are in it; all that would be
//! lost is what the map says of them, which the log has only after a flush. A client that outlives the
//! server (a kernel that connects again, a guest on another machine) does not write again what was
//! answered. So each change of a state is noted before it counts, and before it is answered: unsynced,
//! one small write into a file in which every group of blocks has its place.
//!
//! After a power failure storage may have the notes and not the blocks, and a block would read as bytes
//! that nobody wrote: notes count only with the page cache that they were written into
//! ([`PageCacheId`]), and only beside a log that has the record that they were last told of.

use super::Identity;
use super::format::{CheckpointSlot, u32_at, u64_at};
use crate::blockmap::is_valid;
use block::fs::{FileType, FsPath, Open};
use block::mapped::{CELL, MappedFile};
use block::page_cache::PageCacheId;
use block::{Error, RandomFile, Result, Span};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the name of the notes ends with.
pub(crate) const SUFFIX: &str = "recent";

const MAGIC: &[u8; 8] = b"SOJSHREC";
const VERSION: u16 = 2;
/// What tells whose notes they are.
const HEADER: usize = 128;
/// Where the two grounds are, and the length of one.
const GROUNDS: [usize; 2] = [128, 160];
const GROUND: usize = 32;
/// Where the entries begin.
const ENTRIES: u64 = 4096;
/// The length of an entry: none lies in two pages, and it is stored at once.
const ENTRY: usize = CELL;
/// The most words of one note: a region of the shadow has eight groups.
const MOST_WORDS: usize = 8;
/// Notes that are longer than this, in bytes, are given up as soon as the log has all of them.
const LONG: u64 = 1 << 20;
/// How much is read at a time.
const WINDOW: u64 = 64 << 10;
/// The least that is mapped, in bytes, and the most: the notes of a disk of 8 TiB.
const LEAST_MAPPED: u64 = 64 << 10;
const MOST_MAPPED: u64 = 1 << 30;

/// A record of a log: notes count beside a log that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogPosition {
    /// The number of the log's file.
    pub(super) file: u64,
    pub(super) sequence: u64,
    pub(super) chain: u32,
}

impl LogPosition {
    pub(super) fn at(file: u64, slot: &CheckpointSlot) -> Self {
        Self { file, sequence: slot.sequence, chain: slot.chain }
    }

    fn encode(&self, seed: u32) -> [u8; GROUND] {
        let mut out = [0; GROUND];
        out[..8].copy_from_slice(&self.file.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.chain.to_le_bytes());
        let checksum = crc32c::crc32c_append(seed, &out[..20]);
        out[20..24].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        (u32_at(bytes, 20) == crc32c::crc32c_append(seed, &bytes[..20])).then(|| Self {
            file: u64_at(bytes, 0),
            sequence: u64_at(bytes, 8),
            chain: u32_at(bytes, 16),
        })
    }
}

/// The file, open, with what seeds its checksums.
#[derive(Debug)]
struct NotesFile {
    file: Arc<RandomFile>,
    seed: u32,
    mapped: Mapped,
}

#[derive(Debug)]
enum Mapped {
    NotYet,
    Yes(MappedFile),
    /// It cannot be mapped, or no further.
    Never,
}

/// The notes as one of several writers has them at hand, so that those who note different groups share
/// no memory that changes. Its owner keeps it under a lock.
#[derive(Debug, Default)]
pub(crate) struct NotesHandle(Option<Arc<NotesFile>>);

impl NotesFile {
    fn new(file: RandomFile, seed: u32) -> Self {
        Self { file: Arc::new(file), seed, mapped: Mapped::NotYet }
    }

    /// Whether more of the file is to be mapped for entries that end at `end`.
    fn wants_map(&self, end: u64) -> bool {
        end <= MOST_MAPPED
            && match &self.mapped {
                Mapped::NotYet => true,
                Mapped::Yes(mapped) => mapped.len() < end,
                Mapped::Never => false,
            }
    }

    /// The file, mapped at least up to `end`, if that can be done. Who has it mapped up to a lesser end
    /// goes on with that.
    fn mapped_to(&self, end: u64) -> Self {
        let len = end.next_power_of_two().max(LEAST_MAPPED);
        let mapped = match MappedFile::new(self.file.file(), len) {
            Some(mapped) => Mapped::Yes(mapped),
            None => Mapped::Never,
        };
        Self { file: Arc::clone(&self.file), seed: self.seed, mapped }
    }

    /// Writes entries: into memory where the file is mapped, which costs next to nothing.
    fn put(&self, at: u64, entries: &[[u8; ENTRY]]) -> Result<()> {
        match &self.mapped {
            Mapped::Yes(mapped) if mapped.store(at, entries) => Ok(()),
            _ => self.file.write(at, entries.as_flattened()),
        }
    }
}

/// The notes of a layer.
#[derive(Debug)]
pub(crate) struct Notes {
    path: FsPath,
    identity: Identity,
    /// The page cache that has what they speak of. Where nobody can tell, nothing is noted.
    memory: Option<PageCacheId>,
    /// Beside which logs they count: the one that is there, and the one that is to take its place.
    grounds: Mutex<[Option<LogPosition>; 2]>,
    /// Nothing while there is no file.
    file: Mutex<Option<Arc<NotesFile>>>,
    /// Bytes noted since the file was made, up to the last flush.
    noted: AtomicU64,
}

impl Notes {
    /// Those beside the log `map`; what may be there is not looked at.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) or [`Denied`](block::ErrorKind::Denied) when the file system
    /// of the path cannot be told.
    pub(super) fn of(map: &FsPath, identity: Identity) -> Result<Self> {
        Ok(Self {
            path: map.with_extension(SUFFIX),
            identity,
            memory: map.above().page_cache()?,
            grounds: Mutex::default(),
            file: Mutex::default(),
            noted: AtomicU64::new(0),
        })
    }

    fn header(&self, memory: &PageCacheId, file: u64) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.identity.layer.to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.disk);
        out[32..64].copy_from_slice(&memory.0);
        out[64..72].copy_from_slice(&file.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Opens what an earlier process noted into the same page cache, and tells beside which logs it
    /// counts; none where there is nothing that counts.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when a newer build noted something, which may count; any error
    /// from the file system: what cannot be read now may count all the same.
    pub(super) fn look(&self) -> Result<Vec<LogPosition>> {
        let Some(memory) = &self.memory else { return Ok(Vec::new()) };
        let Some(file) = open(&self.path)? else { return Ok(Vec::new()) };
        let mut bytes = [0; GROUNDS[1] + GROUND];
        file.read_blocking(0, &mut bytes)?;
        let header = self.header(memory, number(&file)?);
        if bytes[..HEADER] != header {
            return self.must_not_be_newer(&bytes).map(|()| Vec::new());
        }
        let seed = u32_at(&header, HEADER - 4);
        let grounds = GROUNDS.iter().filter_map(|at| LogPosition::decode(&bytes[*at..], seed));
        *self.file.lock() = Some(Arc::new(NotesFile::new(file, seed)));
        Ok(grounds.collect())
    }

    /// Refuses notes of a later version. Each version begins with the magic number and its own, and has the header's
    /// checksum at the same place.
    fn must_not_be_newer(&self, bytes: &[u8]) -> Result<()> {
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        let checks = u32_at(bytes, HEADER - 4) == crc32c::crc32c(&bytes[..HEADER - 4]);
        if bytes[..8] != *MAGIC || version <= VERSION || !checks {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{}: a newer sojourn noted the last writes before a kill here (version {version}, and {VERSION} is read \
             here): have that one open the disk, or remove the file to have the disk as it was flushed last",
            self.path.display()
        )))
    }

    /// Tells `restore` the words that were noted. Groups are below `limit`.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when one does not check; any error from the file system.
    pub(super) fn read(&self, limit: u64, restore: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let Some(notes) = self.file.lock().clone() else { return Ok(()) };
        let length = notes.file.len()?.max(ENTRIES);
        let mut noted = ENTRIES;
        let mut buffer = vec![0; WINDOW as usize];
        let mut at = ENTRIES;
        while at < length {
            let next = notes.file.extents(Span::between(at, length), 2)?;
            let Some(data) = next.iter().find(|extent| extent.kind == block::ExtentKind::Data)
            else {
                break;
            };
            for window in data.span.align_outward(ENTRY as u64).pieces(WINDOW) {
                let bytes = &mut buffer[..window.len() as usize];
                notes.file.read_blocking(window.offset(), bytes)?;
                for (i, entry) in bytes.as_chunks::<ENTRY>().0.iter().enumerate() {
                    let place = window.offset() + (i * ENTRY) as u64;
                    let group = (place - ENTRIES) / ENTRY as u64;
                    match decode(entry, group, notes.seed) {
                        RecentEntry::None => {}
                        RecentEntry::Word(word) if group < limit => restore(group, word),
                        _ => return Err(self.damaged(place)),
                    }
                }
            }
            noted += data.span.len();
            at = data.span.end();
        }
        self.noted.store(noted, Ordering::Relaxed);
        Ok(())
    }

    fn damaged(&self, at: u64) -> Error {
        Error::corrupt(format!(
            "{}: at offset {at}: what was noted of the last writes before a kill is damaged; put the \
             file back from a backup, or remove it to have the disk as it was flushed last",
            self.path.display()
        ))
    }

    /// Notes the words of groups from `first` on, [`MOST_WORDS`] at the most. Nothing is synced. Whoever
    /// notes the same groups waits for their turn, and has the same `hand`.
    ///
    /// # Errors
    /// Any error from the file system; the next process may have either the old words or the new ones then.
    pub(crate) fn put(&self, hand: &mut NotesHandle, first: u64, words: &[u64]) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let at = ENTRIES + first * ENTRY as u64;
        let end = at + (words.len() * ENTRY) as u64;
        let notes = match &hand.0 {
            Some(notes) if !notes.wants_map(end) => notes,
            _ => hand.0.insert(self.make(memory, end)?),
        };
        let mut entries = [[0; ENTRY]; MOST_WORDS];
        for ((entry, word), group) in entries.iter_mut().zip(words).zip(first..) {
            *entry = encode(*word, group, notes.seed);
        }
        notes.put(at, &entries[..words.len()])
    }

    /// Makes the file, unless it is there, and maps what entries up to `end` need of it.
    fn make(&self, memory: &PageCacheId, end: u64) -> Result<Arc<NotesFile>> {
        let mut slot = self.file.lock();
        if let Some(notes) = &mut *slot {
            if notes.wants_map(end) {
                *notes = Arc::new(notes.mapped_to(end));
            }
            return Ok(Arc::clone(notes));
        }
        let file = RandomFile::open_on(&self.path, Open::REPLACE)?;
        let header = self.header(memory, number(&file)?);
        let seed = u32_at(&header, HEADER - 4);
        let notes = NotesFile::new(file, seed);
        let grounds = self.grounds.lock();
        let mut page = [0; ENTRIES as usize];
        page[..HEADER].copy_from_slice(&header);
        for (at, ground) in GROUNDS.iter().zip(grounds.iter()) {
            if let Some(ground) = ground {
                page[*at..at + GROUND].copy_from_slice(&ground.encode(seed));
            }
        }
        notes.file.write(0, &page)?;
        self.noted.store(ENTRIES, Ordering::Relaxed);
        Ok(Arc::clone(slot.insert(Arc::new(notes.mapped_to(end)))))
    }

    /// From now on they count beside a log that has this record, and no other.
    pub(super) fn stand_on(&self, ground: LogPosition) -> Result<()> {
        self.stand([Some(ground), None])
    }

    /// From now on they count beside this log, too, which is about to take the place of the other.
    pub(super) fn stand_also_on(&self, ground: LogPosition) -> Result<()> {
        let now = self.grounds.lock()[0];
        self.stand([now, Some(ground)])
    }

    fn stand(&self, grounds: [Option<LogPosition>; 2]) -> Result<()> {
        let slot = self.file.lock();
        let mut now = self.grounds.lock();
        *now = grounds;
        let Some(notes) = &*slot else { return Ok(()) };
        let mut bytes = [0; 2 * GROUND];
        for (bytes, ground) in bytes.chunks_exact_mut(GROUND).zip(grounds) {
            if let Some(ground) = ground {
                bytes.copy_from_slice(&ground.encode(notes.seed));
            }
        }
        // In one page, so that a kill leaves the old ones or the new ones.
        notes.file.write(GROUNDS[0] as u64, &bytes)
    }

    /// Says that a flush found the words of so many groups changed.
    pub(crate) fn grew(&self, groups: usize) {
        self.noted.fetch_add((groups * ENTRY) as u64, Ordering::Relaxed);
    }

    /// Whether there is a file, of such a length that it is to be given up when it is not needed.
    pub(crate) fn are_long(&self) -> bool {
        self.noted.load(Ordering::Relaxed) > LONG && self.file.lock().is_some()
    }

    /// Removes them: the log says all that they said, or nobody can vouch for it. `hands` are all that
    /// there are.
    pub(crate) fn forget<'a>(&self, hands: impl IntoIterator<Item = &'a mut NotesHandle>) {
        let mut slot = self.file.lock();
        *slot = None;
        hands.into_iter().for_each(|hand| *hand = NotesHandle::default());
        match self.path.remove_synced() {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                // The log has what they say; older than it they never are.
                tracing::warn!(path = %self.path.display(), error = %e, "cannot remove old notes");
            }
            _ => {}
        }
    }
}

/// Syncs what an earlier process noted beside the log `map`. Nobody else does, so that this is who hears of a
/// page that could not be written and was then read back as it was before: it may be older than the log.
///
/// # Errors
/// Any error from the file system; with `Ok(false)` the sync failed.
pub(crate) fn sync(map: &FsPath) -> Result<bool> {
    let Some(file) = open(&map.with_extension(SUFFIX))? else { return Ok(true) };
    let synced = file.file().sync_data();
    if let Err(error) = &synced {
        tracing::warn!(path = %file.path().display(), %error, "what was noted of a disk's last writes is lost");
    }
    Ok(synced.is_ok())
}

/// What is no file is none of ours, and goes with notes that do not count: after a power cut a file system
/// without a journal may give a name to what its number was before, and a socket cannot be opened.
fn open(path: &FsPath) -> Result<Option<RandomFile>> {
    if path.metadata().is_ok_and(|found| found.kind == FileType::Other) {
        return Ok(None);
    }
    match RandomFile::open_on(path, Open::WRITE) {
        Err(e) if e.kind() == block::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn number(file: &RandomFile) -> Result<u64> {
    let metadata = file.file().metadata();
    Ok(metadata.map_err(|e| Error::io(file.path().display(), e))?.identity.1)
}

enum RecentEntry {
    None,
    Word(u64),
    Damaged,
}

fn encode(word: u64, group: u64, seed: u32) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..8].copy_from_slice(&word.to_le_bytes());
    out[8] = 1;
    let checksum = checksum(&out[..12], group, seed);
    out[12..].copy_from_slice(&checksum.to_le_bytes());
    out
}

fn decode(entry: &[u8; ENTRY], group: u64, seed: u32) -> RecentEntry {
    if *entry == [0; ENTRY] {
        return RecentEntry::None;
    }
    let word = u64_at(entry, 0);
    let checks = entry[8..12] == [1, 0, 0, 0]
        && u32_at(entry, 12) == checksum(&entry[..12], group, seed)
        && is_valid(word);
    if checks { RecentEntry::Word(word) } else { RecentEntry::Damaged }
}

fn checksum(bytes: &[u8], group: u64, seed: u32) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &group.to_le_bytes()), bytes)
}
