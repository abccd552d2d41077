//! Lookaside: whatever lies nearby answers chunk ids in place of a distant store.
//!
//! A chunk is named by the hash of its bytes, so anything that holds the same bytes can answer for it: a
//! USB key, a directory tree, an older image, another store (after M. Kozuch, M. Satyanarayanan et al.,
//! "Integrating Portable and Distributed Storage", FAST 2004, and Intel IRP-TR-03-10: lookaside caching).
//! No source is trusted: every answer is verified by hash, and one that is wrong, stale, damaged, slow or
//! gone costs a little time and never a byte.
//!
//! This crate may know chunks and packs of a store, files, and how quick a source was. It must not know a
//! cache, a disk, a network protocol, the wall clock or where a source is configured.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | [`ChunkSource`]: anything that can answer a chunk id |
//! | [`sources`] | [`Sources`]: whom to ask, in which order, and for how long |
//! | [`share`] | which of several peers reads what from the store, for all of them: pure |
//! | `pace` | how long a source takes, learned by size of request |
//! | `health` | who lied or hung rests for a while |
//! | `source_report` | what came from where: [`SourceReport`] |
//! | [`media`] | a directory on a key, a disc or a disk that holds chunks |
//! | [`tree`] | directory trees and disk images, indexed by content |
//! | `replica` | [`Replica`]: another store with the same key |
//! | `regular` | files in a directory that somebody else may write to |
//! | `wire` | bounded reading of the formats |
//! | [`conformance`] | the suite that every source passes |
//! | [`testing`] | sources that lie, hang, dawdle, die and truncate |
//!
//! The formats are described byte by byte in `docs/media.md`.

pub mod conformance;
mod health;
pub mod media;
mod pace;
mod regular;
mod replica;
pub mod share;
pub mod source;
mod source_report;
pub mod sources;
pub mod testing;
pub mod tree;
mod wire;

pub use replica::Replica;
pub use source::{
    ChunkBytes, ChunkSource, CostEstimate, Fetched, LinkSharer, SourceKind, StoreLink,
};
pub use source_report::{SourceReport, SourceState};
pub use sources::{NearbySource, ReadOrder, Sources, Urgency};
