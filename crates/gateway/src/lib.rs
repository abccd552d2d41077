//! The gateway: a server's store over HTTP/2 and TLS 1.3, for clients with certificates, each with its
//! rights.
//!
//! To a client it is an object store again ([`GatewayStore`]), so that everything which works on a store
//! works through it: reading images, taking disks, publishing snapshots, sessions and their pins. The
//! server answers for what a client may see and write; the client believes nothing that it does not verify,
//! as with every store.
//!
//! This crate may know the objects of a store by their keys and what they name, access rules, and HTTP. It
//! must not know disks but by what may follow in their refs, configuration, nor where a home is.
//!
//! | module | concept |
//! |---|---|
//! | [`wire`] | what passes between the two: pure |
//! | [`server`] | [`Gateway`], the server's half |
//! | [`client`] | [`GatewayStore`], the client's half |
//! | [`http`] | what other protocols over HTTP/2 and TLS are made of, too |
//!
//! The protocol is described in `docs/gateway.md`.

pub mod client;
pub mod http;
pub mod server;
pub mod wire;

pub use client::{GatewayStore, GatewayUrl};
pub use server::{Gateway, GatewayCounters, GatewayLimits};
