//! What a gateway did.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a gateway did since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GatewayCounters {
    /// Connections that are open.
    pub connections: u64,
    /// Requests that were answered, refused ones among them.
    pub requests: u64,
    /// Requests that the rights or the limits of a client did not allow.
    pub refused: u64,
    /// Requests that failed for another reason.
    pub failed: u64,
    /// Bytes of answers, without what HTTP and TLS add.
    pub sent_bytes: u64,
    /// Bytes of objects that clients sent.
    pub received_bytes: u64,
    /// Objects that clients wrote.
    pub written: u64,
}

/// The same, while it is counted.
#[derive(Debug, Default)]
pub struct LiveGatewayCounters {
    connections: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    written: AtomicU64,
}

impl LiveGatewayCounters {
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn disconnected(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Relaxed);
    }

    /// A request was answered with this status.
    pub(crate) fn answered(&self, status: u16) {
        self.requests.fetch_add(1, Relaxed);
        match status {
            403 | 404 | 429 => self.refused.fetch_add(1, Relaxed),
            400.. => self.failed.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> GatewayCounters {
        GatewayCounters {
            connections: self.connections.load(Relaxed),
            requests: self.requests.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed: self.failed.load(Relaxed),
            sent_bytes: self.sent.load(Relaxed),
            received_bytes: self.received.load(Relaxed),
            written: self.written.load(Relaxed),
        }
    }
}
