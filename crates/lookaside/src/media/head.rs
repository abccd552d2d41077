//! The 64 bytes before what a store has: whose it is, what it is, and how long.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | reserved |
//! | 12 | 4 | CRC-32C of bytes 16 to 63 |
//! | 16 | 32 | the id of what follows |
//! | 48 | 4 | its length in bytes |
//! | 52 | 4 | of a map, the number of its kind; of a pack, 0 |
//! | 56 | 8 | key check: which store's it is |

use crate::wire::WireReader;
use block::{Error, Result};
use std::path::{Path, PathBuf};
use store::Settings;

/// Bytes of a head.
pub(super) const HEAD: usize = 64;
const VERSION: u16 = 1;

/// What stands before a pack or a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) id: [u8; 32],
    /// Bytes that follow.
    pub(super) len: u32,
    /// The number of a map's kind; 0 for a pack.
    pub(super) kind: u32,
}

impl FileHead {
    pub(super) fn encode(&self, settings: &Settings, magic: [u8; 8]) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&magic);
        head[8..10].copy_from_slice(&VERSION.to_le_bytes());
        head[16..48].copy_from_slice(&self.id);
        head[48..52].copy_from_slice(&self.len.to_le_bytes());
        head[52..56].copy_from_slice(&self.kind.to_le_bytes());
        head[56..].copy_from_slice(&settings.key_check());
        let checksum = crc32c::crc32c(&head[16..]);
        head[12..16].copy_from_slice(&checksum.to_le_bytes());
        head
    }

    /// Reads the head of a file of `size` bytes. `name` says in errors what it is.
    pub(super) fn decode(
        settings: &Settings,
        magic: [u8; 8],
        name: &str,
        head: &[u8],
        size: u64,
    ) -> Result<Self> {
        let mut reader = WireReader::new(name, head);
        if reader.take(8)? != magic {
            return Err(reader.damaged("it does not begin with its magic"));
        }
        let (version, reserved, checksum) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let rest = head.get(16..HEAD).ok_or_else(|| reader.damaged("it is too short"))?;
        if crc32c::crc32c(rest) != checksum {
            return Err(reader.damaged("checksum mismatch"));
        }
        let (id, len, kind) = (reader.id()?, reader.u32()?, reader.u32()?);
        if reader.take(8)? != settings.key_check() {
            return Err(Error::invalid(format!("{name} belongs to another store")));
        }
        if version > VERSION || reserved != 0 {
            return Err(Error::unsupported(format!(
                "{name} has format version {version}, this build reads up to {VERSION}; use a newer \
                 sojourn"
            )));
        }
        if size != u64::from(len) + HEAD as u64 {
            return Err(reader.damaged("it is not as long as it says"));
        }
        Ok(Self { id, len, kind })
    }
}

/// The number of a file that is tried first for what has this id.
pub(super) fn number_of(id: &[u8; 32]) -> u32 {
    let [a, b, c, d, ..] = *id;
    u32::from_be_bytes([a, b, c, d])
}

/// Where the file of a number and a kind is.
pub(super) fn path(directory: &Path, number: u32, extension: &str) -> PathBuf {
    directory.join(format!("{number:08x}.{extension}"))
}
