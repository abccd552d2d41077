//! What a published record may say in words: the image version that its disk belongs to, and its size.
//!
//! A server looks up that version by its name and with its own rights when it makes a disk of a snapshot, or rolls one
//! back, and the disk's ref names what it found. So a client may give its disks only names that lead to what it may
//! read itself, or that they have already.

use super::Gateway;
use super::client::Client;
use super::names::KnownNames;
use access::Right;
use block::{Error, ErrorKind, Result};
use disk::succession;
use store::{ImageName, ManifestId, RefBody, RefKey, RefKind, RefRecord, images};

/// The label that names the image version of a disk or a snapshot.
const IMAGE: &str = "image";
/// Earlier records of a disk that are looked at: as many as a listing shows.
const RECORDS: u64 = 8;

/// Fails unless a disk's new record, with the key `key`, names an image version that the client may give it.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied) then; [`Invalid`](ErrorKind::Invalid) for what is no name; any error from the store.
pub(super) async fn check_disk_image(
    gateway: &Gateway,
    client: &Client,
    key: &RefKey,
    before: Option<&RefRecord>,
    next: &RefRecord,
) -> Result<()> {
    let Some(image) = next.body.labels.get(IMAGE) else {
        return Err(Error::denied(format!("disk {:?} names no image version", next.name)));
    };
    let name: ImageName = image.parse()?;
    let labels = |record: &RefRecord| record.body.labels.get(IMAGE) == Some(image);
    if before.is_some_and(labels) {
        return Ok(());
    }
    let names = client.names(gateway).await?;
    if is_known(gateway, client, &names, &name, &next.body).await?
        || (before.is_some() && was_earlier(gateway, key, &next.body).await?)
    {
        return Ok(());
    }
    // The version, or the snapshot, may have got its name a moment ago.
    let names = client.names_now(gateway).await?;
    if is_known(gateway, client, &names, &name, &next.body).await? {
        return Ok(());
    }
    Err(Error::denied(format!(
        "disk {:?} cannot belong to image {image}: this client may not read that, or the disk is not reset to it; make \
         the disk at the server",
        next.name
    )))
}

/// Fails unless a snapshot names the image version that its disk does.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied).
pub(super) fn check_snapshot_image(disk: &RefRecord, next: &RefRecord) -> Result<()> {
    if disk.body.labels.get(IMAGE) == next.body.labels.get(IMAGE) {
        return Ok(());
    }
    Err(Error::denied(format!(
        "snapshot {:?} belongs to another image version than disk {:?}",
        next.name, disk.name
    )))
}

/// Fails unless a record's size is one that what it holds can have. The manifest is there and the client's to name.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied) then; any error from the store.
pub(super) async fn check_size(
    gateway: &Gateway,
    kind: RefKind,
    before: Option<&RefRecord>,
    next: &RefRecord,
) -> Result<()> {
    let said = |record: &RefRecord| (record.body.manifest, record.body.size);
    let Some(manifest) = next.body.manifest.filter(|_| before.map(said) != Some(said(next))) else {
        return Ok(());
    };
    let content = gateway.store().manifest(&manifest).await?.size();
    let size = next.body.size;
    let fits = match kind {
        RefKind::Snapshot => size == content,
        // Behind the memory are the state of the devices and more.
        RefKind::Parcel => vm::Parcel::read(next)?.layout.size() == content,
        RefKind::Machine => size <= content,
        // What is behind the end of its content reads as zeroes.
        _ => size >= content && succession::is_disk_size(size),
    };
    match fits {
        true => Ok(()),
        false => Err(Error::denied(format!(
            "{kind} {:?} cannot have {size} bytes: what it holds has {content}",
            next.name
        ))),
    }
}

/// Whether these names show an image version to which a disk is reset, or another disk of it.
async fn is_known(
    gateway: &Gateway,
    client: &Client,
    names: &KnownNames,
    image: &ImageName,
    body: &RefBody,
) -> Result<bool> {
    let image = image.to_string();
    Ok(is_of_version(gateway, client, names, &image, body).await?
        || is_of_another(gateway, client, names, &image, body).await?)
}

/// Whether a disk is reset to an image version that the client may use by this name.
async fn is_of_version(
    gateway: &Gateway,
    client: &Client,
    names: &KnownNames,
    image: &str,
    body: &RefBody,
) -> Result<bool> {
    if client.right_by(gateway, names, RefKind::Image, image).is_none() {
        return Ok(false);
    }
    let found = gateway.store().refs().get(RefKind::Image, image).await?;
    let manifest = found.as_ref().map(images::manifest_of).transpose()?;
    Ok(manifest.is_some_and(|manifest| is_reset_to(body, manifest)))
}

fn is_reset_to(body: &RefBody, manifest: ManifestId) -> bool {
    body.labels.get(RefBody::ORIGIN).is_some_and(|origin| *origin == manifest.to_string())
}

/// Whether the client may write another disk that belongs to the same version, or a snapshot of one, from which this
/// one was made: it could have a server look up that one's image just as well. Of what it may only read, the image must
/// be gone.
async fn is_of_another(
    gateway: &Gateway,
    client: &Client,
    names: &KnownNames,
    image: &str,
    body: &RefBody,
) -> Result<bool> {
    let mut may_read = false;
    for kind in [RefKind::Disk, RefKind::Snapshot] {
        for record in names.records(kind) {
            let is_of_image = record.body.labels.get(IMAGE).is_some_and(|label| label == image);
            let is_origin = record.body.manifest.is_some_and(|id| is_reset_to(body, id))
                || record.body.labels.get(RefBody::ORIGIN) == body.labels.get(RefBody::ORIGIN);
            if !is_of_image || !is_origin {
                continue;
            }
            match client.right_by(gateway, names, kind, &record.name) {
                Some(Right::Write) => return Ok(true),
                Some(Right::Read) => may_read |= kind == RefKind::Snapshot,
                None => {}
            }
        }
    }
    Ok(may_read && gateway.store().refs().get(RefKind::Image, image).await?.is_none())
}

/// Whether an earlier record of the disk said the same: a change that fails at its client is taken back.
async fn was_earlier(gateway: &Gateway, key: &RefKey, next: &RefBody) -> Result<bool> {
    let oldest = key.sequence.saturating_sub(RECORDS).max(1);
    for sequence in (oldest..key.sequence).rev() {
        let at = RefKey { kind: key.kind, row: key.row.clone(), sequence };
        let record = match gateway.store().refs().keyed(&at).await {
            Ok(record) => record,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => continue,
            Err(e) => return Err(e),
        };
        // One that was removed was another disk.
        let Some(body) = record.body() else { return Ok(false) };
        let same = |label| body.labels.get(label) == next.labels.get(label);
        if same(IMAGE) && same(RefBody::ORIGIN) && succession::is_same_disk(body, next) {
            return Ok(true);
        }
    }
    Ok(false)
}
