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
use block::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{RefBody, RefKind, UploadPlan};
use tokio::time::timeout;

/// Pauses between attempts while the store is away: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long the store may take to say, to a client that comes, who holds the disk.
const ANSWER: Duration = Duration::from_secs(5);
/// Packs of what an earlier client left: a process that ends meanwhile loses no more of what it sent.
const LEFT_PACK: usize = 512 << 10;

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
        let _round = self.rounds.begin();
        let (mut pause, mut told) = (PAUSES.0, None);
        loop {
            match self.write_back(UploadPlan::default(), &()).await {
                Ok(_) => break,
                Err(error) if may_pass(error.kind()) && !self.has_failed() => {
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

    /// Refuses what would have the disk hold something that only this server has.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a disk that is written through.
    pub(crate) fn must_not_leave_the_store_behind(&self, what: &str) -> Result<()> {
        match self.is_write_through() {
            false => Ok(()),
            true => Err(Error::unsupported(format!(
                "disk {:?} is written through: after a {what} this server alone would have what is its own; make an \
                 image of it ('sojourn disk commit'), or a new disk",
                self.name()
            ))),
        }
    }

    /// Makes the disk's ref say `body` in a round: over what the round before left there, which is not looked up
    /// again. `false` when that is not to be done so, or somebody else wrote the ref meanwhile.
    ///
    /// # Errors
    /// Any error from the backend.
    pub(crate) async fn publish_in_round(&self, body: &RefBody) -> Result<bool> {
        if !self.rounds.is_under_way() {
            return Ok(false);
        }
        let refs = self.store.refs();
        let known = self.rounds.last.lock().take();
        let last = match known {
            Some(last) => last,
            None => {
                let last = refs.look_up(RefKind::Disk, self.name()).await?;
                // Of the store that does not know it, or has it removed, the usual way finds out.
                let Some(found) = last.record() else { return Ok(false) };
                self.check_holder(found)?;
                self.check_base(found)?;
                last
            }
        };
        if last.record().is_some_and(|record| record.body == *body) {
            *self.rounds.last.lock() = Some(last);
            return Ok(true);
        }
        match refs.write_on(&last, body.clone()).await {
            Ok(written) => {
                *self.rounds.last.lock() = Some(written);
                Ok(true)
            }
            // Somebody was quicker: who it was shows in what he wrote.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the ref is about to be written over what a round left there: that fails if another server has the disk,
    /// which need not be asked before.
    pub(crate) fn is_known_in_round(&self) -> bool {
        self.rounds.is_under_way() && self.rounds.last.lock().is_some()
    }

    /// Refuses clients while the store does not say that this server holds the disk: their writes would wait, and
    /// another server may have it. To the first one the disk shows nothing that the store has not: what an earlier
    /// client wrote and was not answered goes up before.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the store does not answer, or what goes up takes longer than a client
    /// waits; [`Fenced`](ErrorKind::Fenced) when another server took the disk.
    pub(crate) async fn must_write_through(self: &Arc<Self>) -> Result<()> {
        if !self.is_write_through() {
            return Ok(());
        }
        let is_first = self.lease.state.lock().attachments == 0;
        let name = self.name();
        timeout(ANSWER, self.confirm()).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "the store does not answer, without which disk {name:?} can take no writes; try again when it does, or \
                 at another server of that store"
            )))
        })?;
        if !is_first || self.behind().is_none() {
            return Ok(());
        }
        timeout(ANSWER, self.catch_up()).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "what was written to disk {name:?} before, and not answered, is on its way to the store; try again when \
                 it is there"
            )))
        })
    }

    /// Publishes what an earlier client left; that goes on when nobody waits for it any more.
    async fn catch_up(self: &Arc<Self>) -> Result<()> {
        let mut under_way = self.rounds.catching_up.lock().await;
        // What failed while nobody waited is tried again.
        while under_way.try_join_next().is_some() {}
        if self.rounds.is_closed() {
            return Err(Error::unavailable(format!(
                "disk {:?} was closed; try again",
                self.name()
            )));
        }
        if under_way.is_empty() {
            let disk = Arc::clone(self);
            under_way.spawn(async move {
                let plan = UploadPlan { pack_bytes: LEFT_PACK, ..UploadPlan::default() };
                tokio::select! {
                    sent = disk.write_back(plan, &()) => sent.map(|_| ()),
                    () = disk.until_waited_for() => Err(Error::unavailable(format!(
                        "disk {:?} is being changed; try again when that is done",
                        disk.name()
                    ))),
                }
            });
        }
        match under_way.join_next().await {
            Some(Ok(sent)) => sent,
            Some(Err(error)) => Err(Error::internal("an upload ended early").with_source(error)),
            None => Ok(()),
        }
    }
}

/// Whether it may go by itself, or be mended, what keeps the store from having something: also damage of what the disk
/// stands on, which would fail every write. An upload that took too long is fenced, too, while the disk is not.
fn may_pass(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Invalid | ErrorKind::Internal | ErrorKind::Unsupported)
}
