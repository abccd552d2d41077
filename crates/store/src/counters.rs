//! What was read from a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct StoreCounters {
    /// Chunks read and verified.
    pub chunk_reads: u64,
    /// Bytes of chunks as stored.
    pub stored_bytes_read: u64,
    /// Bytes of chunks after decompression.
    pub plain_bytes_read: u64,
    /// Chunks that could not be had: missing, damaged, or the backend failed.
    pub chunk_failures: u64,
    /// Chunks that were found where their pack was rewritten to.
    pub chunks_moved: u64,
    /// Chunks, segments and roots that were missing or damaged, and came from another store.
    pub healed: u64,
}

/// The same, counted by many tasks at once.
#[derive(Debug, Default)]
pub(crate) struct LiveStoreCounters {
    chunk_reads: AtomicU64,
    stored_bytes: AtomicU64,
    plain_bytes: AtomicU64,
    failures: AtomicU64,
    moved: AtomicU64,
    healed: AtomicU64,
}

impl LiveStoreCounters {
    pub(crate) fn chunk(&self, stored: u64, plain: u64) {
        self.chunk_reads.fetch_add(1, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored, Ordering::Relaxed);
        self.plain_bytes.fetch_add(plain, Ordering::Relaxed);
    }

    pub(crate) fn failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn healed(&self) {
        self.healed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> StoreCounters {
        StoreCounters {
            chunk_reads: self.chunk_reads.load(Ordering::Relaxed),
            stored_bytes_read: self.stored_bytes.load(Ordering::Relaxed),
            plain_bytes_read: self.plain_bytes.load(Ordering::Relaxed),
            chunk_failures: self.failures.load(Ordering::Relaxed),
            chunks_moved: self.moved.load(Ordering::Relaxed),
            healed: self.healed.load(Ordering::Relaxed),
        }
    }
}
