//! Whether a connection goes on: what it sends and receives, and when it has stood still for too long.

use super::counters::LiveGatewayCounters;
use super::limits::GatewayLimits;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Whether a connection goes on.
pub struct ConnectionProgress {
    requests: AtomicUsize,
    moved: Mutex<Instant>,
    tally: Arc<LiveGatewayCounters>,
}

impl ConnectionProgress {
    pub(crate) fn new(tally: Arc<LiveGatewayCounters>) -> Self {
        Self { requests: AtomicUsize::new(0), moved: Mutex::new(Instant::now()), tally }
    }

    /// A request is worked on, or its answer is taken.
    pub(crate) fn began(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        *self.moved.lock() = Instant::now();
    }

    pub(crate) fn ended(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        *self.moved.lock() = Instant::now();
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.tally.sent(bytes);
        *self.moved.lock() = Instant::now();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.tally.received(bytes);
        *self.moved.lock() = Instant::now();
    }

    /// When the connection is to be looked at again; `None` when it has stood still for too long.
    pub(super) fn next_look(&self, limits: &GatewayLimits) -> Option<Duration> {
        let still = self.moved.lock().elapsed();
        let most = match self.requests.load(Ordering::Relaxed) {
            0 => limits.idle,
            _ => 2 * limits.patience,
        };
        most.checked_sub(still).filter(|rest| !rest.is_zero())
    }
}
