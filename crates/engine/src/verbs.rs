//! What the verbs on disks do: the same for a command on its own and for the server.

use super::Engine;
use super::devices;
use super::image_views;
use super::open::{DiskHandle, OpenDisks};
use super::parcels;
use crate::api::{
    BytesByPlace, DiskReply, DiskRequest, DiskView, ElsewhereView, MadeView, MapView,
    PublishedView, Range, RebaseView, SnapshotView,
};
use block::{Error, ErrorKind, Result};
use disk::{CreateOptions, Disk, DiskInfo, DiskSource, IsKept, Rebase, RemoteDisk, SnapshotInfo};
use futures::StreamExt;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use store::{ChunkRef, ImageName, ManifestId, RefKind, UploadPlan, images};

/// What the store is asked at a time of the names of disks that are to be made.
const QUESTIONS: usize = 64;

/// Refuses to call a disk what clients call an image: they would get a disk in place of that.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict).
async fn check_free(engine: &Engine, name: &str) -> Result<()> {
    store::check_name("disk", name)?;
    match images::resolve(&engine.store, &name.parse()?).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    Err(Error::conflict(format!(
        "an image is called {name}, and clients that ask for {name} are to get that; choose another name \
         for the disk"
    )))
}

/// Refuses a name for a disk that is to be made.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict).
async fn may_be_made(engine: &Engine, name: &str) -> Result<()> {
    check_free(engine, name).await?;
    devices::must_be_none(&engine.home, name)
}

/// Makes as many of several disks as can be made; says what became of each, in the order of the names.
async fn create_all(
    engine: &Engine,
    names: Vec<String>,
    from: &DiskSource,
    options: CreateOptions,
) -> Result<Vec<MadeView>> {
    let asked: Vec<_> = names.iter().map(|name| may_be_made(engine, name)).collect();
    let allowed: Vec<Result<()>> = futures::stream::iter(asked).buffered(QUESTIONS).collect().await;
    let free = names.iter().zip(&allowed).filter(|(_, allowed)| allowed.is_ok());
    let free: Vec<String> = free.map(|(name, _)| name.clone()).collect();
    let outcomes = engine.disks.create_all(&free, from, options).await?;
    let infos: Vec<DiskInfo> = outcomes.iter().flatten().cloned().collect();
    // They are made: when the store does not tell, none is over its image.
    let images = Images::of(engine, &infos).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look for the image of new disks");
        Images::default()
    });
    let mut outcomes = outcomes.into_iter();
    let views = names.into_iter().zip(allowed).map(|(name, allowed)| {
        let outcome = allowed.and_then(|()| {
            outcomes.next().unwrap_or_else(|| Err(Error::internal("a disk was passed over")))
        });
        match outcome {
            Ok(info) => MadeView::Disk(view(info, Vec::new(), &images)),
            Err(error) => MadeView::Failed {
                name,
                kind: error.kind().as_str().to_owned(),
                message: error.message().to_owned(),
            },
        }
    });
    Ok(views.collect())
}

/// Carries out a verb.
///
/// # Errors
/// Any error from the verb.
pub async fn perform(engine: &Engine, request: DiskRequest) -> Result<DiskReply> {
    let open = &engine.open;
    match request {
        DiskRequest::Create { name, from, mode, size } => {
            let options = CreateOptions { size, mode };
            may_be_made(engine, &name).await?;
            let info = engine.disks.create(&name, &from.parse()?, options).await?;
            Ok(DiskReply::Disk(made(engine, info).await))
        }
        DiskRequest::CreateAll { names, from, mode, size } => {
            let options = CreateOptions { size, mode };
            Ok(DiskReply::Made(create_all(engine, names, &from.parse()?, options).await?))
        }
        DiskRequest::List => Ok(DiskReply::Disks(list(engine, None).await?)),
        DiskRequest::Show { name } => Ok(DiskReply::Disk(show(engine, &name).await?)),
        DiskRequest::Map { name, cells } => {
            Ok(DiskReply::Map(chunk_map(engine, name, cells).await?))
        }
        DiskRequest::Snapshot { name, snapshot } => {
            let info = open.hold(&name).await?.snapshot(&snapshot, &()).await?;
            Ok(DiskReply::Snapshot(info.into()))
        }
        DiskRequest::Rollback { name, snapshot } => {
            devices::must_be_none(&engine.home, &name)?;
            parcels::must_not_be_suspended(engine, &name).await?;
            let disk = hold_or_recover(engine, &name, Some(&snapshot)).await?;
            disk.rollback(&snapshot).await?;
            Ok(DiskReply::Disk(changed(engine, &disk).await))
        }
        DiskRequest::Commit { name, image } => {
            let image: ImageName = image.parse()?;
            let record = open.hold(&name).await?.commit(&image, &()).await?;
            Ok(DiskReply::Image(image_views::view(&record)?))
        }
        DiskRequest::Rebase { name, image, keep_mine } => {
            let force = if keep_mine { Rebase::KeepMine } else { Rebase::Refuse };
            Ok(DiskReply::Rebase(rebase(engine, &name, &image.parse()?, force).await?))
        }
        DiskRequest::Reset { name } => {
            devices::must_be_none(&engine.home, &name)?;
            parcels::must_not_be_suspended(engine, &name).await?;
            let disk = hold_or_recover(engine, &name, None).await?;
            disk.reset().await?;
            Ok(DiskReply::Disk(changed(engine, &disk).await))
        }
        DiskRequest::Grow { name, size } => {
            parcels::must_not_be_suspended(engine, &name).await?;
            let disk = open.hold(&name).await?;
            disk.grow(size).await?;
            Ok(DiskReply::Disk(changed(engine, &disk).await))
        }
        DiskRequest::Remove { name, lost } => {
            remove(engine, &name, lost).await?;
            Ok(DiskReply::Removed(format!("disk {name}")))
        }
        DiskRequest::RemoveSnapshot { name, snapshot } => {
            store::check_name("disk", &name)?;
            store::check_name("snapshot", &snapshot)?;
            parcels::must_not_need(engine, &name, &snapshot).await?;
            open.hold(&name).await?.remove_snapshot(&snapshot).await?;
            Ok(DiskReply::Removed(format!("snapshot {name}@{snapshot}")))
        }
        DiskRequest::Take { name, force, lost } => {
            Ok(DiskReply::Disk(take(engine, &name, (force, lost)).await?))
        }
        DiskRequest::Publish { name } => {
            let disk = open.hold(&name).await?;
            let behind = disk.behind().map_or(0, |behind| behind.bytes);
            disk.write_back(UploadPlan::default(), &()).await?;
            Ok(DiskReply::Published(PublishedView { disk: name, bytes: behind }))
        }
        DiskRequest::Mark { name, set } => Ok(DiskReply::Mark(mark(open, &name, set).await?)),
        DiskRequest::PrivateBytes { name } => {
            Ok(DiskReply::PrivateBytes(private_bytes(engine, &name).await?))
        }
        DiskRequest::Holds { name, manifest } => {
            let manifest = manifest.parse()?;
            Ok(DiskReply::Holds(open.hold(&name).await?.holds(&manifest)))
        }
        DiskRequest::Release { name } => {
            devices::must_be_none(&engine.home, &name)?;
            parcels::must_not_be_suspended(engine, &name).await?;
            open.release(&name).await?;
            Ok(DiskReply::Released(format!("disk {name}")))
        }
        DiskRequest::Keep { name, new } => {
            devices::must_be_none(&engine.home, &name)?;
            check_free(engine, &new).await?;
            let info = open.keep(&name, &new).await?;
            Ok(DiskReply::Disk(made(engine, info).await))
        }
        DiskRequest::Elsewhere => {
            let found = engine.disks.elsewhere().await?;
            Ok(DiskReply::Elsewhere(found.into_iter().map(Into::into).collect()))
        }
    }
}

/// Makes a disk this server's that is another one's, or nobody's; with `force`, also one that somebody needs there, and
/// with `lost` one of whose machine nobody needs the memory there.
async fn take(engine: &Engine, name: &str, (force, lost): (bool, bool)) -> Result<DiskView> {
    devices::must_be_none(&engine.home, name)?;
    if !force && !lost {
        parcels::must_not_run_elsewhere(engine, name).await?;
    }
    let info = engine.disks.take(name, force).await?;
    Ok(made(engine, info).await)
}

/// Puts a disk onto another image version.
async fn rebase(
    engine: &Engine,
    name: &str,
    image: &ImageName,
    force: Rebase,
) -> Result<RebaseView> {
    devices::must_be_none(&engine.home, name)?;
    parcels::must_not_be_suspended(engine, name).await?;
    let disk = engine.open.hold(name).await?;
    let report = disk.rebase(image, force).await?;
    let range = |span: &block::Span| Range { offset: span.offset(), length: span.len() };
    let both_changed = report.both_changed.iter().map(range).collect();
    Ok(RebaseView { disk: changed(engine, &disk).await, both_changed })
}

/// Removes a disk; with `lost`, one whose holder is gone for good.
async fn remove(engine: &Engine, name: &str, lost: bool) -> Result<()> {
    store::check_name("disk", name)?;
    devices::must_be_none(&engine.home, name)?;
    parcels::must_not_need_disk(engine, name, lost).await?;
    if lost {
        return engine.disks.remove_lost(name).await;
    }
    // No machine can go on with a disk that was taken from here.
    if !engine.disks.is_here_only(name).await? {
        parcels::must_not_be_suspended(engine, name).await?;
    }
    engine.open.remove(name).await
}

/// Opens a disk whose private blocks are to be dropped: when they are damaged, without them.
async fn hold_or_recover(
    engine: &Engine,
    name: &str,
    snapshot: Option<&str>,
) -> Result<DiskHandle> {
    match engine.open.hold(name).await {
        Err(damage) if damage.kind() == ErrorKind::Corrupt => {
            engine.disks.recover(name, snapshot).await?;
            tracing::warn!(disk = name, error = damage.message(), "gave damaged blocks up");
            engine.open.hold(name).await
        }
        other => other,
    }
}

/// The mark of a disk, or a new one. Who looks for one goes on with what is here, although the store may be away.
async fn mark(open: &OpenDisks, name: &str, set: bool) -> Result<Option<String>> {
    match set {
        true => open.hold(name).await?.set_mark().await.map(Some),
        false => Ok(open.hold_offline(name).await?.mark()),
    }
}

/// How many bytes of a disk the store does not have.
async fn private_bytes(engine: &Engine, name: &str) -> Result<u64> {
    match engine.open.look(Disk::info).remove(name) {
        Some(now) => Ok(now.private_bytes),
        None => disk::private_bytes(engine.home.disks(), name).await,
    }
}

/// All disks, or one; of an open one what is true now.
async fn list(engine: &Engine, only: Option<&str>) -> Result<Vec<DiskView>> {
    let mut infos = engine.disks.list().await?;
    infos.retain(|info| only.is_none_or(|only| info.name == only));
    if infos.is_empty() {
        return Ok(Vec::new());
    }
    let open = engine.open.look(Disk::info);
    for info in &mut infos {
        if let Some(now) = open.get(&info.name) {
            info.clone_from(now);
        }
    }
    let (mut snapshots, images) =
        futures::try_join!(engine.disks.snapshots(only), Images::of(engine, &infos))?;
    let mut views: Vec<DiskView> = infos
        .into_iter()
        .map(|info| {
            let own = snapshots.remove(&info.name).unwrap_or_default();
            view(info, own, &images)
        })
        .collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(views)
}

/// What the image versions hold that disks say they stand on: one may be gone, or another one may have its name.
#[derive(Default)]
struct Images(HashMap<String, ManifestId>);

impl Images {
    /// The images of the disks that are over what they are reset to.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// listed.
    async fn of(engine: &Engine, infos: &[DiskInfo]) -> Result<Self> {
        let over = infos.iter().filter(|info| info.over_origin.is_some());
        let wanted: HashSet<&str> = over.map(|info| info.image.as_str()).collect();
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let refs = engine.store.refs();
        let found = refs.list_some(RefKind::Image, |name| wanted.contains(name)).await?;
        let held = found.records.into_iter().filter_map(|version| {
            let manifest = version.body.manifest?;
            Some((version.name, manifest))
        });
        Ok(Self(held.collect()))
    }

    /// That of one disk, after a verb that is done: when the store does not tell, there is none.
    async fn of_one(engine: &Engine, info: &DiskInfo) -> Self {
        if info.over_origin.is_none() {
            return Self::default();
        }
        let found = engine.store.refs().get(RefKind::Image, &info.image).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(disk = info.name, %error, "cannot look for the image of a changed disk");
            None
        });
        let manifest = found.and_then(|version| version.body.manifest);
        Self(manifest.into_iter().map(|manifest| (info.image.clone(), manifest)).collect())
    }
}

/// What a disk is after a verb. That verb is done: when the store cannot list the snapshots after it,
/// none are shown.
async fn changed(engine: &Engine, disk: &Disk) -> DiskView {
    let snapshots = disk.snapshots().await.unwrap_or_else(|error| {
        tracing::warn!(disk = disk.name(), %error, "cannot list the snapshots of a changed disk");
        Vec::new()
    });
    let info = disk.info();
    let images = Images::of_one(engine, &info).await;
    view(info, snapshots, &images)
}

async fn show(engine: &Engine, name: &str) -> Result<DiskView> {
    store::check_name("disk", name)?;
    list(engine, Some(name)).await?.pop().ok_or_else(|| {
        Error::not_found(format!("no disk {name}; see `sojourn disk list` for what there is"))
    })
}

/// Where the bytes of a disk are, in `cells` cells at the most. The disk is not opened for it.
async fn chunk_map(engine: &Engine, name: String, cells: usize) -> Result<MapView> {
    let layers = engine.open.layers(&name).await?;
    let map = layers.map(cells, is_kept(engine)).await?;
    Ok(MapView {
        disk: name,
        size: map.size(),
        cell_bytes: map.cell_bytes(),
        total: BytesByPlace::of(|place| map.total(place)),
        cells: BytesByPlace::of(|place| map.cells(place).collect()),
        work: map.work(),
    })
}

/// Which chunks of the store this machine keeps.
pub(crate) fn is_kept(engine: &Engine) -> IsKept {
    match engine.link.pieces() {
        Some(_) => {
            let (store, link) = (engine.store.clone(), engine.link.clone());
            Arc::new(move |at: &ChunkRef| store.has_kept(&link, at))
        }
        None => Arc::new(|_: &ChunkRef| false),
    }
}

/// A disk that came to be here.
async fn made(engine: &Engine, info: DiskInfo) -> DiskView {
    let images = Images::of_one(engine, &info).await;
    view(info, Vec::new(), &images)
}

fn view(info: DiskInfo, snapshots: Vec<SnapshotInfo>, images: &Images) -> DiskView {
    let over_image =
        info.over_origin.is_some_and(|origin| images.0.get(&info.image) == Some(&origin));
    DiskView {
        name: info.name,
        image: info.image,
        mode: info.mode.to_string(),
        size: info.size,
        created: info.created,
        private_bytes: info.private_bytes,
        unchanged: info.unchanged && over_image,
        over_image,
        snapshots: snapshots.into_iter().map(Into::into).collect(),
        error: info.error,
    }
}

impl From<RemoteDisk> for ElsewhereView {
    fn from(found: RemoteDisk) -> Self {
        let RemoteDisk { name, error, image, size, created, holder, host, alive } = found;
        Self { name, image, size, created, holder, host, alive, error }
    }
}

impl From<SnapshotInfo> for SnapshotView {
    fn from(info: SnapshotInfo) -> Self {
        Self { name: info.name, size: info.size, created: info.created, error: info.error }
    }
}
