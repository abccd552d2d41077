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
//! | `change` | another capacity or policy while it is in use |
//! | `shard` | a part of the entries, with a policy of its own |
//! | `key` | [`Key`], what entries are found by |
//! | `index`, `slots` | where an entry is, and the entries: read without a lock |
//! | `recent` | uses that the policy was not told of yet |
//! | `forecast` | [`Forecast`], what other sizes and policies would give |
//! | `flight` | the loads that are under way |
//! | [`ahead`] | whether a guest reads in order, and what to load ahead of it; pure |
//! | [`depth`] | how many loads a store is given at a time; pure |

pub mod ahead;
mod change;
mod concurrent;
pub mod depth;
mod flight;
mod forecast;
mod index;
mod key;
pub mod policy;
mod recent;
mod shard;
mod slots;

pub use ahead::ReadAhead;
pub use concurrent::{Cache, CacheStats, Config};
pub use depth::LoadDepth;
pub use forecast::{Forecast, HitRatios};
pub use key::Key;
pub use policy::{Policy, PolicyKind};
