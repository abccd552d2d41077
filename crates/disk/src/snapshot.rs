//! Snapshot, commit, roll back, reset: what a disk holds becomes a manifest, or the other way round.
//!
//! Publishing what a disk holds, while it is in use: a new layer takes the writes from a moment on,
//! so that the layers below it do not change any more; they are uploaded over the base; the new
//! manifest gets its name; then it becomes the base and the uploaded layers are dropped. A crash
//! between any two steps leaves a disk of the same content: with one layer more, or with layers
//! that say what the base says too.

use crate::fence::UUID;
use crate::record::{DiskRecord, Uuid};
use crate::stack::Frozen;
use crate::{Disk, SnapshotInfo, compare};
use block::{Error, Result, offload};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use store::{
    Grain, ImageName, ManifestId, Progress, RefBody, RefKind, RefRecord, Session, Store, images,
    import,
};

/// Layers that failed uploads may leave before the next one uploads those first: each of them is looked through
/// by every read.
const MOST_LAYERS_OF_UPLOADS: usize = 8;
/// Layers at a time, with those of states that are kept without the store: each holds two files open.
const MOST_LAYERS: usize = 64;

/// The snapshots of all disks, or of one, by the disk's name, the damaged ones first, then the oldest.
pub(crate) async fn list(
    store: &Store,
    only: Option<&str>,
) -> Result<HashMap<String, Vec<SnapshotInfo>>> {
    let mut all: HashMap<String, Vec<SnapshotInfo>> = HashMap::new();
    let mut add = |full: &str, created, size, error| {
        if let Some((disk, name)) = full.split_once('@') {
            let info = SnapshotInfo { name: name.to_owned(), created, size, error };
            all.entry(disk.to_owned()).or_default().push(info);
        }
    };
    let wanted = |full: &str| {
        only.is_none_or(|only| full.split_once('@').is_some_and(|(disk, _)| disk == only))
    };
    let listing = store.refs().list_some(RefKind::Snapshot, wanted).await?;
    for found in listing.records {
        add(&found.name, found.body.created, found.body.size, None);
    }
    for bad in listing.damaged {
        add(&bad.name, 0, 0, Some(bad.error.message().to_owned()));
    }
    for list in all.values_mut() {
        list.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    }
    Ok(all)
}

/// What a disk was at a snapshot.
pub(crate) struct SnapshotPoint {
    pub(crate) manifest: ManifestId,
    pub(crate) size: u64,
    /// The image version that it stood on, if that is there still.
    pub(crate) image: Option<(ImageName, ManifestId)>,
}

/// A snapshot of the disk `uuid`. What it names stays in the store until the session ends.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when it has none of this name; any error from the store.
pub(crate) async fn find(
    session: &Session,
    disk: &str,
    snapshot: &str,
    uuid: Uuid,
) -> Result<SnapshotPoint> {
    store::check_name("snapshot", snapshot)?;
    let full = format!("{disk}@{snapshot}");
    let found = session.hold(RefKind::Snapshot, &full).await?;
    // One of an earlier disk of this name is not meant.
    let own = found.filter(|found| found.body.labels.get(UUID) == Some(&uuid.to_string()));
    let found = own.ok_or_else(|| {
        Error::not_found(format!(
            "disk {disk:?} has no snapshot {snapshot:?}; see 'sojourn disk show {disk}'"
        ))
    })?;
    let manifest = content_of(&found)?;
    let image = match found.body.labels.get("image") {
        Some(name) => session.hold(RefKind::Image, name).await?,
        None => None,
    };
    let image = match image {
        Some(version) => Some((version.name.parse()?, images::manifest_of(&version)?)),
        None => None,
    };
    Ok(SnapshotPoint { manifest, size: found.body.size, image })
}

/// What a snapshot holds.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it says nothing of that.
pub(crate) fn content_of(found: &RefRecord) -> Result<ManifestId> {
    found.body.manifest.ok_or_else(|| {
        Error::corrupt(format!("snapshot {}: has no content; remove it", found.name))
    })
}

impl Disk {
    /// Makes all that the disk holds what it stands on, in the store.
    pub(crate) async fn publish_all(&self, progress: &dyn Progress) -> Result<()> {
        let _changing = self.begin_change().await;
        let session = self.store.session(&format!("upload of disk {}", self.name())).await?;
        let outcome = self.publish_in(&session, progress).await;
        session.close(outcome).await
    }

    /// The same in a session, by who changes the disk.
    pub(crate) async fn publish_in(
        &self,
        session: &Session,
        progress: &dyn Progress,
    ) -> Result<()> {
        let frozen = self.store.world().clock.now();
        let view = self.freeze(session, progress).await?;
        let manifest = self.publish_blocks(session, &view, progress).await?;
        let published = |record: &mut DiskRecord| record.base = manifest;
        self.announce(Some(session), published).await?;
        self.settle(frozen, published).await?;
        self.publish_base().await
    }

    /// Freezes what the disk holds now, under a name. The disk may be in use; answered writes are
    /// in the snapshot, later ones are not.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the disk has a snapshot of this name,
    /// [`Denied`](block::ErrorKind::Denied) when its private blocks lie in borrowed room; any error from
    /// the store. The disk is as it was then.
    pub async fn snapshot(&self, name: &str, progress: &dyn Progress) -> Result<SnapshotInfo> {
        store::check_name("snapshot", name)?;
        self.check_keeps("snapshot")?;
        let _changing = self.begin_change().await;
        let full = format!("{}@{name}", self.name());
        let session = self.store.session(&format!("snapshot {full}")).await?;
        let outcome = self.snapshot_in(&session, name, &full, progress).await;
        session.close(outcome).await
    }

    async fn snapshot_in(
        &self,
        session: &Session,
        name: &str,
        full: &str,
        progress: &dyn Progress,
    ) -> Result<SnapshotInfo> {
        if self.store.refs().get(RefKind::Snapshot, full).await?.is_some() {
            return Err(Error::conflict(format!(
                "disk {:?} has a snapshot {name:?} already; choose another name",
                self.name()
            )));
        }
        let frozen = self.store.world().clock.now();
        let view = self.freeze(session, progress).await?;
        let manifest = self.publish_blocks(session, &view, progress).await?;
        let record = self.record();
        // The newest one stays the newest when the clock is behind that of whoever made the last one.
        let now = self.store.world().clock.now();
        let created = record.last_snapshot.map_or(now, |last| now.max(last.saturating_add(1)));
        let body = RefBody {
            manifest: Some(manifest),
            size: view.size,
            created,
            labels: BTreeMap::from([
                ("image".to_owned(), record.image.to_string()),
                (UUID.to_owned(), record.uuid.to_string()),
            ]),
        };
        let published = |record: &mut DiskRecord| {
            record.base = manifest;
            record.last_snapshot = Some(created);
        };
        self.announce(Some(session), published).await?;
        let made = session.publish(RefKind::Snapshot, full, body).await?;
        let info = SnapshotInfo {
            name: name.to_owned(),
            created: made.body.created,
            size: made.body.size,
            error: None,
        };
        self.settle_or_warn(frozen, published).await;
        Ok(info)
    }

    /// Publishes what the disk holds as a version of an image: the next number when `to` has no
    /// tag. The disk goes on unchanged, and belongs to the version that it came from.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the version exists, and while a disk that is written through is
    /// attached,
    /// [`Denied`](block::ErrorKind::Denied) when private blocks lie in borrowed room; any error from the
    /// store.
    pub async fn commit(&self, to: &ImageName, progress: &dyn Progress) -> Result<RefRecord> {
        self.check_keeps("image version")?;
        // Its writes would wait until all of it is uploaded.
        let _excluded = match self.is_write_through() {
            true => Some(self.lease.exclude(self.name(), "commit")?),
            false => None,
        };
        let _changing = self.begin_change().await;
        let session = self.store.session(&format!("commit of disk {}", self.name())).await?;
        let outcome = self.commit_in(&session, to, progress).await;
        session.close(outcome).await
    }

    async fn commit_in(
        &self,
        session: &Session,
        to: &ImageName,
        progress: &dyn Progress,
    ) -> Result<RefRecord> {
        let tag = match &to.tag {
            Some(tag) => tag.clone(),
            None => images::next_tag(&self.store, &to.name).await?,
        };
        let to = ImageName { name: to.name.clone(), tag: Some(tag) };
        images::must_be_free(&self.store, &to).await?;
        let frozen = self.store.world().clock.now();
        let view = self.freeze(session, progress).await?;
        let record = self.record();
        let origin = self.store.manifest(&record.origin).await?;
        let base = Arc::clone(self.base.lock().manifest());
        let changed = compare::union(
            &view.stack.changed(view.from, view.size),
            &compare::differences(&origin, &base).await?,
        );
        let imported = import::derive(
            session,
            &origin,
            view.size,
            &view,
            &compare::clipped(&changed, view.size),
            Grain::Content,
            progress,
        )
        .await?;
        let body = RefBody {
            manifest: Some(imported.manifest),
            size: imported.size,
            created: self.store.world().clock.now(),
            labels: BTreeMap::from([
                (images::PARENT.to_owned(), record.image.to_string()),
                (images::SOURCE.to_owned(), format!("disk {}", record.name)),
            ]),
        };
        let published = |record: &mut DiskRecord| record.base = imported.manifest;
        self.announce(Some(session), published).await?;
        let made = images::publish(session, &to, body).await?;
        self.settle_or_warn(frozen, published).await;
        Ok(made)
    }

    /// Makes the disk what it was at a snapshot, its size and image version included. What was
    /// written since is gone.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such snapshot,
    /// [`Conflict`](block::ErrorKind::Conflict) while the disk is attached; any error from the store and
    /// the file system. The disk is as it was then.
    pub async fn rollback(&self, snapshot: &str) -> Result<()> {
        store::check_name("snapshot", snapshot)?;
        let _excluded = self.lease.exclude(self.name(), "rollback")?;
        let _changing = self.begin_change().await;
        let record = self.record();
        let session = self.store.session(&format!("rollback of disk {}", record.name)).await?;
        let outcome = async {
            let past = find(&session, &record.name, snapshot, record.uuid).await?;
            self.replace(Some(&session), past).await
        }
        .await;
        session.close(outcome).await
    }

    /// Drops everything private: the disk is that of its image version again. It keeps its size,
    /// unless the image is larger, and its snapshots.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while the disk is attached; any error from the store and
    /// the file system.
    pub async fn reset(&self) -> Result<()> {
        let _excluded = self.lease.exclude(self.name(), "reset")?;
        let _changing = self.begin_change().await;
        let record = self.record();
        // What is not private any more, or never came to be, may have room all the same.
        let is_blank = self.shadow.is_empty() && self.shadow.room() == 0;
        if record.base == record.origin && is_blank && !self.shadow.has_failed() {
            self.renew()?;
            return self.change(|record| record.attached = None).await;
        }
        // A rollback to before a rebase may have left it smaller than the image is now.
        let size = record.size.max(self.store.manifest(&record.origin).await?.size());
        self.replace(None, SnapshotPoint { manifest: record.origin, size, image: None }).await
    }

    /// Its snapshots, as the store has them now: the damaged ones first, then the oldest. Lists
    /// all snapshots in the store, so opening a disk does not.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(list(&self.store, Some(self.name())).await?.remove(self.name()).unwrap_or_default())
    }

    /// Removes a snapshot. Disks keep what they hold.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such snapshot,
    /// [`Fenced`](block::ErrorKind::Fenced) when another server took the disk,
    /// [`Conflict`](block::ErrorKind::Conflict) when the store knows another disk of this name; those
    /// of the store.
    pub async fn remove_snapshot(&self, snapshot: &str) -> Result<()> {
        store::check_name("snapshot", snapshot)?;
        let _changing = self.begin_change().await;
        self.shadow.check()?;
        let full = format!("{}@{snapshot}", self.name());
        let refs = self.store.refs();
        let found = refs.get(RefKind::Snapshot, &full).await?.ok_or_else(|| {
            Error::not_found(format!("disk {:?} has no snapshot {snapshot:?}", self.name()))
        })?;
        // After the snapshot was read: so it is from a time in which this server held the disk. One
        // that another holder makes under this name later is another record, and stays.
        self.publish_base().await?;
        refs.remove(RefKind::Snapshot, &full, found.sequence).await
    }

    /// Makes everything that is written now part of layers that do not change any more.
    async fn freeze(&self, session: &Session, progress: &dyn Progress) -> Result<Frozen> {
        self.shadow.check()?;
        let stack = self.shadow.stack();
        if !stack.top().is_empty() && stack.layers.len() >= MOST_LAYERS_OF_UPLOADS {
            // Uploads failed many times: what they left must go first.
            let frozen = self.record().published.unwrap_or(self.record().created);
            let view = self.shadow.sealed();
            let manifest = self.publish_blocks(session, &view, progress).await?;
            let published = |record: &mut DiskRecord| record.base = manifest;
            self.announce(Some(session), published).await?;
            self.settle(frozen, published).await?;
        }
        self.freeze_here().await
    }

    /// The same without the store.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when too many layers wait to be published; any error from the file
    /// system.
    pub(crate) async fn freeze_here(&self) -> Result<Frozen> {
        self.shadow.check()?;
        let stack = self.shadow.stack();
        if !stack.top().is_empty() {
            if stack.layers.len() >= MOST_LAYERS {
                return Err(Error::conflict(format!(
                    "disk {:?} was not published for {MOST_LAYERS} states; publish it first ('sojourn disk publish {}')",
                    self.name(),
                    self.name()
                )));
            }
            let number = self.record().next_layer;
            let layer = self.shadow.new_layer(number).await?;
            self.change(|record| {
                record.layers.push(number);
                record.next_layer = number + 1;
            })
            .await?;
            self.shadow.seal(layer).await;
        }
        Ok(self.shadow.sealed())
    }

    /// Uploads the frozen layers over the base, block by block.
    async fn publish_blocks(
        &self,
        session: &Session,
        view: &Frozen,
        progress: &dyn Progress,
    ) -> Result<ManifestId> {
        let base = Arc::clone(self.base.lock().manifest());
        let changed = view.stack.changed(view.from, view.size);
        if changed.is_empty() && base.size() == view.size {
            return Ok(base.id());
        }
        let grain = Grain::Blocks;
        let imported =
            import::derive(session, &base, view.size, view, &changed, grain, progress).await?;
        Ok(imported.manifest)
    }

    /// Has the record say what was `published`, whose base holds what the frozen layers over the base before hold, and
    /// drops those. They are from the time `frozen`, in Unix seconds.
    async fn settle(&self, frozen: u64, published: impl Fn(&mut DiskRecord)) -> Result<()> {
        let mut next = self.record();
        published(&mut next);
        let (_, image) = self.image(&next.base).await?;
        self.change(|record| {
            published(record);
            record.published = Some(frozen);
            record.layers = record.layers.split_off(record.layers.len().saturating_sub(1));
        })
        .await?;
        *self.base.lock() = Arc::clone(&image);
        let dropped = self.shadow.settle(image, 1, None).await;
        self.discard_layers(dropped).await;
        self.publish_base_or_warn().await;
        Ok(())
    }

    /// The name is made: what is left to do only saves room, and is done the next time if it fails.
    async fn settle_or_warn(&self, frozen: u64, published: impl Fn(&mut DiskRecord)) {
        if let Err(error) = self.settle(frozen, published).await {
            tracing::warn!(disk = self.name(), %error, "cannot drop uploaded layers now");
        }
    }

    /// Makes the disk show what it was and nothing else.
    pub(crate) async fn replace(
        &self,
        session: Option<&Session>,
        past: SnapshotPoint,
    ) -> Result<()> {
        let SnapshotPoint { manifest, size, image: stood_on } = past;
        let (manifest, image) = self.image(&manifest).await?;
        let number = self.record().next_layer;
        let layer = self.shadow.new_layer(number).await?;
        let id = manifest.id();
        let back = |record: &mut DiskRecord| {
            if let Some((image, origin)) = &stood_on {
                (record.image, record.origin) = (image.clone(), *origin);
            }
            record.base = id;
            record.size = size;
            record.renew_content();
        };
        self.announce(session, back).await?;
        let guard = self.shadow.unless_interrupted("rollback or reset");
        let changed = self
            .change(|record| {
                back(record);
                record.layers = vec![number];
                record.next_layer = number + 1;
                record.attached = None;
            })
            .await;
        if let Err(error) = changed {
            guard.done();
            // Whoever takes the disk goes on with what it is, not with what it was to become.
            self.publish_base_or_warn().await;
            return Err(error);
        }
        *self.base.lock() = Arc::clone(&image);
        self.shadow.set_size(size);
        let dropped = self.shadow.settle(image, 0, Some(layer)).await;
        guard.done();
        self.discard_layers(dropped).await;
        self.publish_base_or_warn().await;
        self.renew()
    }

    /// Removes the files of layers that the record does not name any more.
    pub(crate) async fn discard_layers(&self, dropped: Vec<Arc<crate::layer::ShadowLayer>>) {
        let directory = self.shadow.directory().clone();
        let removed = offload(move || {
            dropped.iter().for_each(|layer| layer.remove(&directory));
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::warn!(disk = self.name(), %error, "cannot remove dropped layers");
        }
    }
}
