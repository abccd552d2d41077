//! A map in a file: 64 bytes that say what it is, then the object as a store has it.

use super::head::{self, FileHead, HEAD};
use super::{read_bounded, read_error};
use crate::regular::open_regular;
use block::{Error, Result};
use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use store::{MapId, Settings};

pub(crate) const MAGIC: [u8; 8] = *b"SOJMMAP\n";

/// A file that holds a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapFile {
    pub(super) number: u32,
    pub(super) id: MapId,
    /// Bytes of the object.
    pub(super) len: u32,
}

impl MapFile {
    /// Where the file of this number is.
    pub(super) fn path(directory: &Path, number: u32) -> PathBuf {
        head::path(directory, number, "map")
    }

    pub(super) fn short(&self) -> [u8; 8] {
        short(&self.id)
    }

    /// Bytes of the file.
    pub(super) fn file_len(&self) -> u64 {
        HEAD as u64 + u64::from(self.len)
    }
}

/// The first bytes of an id.
pub(super) fn short(id: &MapId) -> [u8; 8] {
    let bytes = id.as_bytes();
    std::array::from_fn(|i| bytes[i])
}

/// What is written: the head, and behind it the object.
pub(super) fn head_of(settings: &Settings, id: &MapId, object: &[u8]) -> [u8; HEAD] {
    let (len, kind) = (object.len() as u32, id.kind_number());
    FileHead { id: *id.as_bytes(), len, kind }.encode(settings, MAGIC)
}

/// Reads the head of a map file of `size` bytes; the object is not read.
pub(crate) fn decode_head(
    settings: &Settings,
    name: &str,
    head: &[u8],
    number: u32,
    size: u64,
) -> Result<MapFile> {
    let head = FileHead::decode(settings, MAGIC, name, head, size)?;
    let id = MapId::of_kind(head.kind, head.id);
    match id.filter(|_| u64::from(head.len) <= MapId::MAX_LEN) {
        Some(id) => Ok(MapFile { number, id, len: head.len }),
        None => Err(Error::corrupt(format!("{name} is damaged: there is no such map"))),
    }
}

/// Reads what map is in a file of `size` bytes.
pub(super) fn read_head(
    settings: &Settings,
    path: &Path,
    number: u32,
    size: u64,
) -> Result<MapFile> {
    let name = path.display().to_string();
    let at_path = |e| read_error(path, e);
    let (file, _) = open_regular(path).map_err(at_path)?;
    if size < HEAD as u64 {
        return Err(Error::corrupt(format!("{name} is damaged: it is cut off")));
    }
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(at_path)?;
    decode_head(settings, &name, &head, number, size)
}

/// Reads the object of a map: not verified, but as long as it was.
pub(super) fn read_object(directory: &Path, map: &MapFile) -> Result<Bytes> {
    let path = MapFile::path(directory, map.number);
    let bytes = Bytes::from(read_bounded(&path, map.file_len())?);
    match bytes.len() as u64 == map.file_len() {
        true => Ok(bytes.slice(HEAD..)),
        false => Err(Error::corrupt(format!("{} is cut off", path.display()))),
    }
}

/// The bytes of a file that has `object`, whatever that is: the first byte says of which kind it claims to be.
pub(crate) fn frame(settings: &Settings, object: &[u8]) -> Vec<u8> {
    let kind = object.first().map_or(0, |byte| u32::from(byte % 5));
    let head = FileHead { id: [0; 32], len: object.len() as u32, kind };
    [&head.encode(settings, MAGIC), object].concat()
}

/// Reads the bytes of a file, and verifies the map.
pub(crate) fn decode(settings: &Settings, bytes: &[u8]) -> Result<()> {
    let head = bytes.get(..HEAD).unwrap_or(bytes);
    let map = decode_head(settings, "map", head, 0, bytes.len() as u64)?;
    let object = bytes.get(HEAD..).unwrap_or_default();
    map.id.verify(settings, object.to_vec().into()).map(|_| ())
}

/// Reads all of a map file and verifies it.
pub(super) fn check(settings: &Settings, directory: &Path, map: &MapFile) -> Result<()> {
    map.id.verify(settings, read_object(directory, map)?).map(|_| ())
}
