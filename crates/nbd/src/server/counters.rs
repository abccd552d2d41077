//! What a server counts.
//!
//! A connection counts in plain integers and adds them to its export's atomics once per batch of
//! requests, so that counting costs nothing on the way of a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

macro_rules! traffic {
    ($($field:ident: $doc:literal,)*) => {
        /// Requests and bytes, of one export or of all. Only successful requests count as what
        /// they are; the others are `errors`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Traffic {
            $(#[doc = $doc] pub $field: u64,)*
        }

        impl Traffic {
            /// Adds `other` to it.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }

        #[derive(Debug, Default)]
        struct Atomics { $($field: AtomicU64,)* }

        impl Atomics {
            fn add(&self, tally: &Traffic) {
                $(if tally.$field != 0 { self.$field.fetch_add(tally.$field, Relaxed); })*
            }

            fn snapshot(&self) -> Traffic {
                Traffic { $($field: self.$field.load(Relaxed),)* }
            }
        }
    };
}

traffic! {
    reads: "Reads.",
    read_bytes: "Bytes read.",
    writes: "Writes.",
    written_bytes: "Bytes written.",
    flushes: "Flushes.",
    trims: "Trims.",
    trimmed_bytes: "Bytes trimmed.",
    zeroes: "Write-zeroes requests.",
    zeroed_bytes: "Bytes zeroed.",
    prefetches: "Cache requests.",
    block_statuses: "Block status requests.",
    errors: "Requests answered with an error.",
    waited: "Requests that the device could not answer on the spot.",
}

/// What a server counted since it was made, read at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections now.
    pub connections: u64,
    /// Connections since the start, without the refused ones.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Negotiations that failed: by the deadline, a broken protocol, or a client that vanished in
    /// the middle of an option.
    pub failed_handshakes: u64,
    /// Connections closed because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections lost by a fault of the program.
    pub panics: u64,
    /// The sum over all exports.
    pub total: Traffic,
    /// By export name.
    pub exports: BTreeMap<String, ExportCounters>,
}

/// What was counted for one export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportCounters {
    /// Connections now.
    pub connections: u64,
    /// Requests and bytes.
    pub traffic: Traffic,
}

/// The live counters of a server.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    exports: Mutex<BTreeMap<String, Arc<Export>>>,
}

/// The live counters of one export.
#[derive(Debug, Default)]
pub(crate) struct Export {
    connections: AtomicU64,
    traffic: Atomics,
}

/// A connection's share in its export's counters.
#[derive(Debug)]
pub(crate) struct Share(Arc<Export>);

impl Share {
    /// Adds what a batch counted, and clears it.
    pub(crate) fn settle(&self, tally: &mut Traffic) {
        self.0.traffic.add(tally);
        *tally = Traffic::default();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Registry {
    /// Counts one more connection to the export.
    pub(crate) fn join(&self, export: &str) -> Share {
        let mut exports = self.exports.lock().unwrap_or_else(PoisonError::into_inner);
        let export = match exports.get(export) {
            Some(found) => Arc::clone(found),
            None => Arc::clone(exports.entry(export.to_owned()).or_default()),
        };
        export.connections.fetch_add(1, Relaxed);
        Share(export)
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let exports: BTreeMap<_, _> = self
            .exports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(name, live)| {
                let connections = live.connections.load(Relaxed);
                let counters = ExportCounters { connections, traffic: live.traffic.snapshot() };
                (name.clone(), counters)
            })
            .collect();
        let mut total = Traffic::default();
        for export in exports.values() {
            total.add(&export.traffic);
        }
        Counters {
            connections: self.connections.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed_handshakes: self.failed_handshakes.load(Relaxed),
            protocol_errors: self.protocol_errors.load(Relaxed),
            panics: self.panics.load(Relaxed),
            total,
            exports,
        }
    }
}
