//! vhost-user-blk: any `block::Device` as a virtio disk of a virtual machine on the same host, through
//! memory that both share.
//!
//! This crate may know vhost-user, virtio-blk and `block::Device`, and takes exports, clients and sessions
//! from `nbd`: who may use what is the same for both. It must not know what a disk is made of.
//!
//! | module | concept |
//! |---|---|
//! | [`server`] | [`VhostUserServer`]: a socket for each export, connections, their end |
//! | `backend` | one connection: what is negotiated, which rings run |
//! | `ring` | one virtqueue, served by a thread of its own |
//! | `request` | descriptor chains as requests: pure, on guest memory |
//! | `export_use` | who uses an export, until nothing of it can change the disk any more |
//! | `carry` | requests that wait for the device, away from the ring's thread |
//! | `notifier` | what tells the front end that something happened |
//! | `sink` | reads that are copied once, from the cache to the guest |
//! | `inflight` | which requests are in flight, in memory that outlives the server |
//! | `memory` | the guest's memory, mapped and guarded |
//! | `held` | how many bytes requests may hold that wait |
//! | `allowance` | what all front ends together may take of the process |
//! | `counters` | what was counted |
//! | `config` | features and the configuration space: pure |
//!
//! Guest memory can change at any time, and the process that shares it may be hostile. Only the ring's own
//! thread touches it: where a page cannot be had, or takes for ever, nobody else waits.

mod allowance;
mod backend;
mod carry;
mod config;
mod counters;
mod export_use;
mod held;
mod inflight;
mod memory;
mod notifier;
mod request;
mod ring;
pub mod server;
mod sink;

pub use counters::FrontEndCounters;
pub use server::{FrontEndLimits, VhostUserServer, is_socket_name};
