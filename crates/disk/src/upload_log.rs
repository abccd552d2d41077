//! `uploads`: which packs an upload of a disk has sent, for the one that goes on after a crash.
//!
//! Each entry is the end of a pack, which proves its own name; that the pack arrived whole is looked up in
//! the store. So nothing is synced, and reading stops at the first entry that is damaged: what is lost of
//! the file costs bytes on the wire, and nothing else. It goes when the upload is done.

use async_trait::async_trait;
use block::fs::{FsPath, Open};
use block::{Error, Result, offload};
use bytes::Bytes;
use std::io;
use store::{PackId, PackTail, UploadJournal};
use tokio::sync::Mutex;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The name of the file.
pub(crate) const FILE: &str = "uploads";
const MAGIC: [u8; 8] = *b"SOJUPLD1";
/// A longer file is not read to its end.
const MAX_LEN: u64 = 64 << 20;
/// The longest end of a pack: 16,384 entries of 52 bytes, and what stands around them.
const MAX_TAIL: usize = 1 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UploadHead {
    /// Bytes of the tail.
    len: U32,
    /// CRC-32C of what follows in the entry.
    checksum: U32,
    size: U64,
    id: [u8; 32],
}

/// The part of [`UploadHead`] that its checksum does not cover.
const UNCOVERED: usize = 8;

/// The log of a disk; used by one upload at a time.
pub(crate) struct UploadLog {
    path: FsPath,
    /// Where the next entry goes, once that is known.
    end: Mutex<Option<u64>>,
}

fn encode(pack: &PackTail) -> Vec<u8> {
    let mut head = UploadHead {
        len: (pack.tail.len() as u32).into(),
        checksum: 0.into(),
        size: pack.size.into(),
        id: *pack.id.as_bytes(),
    };
    let covered = crc32c::crc32c(&head.as_bytes()[UNCOVERED..]);
    head.checksum = crc32c::crc32c_append(covered, &pack.tail).into();
    [head.as_bytes(), &pack.tail].concat()
}

/// The entries of a file up to the first damaged one, and where that is.
pub(crate) fn decode(bytes: &[u8]) -> (Vec<PackTail>, usize) {
    let mut packs = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(&MAGIC) else { return (packs, 0) };
    while let Ok((head, behind)) = UploadHead::ref_from_prefix(rest) {
        let len = head.len.get() as usize;
        let Some(tail) = behind.get(..len).filter(|_| len <= MAX_TAIL) else { break };
        let covered = crc32c::crc32c(&head.as_bytes()[UNCOVERED..]);
        if crc32c::crc32c_append(covered, tail) != head.checksum.get() {
            break;
        }
        packs.push(PackTail {
            id: PackId::from(head.id),
            size: head.size.get(),
            tail: Bytes::copy_from_slice(tail),
        });
        rest = &behind[len..];
    }
    (packs, bytes.len() - rest.len())
}

impl UploadLog {
    pub(crate) fn new(directory: &FsPath) -> Self {
        Self { path: directory.join(FILE), end: Mutex::new(None) }
    }

    async fn read(&self) -> Result<(Vec<PackTail>, u64)> {
        let path = self.path.clone();
        offload(move || {
            let bytes = match path.open(Open::READ).and_then(|file| file.read_to_end(0, MAX_LEN)) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(e) => return Err(path.error(e)),
            };
            let (packs, end) = decode(&bytes);
            Ok((packs, end as u64))
        })
        .await
    }

    async fn append(&self, pack: &PackTail) -> Result<()> {
        let mut end = self.end.lock().await;
        let at = match *end {
            Some(at) => at,
            None => self.read().await?.1,
        };
        let mut bytes = encode(pack);
        if at == 0 {
            bytes.splice(..0, MAGIC);
        }
        let next = at + bytes.len() as u64;
        if next > MAX_LEN {
            return Err(Error::invalid("the log of an upload is full"));
        }
        let path = self.path.clone();
        // A failed write leaves a damaged entry, over which the next one goes.
        *end = Some(at);
        offload(move || {
            path.open(Open::IF_MISSING.private())
                .and_then(|file| file.write_all_at(&bytes, at))
                .map_err(|e| path.error(e))
        })
        .await?;
        *end = Some(next);
        Ok(())
    }

    /// Removes it: all is done.
    pub(crate) async fn clear(&self) {
        *self.end.lock().await = None;
        let path = self.path.clone();
        let removed = offload(move || match path.remove_file() {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(path.error(e)),
            _ => Ok(()),
        });
        if let Err(error) = removed.await {
            tracing::debug!(%error, "the log of a finished upload stays");
        }
    }
}

#[async_trait]
impl UploadJournal for UploadLog {
    async fn packs(&self) -> Vec<PackTail> {
        match self.read().await {
            Ok((packs, end)) => {
                *self.end.lock().await = Some(end);
                packs
            }
            Err(error) => {
                tracing::warn!(%error, "an upload begins anew: its log cannot be read");
                Vec::new()
            }
        }
    }

    async fn note(&self, pack: &PackTail) {
        if let Err(error) = self.append(pack).await {
            tracing::debug!(%error, "a pack is sent again if this process is killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packs() -> impl Strategy<Value = Vec<PackTail>> {
        let pack = (any::<[u8; 32]>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..200));
        let pack = pack.prop_map(|(id, size, tail)| PackTail {
            id: PackId::from(id),
            size,
            tail: tail.into(),
        });
        prop::collection::vec(pack, 0..8)
    }

    proptest! {
        #[test]
        fn a_log_that_is_torn_or_damaged_anywhere_gives_entries_from_its_beginning(
            packs in packs(), cut in any::<prop::sample::Index>(), flip in any::<Option<u8>>(),
        ) {
            let mut bytes = MAGIC.to_vec();
            for pack in &packs {
                bytes.extend(encode(pack));
            }
            prop_assert_eq!(decode(&bytes), (packs.clone(), bytes.len()));
            let at = cut.index(bytes.len());
            match flip {
                Some(bit) => bytes[at] ^= 1 << (bit % 8),
                None => bytes.truncate(at),
            }
            let (found, end) = decode(&bytes);
            prop_assert!(packs.starts_with(&found) && end <= at.max(MAGIC.len()));
        }
    }

    #[tokio::test]
    async fn entries_follow_what_a_torn_write_left() {
        let dir = tempfile::tempdir().unwrap();
        let directory = FsPath::from(dir.path());
        let pack = |number: u8| PackTail {
            id: PackId::from([number; 32]),
            size: number.into(),
            tail: vec![number; 100].into(),
        };
        let log = UploadLog::new(&directory);
        assert_eq!(log.packs().await, []);
        log.note(&pack(1)).await;
        log.note(&pack(2)).await;
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let log = UploadLog::new(&directory);
        assert_eq!(log.packs().await, [pack(1)]);
        log.note(&pack(3)).await;
        assert_eq!(UploadLog::new(&directory).packs().await, [pack(1), pack(3)]);
        log.clear().await;
        assert!(!path.exists());
    }
}
