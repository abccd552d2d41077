//! Reading chunks from the place that a reference names, and keeping them as if they had been.

use super::Store;
use crate::{ChunkRef, Encoding, chunk, pack};
use block::{Error, ErrorKind, Result, offload};
use bytes::Bytes;

impl Store {
    /// The chunk's plain bytes from the place that `at` names, and no other.
    pub(crate) async fn read_at(&self, at: &ChunkRef) -> Result<Bytes> {
        let path = pack::path(&at.pack);
        let (offset, len) = (u64::from(at.offset), u64::from(at.stored));
        let stored = objects::get_range(self.backend(), &path, offset, len).await;
        let stored = stored.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::not_found(format!(
                "object {path}, which holds chunks of the image, is gone from the store; heal the \
                 store with \"sojourn repair --from\", or import the image again"
            ))
            .with_source(e),
            _ => e,
        })?;
        let plain = match at.decode(self.settings(), stored) {
            // What is kept of the object on a local disk may be older than its repair.
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                self.read_fresh_at(at).await.map_err(|_| e)?
            }
            other => other?,
        };
        Ok(on_its_own(at, plain))
    }

    /// The same from the store itself, and not from what is kept of it on a local disk.
    pub(crate) async fn read_fresh_at(&self, at: &ChunkRef) -> Result<Bytes> {
        let (path, hint) = (pack::path(&at.pack), objects::Hint::Fresh);
        let (offset, len) = (u64::from(at.offset), u64::from(at.stored));
        let stored = objects::get_range_with(self.backend(), &path, offset, len, hint).await?;
        at.decode(self.settings(), stored)
    }

    /// Reads chunks of one pack in one request, so that whatever keeps what is read of this store has them
    /// from then on. Each is verified; none is given.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is no such pack, [`Corrupt`](ErrorKind::Corrupt) for the
    /// first chunk that is not what it should be; [`Unavailable`](ErrorKind::Unavailable) or
    /// [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn fetch(&self, chunks: &[ChunkRef]) -> Result<()> {
        let Some(first) = chunks.first() else { return Ok(()) };
        let ranges: Vec<_> = chunks.iter().map(stored_range).collect();
        let found = objects::get_ranges(self.backend(), &pack::path(&first.pack), &ranges).await?;
        for (at, stored) in chunks.iter().zip(found) {
            at.decode(self.settings(), stored)?;
        }
        Ok(())
    }

    /// Whether a chunk is in the piece cache of `link`, the way to this store. Nothing is read; looks into
    /// the file system.
    pub fn has_kept(&self, link: &objects::Link, at: &ChunkRef) -> bool {
        link.has_range(&pack::path(&at.pack), &stored_range(at))
    }

    /// Puts a chunk that came from elsewhere into the piece cache of `link`, the way to this store, as if it had
    /// been read there. `stored` is what was given, when that was compressed and sealed. Says whether that
    /// was possible: the bytes have to be such as the store's own are read by the same reference.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) when the compressor or cipher fails.
    pub async fn keep(
        &self,
        link: &objects::Link,
        at: &ChunkRef,
        stored: Option<(Encoding, Bytes)>,
        plain: Bytes,
    ) -> Result<bool> {
        let (settings, at) = (self.settings().clone(), *at);
        let fits = move |(encoding, bytes): &(Encoding, Bytes)| {
            *encoding == at.encoding && bytes.len() == at.stored as usize
        };
        let found = offload(move || {
            let stored = match stored.filter(&fits) {
                Some((_, bytes)) => bytes,
                None => match Some(chunk::encode(&settings, &at.id, plain)?).filter(&fits) {
                    Some((_, bytes)) => bytes,
                    None => return Ok(None),
                },
            };
            Ok(at.decode(&settings, stored.clone()).is_ok().then_some(stored))
        });
        let Some(stored) = found.await? else { return Ok(false) };
        link.keep_range(&pack::path(&at.pack), &stored_range(&at), stored).await;
        Ok(true)
    }

    /// Counts the outcome of reading a chunk.
    pub(crate) fn count<T>(&self, at: &ChunkRef, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => self.tally().chunk(at.stored.into(), at.len.into()),
            Err(_) => self.tally().failure(),
        }
        outcome
    }
}

/// What is kept must not keep more: a backend may answer with a part of a larger buffer, whose other
/// parts nobody has any more. What was decoded has a buffer of its own.
pub(crate) fn on_its_own(at: &ChunkRef, plain: Bytes) -> Bytes {
    match at.encoding {
        crate::Encoding::Plain => Bytes::copy_from_slice(&plain),
        _ => plain,
    }
}

/// Where a chunk is in its pack.
fn stored_range(at: &ChunkRef) -> std::ops::Range<u64> {
    let start = u64::from(at.offset);
    start..start + u64::from(at.stored)
}
