//! What is in all pack files, in one file: without it each pack file is looked into.
//!
//! The file is framed and sealed by [`store::outside`], under the magic `SOJMIDX\n`, and called after the
//! store's key check, so that a medium can serve several stores. Its body, all numbers little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | n, number of pack files |
//! | n times: | |
//! | 4, 4 | the file's number; m, number of chunks |
//! | 8, 32 | the file's length in bytes; the pack's id |
//! | m times 44 | chunk id (32), offset in the pack (4), stored bytes (4), blocks of 4 KiB (2), encoding (1), reserved (1) |

use super::head::HEAD;
use super::pack_file::{ChunkRow, PackFile};
use super::{PacksByNumber, read_bounded};
use crate::wire::WireReader;
use block::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::chunker::{MAX_PAGES, PAGE};
use store::{ChunkId, Encoding, PackId, Settings, outside, pack};

pub(crate) const MAGIC: [u8; 8] = *b"SOJMIDX\n";
pub(crate) const NAME: &str = "index of a medium";
/// The longest file that is read: of some 2 TiB of chunks. One beside fewer pack files is shorter.
const MAX_LEN: u64 = 1 << 30;
/// Bytes of a chunk in the file.
const ROW: usize = 44;
/// Bytes of a pack file without its chunks.
const FILE: usize = 48;
/// Bytes of the file beside those: its frame, the number of pack files, and the seal.
const AROUND: u64 = 24 + 4 + 16;

/// Bytes of the file that has so many chunks of so many pack files, at most.
pub(super) const fn len(chunks: u64, packs: u64) -> u64 {
    AROUND + chunks * ROW as u64 + packs * FILE as u64
}

/// Where it is.
pub(super) fn path(settings: &Settings, directory: &Path) -> PathBuf {
    let [a, b, c, d, ..] = settings.key_check();
    directory.join(format!("{:08x}.idx", u32::from_be_bytes([a, b, c, d])))
}

/// Reads what it says of the pack files that are there, which `lengths` has by their numbers. Anybody may have written
/// the index of a store in clear: whatever else it names takes no memory.
pub(super) fn read(
    settings: &Settings,
    directory: &Path,
    mut lengths: HashMap<u32, u64>,
) -> Result<PacksByNumber> {
    // A pack takes more for a chunk than its row here does.
    let rows = lengths.values().fold(0, |all: u64, len| all.saturating_add(*len));
    let most = rows.saturating_add(len(0, lengths.len() as u64)).min(MAX_LEN);
    let body = {
        let bytes = read_bounded(&path(settings, directory), most)?;
        outside::decode(settings, MAGIC, NAME, &bytes)?
    };
    // Each once.
    let is_there = |number: u32, len: u64| {
        lengths.get(&number).is_some_and(|there| *there == len) && lengths.remove(&number).is_some()
    };
    let packs = packs_in(&body, is_there)?;
    Ok(packs.into_iter().map(|pack| (pack.number, pack)).collect())
}

pub(super) fn encode(settings: &Settings, packs: &[PackFile]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    body.extend_from_slice(&(packs.len() as u32).to_le_bytes());
    for pack in packs {
        body.extend_from_slice(&pack.number.to_le_bytes());
        body.extend_from_slice(&(pack.rows.len() as u32).to_le_bytes());
        body.extend_from_slice(&pack.len.to_le_bytes());
        body.extend_from_slice(&pack.id.0);
        for row in &pack.rows {
            body.extend_from_slice(&row.id.0);
            body.extend_from_slice(&row.offset.to_le_bytes());
            body.extend_from_slice(&row.stored.to_le_bytes());
            body.extend_from_slice(&((row.len / PAGE as u32) as u16).to_le_bytes());
            body.extend_from_slice(&[row.encoding as u8, 0]);
        }
    }
    outside::encode(settings, MAGIC, NAME, &body)
}

/// All that a file says, whichever pack files there are.
pub(crate) fn decode(settings: &Settings, bytes: &[u8]) -> Result<Vec<PackFile>> {
    packs_in(&outside::decode(settings, MAGIC, NAME, bytes)?, |_, _| true)
}

/// The pack files of a body of which `is_wanted` says so, by their number and length; the others are passed over.
fn packs_in(body: &[u8], mut is_wanted: impl FnMut(u32, u64) -> bool) -> Result<Vec<PackFile>> {
    let mut reader = WireReader::new(NAME, body);
    let mut packs = Vec::new();
    for _ in 0..reader.count(FILE)? {
        let (number, chunks) = (reader.u32()?, reader.u32()?);
        let (len, id) = (reader.u64()?, PackId(reader.id()?));
        if len > pack::MAX_LEN + HEAD as u64 || u64::from(chunks) * ROW as u64 > len {
            return Err(reader.damaged("a pack's length is not possible"));
        }
        let listed = reader.take(chunks as usize * ROW)?;
        if !is_wanted(number, len) {
            continue;
        }
        let mut listed = WireReader::new(NAME, listed);
        let mut rows = Vec::with_capacity(chunks as usize);
        for _ in 0..chunks {
            rows.push(take_row(&mut listed, len)?);
        }
        packs.push(PackFile { number, id, len, rows, indexed: true });
    }
    reader.end()?;
    Ok(packs)
}

fn take_row(reader: &mut WireReader<'_>, pack: u64) -> Result<ChunkRow> {
    let id = ChunkId(reader.id()?);
    let (offset, stored) = (reader.u32()?, reader.u32()?);
    let (blocks, encoding, reserved) = (u32::from(reader.u16()?), reader.u8()?, reader.u8()?);
    let len = blocks * PAGE as u32;
    let encoding = Encoding::from_number(encoding)
        .filter(|encoding| encoding.allows(stored, len))
        .filter(|_| (1..=MAX_PAGES).contains(&blocks) && reserved == 0)
        .filter(|_| HEAD as u64 + u64::from(offset) + u64::from(stored) <= pack);
    match encoding {
        Some(encoding) => Ok(ChunkRow { id, offset, stored, len, encoding }),
        None => Err(reader.damaged("a chunk's place is not possible")),
    }
}
