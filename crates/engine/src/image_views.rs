//! Image versions as commands show them, and who stands on them.

use crate::api::ImageView;
use crate::boots::list::BootListView;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use store::images::{self, SOURCE, manifest_of};
use store::{ImageName, RefKind, RefRecord, Store};

/// The label of a disk or snapshot that says which image version it stands on.
pub(crate) const IMAGE: &str = "image";

/// An image version as commands show it.
///
/// # Errors
/// Any error from [`manifest_of`].
pub fn view(record: &RefRecord) -> Result<ImageView> {
    Ok(ImageView {
        image: record.name.clone(),
        size: record.body.size,
        created: record.body.created,
        manifest: manifest_of(record)?.to_string(),
        source: record.body.labels.get(SOURCE).cloned(),
        error: None,
    })
}

/// What an image version holds, and what stands on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageDetails {
    /// The version.
    #[serde(flatten)]
    pub image: ImageView,
    /// Distinct chunks.
    pub chunks: u64,
    /// Their bytes.
    pub data_bytes: u64,
    /// Their bytes in packs; other images may share them.
    pub stored_bytes: u64,
    /// What its boot list names.
    pub boot_list: Option<BootListView>,
    /// Disks and snapshots, as [`Users::of`] names them.
    pub used_by: Vec<String>,
}

impl ImageDetails {
    /// The details of a version: the newest where the name has no tag. Reads all of its map.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is none; any error from the store.
    pub async fn of(store: &Store, name: &ImageName) -> Result<Self> {
        let record = images::resolve(store, name).await?;
        let manifest = store.manifest(&manifest_of(&record)?).await?;
        let chunks = manifest.chunks().await?;
        Ok(Self {
            image: view(&record)?,
            chunks: chunks.len() as u64,
            data_bytes: chunks.iter().map(|chunk| u64::from(chunk.len)).sum(),
            stored_bytes: chunks.iter().map(|chunk| u64::from(chunk.stored)).sum(),
            boot_list: BootListView::of(store, &record, &manifest).await?,
            used_by: Users::load(store).await?.of(&record),
        })
    }
}

/// The disk of what stands on a version, as [`Users::of`] names it; `None` when that is damaged.
pub fn disk_of(user: &str) -> Option<&str> {
    let (kind, name) = user.split_once(' ')?;
    match kind {
        "disk" => Some(name),
        "snapshot" => name.split_once('@').map(|(disk, _)| disk),
        _ => None,
    }
}

/// All versions of all images as commands show them, the damaged ones at the end with their errors.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
/// cannot be listed.
pub async fn views(store: &Store) -> Result<Vec<ImageView>> {
    let listing = images::list(store).await?;
    let good = listing.records.iter().map(|record| match view(record) {
        Ok(view) => view,
        Err(error) => broken(record.name.clone(), &error),
    });
    let damaged = listing.damaged.into_iter().map(|bad| broken(bad.name, &bad.error));
    Ok(good.chain(damaged).collect())
}

/// A version of which only the name is known.
fn broken(image: String, error: &Error) -> ImageView {
    ImageView {
        image,
        size: 0,
        created: 0,
        manifest: String::new(),
        source: None,
        error: Some(error.message().to_owned()),
    }
}

/// The disks and snapshots of a store: who may stand on a version.
pub struct Users {
    records: Vec<(&'static str, RefRecord)>,
    /// Those that are damaged may stand on any.
    damaged: Vec<String>,
}

impl Users {
    /// Reads all of them.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub async fn load(store: &Store) -> Result<Self> {
        let mut users = Self { records: Vec::new(), damaged: Vec::new() };
        for (kind, word) in [(RefKind::Disk, "disk"), (RefKind::Snapshot, "snapshot")] {
            let listing = store.refs().list(kind).await?;
            let damaged = listing.damaged.iter();
            let perhaps = damaged.map(|bad| format!("perhaps {word} {} ({})", bad.name, bad.error));
            users.damaged.extend(perhaps);
            users.records.extend(listing.records.into_iter().map(|record| (word, record)));
        }
        Ok(users)
    }

    /// Those that stand on a version, as `disk alice`, `snapshot alice@s`; also those that are damaged, as
    /// they may. What an identical version is named by does not stand on this one: a disk keeps its
    /// content whatever becomes of the name.
    pub fn of(&self, version: &RefRecord) -> Vec<String> {
        let stands_on_it = |record: &RefRecord| match record.body.labels.get(IMAGE) {
            Some(image) => *image == version.name,
            None => record.body.manifest.is_some() && record.body.manifest == version.body.manifest,
        };
        let records = self.records.iter().filter(|(_, record)| stands_on_it(record));
        let named = records.map(|(word, record)| format!("{word} {}", record.name));
        self.damaged.iter().cloned().chain(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_a_version_is_of_a_disk() {
        assert_eq!(disk_of("disk alice"), Some("alice"));
        assert_eq!(disk_of("snapshot alice@monday"), Some("alice"));
        assert_eq!(disk_of("perhaps disk alice (damaged)"), None);
    }
}
