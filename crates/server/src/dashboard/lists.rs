//! All disks, and all image versions. To read them takes a look at each one's files or refs, so they are
//! kept and read again when they may have changed, or are old; however many ask, they are read once. Who
//! shows a token may just have changed something: for those they are read anew, one after another.

use super::views::{DiskList, DiskRow, ImageList, VersionRow};
use crate::bearer::Caller;
use crate::running::Running;
use block::{Error, Result};
use bytes::Bytes;
use engine::api::{DiskReply, DiskRequest, DiskView};
use engine::image_views::{self, Users};
use engine::verbs;
use serde::Serialize;
use std::time::Duration;
use store::images;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// A list that nothing is known to have changed is read again after so many times what that takes: at
/// most a hundredth of the time goes to it.
const WORTH: u32 = 100;
/// One that did change: a script that makes disks one by one is not to keep a processor busy here.
const WORTH_CHANGED: u32 = 10;
/// The least and the most time before a list is read again.
const LEAST: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(60);

/// The lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    disks: Mutex<Option<KeptList>>,
    images: Mutex<Option<KeptList>>,
    /// One list is read anew at a time.
    anew: Mutex<()>,
}

/// A list as JSON.
#[derive(Debug)]
struct KeptList {
    body: Bytes,
    read: Instant,
    /// How long that took.
    took: Duration,
    /// [`Running::changes`] then.
    changes: u64,
}

impl KeptList {
    /// Whether it will do, with so many changes by now.
    fn will_do(&self, changes: u64) -> bool {
        let age = self.read.elapsed();
        match self.changes == changes {
            true => age < (self.took * WORTH).clamp(LEAST, MOST),
            false => age < (self.took * WORTH_CHANGED).min(MOST),
        }
    }
}

impl Lists {
    /// [`DiskList`] as JSON.
    ///
    /// # Errors
    /// Those of the home and of the store.
    pub(super) async fn disks(&self, running: &Running) -> Result<Bytes> {
        keep(&self.disks, running.changes(), async |changes| json(&disks(running, changes).await?))
            .await
    }

    /// The disks that a caller sees, as they are now, as JSON.
    ///
    /// # Errors
    /// Those of the home and of the store.
    pub(super) async fn disks_for(&self, running: &Running, caller: &Caller) -> Result<Bytes> {
        let _anew = self.anew.lock().await;
        let mut list = disks(running, running.changes()).await?;
        list.disks.retain(|disk| caller.sees_disk(&disk.name));
        json(&list)
    }

    /// [`ImageList`] as JSON.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn images(&self, running: &Running) -> Result<Bytes> {
        keep(&self.images, running.changes(), async |_| json(&versions(running).await?)).await
    }

    /// The image versions that a caller sees, as they are now, and of what stands on them what it sees, as
    /// JSON.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn images_for(&self, running: &Running, caller: &Caller) -> Result<Bytes> {
        let _anew = self.anew.lock().await;
        let mut list = versions(running).await?;
        list.images.retain(|version| caller.sees_image(&version.image));
        if caller.is_limited() {
            let seen = |user: &String| match disk_of(user) {
                Some(disk) => caller.sees_disk(disk),
                None => false,
            };
            list.images.iter_mut().for_each(|version| version.used_by.retain(seen));
        }
        json(&list)
    }
}

/// All disks; there were so many changes before.
async fn disks(running: &Running, changes: u64) -> Result<DiskList> {
    let reply = verbs::perform(&running.engine, DiskRequest::List).await?;
    let DiskReply::Disks(disks) = reply else {
        return Err(Error::internal("a list of disks is no list"));
    };
    Ok(DiskList { changes, disks: disks.into_iter().map(row).collect() })
}

/// All image versions.
async fn versions(running: &Running) -> Result<ImageList> {
    let store = &running.engine.store;
    let (listing, users) = futures::try_join!(images::list(store), Users::load(store))?;
    let good = listing.records.iter().map(|record| match image_views::view(record) {
        Ok(view) => VersionRow::new(view, users.of(record)),
        Err(error) => broken(record.name.clone(), &error),
    });
    let damaged = listing.damaged.iter().map(|bad| broken(bad.name.clone(), &bad.error));
    Ok(ImageList { images: good.chain(damaged).collect() })
}

/// The disk of what stands on a version, as [`Users::of`] names it; `None` when that is damaged.
fn disk_of(user: &str) -> Option<&str> {
    let (kind, name) = user.split_once(' ')?;
    match kind {
        "disk" => Some(name),
        "snapshot" => name.split_once('@').map(|(disk, _)| disk),
        _ => None,
    }
}

/// What is kept, if it will do; else what `read` gives, which is told how many changes there were.
async fn keep(
    place: &Mutex<Option<KeptList>>,
    changes: u64,
    read: impl AsyncFnOnce(u64) -> Result<Bytes>,
) -> Result<Bytes> {
    let mut kept = place.lock().await;
    if let Some(kept) = kept.as_ref().filter(|kept| kept.will_do(changes)) {
        return Ok(kept.body.clone());
    }
    let began = Instant::now();
    let body = read(changes).await?;
    let took = began.elapsed();
    *kept = Some(KeptList { body: body.clone(), read: Instant::now(), took, changes });
    Ok(body)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn what_stands_on_a_version_is_of_a_disk() {
        assert_eq!(disk_of("disk alice"), Some("alice"));
        assert_eq!(disk_of("snapshot alice@monday"), Some("alice"));
        assert_eq!(disk_of("perhaps disk alice (damaged)"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_when_it_changed_or_is_old_and_once_for_all_who_ask() {
        let (place, reads) = (Mutex::default(), AtomicU32::new(0));
        let took = Duration::from_millis(100);
        let ask = |changes| {
            keep(&place, changes, async |_| {
                tokio::time::sleep(took).await;
                Ok(Bytes::from(reads.fetch_add(1, SeqCst).to_string()))
            })
        };
        let asked = futures::future::join_all((0..10).map(|_| ask(7))).await;
        assert!(asked.into_iter().all(|answer| answer.unwrap() == "0"));
        tokio::time::sleep(took * WORTH - Duration::from_millis(1)).await;
        assert_eq!(ask(7).await.unwrap(), "0");
        assert_eq!(ask(8).await.unwrap(), "1", "it changed long after it was read");
        assert_eq!(ask(9).await.unwrap(), "1", "it was read just now");
        tokio::time::sleep(took * WORTH_CHANGED).await;
        assert_eq!(ask(9).await.unwrap(), "2");
        tokio::time::sleep(took * WORTH).await;
        assert_eq!(ask(9).await.unwrap(), "3");
        let failed = keep(&place, 10, async |_| Err(Error::not_found("gone"))).await;
        assert_eq!(failed.unwrap(), "3", "read just now");
    }
}
