//! Making disks, one or many at once: from an image version, or from what any disk of the store was at a
//! snapshot.

use crate::disk::{OwnBlocks, describe};
use crate::disks::{Disks, build, clear, taken};
use crate::fence;
use crate::record::{DiskRecord, Uuid};
use crate::shadow::check_size;
use crate::snapshot;
use crate::{CreateOptions, DiskInfo, DiskSource};
use block::{Error, ErrorKind, Result, offload};
use futures::StreamExt;
use std::collections::HashSet;
use store::{ImageName, ManifestId, RefKind, RefRecord, Session, check_name, images};

/// How many disks are made at a time: what each syncs the file system commits together, and what each asks of
/// a distant store is under way side by side.
const AT_A_TIME: usize = 64;

/// What a new disk is made of.
#[derive(Debug, Clone)]
struct DiskOrigin {
    /// What it holds, in words: `image debian:1`.
    what: String,
    image: ImageName,
    /// What it is reset to.
    origin: ManifestId,
    /// What it holds.
    base: ManifestId,
    /// Its size.
    size: u64,
}

impl Disks {
    /// Makes a disk. From an image version it holds that. From a snapshot it holds what that disk did then,
    /// which may be of any home on the store; it belongs to the image version that the snapshot does, and when
    /// that is gone it is reset to what the snapshot holds.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a bad name or size,
    /// [`NotFound`](ErrorKind::NotFound) when there is no such image or snapshot,
    /// [`Conflict`](ErrorKind::Conflict) when there is a disk of this name; any error from the store and
    /// the file system.
    pub async fn create(
        &self,
        name: &str,
        from: &DiskSource,
        options: CreateOptions,
    ) -> Result<DiskInfo> {
        check_name("disk", name)?;
        let session = self.store.session(&format!("creation of disk {name}")).await?;
        let made = async {
            let origin = self.origin(&session, from).await?;
            self.create_in(&session, name, origin, options).await
        }
        .await;
        session.close(made).await
    }

    /// Makes a disk of each name from the same source, side by side. Returns the outcome for each name, in
    /// their order, with the errors of [`create`](Self::create): when one disk cannot be made, the others are.
    ///
    /// # Errors
    /// No disk is made, and the error is [`Invalid`](ErrorKind::Invalid) for a bad name or one that is given
    /// twice, [`NotFound`](ErrorKind::NotFound) when there is no such image or snapshot, or one of the store
    /// from before the first disk.
    pub async fn create_all(
        &self,
        names: &[String],
        from: &DiskSource,
        options: CreateOptions,
    ) -> Result<Vec<Result<DiskInfo>>> {
        let mut seen = HashSet::new();
        for name in names {
            check_name("disk", name)?;
            if !seen.insert(name) {
                return Err(Error::invalid(format!(
                    "disk {name:?} is named twice; name each disk once"
                )));
            }
        }
        let session = self.store.session(&format!("creation of {} disks", names.len())).await?;
        let made = async {
            let origin = self.origin(&session, from).await?;
            let make = |name| self.create_in(&session, name, origin.clone(), options);
            let each: Vec<_> = names.iter().map(|name| make(name.as_str())).collect();
            Ok(futures::stream::iter(each).buffered(AT_A_TIME).collect().await)
        }
        .await;
        session.close(made).await
    }

    /// What a source holds; it stays until the session ends.
    async fn origin(&self, session: &Session, from: &DiskSource) -> Result<DiskOrigin> {
        match from {
            DiskSource::Image(image) => self.of_image(session, image).await,
            DiskSource::Snapshot { disk, snapshot } => {
                self.of_snapshot(session, disk, snapshot).await
            }
        }
    }

    /// What an image version holds; it stays until the session ends.
    async fn of_image(&self, session: &Session, from: &ImageName) -> Result<DiskOrigin> {
        let version = self.resolve(from).await?;
        let version = session
            .hold(RefKind::Image, &version.name)
            .await?
            .ok_or_else(|| Error::not_found(format!("image {} was removed", version.name)))?;
        let manifest = self.store.stored_manifest(&images::manifest_of(&version)?).await?;
        Ok(DiskOrigin {
            what: format!("image {}", version.name),
            image: version.name.parse()?,
            origin: manifest.id(),
            base: manifest.id(),
            size: manifest.size(),
        })
    }

    /// What a disk was at a snapshot; it stays until the session ends.
    async fn of_snapshot(
        &self,
        session: &Session,
        disk: &str,
        snapshot: &str,
    ) -> Result<DiskOrigin> {
        check_name("disk", disk)?;
        check_name("snapshot", snapshot)?;
        let full = format!("{disk}@{snapshot}");
        let found = session.hold(RefKind::Snapshot, &full).await?.ok_or_else(|| {
            Error::not_found(format!(
                "the store has no snapshot {full}; see 'sojourn disk show {disk}'"
            ))
        })?;
        let base = snapshot::content_of(&found)?;
        let image = found.body.labels.get("image").ok_or_else(|| {
            Error::corrupt(format!("snapshot {full} does not say which image it belongs to"))
        })?;
        let version = session.hold(RefKind::Image, image).await?;
        let origin = version.as_ref().map(images::manifest_of).transpose()?.unwrap_or(base);
        let manifest = self.store.stored_manifest(&base).await?;
        Ok(DiskOrigin {
            what: format!("snapshot {full}"),
            image: image.parse()?,
            origin,
            base,
            size: manifest.size(),
        })
    }

    async fn create_in(
        &self,
        session: &Session,
        name: &str,
        from: DiskOrigin,
        options: CreateOptions,
    ) -> Result<DiskInfo> {
        let size = options.size.unwrap_or(from.size);
        check_size(size)?;
        if size < from.size {
            return Err(Error::invalid(format!(
                "a disk of {size} bytes cannot hold {}, which has {}; give no size, or a larger one",
                from.what, from.size
            )));
        }
        if let Some(found) = self.store.refs().get(RefKind::Disk, name).await? {
            return Err(self.taken_by(&found).await);
        }
        let world = self.store.world();
        let mut uuid = Uuid([0; 16]);
        world.entropy.fill(&mut uuid.0)?;
        let record = DiskRecord {
            name: name.to_owned(),
            uuid,
            mode: options.mode,
            size,
            created: world.clock.now(),
            image: from.image,
            origin: from.origin,
            base: from.base,
            layers: vec![1],
            next_layer: 2,
            attached: None,
            epoch: 1,
            left: Vec::new(),
            published: None,
            content: 0,
            identity: None,
            last_snapshot: None,
        };
        let server = self.server().await?;
        let (home, copy) = (self.directory.clone(), record.clone());
        // What an interrupted try left holds what it was made from.
        let replaces = move |left: &DiskRecord| left.base == left.origin || left.base == from.base;
        let _lock = offload(move || build(&home, &copy, replaces, |_| Ok(()))).await?;
        let body = fence::body(&record, server, &[]);
        if let Err(error) = session.publish(RefKind::Disk, name, body).await {
            if error.kind() == ErrorKind::Conflict {
                // Somebody else was first, with the same store.
                let (home, name) = (self.directory.clone(), name.to_owned());
                offload(move || clear(&home, &name)).await?;
            }
            return Err(error);
        }
        // What is left of others; only now is it sure that the name is this disk's.
        self.forget_earlier_snapshots(&record).await.map_err(|e| {
            e.context(format!("disk {name:?} is made, but has snapshots of an earlier one"))
        })?;
        Ok(describe(&record, OwnBlocks::NONE))
    }

    /// Why a name cannot be used that is in the store: who holds it, and how to get at the disk.
    async fn taken_by(&self, found: &RefRecord) -> Error {
        let name = &found.name;
        let told = async {
            let (held, server) = (fence::held(found)?, self.server().await?);
            if held.by == Some(server) {
                return Ok(taken(name));
            }
            let Some(holder) = held.by else {
                return Ok(Error::conflict(format!(
                    "disk {name:?} was released for any server: 'sojourn disk take {name}' brings it here; or choose \
                     another name"
                )));
            };
            let seen = self.store.servers().seen(&holder).await?;
            let host = seen.as_ref().map_or(String::new(), |seen| format!(" on {}", seen.host));
            let take = match seen.is_some_and(|seen| seen.is_alive()) {
                true => "which is at work: 'sojourn disk release' there, then",
                false => "which is gone:",
            };
            Ok(Error::conflict(format!(
                "disk {name:?} belongs to server {holder}{host}, {take} 'sojourn disk take {name}' brings it here; \
                 or choose another name"
            )))
        };
        // Whatever is the matter with its ref, the name is taken.
        told.await.unwrap_or_else(|_: Error| taken(name))
    }
}
