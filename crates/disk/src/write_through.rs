//! Write-through: what a disk answers is in the store, so that another server goes on with every byte of it when
//! this one is lost.
//!
//! Writes go to the shadow as those of any disk do, and are answered when the store has them. Publishing costs some
//! round trips to the store, so those that wait share them (group commit): the first one publishes what all have
//! written until then, and those that come meanwhile wait for the next round. Nothing here knows the time but the
//! pauses while the store is away; what an interrupted round leaves the next one publishes.
//!
//! That no two servers answer writes of one disk needs no clock either: a round is over when the disk's ref was
//! replaced by compare-and-swap, which fails once another server has the disk.

use crate::{Disk, Mode};
use block::{ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::UploadPlan;
use tokio::sync::Mutex;

/// Pauses between attempts while the store is away: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long the store may take to say, to a client that comes, who holds the disk.
const ANSWER: Duration = Duration::from_secs(5);

/// The rounds of a disk whose writes are answered when they are published.
#[derive(Debug, Default)]
pub(crate) struct PublishRounds {
    /// Changes that the shadow has.
    applied: AtomicU64,
    /// How many of them the store has. Whoever holds the lock leads a round.
    published: Mutex<u64>,
}

impl Disk {
    /// Whether its writes are answered when the store has them.
    pub(crate) fn is_write_through(&self) -> bool {
        self.mode() == Mode::WriteThrough
    }

    /// Waits until the store has what was written before, if the disk is to wait for that. A store that is away, or
    /// has no room, is waited for.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk; any error from the file system.
    pub(crate) async fn written_through(&self) -> Result<()> {
        if !self.is_write_through() {
            return Ok(());
        }
        let own = self.rounds.applied.fetch_add(1, Ordering::AcqRel) + 1;
        let mut published = self.rounds.published.lock().await;
        if *published >= own {
            return Ok(());
        }
        let all = self.rounds.applied.load(Ordering::Acquire);
        let (mut pause, mut told) = (PAUSES.0, None);
        loop {
            match self.write_back(UploadPlan::default(), &()).await {
                Ok(_) => break,
                Err(error) if is_passing(error.kind()) && !self.has_failed() => {
                    // Once for each cause.
                    if told != Some(error.kind()) {
                        tracing::warn!(disk = self.name(), %error, "writes wait for the store");
                        told = Some(error.kind());
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        *published = all;
        Ok(())
    }

    /// Refuses clients while the store does not say that this server holds the disk: their writes would wait, and
    /// another server may have it.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the store does not answer; [`Fenced`](ErrorKind::Fenced) when
    /// another server took the disk.
    pub(crate) async fn must_write_through(&self) -> Result<()> {
        if !self.is_write_through() {
            return Ok(());
        }
        tokio::time::timeout(ANSWER, self.confirm()).await.unwrap_or_else(|_| {
            Err(block::Error::unavailable(format!(
                "the store does not answer, without which disk {:?} can take no writes",
                self.name()
            )))
        })
    }
}

/// Whether it may go by itself what keeps the store from having something. An upload that took too long is fenced,
/// too, while the disk is not.
fn is_passing(kind: ErrorKind) -> bool {
    use ErrorKind::{Denied, Fenced, NoSpace, Unavailable};
    matches!(kind, Unavailable | NoSpace | Denied | Fenced)
}
