//! The block cache in memory, and the policies that decide what it keeps.
//!
//! This crate may know keys of 32 bytes, values of up to a few hundred KiB, and replacement
//! policies. It must not know what a key means (it is the id of a chunk), where a value comes from,
//! nor what time it is: policies count accesses.
//!
//! | module | concept |
//! |---|---|
//! | [`policy`] | [`Policy`], which entry leaves next: one file per policy, pure, usable without the cache |
//! | `concurrent` | [`Cache`], the concurrent cache: shards, bytes, single flight |
//! | `shard` | one lock's worth of entries |
//! | `flight` | the loads that are under way |

mod concurrent;
mod flight;
pub mod policy;
mod shard;

pub use concurrent::{Cache, Config, Key, Stats};
pub use policy::{Policy, PolicyKind};
