//! Caches simulated on traces: which policy, how much memory, where.
//!
//! A trace is read once and becomes a [`Stream`]: references to blocks with dense ids, as a server
//! sees them behind its clients' caches. Everything else runs over that, without a hash table.
//!
//! This crate may know traces and replacement policies. It must not know files, clocks or threads,
//! nor how results are shown.
//!
//! | module | concept |
//! |---|---|
//! | [`stream`] | [`Stream`], [`Options`]: block size, sharing, client caches, sampling |
//! | [`mod@run`] | [`run()`](run::run()): one policy and size; hits and misses by distance |
//! | [`opt`] | the best that any policy could do |
//! | [`stack`] | [`Curve`]: LRU at every size in one pass, exactly or from a sample |
//! | [`tune`](mod@tune) | the best policy for a load, by miniature simulation |

mod client;
pub mod opt;
pub mod run;
pub mod stack;
pub mod stream;
mod table;
pub mod tune;

pub use run::{Outcome, Policy, drive, run};
pub use stack::Curve;
pub use stream::{Options, Sharing, Stream};
pub use tune::{Advice, Question, tune};
