//! Image versions: which is the newest, which tag comes next, publishing, and taking a removal back.
//!
//! The one place where these are decided; commands, disks and servers ask here.

use crate::object_kind::ObjectKind;
use crate::segment::Placed;
use crate::{
    ChunkRef, DamagedRef, ImageName, Listing, Manifest, ManifestId, PackId, RefBody, RefKind,
    RefRecord, SegmentId, Session, Store,
};
use crate::{gc, heal, rewritten};
use block::{Error, ErrorKind, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::collections::{HashMap, HashSet};

/// Segments that are read at the same time.
const SEGMENTS: usize = 8;

/// Versions that others may make, with the number that was the next one, before a version without a tag is given up.
const ATTEMPTS: usize = 256;

/// The label that says where an image version came from.
pub const SOURCE: &str = "source";
/// The label that names the version which a disk stood on when another one was committed from it.
pub const PARENT: &str = "parent";

/// The manifest that a version's ref points at.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) when it points at none.
pub fn manifest_of(version: &RefRecord) -> Result<ManifestId> {
    version.body.manifest.ok_or_else(|| {
        Error::corrupt(format!(
            "the ref of image {} names no manifest; remove the version and import it again",
            version.name
        ))
    })
}

/// All versions of all images, by name, then oldest first; and those that are damaged.
///
/// # Errors
/// Any error from the backend's listing.
pub async fn list(store: &Store) -> Result<Listing> {
    let mut listing = store.refs().list(RefKind::Image).await?;
    listing.records.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(listing)
}

/// The versions of one image, oldest first. In a store in clear no record of another image is read.
///
/// # Errors
/// That of a damaged version, which might be the newest; in an encrypted store of any damaged one, as
/// names are hidden there. Else any error from the backend's listing.
pub async fn versions(store: &Store, image: &str) -> Result<Vec<RefRecord>> {
    let is_ours = |name: &str| image_of(name) == image;
    let listing = store.refs().list_some(RefKind::Image, is_ours).await?;
    if let Some(DamagedRef { name, error }) = listing.damaged.into_iter().next() {
        return Err(error.context(format!("image {name}")));
    }
    let mut versions = listing.records;
    versions.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(versions)
}

/// The version that `name` means: the tagged one, or the newest.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is none; any error from [`versions`].
pub async fn resolve(store: &Store, name: &ImageName) -> Result<RefRecord> {
    let found = match &name.tag {
        Some(_) => store.refs().get(RefKind::Image, &name.to_string()).await?,
        None => versions(store, &name.name).await?.pop(),
    };
    found.ok_or_else(|| {
        Error::not_found(format!("no image {name}; see `sojourn image list` for what there is"))
    })
}

/// The tag that a new version gets when the user gave none: one above the highest number. A damaged
/// version's number counts, where its name can be seen.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when a version has the highest number that there can be; any error from the
/// backend's listing.
pub async fn next_tag(store: &Store, image: &str) -> Result<String> {
    let is_ours = |name: &str| image_of(name) == image;
    tag_after(&store.refs().list_some(RefKind::Image, is_ours).await?)
}

fn tag_after(Listing { records, damaged }: &Listing) -> Result<String> {
    let names =
        records.iter().map(|record| &record.name).chain(damaged.iter().map(|bad| &bad.name));
    let highest = names.filter_map(|name| Some((number(tag_of(name))?, name))).max();
    let Some((highest, name)) = highest else { return Ok("1".to_owned()) };
    let next = highest.checked_add(1).ok_or_else(|| {
        Error::invalid(format!(
            "no number is higher than that of image {name}, so that a new version needs a tag: give it one, such as \
             {}:new, or remove image {name}",
            image_of(name)
        ))
    })?;
    Ok(next.to_string())
}

/// Fails early when a version of this name exists already, or a version without a tag can have no number.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) and [`Invalid`](ErrorKind::Invalid) then; else any error from
/// [`Refs::get`](crate::Refs::get), or without a tag from the backend's listing.
pub async fn must_be_free(store: &Store, name: &ImageName) -> Result<()> {
    let Some(tag) = &name.tag else { return next_tag(store, &name.name).await.map(drop) };
    match store.refs().get(RefKind::Image, &name.to_string()).await? {
        Some(_) => Err(taken(name, tag)),
        None => Ok(()),
    }
}

/// Points a new version at a manifest. Without a tag of the user's, numbers are tried until one is free. It says that it
/// was made later than every other version of the image that can be read, also when the clock is behind that of whoever
/// made one: it is the newest.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when the tag exists, or others make versions all the time;
/// [`Invalid`](ErrorKind::Invalid) without a tag when a version has the highest number that there can be;
/// [`Fenced`](ErrorKind::Fenced) when the session was taken for dead: then there is no such version;
/// [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied) or [`NoSpace`](ErrorKind::NoSpace) when the
/// backend does not take the ref.
pub async fn publish(session: &Session, name: &ImageName, body: RefBody) -> Result<RefRecord> {
    let is_ours = |found: &str| image_of(found) == name.name;
    for _ in 0..ATTEMPTS {
        let known = session.store().refs().list_some(RefKind::Image, is_ours).await?;
        let last = known.records.iter().map(|version| version.body.created).max();
        let created = last.map_or(0, |last| last.saturating_add(1)).max(body.created);
        let tag = match &name.tag {
            Some(tag) => tag.clone(),
            None => tag_after(&known)?,
        };
        let full = format!("{}:{tag}", name.name);
        match session.publish(RefKind::Image, &full, RefBody { created, ..body.clone() }).await {
            Err(e) if e.kind() == ErrorKind::Conflict => match &name.tag {
                Some(tag) => return Err(taken(name, tag)),
                None => tokio::task::yield_now().await,
            },
            other => return other,
        }
    }
    Err(Error::conflict(format!(
        "others make versions of image {name} all the time; try again, or give this one a tag"
    )))
}

/// Brings back a name that was removed, while all that it keeps is still there: until a collection has
/// deleted it.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when the name is there, or a collection is at work;
/// [`NotFound`](ErrorKind::NotFound) when it never was, or something of it is gone; else the store's.
pub async fn restore(store: &Store, kind: RefKind, name: &str) -> Result<RefRecord> {
    let before = store.refs().removed(kind, name).await?;
    let gone = || {
        Error::not_found(format!(
            "{kind} {name} cannot be brought back: it was never there, or what it kept has been deleted \
             since; import it again"
        ))
    };
    let before = before.ok_or_else(gone)?;
    let session = store.session(&format!("restoring {kind} {name}")).await?;
    let outcome = async {
        // From here on collections keep it.
        session.hold_manifests(&before.body.roots()?).await?;
        must_not_collect(store).await?;
        if !is_whole(store, &before.body.roots()?).await? {
            return Err(gone());
        }
        session.publish(kind, name, before.body).await
    };
    let outcome = outcome.await;
    session.close(outcome).await
}

/// Keeps a manifest that no name may keep any more, and what it leads to, in the store until the session ends. Whether
/// all of that is there.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) while a collection is at work, which may have judged it already; any error from
/// [`Session::hold`] and the store.
pub async fn hold_whole(session: &Session, manifest: ManifestId) -> Result<bool> {
    session.hold_manifests(&[manifest]).await?;
    must_not_collect(session.store()).await?;
    is_whole(session.store(), &[manifest]).await
}

async fn must_not_collect(store: &Store) -> Result<()> {
    match gc::is_at_work(store).await? {
        true => Err(Error::conflict(
            "a garbage collection is at work on the store; let it end, then try again",
        )),
        false => Ok(()),
    }
}

/// Whether all that manifests lead to is in the store: packs by their keys; of one that is gone each chunk by what says
/// where it is now, as only chunks that were in use then were moved elsewhere.
async fn is_whole(store: &Store, manifests: &[ManifestId]) -> Result<bool> {
    let listed = objects::list(store.backend(), crate::pack::PREFIX).await?;
    let names = listed.iter().filter_map(|meta| meta.location.as_ref().rsplit_once('/'));
    let packs: HashSet<PackId> = names.filter_map(|(_, name)| name.parse().ok()).collect();
    for id in manifests {
        let outside = match places_outside(store, id, &packs).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        if !rewritten::lead_into(store, outside, &packs).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every place in which a manifest has a chunk, and that is in none of these packs.
async fn places_outside(
    store: &Store,
    id: &ManifestId,
    packs: &HashSet<PackId>,
) -> Result<HashSet<ChunkRef>> {
    let manifest = store.stored_manifest(id).await?;
    must_have_segments(store, &manifest).await?;
    let mut outside = HashSet::new();
    for index in 0..manifest.segments() {
        let visit = |placed: Placed| {
            if !packs.contains(&placed.at.pack) {
                outside.insert(placed.at);
            }
        };
        manifest.visit(index, visit).await?;
    }
    Ok(outside)
}

/// Reads the segments of a manifest from the store, and not from what is kept of them elsewhere.
async fn must_have_segments(store: &Store, manifest: &Manifest) -> Result<()> {
    let segments: HashSet<SegmentId> =
        (0..manifest.segments()).filter_map(|index| manifest.segment_id(index)).collect();
    let read = |id: SegmentId| async move {
        heal::stored_content(store, ObjectKind::Segment, id.as_bytes()).await.map(drop)
    };
    stream::iter(segments).map(read).buffer_unordered(SEGMENTS).try_collect().await
}

/// The newest version of each image among `versions`, by the image's name.
pub fn newest<'a>(
    versions: impl IntoIterator<Item = &'a RefRecord>,
) -> HashMap<&'a str, &'a RefRecord> {
    let mut newest: HashMap<&str, &RefRecord> = HashMap::new();
    for version in versions {
        let held = newest.entry(image_of(&version.name)).or_insert(version);
        if order(version) > order(held) {
            *held = version;
        }
    }
    newest
}

/// Versions stand in the order in which they were made; of one second by number, then by tag.
fn order(version: &RefRecord) -> (&str, u64, u64, &str) {
    let (name, tag) = (image_of(&version.name), tag_of(&version.name));
    (name, version.body.created, number(tag).unwrap_or(u64::MAX), tag)
}

/// The image of a version by its name: what stands before the tag; all of a name without one.
pub fn image_of(name: &str) -> &str {
    name.split_once(':').map_or(name, |(image, _)| image)
}

fn tag_of(name: &str) -> &str {
    name.split_once(':').map_or("", |(_, tag)| tag)
}

fn number(tag: &str) -> Option<u64> {
    tag.parse().ok()
}

fn taken(name: &ImageName, tag: &str) -> Error {
    Error::conflict(format!(
        "image {}:{tag} exists already and versions never change; choose another tag, or none for the \
         next number",
        name.name
    ))
}

#[cfg(test)]
mod tests;
