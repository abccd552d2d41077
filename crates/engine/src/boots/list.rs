//! Boot lists of image versions: read, looked at, and changed.

use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use store::{ChunkId, Manifest, RefBody, RefKind, RefRecord, Session, Store, boot_copy, boot_list};

/// How often a version whose ref was changed by somebody else is tried again.
const ATTEMPTS: usize = 8;

/// The boot list of a version; `None` when it has none.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be read,
/// [`NotFound`](ErrorKind::NotFound) or [`Corrupt`](ErrorKind::Corrupt) when the list is gone or damaged;
/// each names the version.
pub async fn of(store: &Store, record: &RefRecord) -> Result<Option<Vec<ChunkId>>> {
    let read = async {
        match record.body.boot_list()? {
            Some(id) => boot_list::read(store, &id).await.map(Some),
            None => Ok(None),
        }
    };
    read.await.map_err(|e| e.context(format!("boot list of image {}", record.name)))
}

/// What a boot list names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootListView {
    /// From how many boots the server recorded it; `None` for a list of one's own.
    pub boots: Option<u32>,
    /// Chunks that the list names.
    pub chunks: usize,
    /// The ones that the image has.
    pub present_chunks: usize,
    /// Their bytes.
    pub present_bytes: u64,
    /// Their bytes in packs.
    pub stored_bytes: u64,
    /// What its boot copy takes in packs; `None` when it has none, or one that cannot be read.
    pub copy_stored_bytes: Option<u64>,
}

impl BootListView {
    /// What the boot list of a version names; `None` when it has none.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// read, [`NotFound`](ErrorKind::NotFound) or [`Corrupt`](ErrorKind::Corrupt) when the list is gone or
    /// damaged.
    pub async fn of(
        store: &Store,
        record: &RefRecord,
        manifest: &Manifest,
    ) -> Result<Option<Self>> {
        let Some(list) = of(store, record).await? else { return Ok(None) };
        let located = boot_list::locate(manifest, &list).await?;
        Ok(Some(Self {
            boots: record.body.recorded_boots(),
            chunks: list.len(),
            present_chunks: located.len(),
            present_bytes: located.iter().map(|found| u64::from(found.at.len)).sum(),
            stored_bytes: located.iter().map(|found| u64::from(found.at.stored)).sum(),
            copy_stored_bytes: copy_stored_bytes(store, record).await,
        }))
    }
}

async fn copy_stored_bytes(store: &Store, record: &RefRecord) -> Option<u64> {
    let read = async {
        let Some(id) = record.body.boot_copy()? else { return Ok(None) };
        let copy = store.manifest(&id).await?;
        let chunks = boot_copy::chunks(&copy).await?;
        Ok::<_, Error>(Some(chunks.iter().map(|at| u64::from(at.stored)).sum()))
    };
    read.await.unwrap_or_else(|error| {
        tracing::warn!(
            error = error.message(),
            "the boot copy of image {} is of no use",
            record.name
        );
        None
    })
}

/// From how many boots a list is recorded at the most: guests of one image boot differently, and what
/// few of them read is not worth loading for all.
const BOOTS: u32 = 4;

/// Whether the next boot of a version is to be added to its list.
pub fn is_open(record: &RefRecord) -> bool {
    record.body.recorded_boots().is_some_and(|boots| boots < BOOTS)
}

/// What became of a recorded boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Chunks of it that were not on the list.
    pub new: usize,
    /// Boots that the list was recorded from.
    pub boots: u32,
}

impl Added {
    /// Whether this boot was the last one: the list is whole now.
    pub fn is_last(self) -> bool {
        self.boots >= BOOTS
    }
}

/// Adds what a boot read to the list of a version, behind what is there; `None` when the list was
/// recorded from enough boots, or is somebody's own. The last of these boots makes the list whole:
/// a boot copy is for it then.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when the version was removed, [`Conflict`](ErrorKind::Conflict) when
/// others change it over and over; [`Fenced`](ErrorKind::Fenced) when the session was taken for dead: then the version
/// has what it had; [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied) or
/// [`NoSpace`](ErrorKind::NoSpace) when the store cannot be written to, [`Corrupt`](ErrorKind::Corrupt) when
/// the list that is there is damaged.
pub async fn add(store: &Store, version: &str, boot: &[ChunkId]) -> Result<Option<Added>> {
    change(store, version, BootListChange::Add(boot)).await
}

/// Stores a list, and names it in the labels of a version. `boots`: from how many boots it was recorded,
/// or `None` for somebody's own.
pub(super) async fn name(
    session: &Session,
    labels: &mut BTreeMap<String, String>,
    list: &[ChunkId],
    boots: Option<u32>,
) -> Result<()> {
    let id = boot_list::write(session, list).await?;
    labels.insert(boot_list::LABEL.to_owned(), id.to_string());
    match boots {
        Some(boots) => labels.insert(boot_list::BOOTS.to_owned(), boots.to_string()),
        None => labels.remove(boot_list::BOOTS),
    };
    // That of the list before.
    labels.remove(RefBody::BOOT_COPY);
    Ok(())
}

/// What is done to a list.
#[derive(Clone, Copy)]
pub(super) enum BootListChange<'a> {
    Set(&'a [ChunkId]),
    Add(&'a [ChunkId]),
}

/// Changes the list of a version.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when the version was removed, [`Conflict`](ErrorKind::Conflict) when
/// others change it over and over; [`Fenced`](ErrorKind::Fenced) when the session was taken for dead: then the version
/// has what it had; [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied) or
/// [`NoSpace`](ErrorKind::NoSpace) when the store cannot be written to, [`Corrupt`](ErrorKind::Corrupt) when
/// the list that is there is damaged.
pub(super) async fn change(
    store: &Store,
    version: &str,
    change: BootListChange<'_>,
) -> Result<Option<Added>> {
    let session = store.session(&format!("boot list of {version}")).await?;
    let outcome = attempts(&session, version, change).await;
    session.close(outcome).await
}

/// Makes the change, again when somebody else was quicker.
async fn attempts(
    session: &Session,
    version: &str,
    change: BootListChange<'_>,
) -> Result<Option<Added>> {
    let refs = session.store().refs();
    for _ in 0..ATTEMPTS {
        let found = refs.look_up(RefKind::Image, version).await?;
        let Some(record) = found.record() else {
            return Err(Error::not_found(format!("image {version} was removed")));
        };
        let (list, added) = match change {
            BootListChange::Set(chunks) => (chunks.to_vec(), None),
            BootListChange::Add(_) if !is_open(record) => return Ok(None),
            BootListChange::Add(boot) => {
                let (mut list, before) = match of(session.store(), record).await {
                    Ok(list) => {
                        (list.unwrap_or_default(), record.body.recorded_boots().unwrap_or_default())
                    }
                    // One that is lost is begun anew; that it cannot be read now says nothing.
                    Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                        (Vec::new(), 0)
                    }
                    Err(e) => return Err(e),
                };
                let known: HashSet<ChunkId> = list.iter().copied().collect();
                list.extend(boot.iter().filter(|id| !known.contains(id)));
                let added = Added { new: list.len() - known.len(), boots: before + 1 };
                (list, Some(added))
            }
        };
        let mut body = record.body.clone();
        let boots = added.map(|added| added.boots);
        name(session, &mut body.labels, &list, boots).await?;
        session.check().await?;
        match session.publish_over(&found, body).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            other => return other.map(|_| added),
        }
    }
    Err(Error::conflict(format!("the ref of image {version} changes all the time; try again")))
}

#[cfg(test)]
mod tests;
