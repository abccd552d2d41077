//! Requests and bytes, as one connection counts them and as all of an export or a client are summed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

        /// The same where many connections count.
        #[derive(Debug, Default)]
        pub(super) struct TrafficCells { $($field: AtomicU64,)* }

        impl TrafficCells {
            /// Adds what a batch counted.
            pub(super) fn add(&self, tally: &Traffic) {
                $(if tally.$field != 0 { self.$field.fetch_add(tally.$field, Relaxed); })*
            }

            pub(super) fn snapshot(&self) -> Traffic {
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
    paced: "Times that a connection was held back by its client's limits.",
    busy_polled: "Requests that a connection found by busy polling before it slept.",
    busy_poll_nanos: "Nanoseconds of busy polling, in vain or not.",
}
