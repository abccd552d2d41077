//! The rounds in which a disk that is written through goes to the store: who leads one, and what the one before left.

use block::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::refs::LookedUpRef;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// The rounds of a disk whose writes are answered when they are published.
#[derive(Debug, Default)]
pub(crate) struct PublishRounds {
    /// Changes that the shadow has.
    pub(crate) applied: AtomicU64,
    /// How many of them the store has. Whoever holds the lock leads a round.
    pub(crate) published: Mutex<u64>,
    /// Whether a round is under way.
    under_way: AtomicBool,
    /// What an earlier client left is on its way to the store.
    pub(crate) catching_up: Mutex<JoinSet<Result<()>>>,
    /// Nothing more begins to go up like that.
    closed: AtomicBool,
    /// The disk's ref as the last round left it.
    pub(crate) last: parking_lot::Mutex<Option<LookedUpRef>>,
}

/// A round, until this is dropped.
pub(crate) struct RoundUnderWay<'a>(&'a AtomicBool);

impl Drop for RoundUnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl PublishRounds {
    /// A round begins, and ends when what comes out is dropped. Whoever leads it has the lock of what is published.
    pub(crate) fn begin(&self) -> RoundUnderWay<'_> {
        self.under_way.store(true, Ordering::Release);
        RoundUnderWay(&self.under_way)
    }

    /// Gives up what an earlier client left and is on its way to the store, for good.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.catching_up.lock().await.shutdown().await;
    }

    /// Whether the disk was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a round is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }
}
