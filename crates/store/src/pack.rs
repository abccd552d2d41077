//! Packs: immutable objects that hold many chunks in image order.
//!
//! A pack is written once and whole. Its index stands at its end, so that chunks can be appended
//! while their lengths are not known yet; its id is the hash of the index, so that the same chunks
//! in the same order are the same pack.

mod builder;
mod format;
mod index;
mod names;
#[cfg(test)]
mod tests;

pub use builder::{Builder, Finished};
pub(crate) use builder::{FULL, FULL_CHUNKS};
#[cfg(test)]
pub(crate) use format::make_newer;
pub use format::tail_len;
pub(crate) use format::{
    OVERHEAD, check_head, check_stored_version, check_version, content_len, seal,
};
pub use index::{MAX_LEN, PackIndex};
pub(crate) use names::{PREFIX, id_of_key, path};

use crate::PackId;
use block::{ErrorKind, Result};
use bytes::Bytes;
use object_store::ObjectStore;

/// Writes a pack. One of its id that is there already is kept when it is the same, and replaced when it
/// is damaged.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) when the one that is there is of a newer format: nobody here can
/// tell what would be lost with it. [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied)
/// comes from the backend.
pub(crate) async fn put(
    backend: &dyn ObjectStore,
    id: &PackId,
    bytes: Bytes,
    tail: usize,
) -> Result<()> {
    let path = path(id);
    if objects::create_content(backend, path.as_ref(), &bytes, tail).await? {
        return Ok(());
    }
    let found = async {
        let there = objects::head(backend, path.as_ref()).await?;
        check_stored_version(backend, &path, there.size).await
    };
    match found.await {
        Ok(()) => {}
        // Deleted or changed since.
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
        Err(e) => return Err(e),
    }
    objects::replace_damaged(backend, path.as_ref(), bytes).await
}
