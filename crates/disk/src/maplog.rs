//! The map log: what makes the states of a layer's blocks durable.
//!
//! A file is a header, two acknowledgement slots and a chain of records; each record sets whole
//! groups of 32 blocks, so that reading them all in order gives the map, and a checkpoint is just a
//! file whose first records hold everything. `docs/shadow-format.md` has the byte tables.
//!
//! A record is written only after the one before it was synced. What does not check at the end of
//! the file is therefore either the one batch that was being written at a crash, which nobody was
//! told of and which is dropped, or damage. The slots tell them apart: after every sync the number
//! of the last record goes into one of them in turn, so that a killed process leaves the exact
//! number, and a power failure one that lags by at most one batch.
//!
//! What changed since the last flush is [noted](Notes) beside it.

mod format;
mod recent;
#[cfg(test)]
mod tests;

use self::format::{CheckpointSlot, MapLogHeader, RECORD_HEADER, RECORDS, RecordHeader, SLOTS};
pub(crate) use self::format::{Identity, decode_entries};
use self::recent::LogPosition;
pub(crate) use self::recent::{Notes, NotesHandle, SUFFIX as RECENT, sync as sync_notes};
use crate::unsynced;
use block::fs::{FsPath, Open};
use block::{Error, ErrorKind, RandomFile, Result};
use std::sync::Arc;

/// The length of a log that holds nothing, in bytes.
pub(crate) const BLANK: u64 = RECORDS;

/// Where a damaged map leaves its owner. A file that is put back alone may be older than the others and fit them all
/// the same, and what was written between them would be gone.
pub(crate) const REMEDY: &str = "put the whole directory of the disk back from one backup, or give the private blocks up with 'sojourn disk reset' or 'disk rollback'";

/// Why an operation on the log failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing changed: it can be tried again, once there is room.
    Retry(Error),
    /// A sync failed: what is on stable storage is not known any more.
    Lost(Error),
}

/// The open log of a layer.
pub(crate) struct MapLog {
    path: FsPath,
    file: RandomFile,
    identity: Identity,
    /// The last record: its number, where it ends, and its checksum, which seeds the next one's.
    sequence: u64,
    end: u64,
    chain: u32,
    /// The last record that is known to be on stable storage.
    acknowledged: u64,
    /// Something was written that is not known to be on stable storage.
    unsynced: bool,
    /// Where the file ended after its last checkpoint.
    checkpoint: u64,
    next_slot: usize,
    /// What is noted of changes that no record has yet.
    notes: Arc<Notes>,
}

/// Whether a word that a log was opened with is on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordOrigin {
    Flushed,
    /// It was noted, and may be.
    Recent,
}

impl MapLog {
    /// Makes a log that holds `groups`, under `path`, on stable storage but for its directory.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when there is a file; any error from the file system. Nothing is left
    /// behind then.
    pub(crate) fn create(
        path: &FsPath,
        identity: Identity,
        groups: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Self> {
        let log =
            Self::create_beside(path, identity, groups, Arc::new(Notes::of(path, identity)?))?;
        log.notes.stand_on(log.ground()?)?;
        Ok(log)
    }

    fn create_beside(
        path: &FsPath,
        identity: Identity,
        groups: impl IntoIterator<Item = (u64, u64)>,
        notes: Arc<Notes>,
    ) -> Result<Self> {
        let file = RandomFile::open_on(path, Open::NEW)?;
        let header = MapLogHeader { identity }.encode();
        let mut log = Self {
            path: path.clone(),
            file,
            identity,
            sequence: 0,
            end: RECORDS,
            chain: MapLogHeader::chain(&header),
            acknowledged: 0,
            unsynced: false,
            checkpoint: 0,
            next_slot: 0,
            notes,
        };
        log.fill(&header, groups).inspect_err(|_| {
            let _ = path.remove_file();
        })?;
        Ok(log)
    }

    fn fill(&mut self, header: &[u8], groups: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        self.file.write(0, header)?;
        let mut batch = format::RecordBatch::new(self.sequence, 0, self.chain);
        for (group, word) in groups {
            batch.push(group, word);
            if batch.len() >= 4 << 20 {
                batch.close();
                self.file.write(self.end, batch.bytes())?;
                self.end += batch.len() as u64;
                batch.restart();
            }
        }
        batch.close();
        self.file.write(self.end, batch.bytes())?;
        self.end += batch.len() as u64;
        (self.sequence, self.chain) = batch.last();
        for slot in SLOTS {
            self.file.write(slot, &self.slot().encode())?;
        }
        self.file.set_len(self.end)?;
        self.file.file().sync_all().map_err(|e| self.path.error(e))?;
        self.acknowledged = self.sequence;
        self.checkpoint = self.end;
        Ok(())
    }

    fn slot(&self) -> CheckpointSlot {
        CheckpointSlot { sequence: self.sequence, end: self.end, chain: self.chain }
    }

    /// Opens a log, telling `restore` the word of each group in the order of the records, and then those
    /// that were noted in the same page cache. Groups are below `limit`. With `doubted` what is read is
    /// what stable storage has.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when anything but the end of an unacknowledged batch does
    /// not check, or what is noted does not; [`Unsupported`](ErrorKind::Unsupported) for a later format.
    pub(crate) fn open(
        path: &FsPath,
        identity: Identity,
        limit: u64,
        doubted: bool,
        restore: &mut dyn FnMut(u64, u64, WordOrigin),
    ) -> Result<Self> {
        let file = open_file(path, Open::WRITE)?;
        if doubted {
            unsynced::reread(&file)?;
        }
        let Replayed { last, acknowledged, length, notes, stands } =
            replay(path, &file, identity, limit, doubted, restore)?;
        let notes = Arc::new(notes);
        let log = Self {
            path: path.clone(),
            file,
            identity,
            sequence: last.sequence,
            end: last.end,
            chain: last.chain,
            acknowledged,
            // A killed process may have left all of it in the page cache alone.
            unsynced: true,
            checkpoint: RECORDS,
            next_slot: 0,
            notes,
        };
        if length != last.end {
            // The rest of a batch that nobody was told of.
            log.file.set_len(last.end)?;
        }
        if !stands {
            // What stands on nothing that is here stands on nothing that will be.
            log.notes.forget([]);
        }
        log.notes.stand_on(log.ground()?)?;
        Ok(log)
    }

    /// What notes stand on now.
    fn ground(&self) -> Result<LogPosition> {
        Ok(LogPosition::at(number_of(&self.path, &self.file)?, &self.slot()))
    }

    /// What is noted of changes that it does not have yet.
    pub(crate) fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// Appends the words of groups and returns when they are on stable storage. With no group it
    /// syncs what was written before, if that is not known to be durable.
    pub(crate) fn append(
        &mut self,
        groups: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<(), Failure> {
        let mut batch = format::RecordBatch::new(self.sequence, self.acknowledged, self.chain);
        for (group, word) in groups {
            batch.push(group, word);
        }
        batch.close();
        if batch.len() == 0 && !self.unsynced {
            return Ok(());
        }
        if let Err(error) = self.file.write(self.end, batch.bytes()) {
            let _ = self.file.set_len(self.end);
            return Err(Failure::Retry(error));
        }
        self.sync()?;
        self.end += batch.len() as u64;
        (self.sequence, self.chain) = batch.last();
        self.acknowledged = self.sequence;
        self.unsynced = false;
        if let Err(error) = self.ground().and_then(|ground| self.notes.stand_on(ground)) {
            // They stand on the record before, which is there as well.
            tracing::warn!(path = %self.path.display(), %error, "cannot bring the notes up to date");
        }
        // Not synced: see the module's text. A slot that cannot be written only lags.
        let slot = self.slot().encode();
        if let Err(error) = self.file.write(SLOTS[self.next_slot], &slot) {
            tracing::warn!(path = %self.path.display(), %error, "cannot note the acknowledged record");
        }
        self.next_slot ^= 1;
        Ok(())
    }

    /// Whether the log has outgrown its last checkpoint.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.end - self.checkpoint > (1 << 20).max(4 * self.checkpoint)
    }

    /// Whether a checkpoint would make it any shorter.
    pub(crate) fn has_records_behind_checkpoint(&self) -> bool {
        self.end > self.checkpoint
    }

    /// Replaces the file by one that holds `groups`, which must be all there is.
    pub(crate) fn checkpoint(
        &mut self,
        groups: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<(), Failure> {
        let fresh = self.path.with_extension("map.new");
        // What an earlier try could not remove. Who has the layer open makes it, nobody else.
        let _ = fresh.remove_file();
        let notes = Arc::clone(&self.notes);
        let mut new =
            Self::create_beside(&fresh, self.identity, groups, notes).map_err(Failure::Retry)?;
        // Before: what is noted counts beside either, whichever a kill leaves.
        new.ground().and_then(|ground| self.notes.stand_also_on(ground)).map_err(|error| {
            let _ = fresh.remove_file();
            Failure::Retry(error)
        })?;
        let left = fresh.replace(&self.path).map_err(|error| {
            let _ = fresh.remove_file();
            Failure::Retry(self.path.error(error))
        })?;
        new.path.clone_from(&self.path);
        *self = new;
        if let Err(error) = self.ground().and_then(|ground| self.notes.stand_on(ground)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot bring the notes up to date");
        }
        fresh.settle(left).map_err(Failure::Lost)
    }

    /// Puts the slot of the last record on stable storage too, so that its loss would be noticed.
    pub(crate) fn seal(&mut self) -> Result<(), Failure> {
        self.sync()
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file.file().sync_data().map_err(|e| Failure::Lost(self.path.error(e)))
    }
}

/// Opens the file of a log; one that is missing is damage.
fn open_file(path: &FsPath, how: Open) -> Result<RandomFile> {
    RandomFile::open_on(path, how).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::corrupt(format!("{}: is missing; {REMEDY}", path.display())),
        _ => e,
    })
}

/// Reads a log that nobody has open, telling `restore` the word of each group in the order of the records, and
/// then those that were noted. Nothing is changed, nor waited for to be durable: it is only looked at.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written,
/// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version; any error from the file system.
pub(crate) fn look(
    path: &FsPath,
    identity: Identity,
    limit: u64,
    restore: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let file = open_file(path, Open::READ)?;
    let mut restore = |group, word, _: WordOrigin| restore(group, word);
    replay(path, &file, identity, limit, false, &mut restore).map(|_| ())
}

/// What was found in a log.
struct Replayed {
    /// Its last record.
    last: CheckpointSlot,
    /// The number of the last record that was acknowledged.
    acknowledged: u64,
    /// The length of its file, in bytes.
    length: u64,
    notes: Notes,
    /// The notes count beside it.
    stands: bool,
}

/// Tells `restore` what a log holds, and what the notes beside it do if they count.
fn replay(
    path: &FsPath,
    file: &RandomFile,
    identity: Identity,
    limit: u64,
    doubted: bool,
    restore: &mut dyn FnMut(u64, u64, WordOrigin),
) -> Result<Replayed> {
    let reader = MapLogReader { path, length: file.len()?, file };
    let header = reader.header(&identity)?;
    let acknowledged = reader.slot()?;
    let notes = Notes::of(path, identity)?;
    let grounds = if doubted { Vec::new() } else { notes.look()? };
    let number = number_of(path, file)?;
    let mut stands = false;
    let mut passed =
        |slot: &CheckpointSlot| stands |= grounds.contains(&LogPosition::at(number, slot));
    let mut flushed = |group, word| restore(group, word, WordOrigin::Flushed);
    let last = reader.records(&header, limit, &acknowledged, &mut passed, &mut flushed)?;
    if stands {
        notes.read(limit, &mut |group, word| restore(group, word, WordOrigin::Recent))?;
    }
    let acknowledged = acknowledged.sequence;
    Ok(Replayed { last, acknowledged, length: reader.length, notes, stands })
}

/// The number of an open file in its file system.
fn number_of(path: &FsPath, file: &RandomFile) -> Result<u64> {
    Ok(file.file().metadata().map_err(|e| path.error(e))?.identity.1)
}

/// Reads a log that may hold anything.
struct MapLogReader<'a> {
    path: &'a FsPath,
    file: &'a RandomFile,
    length: u64,
}

impl MapLogReader<'_> {
    fn corrupt(&self, offset: u64, why: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("{}: at offset {offset}: {why}; {REMEDY}", self.path.display()))
    }

    fn header(&self, identity: &Identity) -> Result<[u8; 512]> {
        let mut bytes = [0; 512];
        if self.length < RECORDS {
            return Err(self.corrupt(self.length, "the file ends within its header"));
        }
        self.file.read_blocking(0, &mut bytes)?;
        let header = MapLogHeader::decode(&bytes).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => self.corrupt(0, e),
            _ => e.context(self.path.display()),
        })?;
        if header.identity != *identity {
            return Err(self.corrupt(0, "this is the map of another disk or layer"));
        }
        Ok(bytes)
    }

    /// The later one of the slots that check.
    fn slot(&self) -> Result<CheckpointSlot> {
        let mut best: Option<CheckpointSlot> = None;
        for at in SLOTS {
            let mut bytes = [0; CheckpointSlot::LEN];
            self.file.read_blocking(at, &mut bytes)?;
            if let Some(slot) = CheckpointSlot::decode(&bytes)
                && best.as_ref().is_none_or(|b| b.sequence < slot.sequence)
            {
                best = Some(slot);
            }
        }
        best.ok_or_else(|| self.corrupt(SLOTS[0], "neither acknowledgement slot checks"))
    }

    /// Restores every record that checks, tells `passed` where each ends, and says where they all do.
    fn records(
        &self,
        header: &[u8; 512],
        limit: u64,
        acknowledged: &CheckpointSlot,
        passed: &mut dyn FnMut(&CheckpointSlot),
        restore: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckpointSlot> {
        let mut last =
            CheckpointSlot { sequence: 0, end: RECORDS, chain: MapLogHeader::chain(header) };
        loop {
            if last.sequence == acknowledged.sequence && last != *acknowledged {
                return Err(self.corrupt(last.end, "a record is not the one that was acknowledged"));
            }
            passed(&last);
            let Some((record, payload)) = self.record(&last)? else { break };
            decode_entries(&payload, limit, restore).map_err(|why| self.corrupt(last.end, why))?;
            last = CheckpointSlot {
                sequence: record.sequence,
                end: last.end + RECORD_HEADER as u64 + payload.len() as u64,
                chain: record.chain,
            };
        }
        if last.sequence < acknowledged.sequence {
            let why = format!(
                "record {} is missing or damaged, but record {} was acknowledged",
                last.sequence + 1,
                acknowledged.sequence
            );
            return Err(self.corrupt(last.end, why));
        }
        self.check_tail(&last)?;
        Ok(last)
    }

    /// The record behind `last`; `None` when it does not check.
    fn record(&self, last: &CheckpointSlot) -> Result<Option<(RecordHeader, Vec<u8>)>> {
        let room = self.length.saturating_sub(last.end);
        if room < RECORD_HEADER as u64 {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEADER];
        self.file.read_blocking(last.end, &mut head)?;
        let Some(record) = RecordHeader::decode(&head) else { return Ok(None) };
        let payload = u64::from(record.payload);
        if record.sequence != last.sequence + 1 || payload > room - RECORD_HEADER as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; record.payload as usize];
        self.file.read_blocking(last.end + RECORD_HEADER as u64, &mut bytes)?;
        Ok((RecordHeader::chain_of(last.chain, &head, &bytes) == record.chain)
            .then_some((record, bytes)))
    }

    /// Looks behind the last good record for one that was written after a later one was
    /// acknowledged: then what lies between is damage, not the end of a crash.
    fn check_tail(&self, last: &CheckpointSlot) -> Result<()> {
        const WINDOW: usize = 64 << 10;
        let mut window = vec![0; WINDOW + RECORD_HEADER];
        let mut at = last.end;
        while at < self.length {
            let len = (self.length - at).min(window.len() as u64) as usize;
            self.file.read_blocking(at, &mut window[..len])?;
            for start in (0..len.min(WINDOW)).step_by(8) {
                let Some(head) = window[..len].get(start..start + RECORD_HEADER) else { break };
                if let Some(record) = RecordHeader::decode(head)
                    && record.acknowledged > last.sequence
                {
                    return Err(self.corrupt(
                        last.end,
                        format!("record {} is damaged, but was acknowledged", last.sequence + 1),
                    ));
                }
            }
            at += WINDOW as u64;
        }
        Ok(())
    }
}
