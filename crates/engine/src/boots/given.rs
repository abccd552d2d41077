//! Lists of somebody's own: given to a version, and not recorded.

use super::copy::copy;
use super::list::{BootListChange, change, name};
use block::Result;
use std::collections::BTreeMap;
use store::{ChunkId, ManifestId, RefBody, Session, Store, boot_copy};

/// Gives a version the list of these chunks, whatever it had. `copies`: with a boot copy, if it is worth
/// one.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when the version was removed, [`Conflict`](block::ErrorKind::Conflict) when
/// others change it over and over; [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
/// [`NoSpace`](block::ErrorKind::NoSpace) when the store cannot be written to, [`Corrupt`](block::ErrorKind::Corrupt) when
/// the list that is there is damaged.
pub async fn set(store: &Store, version: &str, chunks: &[ChunkId], copies: bool) -> Result<()> {
    change(store, version, BootListChange::Set(chunks)).await?;
    if copies && let Err(error) = copy(store, version).await {
        // The list is of use without it.
        tracing::warn!(image = version, error = error.message(), "a boot list gets no boot copy");
    }
    Ok(())
}

/// Stores a list for a version that shows `manifest` and is not there yet, and names it in the version's
/// labels, as somebody's own; and its boot copy, if `copies` are wanted and it is worth one.
///
/// # Errors
/// Any error from storing the list; without a copy boots are slower, no more.
pub async fn give(
    session: &Session,
    manifest: &ManifestId,
    labels: &mut BTreeMap<String, String>,
    list: &[ChunkId],
    copies: bool,
) -> Result<()> {
    name(session, labels, list, None).await?;
    if copies && let Some(copy) = boot_copy::of_list(session, manifest, list).await {
        labels.insert(RefBody::BOOT_COPY.to_owned(), copy.to_string());
    }
    Ok(())
}
