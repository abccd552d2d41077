//! The network block device protocol: wire codec, server and client.
//!
//! This crate may know the protocol, sockets and [`block::Device`]. It must not know what is
//! behind a device, which exports exist (it asks [`Exports`]) nor how the daemon is configured.
//!
//! It has a little more than 10,000 lines without its tests and is one crate all the same: server and client
//! share the codec, the addresses and the buffers under TLS, and each is tested against the other. Most of it
//! is the server, whose rooms hold one another's state (a session its seat, a seat its budget): so they are
//! modules whose imports point down, and not crates.
//!
//! | module | concept |
//! |---|---|
//! | [`codec`] | the wire format: total parsers over byte slices, encoders into a vector; no I/O |
//! | [`server`] | listening, negotiation, the request loop, limits and counters |
//! | [`client`] | [`Remote`], an export of some server as a device |
//! | [`address`] | [`Address`], where a server listens |
//! | [`uri`] | [`Uri`], which export of which server |

pub mod address;
pub mod client;
pub mod codec;
pub mod server;
pub mod uri;

mod buffered;
mod socket;

pub use address::Address;
pub use client::{
    ClientOptions, ClientTls, HandedSocket, Relay, Remote, Stream, Terms, connect_socket,
    list_exports, negotiate,
};
pub use server::{
    Counters, Credentials, ExportSummary, Exports, Layered, Listener, Peer, Purpose, Server,
    ServerLimits, Session, SessionEnding, Tls, Traffic, Transport,
};
pub use uri::{Uri, UriTls};

/// The port that IANA assigned to NBD.
pub const DEFAULT_PORT: u16 = 10809;
