//! What was written to a medium: an image version, a disk's published state, or a suspended machine.
//!
//! The file is framed and sealed by [`store::outside`], under the magic `SOJMIMG\n`, and called after a
//! keyed hash of the name, which says nothing of it. Its body, all numbers little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 4, … | length of a JSON object; the object |
//! | 4 | n, number of chunks |
//! | n times 8 | the first bytes of each chunk's id; the boot list's first |
//! | 4 | from version 2 on: m, number of maps |
//! | m times 8 | the first bytes of each map's id |

use super::read_bounded;
use crate::wire::WireReader;
use block::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use store::{ManifestId, Settings, outside};

pub(crate) const MAGIC: [u8; 8] = *b"SOJMIMG\n";
/// The version that is written, and the newest that is read.
pub(crate) const VERSION: u16 = 2;
/// The longest file that is read: of an image of some 2 TiB.
const MAX_LEN: u64 = 256 << 20;
/// The longest JSON object.
const MAX_JSON: usize = 64 << 10;

/// What a record is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordKind {
    /// An image version.
    Image,
    /// A disk, as it was published last.
    Disk,
    /// A machine, as it was suspended.
    Machine,
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Disk => "disk",
            Self::Machine => "machine",
        })
    }
}

/// An image, a disk or a machine that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediaRecord {
    /// The name that the user gave: an image without a version, or a machine without a number, is its newest one at
    /// each writing.
    pub name: String,
    /// What it is.
    pub kind: RecordKind,
    /// Which version of an image, or which parcel of a machine; of a disk its name.
    pub version: String,
    /// Its content; of a machine, that of its memory.
    pub manifest: ManifestId,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written, in Unix seconds.
    pub written: u64,
    /// Chunks that come first: its boot list's, or a machine's resume set's.
    pub boot_chunks: u64,
}

/// A record, its chunks and its maps, as it is on a medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRecord {
    pub(super) number: u32,
    pub(super) record: MediaRecord,
    /// The first bytes of the ids of its chunks.
    pub(super) ids: Vec<[u8; 8]>,
    /// The first bytes of the ids of its maps; none in a record of version 1.
    pub(super) maps: Vec<[u8; 8]>,
}

impl StoredRecord {
    pub(super) fn boot_chunks(&self) -> usize {
        self.ids.len().min(self.record.boot_chunks as usize)
    }
}

/// The number of the file of a record.
pub(super) fn number_of(settings: &Settings, kind: RecordKind, name: &str) -> u32 {
    settings.file_number(&format!("{kind}/{name}"))
}

pub(super) fn path(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("{number:08x}.img"))
}

pub(crate) fn name(number: u32) -> String {
    format!("record {number:08x} of a medium")
}

pub(super) fn read(settings: &Settings, path: &Path, number: u32) -> Result<StoredRecord> {
    decode(settings, number, &read_bounded(path, MAX_LEN)?)
}

pub(super) fn encode(settings: &Settings, stored: &StoredRecord) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(&stored.record)
        .map_err(|e| block::Error::internal("a record has no JSON").with_source(e))?;
    let mut body = (json.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(&json);
    body.extend_from_slice(&(stored.ids.len() as u32).to_le_bytes());
    body.extend_from_slice(stored.ids.as_flattened());
    body.extend_from_slice(&(stored.maps.len() as u32).to_le_bytes());
    body.extend_from_slice(stored.maps.as_flattened());
    outside::encode_version(settings, (MAGIC, VERSION), &name(stored.number), &body)
}

pub(crate) fn decode(settings: &Settings, number: u32, bytes: &[u8]) -> Result<StoredRecord> {
    let name = name(number);
    let (version, body) = outside::decode_versions(settings, (MAGIC, VERSION), &name, bytes)?;
    let mut reader = WireReader::new(&name, &body);
    let len = reader.u32()? as usize;
    if len > MAX_JSON {
        return Err(reader.damaged("its description is too long"));
    }
    let record = serde_json::from_slice(reader.take(len)?)
        .map_err(|e| reader.damaged("its description is none").with_source(e))?;
    let ids = take_ids(&mut reader)?;
    let maps = if version > 1 { take_ids(&mut reader)? } else { Vec::new() };
    reader.end()?;
    Ok(StoredRecord { number, record, ids, maps })
}

fn take_ids(reader: &mut WireReader<'_>) -> Result<Vec<[u8; 8]>> {
    let count = reader.count(8)?;
    let (ids, rest) = reader.take(count * 8)?.as_chunks::<8>();
    debug_assert!(rest.is_empty());
    Ok(ids.to_vec())
}
