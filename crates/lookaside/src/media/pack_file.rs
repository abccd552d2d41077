//! A pack of chunks in a file: 64 bytes that say what it is, then the pack as a store would have it.

use super::head::{self, FileHead, HEAD};
use super::read_error;
use crate::regular::open_regular;
use block::{Error, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use store::pack::{self, PackIndex};
use store::{ChunkId, ChunkRef, Encoding, PackId, Settings};

const MAGIC: [u8; 8] = *b"SOJMPCK\n";
/// Read first of a pack's end.
const TAIL: u64 = 16 << 10;

/// A chunk in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkRow {
    pub(super) id: ChunkId,
    /// In the pack, in bytes.
    pub(super) offset: u32,
    pub(super) stored: u32,
    /// Plain bytes.
    pub(super) len: u32,
    pub(super) encoding: Encoding,
}

impl ChunkRow {
    pub(super) fn short(&self) -> [u8; 8] {
        short(&self.id)
    }
}

/// The first bytes of an id: a keyed hash, so that two chunks hardly ever have the same ones.
pub(super) fn short(id: &ChunkId) -> [u8; 8] {
    std::array::from_fn(|i| id.0[i])
}

/// A file that holds a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackFile {
    pub(super) number: u32,
    pub(super) id: PackId,
    /// Bytes of the file.
    pub(super) len: u64,
    pub(super) rows: Vec<ChunkRow>,
    /// It is in the index file, so all of it was there once.
    pub(super) indexed: bool,
}

impl PackFile {
    /// Where the file of this number is.
    pub(super) fn path(directory: &Path, number: u32) -> PathBuf {
        head::path(directory, number, "pck")
    }
}

/// What stands before a pack.
pub(super) fn head_of(settings: &Settings, id: &PackId, len: u32) -> [u8; HEAD] {
    FileHead { id: id.0, len, kind: 0 }.encode(settings, MAGIC)
}

/// The id of the pack in a file of `size` bytes.
fn check_head(settings: &Settings, name: &str, head: &[u8], size: u64) -> Result<PackId> {
    let head = FileHead::decode(settings, MAGIC, name, head, size)?;
    match head.kind == 0 && u64::from(head.len) <= pack::MAX_LEN {
        true => Ok(PackId(head.id)),
        false => Err(Error::corrupt(format!("{name} is damaged: it is longer than a pack can be"))),
    }
}

/// Reads what a pack file of `size` bytes holds, from its two ends.
pub(super) fn read_index(
    settings: &Settings,
    path: &Path,
    number: u32,
    size: u64,
) -> Result<PackFile> {
    let name = path.display().to_string();
    let at_path = |e| read_error(path, e);
    let cut_off = || Error::corrupt(format!("{name} is damaged: it is cut off"));
    let (file, _) = open_regular(path).map_err(at_path)?;
    if size < (HEAD + 48) as u64 {
        return Err(cut_off());
    }
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(at_path)?;
    let id = check_head(settings, &name, &head, size)?;
    let len = size - HEAD as u64;
    let end = |tail: u64| {
        let mut bytes = vec![0; tail as usize];
        file.read_exact_at(&mut bytes, size - tail).map_err(at_path).map(|()| bytes)
    };
    let mut tail = end(TAIL.min(len))?;
    let needed = pack::tail_len(&name, &tail, len)?;
    if needed > tail.len() as u64 {
        tail = end(needed)?;
    }
    let index = PackIndex::decode(settings, id, &name, &tail, len)?;
    Ok(PackFile { number, id, len: size, rows: rows(&index), indexed: false })
}

pub(super) fn rows(index: &PackIndex) -> Vec<ChunkRow> {
    let row = |at: ChunkRef| ChunkRow {
        id: at.id,
        offset: at.offset,
        stored: at.stored,
        len: at.len,
        encoding: at.encoding,
    };
    index.chunks().map(row).collect()
}

/// Reads all of a pack file and verifies every chunk; returns how many chunks are damaged.
pub(super) fn check_chunks(settings: &Settings, directory: &Path, pack: &PackFile) -> Result<u64> {
    let path = PackFile::path(directory, pack.number);
    let bytes = super::read_bounded(&path, pack::MAX_LEN + HEAD as u64)?;
    let fresh = read_index(settings, &path, pack.number, bytes.len() as u64)?;
    if fresh.id != pack.id || fresh.rows != pack.rows {
        return Err(Error::corrupt(format!("{} is not the pack that was written", path.display())));
    }
    let is_damaged = |row: &&ChunkRow| {
        let start = HEAD + row.offset as usize;
        let stored = bytes.get(start..start + row.stored as usize).unwrap_or_default();
        let at = ChunkRef {
            id: row.id,
            len: row.len,
            pack: pack.id,
            offset: row.offset,
            stored: row.stored,
            encoding: row.encoding,
        };
        at.decode(settings, stored.to_vec().into()).is_err()
    };
    Ok(fresh.rows.iter().filter(is_damaged).count() as u64)
}
