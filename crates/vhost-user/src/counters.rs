//! What a server counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrontEndCounters {
    /// Connections now.
    pub connections: u64,
    /// Virtqueues that are served now.
    pub rings: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Times that a request was found by busy polling, without a kick.
    pub busy_polled: u64,
    /// Bytes that guests read.
    pub read_bytes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
}

/// The same while it is being counted.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    pub(crate) connections: AtomicU64,
    pub(crate) rings: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) busy_polled: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

impl LiveCounters {
    /// What was counted so far.
    pub(crate) fn read(&self) -> FrontEndCounters {
        FrontEndCounters {
            connections: self.connections.load(Relaxed),
            rings: self.rings.load(Relaxed),
            refused: self.refused.load(Relaxed),
            requests: self.requests.load(Relaxed),
            busy_polled: self.busy_polled.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}

/// Counts something for as long as it lives.
pub(crate) struct WhileThere<'a>(&'a AtomicU64);

impl<'a> WhileThere<'a> {
    pub(crate) fn at(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Relaxed);
        Self(counter)
    }
}

impl Drop for WhileThere<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
