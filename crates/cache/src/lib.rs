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
//! | `index`, `slots` | where an entry is, and the entries: read without a lock |
//! | `recent` | uses that the policy was not told of yet |
//! | `forecast` | [`Forecast`], what other sizes and policies would give |
//! | `flight` | the loads that are under way |

mod change;
mod concurrent;
mod flight;
mod forecast;
mod index;
pub mod policy;
mod recent;
mod shard;
mod slots;

pub use concurrent::{Cache, Config, Key, Stats};
pub use forecast::{Forecast, HitRatios};
pub use policy::{Policy, PolicyKind};
