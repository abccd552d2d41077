//! What the verbs on image versions do: the same for a command and for the server.

use crate::api::ImportView;
use crate::image_views::{self, Users};
use crate::retention::Retention;
use crate::world;
use block::{Error, Result};
use formats::{Format, Packed, Unread};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Cursor;
use store::{ImageName, Progress, RefBody, RefKind, Session, Store, images, import};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes at the beginning of a stream by which it is known for no raw image.
const HEAD: u64 = 512;

/// A raw image that comes as a stream of bytes, from its first to its last.
pub struct RawStream<R> {
    /// What it is called where something is wrong with it.
    pub what: String,
    /// Where it came from, as the version tells; empty when nobody knows.
    pub source: String,
    /// It is taken as it is; otherwise one that begins as no raw image does is refused.
    pub as_it_is: bool,
    /// The bytes.
    pub bytes: R,
}

impl<R: AsyncRead + Unpin + Send> RawStream<R> {
    /// Its bytes, when a raw image called `name` may begin like that.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when it is packed, or an image of another format; that of
    /// reading it.
    pub async fn begun(mut self, name: &str) -> Result<impl AsyncRead + Unpin + Send + use<R>> {
        let mut head = Vec::new();
        let begun = (&mut self.bytes).take(HEAD).read_to_end(&mut head).await;
        begun.map_err(|e| Error::io(&self.what, e))?;
        if !self.as_it_is {
            must_be_raw(&head, &self.what, name)?;
        }
        Ok(Cursor::new(head).chain(self.bytes))
    }
}

/// Refuses a stream that begins as no raw image does.
fn must_be_raw(head: &[u8], what: &str, name: &str) -> Result<()> {
    if let Some(packed) = Packed::by_magic(head) {
        return Err(is_packed(what, packed, "FILE", name));
    }
    if let Some(kind) = Unread::by_magic(head) {
        return Err(kind.refusal(what, "FILE"));
    }
    match Format::by_magic(head) {
        Format::Raw => Ok(()),
        format => Err(Error::unsupported(format!(
            "{what} is a {format} image, and can only be raw; put it into a file and import that: \
             sojourn image import FILE {name}"
        ))),
    }
}

/// The error for a source that is packed, and how to unpack `file` on the way to the image `name`.
pub fn is_packed(what: &str, packed: Packed, file: &str, name: &str) -> Error {
    Error::unsupported(format!(
        "{what} is packed with {packed}; unpack it on the way: {} {file} | sojourn image import - {name}",
        packed.unpacker()
    ))
}

/// Makes an image version of a raw stream. Nothing is visible before all of it is stored.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the version exists; any error from [`RawStream::begun`] and
/// [`import::from_stream`]. There is no version then.
pub async fn import_stream(
    session: &Session,
    name: &ImageName,
    stream: RawStream<impl AsyncRead + Unpin + Send>,
    progress: &dyn Progress,
) -> Result<ImportView> {
    let source = stream.source.clone();
    let bytes = stream.begun(&name.to_string()).await?;
    let imported = import::from_stream(session, bytes, progress).await?;
    let known = (!source.is_empty()).then(|| (images::SOURCE.to_owned(), source));
    let body = RefBody {
        manifest: Some(imported.manifest),
        size: imported.size,
        created: world::system().clock.now(),
        labels: BTreeMap::from_iter(known),
    };
    let record = images::publish(session, name, body).await?;
    Ok(ImportView { image: image_views::view(&record)?, stats: imported.stats })
}

/// Takes its name from an image version.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a name without a tag, [`Conflict`](block::ErrorKind::Conflict)
/// while a disk or a snapshot stands on the version, [`NotFound`](block::ErrorKind::NotFound).
pub async fn remove(store: &Store, name: &str) -> Result<()> {
    let name = version(name, "remove")?;
    let record = images::resolve(store, &name).await?;
    let users = Users::load(store).await?.of(&record);
    if !users.is_empty() {
        return Err(Error::conflict(format!(
            "image {name} is used by {}; remove or rebase them first",
            users.join(", ")
        )));
    }
    store.refs().remove(RefKind::Image, &record.name, record.sequence).await
}

/// Brings back an image version that was removed.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a name without a tag; any error from [`images::restore`].
pub async fn restore(store: &Store, name: &str) -> Result<()> {
    let name = version(name, "restore")?;
    images::restore(store, RefKind::Image, &name.to_string()).await.map(|_| ())
}

/// What was removed of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PruneView {
    /// Versions that were removed, or would be.
    pub removed: Vec<String>,
    /// Older ones that stay, because something stands on them.
    pub in_use: Vec<InUse>,
}

/// A version that cannot be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// The version.
    pub image: String,
    /// The disks and snapshots that stand on it.
    pub used_by: Vec<String>,
}

/// Takes their names from the old versions of an image that nothing stands on; with `dry_run` only says which.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a name with a tag, and when nothing would be kept;
/// [`NotFound`](block::ErrorKind::NotFound) for an image without versions;
/// [`Conflict`](block::ErrorKind::Conflict) when a version changes meanwhile.
pub async fn prune(
    store: &Store,
    name: &str,
    retention: Retention,
    dry_run: bool,
) -> Result<PruneView> {
    let name: ImageName = name.parse()?;
    if name.tag.is_some() {
        return Err(Error::invalid("all versions of an image are looked at; give its name alone"));
    }
    let versions = images::versions(store, &name.name).await?;
    if versions.is_empty() {
        return Err(Error::not_found(format!(
            "no image {name}; see `sojourn image list` for what there is"
        )));
    }
    let created: Vec<u64> = versions.iter().map(|version| version.body.created).collect();
    let old = retention.superseded(&created, world::system().clock.now())?;
    let users = Users::load(store).await?;
    let mut view = PruneView { removed: Vec::new(), in_use: Vec::new() };
    for version in &versions[..old] {
        let used_by = users.of(version);
        if !used_by.is_empty() {
            view.in_use.push(InUse { image: version.name.clone(), used_by });
            continue;
        }
        if !dry_run {
            store.refs().remove(RefKind::Image, &version.name, version.sequence).await?;
        }
        view.removed.push(version.name.clone());
    }
    Ok(view)
}

/// A name with its tag: a verb that changes versions is about one of them.
fn version(name: &str, verb: &str) -> Result<ImageName> {
    let name: ImageName = name.parse()?;
    match name.tag {
        Some(_) => Ok(name),
        None => Err(Error::invalid(format!(
            "say which version of {name} to {verb}: {name}:TAG; `sojourn image list` shows them"
        ))),
    }
}
