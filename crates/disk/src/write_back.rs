//! Write-back: what a disk holds goes to the store while it is used, under no name of its own.
//!
//! It is a snapshot without the snapshot: what was written is frozen, uploaded, named by the disk's ref
//! in one compare-and-swap, and the uploaded layers are dropped. It may be given up at any instant, by
//! dropping the future or killing the process: the log of packs (`upload_log`) says what is in the
//! store already, so that no chunk is sent twice. Whoever goes on uploads the newest state, not the one
//! that was interrupted.

use crate::Disk;
use crate::snapshot::SnapshotPoint;
use crate::upload_log::UploadLog;
use block::{BLOCK, Device, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Manifest, Progress, UploadJournal, UploadPlan, sessions};

/// What the store does not have of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteBackLag {
    /// Bytes of the blocks that were written since. What is being uploaded counts until it is named.
    pub bytes: u64,
    /// When the disk was as the store has it, in Unix seconds.
    pub since: u64,
}

impl Disk {
    /// How far the store is behind; `None` when it has all that was answered. Asks nobody.
    pub fn behind(&self) -> Option<WriteBackLag> {
        let stack = self.shadow.stack();
        let record = self.record();
        let is_published = stack.layers.len() == 1
            && stack.top().is_empty()
            && self.base.lock().manifest().size() == self.shadow.size();
        (!is_published && self.away.is_none()).then(|| WriteBackLag {
            bytes: stack.private() * BLOCK,
            since: record.published.unwrap_or(record.created),
        })
    }

    /// What the disk stands on in the store: all that it reads but for what was written since.
    pub fn published(&self) -> Arc<Manifest> {
        Arc::clone(self.base.lock().manifest())
    }

    /// Drops what was written since the disk was published last.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while the disk is attached; any error from the store and the
    /// file system. The disk is as it was then.
    pub async fn discard_unpublished(&self) -> Result<()> {
        let _excluded = self.lease.exclude(self.name(), "discard")?;
        let _changing = self.begin_change().await;
        let record = self.record();
        self.replace(None, SnapshotPoint { manifest: record.base, size: record.size, image: None })
            .await
    }

    /// Waits until somebody waits for the disk to be changed as a whole.
    pub async fn until_waited_for(&self) {
        self.changing.until_waited_for().await;
    }

    /// Publishes what the disk holds now, as `plan` says; its journal is the disk's own. Says whether
    /// there was anything to do. The disk may be in use, and takes no change as a whole (a snapshot, a
    /// rollback) meanwhile. It can be given up, and done again, at any time: who does it while the disk is used gives
    /// it up when somebody [waits for that](Self::until_waited_for).
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when another server took the disk,
    /// [`Conflict`](block::ErrorKind::Conflict) when the store has a state of it that did not come of this directory:
    /// nothing was published;
    /// [`Denied`](block::ErrorKind::Denied) when its private blocks lie in borrowed room; any error from the
    /// store and the file system.
    pub async fn write_back(&self, plan: UploadPlan, progress: &dyn Progress) -> Result<bool> {
        self.check_keeps("published state")?;
        let _changing = self.begin_change().await;
        self.shadow.check()?;
        if self.behind().is_none() {
            if self.names_before.load(Ordering::Relaxed) {
                self.publish_base().await?;
            }
            return Ok(false);
        }
        // Before anything is sent that nobody would have.
        if !self.is_known_in_round() {
            self.confirm_base().await?;
        }
        let log = Arc::new(UploadLog::new(&self.directory));
        let journal = Some(Arc::clone(&log) as Arc<dyn UploadJournal>);
        // A session's words are short: these fit, and are those of this disk and server alone.
        let (uuid, server) = (self.record().uuid.to_string(), self.server.to_string());
        let what = format!("write-back {}-{}", &uuid[..10], &server[..10]);
        let session = self.store.session(&what).await?.uploading(UploadPlan { journal, ..plan });
        if self.left_pins.swap(true, Ordering::Relaxed)
            && let Err(error) = sessions::end_predecessors(&session).await
        {
            tracing::debug!(disk = self.name(), %error, "pins of earlier uploads stay for a day");
        }
        let published = self.publish_in(&session, progress).await;
        if published.is_ok() {
            log.clear().await;
        }
        let closed = session.close(published).await;
        self.left_pins.store(closed.is_err(), Ordering::Relaxed);
        closed.map(|()| true)
    }
}
