//! Flushing: rounds that all who want one share.

use super::{Inner, Shadow};
use crate::layer::Round;
use crate::maplog::Failure;
use block::{Device, Durability, ErrorKind, Result, offload};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Inner {
    /// Waits for every writer that is inside a region's lock.
    fn barrier(&self) {
        for region in &self.regions {
            drop(region.0.write());
        }
    }

    /// One round of flushing, on a thread that may wait.
    fn sync(&self, round: Round) -> Result<()> {
        self.check()?;
        self.barrier();
        let stack = self.stack.load_full();
        for layer in stack.layers.iter().rev() {
            let mut synced = layer.sync(round);
            if let Err(Failure::Retry(error)) = &synced
                && error.kind() == ErrorKind::NoSpace
                && self.space.get().is_some_and(|space| space.give_up())
            {
                synced = layer.sync(round);
            }
            match synced {
                Ok(()) => {}
                Err(Failure::Retry(error)) => return Err(error),
                Err(Failure::Lost(error)) => {
                    self.failed.set(&error);
                    return Err(error.context("a sync failed, the disk must be opened again"));
                }
            }
        }
        Ok(())
    }
}

impl Shadow {
    /// Waits until no blocks are being zeroed any more, flushes, checkpoints the maps and seals them.
    /// The shadow can still be used.
    ///
    /// # Errors
    /// Any error from [`Device::flush`].
    pub async fn close(&self) -> Result<()> {
        // What is left of requests and flushes that were given up must not change the files once they
        // are open again; nor those of a shadow that failed.
        let no_zeroing = Arc::clone(&self.inner.zeroing).write_owned().await;
        let leader = Arc::clone(&self.inner.round).lock_owned().await;
        self.inner.check()?;
        let inner = Arc::clone(&self.inner);
        offload(move || {
            let (_no_zeroing, _leader) = (no_zeroing, leader);
            inner.sync(Round::Close)
        })
        .await
    }

    /// Takes part in a round of flushing that begins after this was called.
    pub(super) async fn flush_round(&self) -> Result<()> {
        self.inner.check()?;
        let mine = self.inner.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut done = Arc::clone(&self.inner.round).lock_owned().await;
        if *done >= mine {
            return Ok(());
        }
        let all = self.inner.asked.load(Ordering::Acquire);
        let inner = Arc::clone(&self.inner);
        // The lock goes with the round: were it free when the leader is cancelled, the next round
        // could answer before this one has found that its sync failed.
        offload(move || {
            inner.sync(Round::Flush)?;
            *done = all;
            Ok(())
        })
        .await
    }

    /// Makes what was written as durable as was asked for.
    pub(super) async fn finish(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }
}
