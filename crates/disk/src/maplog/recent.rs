//! Notes beside a map log, `NNNN.recent`: which words changed since the last flush. They are for the
//! next process after a kill.
//!
//! A kill takes nothing from the page cache. The blocks that were written are in it; all that would be
//! lost is what the map says of them. So the words are noted once a second, without a sync. After a power
//! failure storage may have the notes and not the blocks, and a block would read as bytes that nobody
//! wrote: notes count only with the page cache that they were written into ([`PageCacheId`]), and only
//! behind the very record of the very file that they were written behind.

use super::Identity;
use super::format::{Batch, RECORD_HEADER, Record, decode_entries, u32_at};
use block::Result;
use block::fs::{Creation, File, FsPath, Open};
use block::page_cache::PageCacheId;

/// What the name of the notes ends with.
pub(crate) const SUFFIX: &str = "recent";

const MAGIC: &[u8; 8] = b"SOJSHREC";
const VERSION: u16 = 1;
const HEADER: usize = 128;
/// The longest notes that are read, in bytes.
const LONGEST: u64 = 64 << 20;
/// With more than this, in bytes, a flush is better than more notes.
const LONG: u64 = 1 << 20;

/// What notes stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ground {
    /// The page cache that has what they speak of.
    pub(super) memory: PageCacheId,
    /// The number of the map's file.
    pub(super) file: u64,
    /// The last record of the log: its number and its checksum.
    pub(super) sequence: u64,
    pub(super) chain: u32,
}

impl Ground {
    fn encode(&self, identity: &Identity) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&identity.layer.to_le_bytes());
        out[16..32].copy_from_slice(&identity.disk);
        out[32..64].copy_from_slice(&self.memory.0);
        out[64..72].copy_from_slice(&self.file.to_le_bytes());
        out[72..80].copy_from_slice(&self.sequence.to_le_bytes());
        out[80..84].copy_from_slice(&self.chain.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
        out
    }
}

/// The notes of a log.
#[derive(Debug)]
pub(super) struct Recent {
    path: FsPath,
    /// Where they end; nothing while there are none.
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    sequence: u64,
    at: u64,
    chain: u32,
}

impl Recent {
    /// Those beside the log `map`; what may be there is not looked at.
    pub(super) fn of(map: &FsPath) -> Self {
        Self { path: map.with_extension(SUFFIX), end: None }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.end.is_none()
    }

    /// Whether a flush is better than more of them.
    pub(super) fn are_long(&self) -> bool {
        self.end.is_some_and(|end| end.at > LONG)
    }

    /// Reads notes that stand on `ground`, telling `restore` the word of each group, and goes on behind
    /// them. Others, and what does not check, count for nothing.
    pub(super) fn read(
        &mut self,
        ground: &Ground,
        identity: &Identity,
        limit: u64,
        restore: &mut dyn FnMut(u64, u64),
    ) {
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, "cannot read what was noted since the last flush");
                return;
            }
        };
        let header = ground.encode(identity);
        if bytes.get(..HEADER) != Some(&header[..]) {
            return;
        }
        let mut end = End { sequence: 0, at: HEADER as u64, chain: u32_at(&header, HEADER - 4) };
        while let Some((next, payload)) = record(&bytes, &end) {
            if decode_entries(payload, limit, restore).is_err() {
                break;
            }
            end = next;
        }
        self.end = Some(end);
    }

    /// Notes words on `ground`. Nothing is synced.
    ///
    /// # Errors
    /// Those of the file system; then nothing more is noted than was.
    pub(super) fn append(
        &mut self,
        ground: &Ground,
        identity: &Identity,
        groups: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<()> {
        let failed = |e| self.path.error(e);
        let header = ground.encode(identity);
        let fresh = End { sequence: 0, at: HEADER as u64, chain: u32_at(&header, HEADER - 4) };
        let end = self.end.unwrap_or(fresh);
        let mut batch = Batch::new(end.sequence, 0, end.chain);
        groups.into_iter().for_each(|(group, word)| batch.push(group, word));
        batch.close();
        let creation = match self.end {
            None => Creation::Replace,
            Some(_) => Creation::IfMissing,
        };
        let file = self.path.open(Open { creation, ..Open::WRITE }).map_err(failed)?;
        let write = |file: &File| {
            if self.end.is_none() {
                file.write_all_at(&header, 0)?;
            }
            file.write_all_at(batch.bytes(), end.at)
        };
        if let Err(error) = write(&file) {
            let _ = file.set_len(self.end.map_or(0, |end| end.at));
            return Err(failed(error));
        }
        let (sequence, chain) = batch.last();
        self.end = Some(End { sequence, at: end.at + batch.len() as u64, chain });
        Ok(())
    }

    /// Removes them: the log says all that they said, or nobody can vouch for it.
    pub(super) fn forget(&mut self) {
        if self.end.take().is_some() {
            self.remove();
        }
    }

    /// Removes whatever is there under their name.
    pub(super) fn remove(&self) {
        match self.path.remove_file() {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                // They stand on nothing that will be again.
                tracing::warn!(path = %self.path.display(), error = %e, "cannot remove old notes");
            }
            _ => {}
        }
    }
}

/// What the file holds; nothing where there is none.
fn read(path: &FsPath) -> Result<Vec<u8>> {
    match path.open(Open::READ).and_then(|file| file.read_to_end(0, LONGEST)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|e| path.error(e)),
    }
}

/// The record behind `end`, if it checks.
fn record<'a>(bytes: &'a [u8], end: &End) -> Option<(End, &'a [u8])> {
    let (head, behind) = bytes.get(end.at as usize..)?.split_at_checked(RECORD_HEADER)?;
    let record = Record::decode(head)?;
    let payload = behind.get(..record.payload as usize)?;
    let checks = record.sequence == end.sequence + 1
        && Record::chain_of(end.chain, head, payload) == record.chain;
    let at = end.at + (RECORD_HEADER + payload.len()) as u64;
    checks.then_some((End { sequence: record.sequence, at, chain: record.chain }, payload))
}
