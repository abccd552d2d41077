//! Image versions as commands show them, and who stands on them.

use crate::api::ImageView;
use block::{Error, Result};
use store::images::{self, SOURCE, manifest_of};
use store::{RefKind, RefRecord, Store};

/// The label of a disk or snapshot that says which image version it stands on.
pub(crate) const IMAGE: &str = "image";

/// An image version as commands show it.
///
/// # Errors
/// As [`manifest_of`].
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

/// All versions of all images as commands show them, the damaged ones at the end with their errors.
///
/// # Errors
/// Those of the store.
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
    /// Those of the store.
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
