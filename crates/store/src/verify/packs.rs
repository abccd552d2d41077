//! Verifying whole packs.

use super::fingerprint;
use crate::pack::{self, PackIndex};
use crate::{PackId, Store};
use block::{Error, ErrorKind, Result, offload};
use bytes::Bytes;
use object_store::ObjectMeta;

/// What reading a pack gave.
pub(super) struct Read {
    /// Fingerprints of the chunks that are sound, in the order of the pack.
    pub(super) good: Vec<u64>,
    /// Chunks that were read, sound or not.
    pub(super) chunks: u64,
    /// Bytes that were read.
    pub(super) stored: u64,
    /// Plain bytes of the sound chunks.
    pub(super) bytes: u64,
    /// The first thing that is wrong, and where.
    pub(super) fault: Option<(u64, Error)>,
}

impl Read {
    fn failed(stored: u64, error: Error) -> Self {
        Self { good: Vec::new(), chunks: 0, stored, bytes: 0, fault: Some((0, error)) }
    }
}

/// Reads a pack and verifies all of it; `None` when it is gone since it was listed. Chunks whose
/// stored bytes have their checksum are sound; with `deep` they are opened, decompressed and
/// compared with their ids whatever it says.
///
/// # Errors
/// The backend's, when they say nothing of the pack.
pub(super) async fn whole(store: &Store, meta: &ObjectMeta, deep: bool) -> Result<Option<Read>> {
    let key = meta.location.to_string();
    let id = match pack::id_of_key(&key) {
        Ok(id) => id,
        Err(e) => return Ok(Some(Read::failed(0, e))),
    };
    let bytes = match objects::get(store.backend(), &key, pack::MAX_LEN).await {
        Ok(bytes) => bytes,
        // Packs of a newer format may be longer than this build reads.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            let known = pack::check_stored_version(store.backend(), &meta.location, meta.size);
            return unread(known.await.err().unwrap_or(e));
        }
        Err(e) => return unread(e),
    };
    let store = store.clone();
    offload(move || Ok(Some(check(&store, id, &key, &bytes, deep)))).await
}

/// Reads a pack's index, and takes its chunks for sound.
pub(super) async fn index(store: &Store, meta: &ObjectMeta) -> Result<Option<Read>> {
    match PackIndex::load(store.backend(), store.settings(), meta).await {
        Ok(index) => {
            let good = index.chunks().map(|at| fingerprint(&at)).collect();
            Ok(Some(Read { good, chunks: 0, stored: 0, bytes: 0, fault: None }))
        }
        Err(e) => unread(e),
    }
}

/// What an error says of a pack.
fn unread(error: Error) -> Result<Option<Read>> {
    match error.kind() {
        ErrorKind::NotFound => Ok(None),
        ErrorKind::Corrupt | ErrorKind::Unsupported => Ok(Some(Read::failed(0, error))),
        _ => Err(error),
    }
}

fn check(store: &Store, id: PackId, key: &str, bytes: &Bytes, deep: bool) -> Read {
    let (settings, size) = (store.settings(), bytes.len() as u64);
    let index = match PackIndex::decode(settings, id, key, bytes, size) {
        Ok(index) => index,
        // Where the index is sound the head is damaged, whatever it says.
        Err(e) => {
            let version = pack::check_version(key, bytes);
            return Read::failed(size, version.err().unwrap_or(e));
        }
    };
    let mut read = Read {
        good: Vec::new(),
        chunks: 0,
        stored: size,
        bytes: 0,
        fault: pack::check_head(key, bytes).err().map(|e| (0, e)),
    };
    for (at, checksum) in index.chunks().zip(index.checksums()) {
        read.chunks += 1;
        let stored = &bytes[at.offset as usize..(at.offset + at.stored) as usize];
        let same = !deep
            && at.encoding.is_sealed() == settings.is_encrypted()
            && crc32c::crc32c(stored) == checksum;
        // What is not as it was written may still give its bytes.
        match if same { Ok(()) } else { at.check(settings, stored) } {
            Ok(()) => {
                read.bytes += u64::from(at.len);
                read.good.push(fingerprint(&at));
            }
            Err(e) => {
                read.fault.get_or_insert((at.offset.into(), e));
            }
        }
    }
    read
}
