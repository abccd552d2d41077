//! Image versions: finding, listing and describing them.

use crate::control::api::ImageView;
use block::{Error, Result};
use store::{
    DamagedRef, ImageName, Listing, ManifestId, RefBody, RefKind, RefRecord, Session, Store,
};

/// The label that says where an image version came from.
pub(crate) const SOURCE: &str = "source";
/// The label of a disk or snapshot that says which image version it stands on.
const IMAGE: &str = "image";

/// The manifest that a version's ref points at.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it points at none.
pub(crate) fn manifest_of(record: &RefRecord) -> Result<ManifestId> {
    record.body.manifest.ok_or_else(|| super::no_manifest(&record.name))
}

/// An image version as commands show it.
///
/// # Errors
/// As [`manifest_of`].
pub(crate) fn view(record: &RefRecord) -> Result<ImageView> {
    Ok(ImageView {
        image: record.name.clone(),
        size: record.body.size,
        created: record.body.created,
        manifest: manifest_of(record)?.to_string(),
        source: record.body.labels.get(SOURCE).cloned(),
        error: None,
    })
}

/// All versions of all images that can be read, by name, then oldest first.
///
/// # Errors
/// Those of the store.
pub(crate) async fn list(store: &Store) -> Result<Vec<RefRecord>> {
    Ok(listing(store).await?.records)
}

async fn listing(store: &Store) -> Result<Listing> {
    let mut listing = store.refs().list(RefKind::Image).await?;
    listing.records.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(listing)
}

/// All versions of all images as commands show them, the damaged ones at the end with their errors.
///
/// # Errors
/// Those of the store.
pub(crate) async fn views(store: &Store) -> Result<Vec<ImageView>> {
    let listing = listing(store).await?;
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

/// Versions stand in the order in which they were made; of one second by number, then by tag.
fn order(record: &RefRecord) -> (&str, u64, u64, &str) {
    let (name, tag) = record.name.split_once(':').unwrap_or((&record.name, ""));
    (name, record.body.created, tag.parse().unwrap_or(u64::MAX), tag)
}

/// The version that `name` means: the tagged one, or the newest.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound); without a tag, that of a damaged version of the image,
/// which might be the newest.
pub(crate) async fn resolve(store: &Store, name: &ImageName) -> Result<RefRecord> {
    let missing =
        || Error::not_found(format!("no image {name}; see `sojourn image list` for what there is"));
    if name.tag.is_some() {
        return store.refs().get(RefKind::Image, &name.to_string()).await?.ok_or_else(missing);
    }
    let listing = listing(store).await?;
    // Where names are hidden, nobody knows of which image a damaged version is.
    let hidden = store.settings().is_encrypted();
    let ours = |bad: &DamagedRef| hidden || image_of(&bad.name) == name.name;
    if let Some(bad) = listing.damaged.into_iter().find(ours) {
        return Err(bad.error.context(format!("image {}", bad.name)));
    }
    let mut records = listing.records.into_iter();
    records.rfind(|record| image_of(&record.name) == name.name).ok_or_else(missing)
}

/// The tag that a new version gets when the user gave none: one above the highest number.
///
/// # Errors
/// Those of the store.
pub(crate) async fn next_tag(store: &Store, image: &str) -> Result<String> {
    let Listing { records, damaged } = store.refs().list(RefKind::Image).await?;
    let names =
        records.iter().map(|record| &record.name).chain(damaged.iter().map(|bad| &bad.name));
    let highest = names
        .filter(|name| image_of(name) == image)
        .filter_map(|name| name.split_once(':')?.1.parse::<u32>().ok())
        .max();
    Ok(highest.map_or(1, |tag| u64::from(tag) + 1).to_string())
}

/// The image that a version belongs to.
fn image_of(name: &str) -> &str {
    name.split_once(':').map_or(name, |(image, _)| image)
}

/// Points a new version at a manifest. Without a tag of the user's, numbers are tried until one is
/// free.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the tag exists.
pub(crate) async fn publish(
    session: &Session,
    name: &ImageName,
    body: RefBody,
) -> Result<RefRecord> {
    let taken = |tag: &str| {
        Error::conflict(format!(
            "image {}:{tag} exists already and versions never change; choose another tag, or none \
             for the next number",
            name.name
        ))
    };
    if let Some(tag) = &name.tag {
        let full = name.to_string();
        return match session.publish(RefKind::Image, &full, body).await {
            Err(e) if e.kind() == block::ErrorKind::Conflict => Err(taken(tag)),
            other => other,
        };
    }
    loop {
        let tag = next_tag(session.store(), &name.name).await?;
        let full = format!("{}:{tag}", name.name);
        match session.publish(RefKind::Image, &full, body.clone()).await {
            Err(e) if e.kind() == block::ErrorKind::Conflict => tokio::task::yield_now().await,
            other => return other,
        }
    }
}

/// Fails early when a version of this name exists already.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict).
pub(crate) async fn must_be_free(store: &Store, name: &ImageName) -> Result<()> {
    let full = name.to_string();
    if name.tag.is_some() && store.refs().get(RefKind::Image, &full).await?.is_some() {
        return Err(Error::conflict(format!(
            "image {full} exists already and versions never change; choose another tag, or none \
             for the next number"
        )));
    }
    Ok(())
}

/// The disks and snapshots that stand on a version, as `disk alice`, `snapshot alice@s`; also those
/// that are damaged, as they may.
///
/// # Errors
/// Those of the store.
pub(crate) async fn users(store: &Store, version: &RefRecord) -> Result<Vec<String>> {
    let mut users = Vec::new();
    for (kind, word) in [(RefKind::Disk, "disk"), (RefKind::Snapshot, "snapshot")] {
        let listing = store.refs().list(kind).await?;
        let damaged = listing.damaged.iter();
        users.extend(damaged.map(|bad| format!("perhaps {word} {} ({})", bad.name, bad.error)));
        for record in listing.records {
            let by_label = record.body.labels.get(IMAGE) == Some(&version.name);
            let by_content =
                record.body.manifest.is_some() && record.body.manifest == version.body.manifest;
            if by_label || by_content {
                users.push(format!("{word} {}", record.name));
            }
        }
    }
    Ok(users)
}
