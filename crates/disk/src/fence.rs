//! Which server holds a disk, and what keeps an earlier holder from publishing.
//!
//! The ref of a disk names its holder and an epoch that grows with each change of holder. All that
//! a disk publishes goes through a compare-and-swap of that ref: who was superseded finds another
//! epoch there, publishes nothing, and stops to write the disk.

use crate::home;
use crate::record::{DiskRecord, Uuid};
use crate::residence;
use block::fs::{FsPath, Open};
use block::{Error, Result, offload};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use store::{Entropy, ManifestId, RefBody, RefRecord, ServerId};

/// The labels of a disk's ref.
pub(crate) const UUID: &str = "uuid";
const HOLDER: &str = "holder";
/// The server that released it, in place of a holder.
const RELEASED: &str = "released_by";
const EPOCH: &str = "epoch";
/// See [`DiskRecord::content`].
pub(crate) const CONTENT: &str = "content";
pub(crate) const DISK_IDENTITY: &str = "identity";
/// See [`DiskRecord::last_snapshot`].
pub(crate) const LAST_SNAPSHOT: &str = "last_snapshot";
/// The server that removes the disk.
const REMOVING: &str = "removing";
/// What else than the manifest of the ref its holder's record may stand on: what it was before the ref was written.
const BEFORE: &str = "before";

/// The file that says which server the disks of a directory belong to.
const IDENTITY: &str = ".server";
/// More than it holds, in bytes.
const MAX_IDENTITY: u64 = 64;

/// A server's right to write a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenure {
    pub(crate) server: ServerId,
    pub(crate) epoch: u64,
}

/// Who holds a disk, as its ref tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskHolder {
    /// `None`: it was released.
    pub(crate) by: Option<ServerId>,
    /// Who released it.
    released_by: Option<ServerId>,
    pub(crate) epoch: u64,
}

impl DiskHolder {
    /// Who released it; `None` while somebody holds it.
    pub(crate) fn released_by(&self) -> Option<ServerId> {
        self.released_by
    }

    /// Whether a server holds it, or was the last to.
    pub(crate) fn is_of(&self, server: ServerId) -> bool {
        self.by.or(self.released_by) == Some(server)
    }
}

/// What the ref of a disk says. `also` are manifests that are to be kept beside those that the
/// record names, because what is on stable storage may still name them.
pub(crate) fn body(record: &DiskRecord, holder: ServerId, also: &[ManifestId]) -> RefBody {
    named(record, (HOLDER, holder), also)
}

/// What the ref of a disk says that a server released.
pub(crate) fn released(record: &DiskRecord, server: ServerId) -> RefBody {
    named(record, (RELEASED, server), &[])
}

fn named(record: &DiskRecord, (label, server): (&str, ServerId), also: &[ManifestId]) -> RefBody {
    let mut labels = BTreeMap::from([
        ("image".to_owned(), record.image.to_string()),
        ("mode".to_owned(), record.mode.to_string()),
        (RefBody::ORIGIN.to_owned(), record.origin.to_string()),
        (UUID.to_owned(), record.uuid.to_string()),
        (EPOCH.to_owned(), record.epoch.to_string()),
        (CONTENT.to_owned(), record.content.to_string()),
        (BEFORE.to_owned(), listed(also)),
        (label.to_owned(), server.to_string()),
    ]);
    if let Some(identity) = record.identity {
        labels.insert(DISK_IDENTITY.to_owned(), identity.to_string());
    }
    if let Some(at) = record.last_snapshot {
        labels.insert(LAST_SNAPSHOT.to_owned(), at.to_string());
    }
    let mut keep: Vec<ManifestId> = also.iter().chain(&record.left).copied().collect();
    keep.retain(|id| *id != record.base && *id != record.origin);
    keep.sort();
    keep.dedup();
    if !keep.is_empty() {
        labels.insert(RefBody::ALSO.to_owned(), listed(&keep));
    }
    RefBody { manifest: Some(record.base), size: record.size, created: record.created, labels }
}

fn listed(ids: &[ManifestId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(" ")
}

/// What the ref of a disk says that `server` is about to remove: nobody takes it from now on. It keeps
/// in the store what it kept.
pub(crate) fn removing(found: &RefRecord, server: ServerId) -> RefBody {
    let mut body = found.body.clone();
    body.labels.insert(REMOVING.to_owned(), server.to_string());
    body
}

/// Refuses a disk that is being removed.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict).
pub(crate) fn check_stays(found: &RefRecord) -> Result<()> {
    let name = &found.name;
    match found.body.labels.get(REMOVING) {
        None => Ok(()),
        Some(server) => Err(Error::conflict(format!(
            "disk {name:?} is being removed by server {server}; if that did not finish, repeat it \
             there ('sojourn disk remove {name}'), or, if its directory is lost, anywhere with \
             'sojourn disk remove --lost {name}'"
        ))),
    }
}

/// The server that holds a disk, by its ref; `None` when it was released.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when the ref does not say.
pub fn holder(found: &RefRecord) -> Result<Option<ServerId>> {
    Ok(held(found)?.by)
}

/// Who holds the disk of a ref.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when its labels make no sense.
pub(crate) fn held(found: &RefRecord) -> Result<DiskHolder> {
    let labels = &found.body.labels;
    let server = |label| labels.get(label).map(|id| id.parse()).transpose();
    let epoch = labels.get(EPOCH).and_then(|epoch| epoch.parse().ok());
    match (server(HOLDER), server(RELEASED), epoch) {
        (Ok(by), Ok(released_by), Some(epoch)) => Ok(DiskHolder { by, released_by, epoch }),
        _ => Err(Error::corrupt(format!(
            "the ref of disk {} does not say who holds it; restore it from a backup",
            found.name
        ))),
    }
}

/// Whether a ref is of the disk `uuid`.
pub(crate) fn is_disk(found: &RefRecord, uuid: Uuid) -> bool {
    found.body.labels.get(UUID).is_some_and(|label| *label == uuid.to_string())
}

/// Checks that the disk `uuid` in `directory` is the one of a ref, and held as `tenure` says.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) for another disk,
/// [`Fenced`](block::ErrorKind::Fenced) for another holder.
pub(crate) fn check(found: &RefRecord, uuid: Uuid, tenure: Tenure, directory: &Path) -> Result<()> {
    let name = &found.name;
    if !is_disk(found, uuid) {
        return Err(Error::conflict(format!(
            "the store's disk {name:?} is another one than that in {}; remove one of them",
            directory.display()
        )));
    }
    let held = held(found)?;
    // Who released it and has not cleared it away yet may go on. Nobody else: a directory of the same
    // epoch may be left from a try to take it that came to nothing, and hold an older state.
    if held.epoch == tenure.epoch && held.is_of(tenure.server) {
        return Ok(());
    }
    let DiskHolder { by, epoch, .. } = held;
    let by = by.map_or("nobody".to_owned(), |by| format!("server {by}"));
    Err(Error::fenced(format!(
        "disk {name:?} was taken from this server and is held by {by} now (epoch {epoch}, here \
         {}); what was written here is in {}: make it a disk of its own with 'sojourn disk keep \
         {name} NEW', or give it up with 'sojourn disk remove {name}'",
        tenure.epoch,
        directory.display()
    )))
}

/// Whether a ref that this server holds says something else than a record that stands on `base` leads to. The ref is
/// written before the record is replaced, and names both until that is done: so another directory wrote it, of which
/// this one is an older copy, or a clone.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the labels of the ref make no sense.
pub(crate) fn is_set_back(found: &RefRecord, base: ManifestId) -> Result<bool> {
    if found.body.manifest == Some(base) {
        return Ok(false);
    }
    let before = match found.body.labels.get(BEFORE) {
        Some(ids) => ids.split_whitespace().map(str::parse).collect::<Result<Vec<_>>>()?,
        // Of a program that did not note it.
        None => found.body.roots()?,
    };
    Ok(!before.contains(&base))
}

/// Refuses a directory whose record stands on `base` when it was [set back](is_set_back): what another one published
/// since would lose its name.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict).
pub(crate) fn check_base(found: &RefRecord, base: ManifestId, directory: &Path) -> Result<()> {
    if !is_set_back(found, base)? {
        return Ok(());
    }
    let name = &found.name;
    Err(Error::conflict(format!(
        "the store has another state of disk {name:?} than {} leads to, which was put back as it was before, or has a \
         copy that went on: make what is here a disk of its own with 'sojourn disk keep {name} NEW', or give it up with \
         'sojourn disk remove {name}', which leaves what the store has; then go on with that with 'sojourn disk take \
         --force {name}'",
        directory.display()
    )))
}

/// Whether the disk of a ref is `uuid`, and held as `tenure` says.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when the labels of the ref make no sense.
pub(crate) fn is_held(found: &RefRecord, uuid: Uuid, tenure: Tenure) -> Result<bool> {
    match check(found, uuid, tenure, Path::new(&found.name)) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.kind(), block::ErrorKind::Fenced | block::ErrorKind::Conflict) => {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// The id of the server that the disks in `directory` belong to; it gets one with its first disk. Waits for
/// the disk.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) for a copy of a home; any error from the file system and from the
/// source of randomness.
pub(crate) fn identity(directory: &FsPath, entropy: &dyn Entropy) -> Result<ServerId> {
    let path = directory.join(IDENTITY);
    let failed = |e| path.error(e);
    match path.open(Open::READ).and_then(|file| file.read_to_end(0, MAX_IDENTITY)) {
        Ok(text) => {
            // Whoever made it may have been killed before it was durable; refs will name it.
            home::sync_name(directory)?;
            directory.sync_directory()?;
            let id = String::from_utf8_lossy(&text).trim_end().parse().map_err(|_| {
                Error::corrupt(format!(
                    "{}: is not the id of a server (32 hexadecimal digits); restore it from a \
                     backup, or remove it and take the disks again with 'sojourn disk take'",
                    path.display()
                ))
            })?;
            return residence::check(&path).map(|()| id);
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    home::make(directory)?;
    // `sojourn init` may have made it. Once for all disks: the first one needs the id.
    home::sync_name(directory)?;
    let mut id = [0; 16];
    entropy.fill(&mut id)?;
    let id = ServerId(id);
    // Whole or not at all, and only by the first one.
    let fresh = directory.join(format!("{IDENTITY}-{id}"));
    let made = fresh
        .open(Open::NEW.private())
        .and_then(|file| {
            file.write_all_at(format!("{id}\n").as_bytes(), 0).and_then(|()| file.sync_all())
        })
        .and_then(|()| fresh.rename_new(&path));
    if made.is_err() {
        let _ = fresh.remove_file();
    }
    match made {
        Ok(()) => {
            directory.sync_directory()?;
            residence::settle(&path).map(|()| id)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => identity(directory, entropy),
        Err(e) => Err(failed(e)),
    }
}

/// Reads the [`identity`] from a task.
pub(crate) async fn identify(
    directory: &FsPath,
    entropy: std::sync::Arc<dyn Entropy>,
) -> Result<ServerId> {
    let directory = directory.clone();
    offload(move || identity(&directory, &*entropy)).await
}
