//! What the verbs on disks do: the same for a command on its own and for the server.

use super::Engine;
use super::image_views;
use super::open::Held;
use crate::api::{
    DiskReply, DiskRequest, DiskView, ElsewhereView, PublishedView, Range, RebaseView, SnapshotView,
};
use block::{Error, ErrorKind, Result};
use disk::{CreateOptions, Disk, DiskInfo, Elsewhere, Mode, Rebase, SnapshotInfo};
use store::{ImageName, UploadPlan, images};

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

/// Carries out a verb.
///
/// # Errors
/// Those of the verb.
pub async fn perform(engine: &Engine, request: DiskRequest) -> Result<DiskReply> {
    let open = &engine.open;
    match request {
        DiskRequest::Create { name, from, ephemeral, size } => {
            let from: ImageName = from.parse()?;
            let mode = if ephemeral { Mode::Ephemeral } else { Mode::Persistent };
            let options = CreateOptions { size, mode };
            check_free(engine, &name).await?;
            let info = engine.disks.create(&name, &from, options).await?;
            Ok(DiskReply::Disk(view(info, Vec::new())))
        }
        DiskRequest::List => Ok(DiskReply::Disks(list(engine).await?)),
        DiskRequest::Show { name } => Ok(DiskReply::Disk(show(engine, &name).await?)),
        DiskRequest::Snapshot { name, snapshot } => {
            let info = open.hold(&name).await?.snapshot(&snapshot, &()).await?;
            Ok(DiskReply::Snapshot(info.into()))
        }
        DiskRequest::Rollback { name, snapshot } => {
            let disk = hold_or_recover(engine, &name, Some(&snapshot)).await?;
            disk.rollback(&snapshot).await?;
            Ok(DiskReply::Disk(changed(&disk).await))
        }
        DiskRequest::Commit { name, image } => {
            let image: ImageName = image.parse()?;
            let record = open.hold(&name).await?.commit(&image, &()).await?;
            Ok(DiskReply::Image(image_views::view(&record)?))
        }
        DiskRequest::Rebase { name, image, keep_mine } => {
            let image: ImageName = image.parse()?;
            let force = if keep_mine { Rebase::KeepMine } else { Rebase::Refuse };
            let disk = open.hold(&name).await?;
            let report = disk.rebase(&image, force).await?;
            let both_changed = report
                .both_changed
                .iter()
                .map(|span| Range { offset: span.offset(), length: span.len() })
                .collect();
            Ok(DiskReply::Rebase(RebaseView { disk: changed(&disk).await, both_changed }))
        }
        DiskRequest::Reset { name } => {
            let disk = hold_or_recover(engine, &name, None).await?;
            disk.reset().await?;
            Ok(DiskReply::Disk(changed(&disk).await))
        }
        DiskRequest::Grow { name, size } => {
            let disk = open.hold(&name).await?;
            disk.grow(size).await?;
            Ok(DiskReply::Disk(changed(&disk).await))
        }
        DiskRequest::Remove { name, lost } => {
            if lost {
                engine.disks.remove_lost(&name).await?;
            } else {
                open.remove(&name).await?;
            }
            Ok(DiskReply::Removed(format!("disk {name}")))
        }
        DiskRequest::RemoveSnapshot { name, snapshot } => {
            open.hold(&name).await?.remove_snapshot(&snapshot).await?;
            Ok(DiskReply::Removed(format!("snapshot {name}@{snapshot}")))
        }
        DiskRequest::Take { name, force } => {
            let info = engine.disks.take(&name, force).await?;
            Ok(DiskReply::Disk(view(info, Vec::new())))
        }
        DiskRequest::Publish { name } => {
            let disk = open.hold(&name).await?;
            let behind = disk.behind().map_or(0, |behind| behind.bytes);
            disk.write_back(UploadPlan::default(), &()).await?;
            Ok(DiskReply::Published(PublishedView { disk: name, bytes: behind }))
        }
        DiskRequest::Release { name } => {
            open.release(&name).await?;
            Ok(DiskReply::Released(format!("disk {name}")))
        }
        DiskRequest::Keep { name, new } => {
            check_free(engine, &new).await?;
            let info = open.keep(&name, &new).await?;
            Ok(DiskReply::Disk(view(info, Vec::new())))
        }
        DiskRequest::Elsewhere => {
            let found = engine.disks.elsewhere().await?;
            Ok(DiskReply::Elsewhere(found.into_iter().map(Into::into).collect()))
        }
    }
}

/// Opens a disk whose private blocks are to be dropped: when they are damaged, without them.
async fn hold_or_recover(engine: &Engine, name: &str, snapshot: Option<&str>) -> Result<Held> {
    match engine.open.hold(name).await {
        Err(damage) if damage.kind() == ErrorKind::Corrupt => {
            engine.disks.recover(name, snapshot).await?;
            tracing::warn!(disk = name, error = damage.message(), "gave damaged blocks up");
            engine.open.hold(name).await
        }
        other => other,
    }
}

/// All disks; of an open one what is true now.
async fn list(engine: &Engine) -> Result<Vec<DiskView>> {
    let infos = engine.disks.list().await?;
    if infos.is_empty() {
        return Ok(Vec::new());
    }
    let mut snapshots = engine.disks.snapshots().await?;
    let open = engine.open.look(Disk::info);
    let mut views: Vec<DiskView> = infos
        .into_iter()
        .map(|info| {
            let own = snapshots.remove(&info.name).unwrap_or_default();
            view(open.get(&info.name).cloned().unwrap_or(info), own)
        })
        .collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(views)
}

/// What a disk is after a verb. That verb is done: when the store cannot list the snapshots after it,
/// none are shown.
async fn changed(disk: &Disk) -> DiskView {
    let snapshots = disk.snapshots().await.unwrap_or_else(|error| {
        tracing::warn!(disk = disk.name(), %error, "cannot list the snapshots of a changed disk");
        Vec::new()
    });
    view(disk.info(), snapshots)
}

async fn show(engine: &Engine, name: &str) -> Result<DiskView> {
    store::check_name("disk", name)?;
    list(engine).await?.into_iter().find(|disk| disk.name == name).ok_or_else(|| {
        Error::not_found(format!("no disk {name}; see `sojourn disk list` for what there is"))
    })
}

fn view(info: DiskInfo, snapshots: Vec<SnapshotInfo>) -> DiskView {
    DiskView {
        name: info.name,
        image: info.image,
        mode: info.mode.to_string(),
        size: info.size,
        created: info.created,
        private_bytes: info.private_bytes,
        snapshots: snapshots.into_iter().map(Into::into).collect(),
        error: info.error,
    }
}

impl From<Elsewhere> for ElsewhereView {
    fn from(found: Elsewhere) -> Self {
        let Elsewhere { name, error, image, size, created, holder, host, alive } = found;
        Self { name, image, size, created, holder, host, alive, error }
    }
}

impl From<SnapshotInfo> for SnapshotView {
    fn from(info: SnapshotInfo) -> Self {
        Self { name: info.name, size: info.size, created: info.created, error: info.error }
    }
}
