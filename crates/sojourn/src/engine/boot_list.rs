//! Boot lists of image versions: reading them, and giving one to a version.

use super::images;
use block::{Error, ErrorKind, Result};
use store::{BootListId, ChunkId, RefKind, RefRecord, Session, Store, bootlist};

/// How often a version whose ref was changed by somebody else is tried again.
const ATTEMPTS: usize = 8;

/// The boot list of a version; `None` when it has none.
///
/// # Errors
/// Those of the store, naming the version.
pub(crate) async fn of(store: &Store, record: &RefRecord) -> Result<Option<Vec<ChunkId>>> {
    let read = async {
        match record.body.boot_list()? {
            Some(id) => bootlist::read(store, &id).await.map(Some),
            None => Ok(None),
        }
    };
    read.await.map_err(|e| e.context(format!("boot list of image {}", record.name)))
}

/// Whether a version that has a list already gets the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// It keeps its own.
    Keep,
    /// It gets the new one.
    Replace,
}

/// Gives a version the list of these chunks; tells whether it did.
///
/// # Errors
/// Those of the store; [`NotFound`](ErrorKind::NotFound) when the version was removed.
pub(crate) async fn set(
    store: &Store,
    version: &str,
    chunks: &[ChunkId],
    present: Present,
) -> Result<bool> {
    let session = store.session(&format!("boot list of {version}")).await?;
    let outcome = async {
        let id = bootlist::write(&session, chunks).await?;
        point(&session, version, id, present).await
    };
    let outcome = outcome.await;
    session.close(outcome).await
}

async fn point(session: &Session, version: &str, id: BootListId, present: Present) -> Result<bool> {
    let refs = session.store().refs();
    for _ in 0..ATTEMPTS {
        let Some(record) = refs.get(RefKind::Image, version).await? else {
            return Err(Error::not_found(format!("image {version} was removed")));
        };
        if present == Present::Keep && record.body.labels.contains_key(bootlist::LABEL) {
            return Ok(false);
        }
        images::manifest_of(&record)?;
        let mut body = record.body;
        body.labels.insert(bootlist::LABEL.to_owned(), id.to_string());
        session.check().await?;
        match refs.update(RefKind::Image, version, record.sequence, body).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            other => return other.map(|_| true),
        }
    }
    Err(Error::conflict(format!("the ref of image {version} changes all the time; try again")))
}
