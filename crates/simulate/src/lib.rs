//! Caches simulated on traces: which policy, how much memory, where.
//!
//! A trace is read once and becomes a [`ReferenceStream`]: references to blocks with dense ids, as a server
//! sees them behind its clients' caches. Everything else runs over that, without a hash table.
//!
//! This crate may know traces, replacement policies and the demands of servers. It must not know files, clocks or threads,
//! nor how results are shown.
//!
//! | module | concept |
//! |---|---|
//! | [`stream`] | [`ReferenceStream`]: what comes to the server's cache |
//! | [`options`] | [`ReferenceOptions`]: block size, sharing, client caches, sampling |
//! | [`chunks`] | [`Chunks`]: where images may be cut, for a server that caches chunks |
//! | [`mod@run`] | [`run()`](run::run()): one policy and size; hits and misses by distance; [`whole()`](run::whole) requests |
//! | [`sizes`] | [`run_sizes()`](sizes::run_sizes()): one policy at many sizes, for some of them in one pass |
//! | [`opt`] | the best that any policy could do |
//! | [`curve`] | [`Curve`]: LRU at every size in one pass, exactly or from a sample |
//! | `stack` | the distances of LRU's references |
//! | [`shards`] | [`Estimate`]: the same in bounded memory |
//! | [`tune`](mod@tune) | the best policy for a load, by miniature simulation |
//! | [`server`] | a whole server under the load of a trace: its caches, its loads, its queues, event by event |
//! | [`budget`] | how to divide memory between server and clients, and into which blocks |

pub mod budget;
pub mod chunks;
mod client;
pub mod curve;
pub mod opt;
pub mod options;
pub mod run;
pub mod server;
pub mod shards;
pub mod sizes;
mod stack;
pub mod stream;
mod table;
pub mod tune;

pub use budget::{Budget, Costs, Spending, SpendingPlan};
pub use chunks::{Chunks, Law};
pub use curve::Curve;
pub use options::{ReferenceOptions, Sharing};
pub use run::{Outcome, SimulatedPolicy, WholeRequests, drive, run, whole};
pub use server::{ClientPace, Crowd, ServerLoad, ServerOutcome, ServerSetup, serve};
pub use shards::Estimate;
pub use sizes::run_sizes;
pub use stream::ReferenceStream;
pub use tune::{Advice, TuningQuestion, tune};
