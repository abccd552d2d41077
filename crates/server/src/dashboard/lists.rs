//! All disks, and all image versions. To read them takes a look at each one's files or refs, so they are
//! kept and read again when they may have changed, or are old; however many ask, they are read once. Who
//! shows a token may just have changed something: for those they are read anew, one after another.

use super::kept::{KeptAnswer, ReadingTerms, timed};
use super::views::{DiskList, DiskRow, ImageList, LineageList, VersionRow};
use crate::bearer::Caller;
use crate::running::RunningServer;
use block::{Error, Result};
use bytes::Bytes;
use engine::api::{DiskReply, DiskRequest, DiskView};
use engine::image_views::{self, Users};
use engine::lineage::{self, NodeKind, NodeName};
use engine::verbs;
use serde::Serialize;
use std::time::Duration;
use store::images;
use tokio::sync::Mutex;

/// At most a hundredth of the time goes to reading a list that nothing is known to have changed.
const TERMS: ReadingTerms = ReadingTerms { least: Duration::from_secs(2), parts: 100 };

/// The lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    disks: KeptAnswer,
    images: KeptAnswer,
    lineage: KeptAnswer,
    /// One list is read anew at a time.
    anew: Mutex<()>,
}

impl Lists {
    /// [`DiskList`] as JSON.
    ///
    /// # Errors
    /// Any error from the home and from the store.
    pub(super) async fn disks(&self, running: &RunningServer) -> Result<Bytes> {
        let list = async |changes| json(&disks(running, changes).await?);
        let read = async |changes| timed(list(changes)).await;
        self.disks.get(running.changes(), TERMS, read).await
    }

    /// The disks that a caller sees, as they are now, as JSON.
    ///
    /// # Errors
    /// Any error from the home and from the store.
    pub(super) async fn disks_for(
        &self,
        running: &RunningServer,
        caller: &Caller,
    ) -> Result<Bytes> {
        let _anew = self.anew.lock().await;
        let mut list = disks(running, running.changes()).await?;
        list.disks.retain(|disk| caller.sees_disk(&disk.name));
        list.disks.iter_mut().for_each(|disk| caller.hide_image(&mut disk.image));
        if caller.is_limited() {
            // How much goes on at the server tells of the disks that it does not see.
            list.changes = 0;
        }
        json(&list)
    }

    /// [`ImageList`] as JSON.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub(super) async fn images(&self, running: &RunningServer) -> Result<Bytes> {
        let read = async |_| timed(async { json(&versions(running).await?) }).await;
        self.images.get(running.changes(), TERMS, read).await
    }

    /// The image versions that a caller sees, as they are now, and of what stands on them what it sees, as
    /// JSON.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub(super) async fn images_for(
        &self,
        running: &RunningServer,
        caller: &Caller,
    ) -> Result<Bytes> {
        let _anew = self.anew.lock().await;
        let mut list = versions(running).await?;
        list.images.retain(|version| caller.sees_image(&version.image));
        if caller.is_limited() {
            let seen = |user: &String| caller.sees_user(user);
            for version in &mut list.images {
                version.used_by.retain(seen);
                caller.hide_source(&mut version.source);
            }
        }
        json(&list)
    }

    /// [`LineageList`] as JSON.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub(super) async fn lineage(&self, running: &RunningServer) -> Result<Bytes> {
        let read = async |_| timed(nodes(running)).await;
        self.lineage.get(running.changes(), TERMS, read).await
    }

    /// What a caller sees of it, as it is now, as JSON.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub(super) async fn lineage_for(
        &self,
        running: &RunningServer,
        caller: &Caller,
    ) -> Result<Bytes> {
        let _anew = self.anew.lock().await;
        let mut nodes = lineage::lineage(&running.engine.store).await?;
        let sees = |node: &NodeName| match node.kind {
            NodeKind::Image => caller.sees_image(&node.name),
            NodeKind::Disk => caller.sees_disk(&node.name),
            NodeKind::Snapshot => {
                node.name.split_once('@').is_some_and(|(disk, _)| caller.sees_disk(disk))
            }
        };
        if caller.is_limited() {
            nodes.retain(|node| sees(&node.node));
            for node in &mut nodes {
                node.on = node.on.take().filter(sees);
                node.by = node.by.take().filter(sees);
            }
        }
        json(&LineageList { nodes })
    }
}

/// The lineage as JSON.
async fn nodes(running: &RunningServer) -> Result<Bytes> {
    json(&LineageList { nodes: lineage::lineage(&running.engine.store).await? })
}

/// All disks; there were so many changes before.
async fn disks(running: &RunningServer, changes: u64) -> Result<DiskList> {
    let reply = verbs::perform(&running.engine, DiskRequest::List).await?;
    let DiskReply::Disks(disks) = reply else {
        return Err(Error::internal("a list of disks is no list"));
    };
    Ok(DiskList { changes, disks: disks.into_iter().map(row).collect() })
}

/// All image versions.
async fn versions(running: &RunningServer) -> Result<ImageList> {
    let store = &running.engine.store;
    let (listing, users) = futures::try_join!(images::list(store), Users::load(store))?;
    let good = listing.records.iter().map(|record| match image_views::view(record) {
        Ok(view) => VersionRow::new(view, users.of(record)),
        Err(error) => broken(record.name.clone(), &error),
    });
    let damaged = listing.damaged.iter().map(|bad| broken(bad.name.clone(), &bad.error));
    Ok(ImageList { images: good.chain(damaged).collect() })
}

/// A value as JSON.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal): none that a value of this crate meets.
pub(super) fn json(value: &impl Serialize) -> Result<Bytes> {
    let text = serde_json::to_vec(value);
    Ok(text.map_err(|e| Error::internal("cannot write JSON").with_source(e))?.into())
}

fn row(disk: DiskView) -> DiskRow {
    let DiskView {
        name,
        image,
        mode,
        size,
        created,
        private_bytes,
        unchanged,
        over_image,
        snapshots,
        error,
    } = disk;
    DiskRow {
        name,
        image,
        mode,
        size,
        created,
        private_bytes,
        unchanged,
        over_image,
        snapshots: snapshots.into_iter().map(Into::into).collect(),
        error,
    }
}

/// A version of which only the name is known.
fn broken(image: String, error: &Error) -> VersionRow {
    VersionRow {
        image,
        size: 0,
        created: 0,
        manifest: String::new(),
        source: None,
        used_by: Vec::new(),
        error: Some(error.message().to_owned()),
    }
}
