//! The few operations that a store needs of a backend.
//!
//! Only two kinds of write exist: an object whose name is the hash of its content
//! ([`put_content`]), where overwriting is harmless, and an object that must not exist yet
//! ([`put_new`]).
//!
//! All of them fail as [`error`] says: `NotFound`, `Conflict`, `Denied`, `NoSpace`, `Unsupported`,
//! or `Unavailable` where the backend could not be reached. Reads also fail with `Corrupt`, where an
//! object is longer or shorter than it can be.

use crate::hint::{Hint, MostBytes};
use crate::{directory, fault};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// Maps a backend's error; `key` names the object.
pub fn error(key: &str, source: object_store::Error) -> Error {
    use object_store::Error as Backend;
    if let Some((kind, remedy)) = fault::meaning(&source) {
        return Error::new(kind, format!("object {key}: {remedy}")).with_source(source);
    }
    let kind = match &source {
        Backend::NotFound { .. } => ErrorKind::NotFound,
        Backend::AlreadyExists { .. } | Backend::Precondition { .. } => ErrorKind::Conflict,
        Backend::PermissionDenied { .. } | Backend::Unauthenticated { .. } => ErrorKind::Denied,
        Backend::NotSupported { .. } | Backend::NotImplemented { .. } => ErrorKind::Unsupported,
        other => match io_cause(other) {
            Some(cause) => {
                let kind = Error::io("", io::Error::from(cause)).kind();
                // A missing file here is one that vanished under us.
                if kind == ErrorKind::Invalid { ErrorKind::Unavailable } else { kind }
            }
            None => ErrorKind::Unavailable,
        },
    };
    let message = match kind {
        ErrorKind::NotFound => format!("object {key} does not exist in the store"),
        ErrorKind::Conflict => format!("object {key} exists already"),
        ErrorKind::NoSpace => {
            format!("object {key}: the store is full; free some room and try again")
        }
        ErrorKind::Denied => format!(
            "object {key}: the store denies it ({source}); check the credentials and their rights, \
             and whether it is read only"
        ),
        _ => format!("object {key}: {source}"),
    };
    Error::new(kind, message).with_source(source)
}

pub(crate) fn io_cause(error: &object_store::Error) -> Option<io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = at.source();
    }
    None
}

/// Reads a whole object of at most `limit` bytes.
pub async fn get(backend: &dyn ObjectStore, key: &str, limit: u64) -> Result<Bytes> {
    get_with(backend, key, limit, None).await
}

/// Reads an object as [`get`] does, with a wish.
pub async fn get_with(
    backend: &dyn ObjectStore,
    key: &str,
    limit: u64,
    hint: Option<Hint>,
) -> Result<Bytes> {
    let path = Path::from(key);
    let mut options = GetOptions::default();
    options.extensions.insert(MostBytes(limit));
    if let Some(hint) = hint {
        options.extensions.insert(hint);
    }
    let answer = backend.get_opts(&path, options).await.map_err(|e| error(key, e))?;
    let size = answer.meta.size;
    if size > limit {
        return Err(Error::corrupt(format!(
            "object {key} has {size} bytes, more than its format allows ({limit}); restore it from \
             a backup"
        )));
    }
    answer.bytes().await.map_err(|e| error(key, e))
}

/// Reads `len` bytes at `offset` of an object.
pub async fn get_range(
    backend: &dyn ObjectStore,
    path: &Path,
    offset: u64,
    len: u64,
) -> Result<Bytes> {
    // The plural form is one trip for a local file; that of one range opens, and then reads.
    let range = offset..offset + len;
    let ranges = backend.get_ranges(path, std::slice::from_ref(&range)).await;
    let mut ranges = ranges.map_err(|e| beyond_end(path, offset, len, e))?;
    let bytes = ranges.pop().unwrap_or_default();
    if bytes.len() as u64 != len {
        return Err(Error::corrupt(format!(
            "object {path} ends before byte {}; restore it from a backup",
            offset + len
        )));
    }
    Ok(bytes)
}

/// Reads some ranges of an object in one call; a part is shorter than its range when the object ends
/// there.
pub async fn get_ranges(
    backend: &dyn ObjectStore,
    path: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    backend.get_ranges(path, ranges).await.map_err(|e| beyond_end(path, 0, end, e))
}

/// Backends say in their own words that a range begins behind the end of an object: all of them
/// are generic errors without an I/O cause. A length tells.
fn beyond_end(path: &Path, offset: u64, len: u64, source: object_store::Error) -> Error {
    let mapped = error(path.as_ref(), source);
    if mapped.kind() == ErrorKind::Unavailable && mapped.message().to_lowercase().contains("range")
    {
        let message =
            format!("object {path} ends before byte {}; restore it from a backup", offset + len);
        return Error::corrupt(message).with_source(mapped);
    }
    mapped
}

/// Reads a range as [`get_range`] does, with a wish.
pub async fn get_range_with(
    backend: &dyn ObjectStore,
    path: &Path,
    offset: u64,
    len: u64,
    hint: Hint,
) -> Result<Bytes> {
    let range = Some((offset..offset + len).into());
    let mut options = GetOptions { range, ..GetOptions::default() };
    options.extensions.insert(hint);
    let failed = |e| beyond_end(path, offset, len, e);
    let bytes = backend.get_opts(path, options).await.map_err(failed)?.bytes().await;
    let bytes = bytes.map_err(failed)?;
    if bytes.len() as u64 != len {
        return Err(Error::corrupt(format!(
            "object {path} ends before byte {}; restore it from a backup",
            offset + len
        )));
    }
    Ok(bytes)
}

/// What became of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object is ours.
    Ours,
    /// Another writer's object has the name.
    Theirs,
}

/// Attempts to create an object while the backend answers that there is one, and there is none: S3
/// says so of two creations at the same time, both of which may have failed.
const CREATIONS: u32 = 8;

/// Creates an object that must not exist yet. `bytes` hold something only this writer can have
/// written: when the backend says that the name is taken, or does not know what became of the
/// write (a time-out, a retried request), the object is read back and compared.
pub async fn put_new(backend: &dyn ObjectStore, key: &str, bytes: Bytes) -> Result<Created> {
    let path = Path::from(key);
    let mut pause = Duration::from_millis(20);
    for _ in 0..CREATIONS {
        let options = PutOptions::from(PutMode::Create);
        let failure = match backend.put_opts(&path, bytes.clone().into(), options).await {
            Ok(_) => return Ok(Created::Ours),
            Err(e) if directory::is_undurable(&e) => return Err(error(key, e)),
            Err(e) => error(key, e),
        };
        match get(backend, key, (bytes.len() as u64).max(1 << 20)).await {
            Ok(found) if found == bytes => return Ok(Created::Ours),
            Ok(_) => return Ok(Created::Theirs),
            Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(Created::Theirs),
            Err(e) if e.kind() == ErrorKind::NotFound && failure.kind() == ErrorKind::Conflict => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            // An earlier request of ours may have made it, whose answer was lost.
            Err(e) if failure.kind() == ErrorKind::Conflict => {
                let message = format!(
                    "object {key} exists, and whose it is could not be read; see what is there, then try again: {}",
                    e.message()
                );
                return Err(Error::unavailable(message).with_source(e));
            }
            // Nothing landed, or nobody can tell: the first failure says why.
            Err(_) => return Err(failure),
        }
    }
    Err(Error::unavailable(format!(
        "object {key}: the store said that it exists, and that it does not; try again, and where it stays like that, \
         delete the object by the store's own tools: its server has a part of it"
    )))
}

/// Creates an object whose name is the hash of its content. One that is there already is kept when
/// its last `compare` bytes are the same, and else replaced: it is damaged, and the name says what
/// it ought to hold. When the backend does not know what became of the write, it is looked at too.
pub async fn put_content(
    backend: &dyn ObjectStore,
    key: &str,
    bytes: Bytes,
    compare: usize,
) -> Result<()> {
    match create_content(backend, key, &bytes, compare).await? {
        true => Ok(()),
        false => replace_damaged(backend, key, bytes).await,
    }
}

/// Puts content as [`put_content`] does, but always keeps what is there; says whether the object is there as it
/// ought to be.
pub async fn create_content(
    backend: &dyn ObjectStore,
    key: &str,
    bytes: &Bytes,
    compare: usize,
) -> Result<bool> {
    let path = Path::from(key);
    let options = PutOptions::from(PutMode::Create);
    let created = backend.put_opts(&path, PutPayload::from_bytes(bytes.clone()), options).await;
    let failure = match created {
        Ok(_) => return Ok(true),
        Err(object_store::Error::AlreadyExists { .. }) => None,
        Err(e) if directory::is_undurable(&e) => return Err(error(key, e)),
        Err(e) => Some(e),
    };
    let landed = holds(backend, &path, bytes, compare).await;
    match failure {
        Some(failure) if !landed => Err(error(key, failure)),
        _ => Ok(landed),
    }
}

/// Writes an object whose name is the hash of its content over one that is not what its name says.
pub async fn replace_damaged(backend: &dyn ObjectStore, key: &str, bytes: Bytes) -> Result<()> {
    tracing::warn!(object = key, "a damaged object is replaced");
    put_over(backend, key, bytes).await
}

/// Writes an object, in place of what is there: one that is as true, or that is damaged.
pub async fn put_over(backend: &dyn ObjectStore, key: &str, bytes: Bytes) -> Result<()> {
    let options = PutOptions::from(PutMode::Overwrite);
    backend
        .put_opts(&Path::from(key), PutPayload::from_bytes(bytes), options)
        .await
        .map(|_| ())
        .map_err(|e| error(key, e))
}

/// What is known of an object without reading it.
pub async fn head(backend: &dyn ObjectStore, key: &str) -> Result<ObjectMeta> {
    backend.head(&Path::from(key)).await.map_err(|e| error(key, e))
}

/// What is known of an object, whose name is on stable storage then: for whoever relies on what a writer may have left
/// that was killed before it had made that sure.
pub async fn durable_head(backend: &dyn ObjectStore, key: &str) -> Result<ObjectMeta> {
    let mut options = GetOptions { head: true, ..GetOptions::default() };
    options.extensions.insert(Hint::Durable);
    let answer = backend.get_opts(&Path::from(key), options).await.map_err(|e| error(key, e))?;
    Ok(answer.meta)
}

/// Deletes an object; that it is gone already is as good.
pub async fn delete(backend: &dyn ObjectStore, key: &str) -> Result<()> {
    match backend.delete(&Path::from(key)).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(error(key, e)),
    }
}

/// Whether an object is as long as `bytes` and ends with their last `compare` ones.
async fn holds(backend: &dyn ObjectStore, path: &Path, bytes: &Bytes, compare: usize) -> bool {
    let start = bytes.len() - compare.min(bytes.len());
    let meta = backend.head(path).await;
    if meta.is_err() || meta.is_ok_and(|meta| meta.size != bytes.len() as u64) {
        return false;
    }
    let tail = bytes.slice(start..);
    let (at, len) = (start as u64, tail.len() as u64);
    len == 0
        || get_range_with(backend, path, at, len, Hint::Fresh)
            .await
            .is_ok_and(|found| found == tail)
}

/// All objects below a prefix, in no order.
pub async fn list(backend: &dyn ObjectStore, prefix: &str) -> Result<Vec<ObjectMeta>> {
    let path = Path::from(prefix);
    backend.list(Some(&path)).try_collect().await.map_err(|e| error(prefix, e))
}

/// All objects of the store, in no order.
pub async fn list_all(backend: &dyn ObjectStore) -> Result<Vec<ObjectMeta>> {
    backend.list(None).try_collect().await.map_err(|e| error("listing", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failing, FaultRates, ScriptedStore, StoreCall, StoreFault, Unreliable};
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_new_object_has_one_creator() {
        let backend = InMemory::new();
        let put =
            |text: &'static str| put_new(&backend, "a/b", Bytes::from_static(text.as_bytes()));
        assert_eq!(put("one").await.unwrap(), Created::Ours);
        assert_eq!(put("two").await.unwrap(), Created::Theirs);
        assert_eq!(put("one").await.unwrap(), Created::Ours, "a repeated request");
    }

    #[tokio::test]
    async fn an_object_that_is_there_and_cannot_be_read_may_be_ours() {
        let (memory, bytes) = (Arc::new(InMemory::new()), Bytes::from_static(b"content"));
        // By a request whose answer was lost.
        memory.put(&Path::from("new"), bytes.clone().into()).await.unwrap();
        let backend = ScriptedStore::new(memory.clone(), |call| match call {
            StoreCall::Get(_) => StoreFault::Fail(io::ErrorKind::ConnectionReset),
            _ => StoreFault::None,
        });
        let error = put_new(&backend, "new", bytes.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(put_new(&*memory, "new", bytes).await.unwrap(), Created::Ours);
    }

    #[tokio::test]
    async fn a_full_backend_is_no_space_and_names_the_object() {
        let backend = Failing::new(Arc::new(InMemory::new()), 0);
        let error =
            put_content(&backend, "packs/x", Bytes::from_static(b"x"), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("packs/x"));
    }

    #[tokio::test]
    async fn damaged_content_is_replaced() {
        let backend = InMemory::new();
        backend.put(&Path::from("c"), "wrong".into()).await.unwrap();
        put_content(&backend, "c", Bytes::from_static(b"right"), 5).await.unwrap();
        assert_eq!(get(&backend, "c", 10).await.unwrap(), "right");
        assert_eq!(get(&backend, "c", 4).await.unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[tokio::test]
    async fn a_range_beyond_the_end_is_corrupt_on_every_backend() {
        let dir = tempfile::tempdir().unwrap();
        let backends: [Arc<dyn ObjectStore>; 2] =
            [Arc::new(InMemory::new()), crate::local(dir.path()).unwrap()];
        for backend in backends {
            let path = Path::from("short");
            backend.put(&path, "12345".into()).await.unwrap();
            for offset in [3, 5, 100] {
                let error = get_range(&*backend, &path, offset, 10).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{backend} {offset}: {error:?}");
            }
            let gone = get_range(&*backend, &Path::from("gone"), 0, 1).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::NotFound);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_without_an_object_is_tried_again() {
        let faults = FaultRates { conflict: 600, ..FaultRates::default() };
        let backend = Unreliable::new(Arc::new(InMemory::new()), 3, faults);
        for number in 0..20 {
            let key = format!("a/{number}");
            let put = put_new(&backend, &key, Bytes::from(key.clone())).await;
            assert_eq!(put.unwrap(), Created::Ours);
        }
        assert!(backend.injected() > 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_landed_before_it_failed_is_a_success() {
        let faults = FaultRates { failed_after: 1000, ..FaultRates::default() };
        let backend = Unreliable::new(Arc::new(InMemory::new()), 3, faults);
        let bytes = Bytes::from_static(b"content");
        assert_eq!(put_new(&backend, "new", bytes.clone()).await.unwrap(), Created::Ours);
        put_content(&backend, "content", bytes, 4).await.unwrap();
    }
}
