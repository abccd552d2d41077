//! Image versions from one store to another one.
//!
//! The stores may differ in their keys, and so in every id: a version is read, verified, and stored
//! anew as an import does. What the other store has already is not stored again, so a copy that
//! was interrupted goes on where it ended.

use crate::{
    ChunkId, ImportStats, Manifest, ManifestId, Progress, RefBody, RefKind, RefRecord, Session,
    Store, boot_copy, boot_list, chunk, import,
};
use block::{Device, Error, Result};
use serde::Serialize;

/// The label of a copied version: the id of its manifest in the store that it came from.
pub const LABEL: &str = "copy_of";

/// What became of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Copied {
    /// It is in the other store now.
    Made(ImportStats),
    /// It was there already.
    Present,
}

/// Copies the image version `record` of `from` to the store of `session`, under its name. `view` is
/// the version's content as a device.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the other store has another version of that name;
/// any error from reading and from an import.
pub async fn version(
    from: &Store,
    record: &RefRecord,
    manifest: &Manifest,
    view: &dyn Device,
    session: &Session,
    progress: &dyn Progress,
) -> Result<Copied> {
    if is_present(record, manifest.id(), session.store()).await? {
        return Ok(Copied::Present);
    }
    let imported = import::from_device(session, view, progress).await?;
    let mut labels = record.body.labels.clone();
    labels.insert(LABEL.to_owned(), manifest.id().to_string());
    let has_boot_copy = labels.remove(RefBody::BOOT_COPY).is_some();
    if let Some(id) = record.body.boot_list()? {
        let list = boot_list::read(from, &id).await?;
        let list = translated(from, manifest, &list, session.store()).await?;
        if list.is_empty() {
            labels.remove(boot_list::LABEL);
            labels.remove(boot_list::BOOTS);
        } else {
            let id = boot_list::write(session, &list).await?;
            labels.insert(boot_list::LABEL.to_owned(), id.to_string());
            if has_boot_copy
                && let Some(id) = boot_copy::of_list(session, &imported.manifest, &list).await
            {
                labels.insert(RefBody::BOOT_COPY.to_owned(), id.to_string());
            }
        }
    }
    let body = RefBody {
        manifest: Some(imported.manifest),
        size: imported.size,
        created: record.body.created,
        labels,
    };
    session.publish(RefKind::Image, &record.name, body).await?;
    Ok(Copied::Made(imported.stats))
}

/// Whether the other store has the version, as the original or as a copy.
async fn is_present(record: &RefRecord, id: ManifestId, to: &Store) -> Result<bool> {
    let Some(found) = to.refs().get(RefKind::Image, &record.name).await? else { return Ok(false) };
    let labels = &found.body.labels;
    let copy = labels.get(LABEL) == Some(&id.to_string());
    let original =
        record.body.labels.get(LABEL) == found.body.manifest.map(|id| id.to_string()).as_ref();
    if copy || original || found.body.manifest == Some(id) {
        return Ok(true);
    }
    Err(Error::conflict(format!(
        "image {} exists in the other store with other content; remove it there, or import under \
         another tag",
        record.name
    )))
}

/// A boot list in the ids of the other store.
async fn translated(
    from: &Store,
    manifest: &Manifest,
    list: &[ChunkId],
    to: &Store,
) -> Result<Vec<ChunkId>> {
    let mut ids = Vec::with_capacity(list.len());
    for located in boot_list::locate(manifest, list).await? {
        let plain = from.read_chunk(&located.at).await?;
        ids.push(chunk::id_of(to.settings(), &plain));
    }
    Ok(ids)
}
