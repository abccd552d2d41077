//! Servers of a network, found by DNS-SD (RFC 6763) over multicast DNS (RFC 6762).
//!
//! This crate may know DNS messages and what a server announces. It must not know sockets, interfaces
//! nor time: its caller brings datagrams and sends what it is given, so all of it is pure.
//!
//! Who looks sends one question from a port of its own and is answered there (RFC 6762, 6.7): it needs
//! neither port 5353 nor a membership, and works beside any other responder. Names carry the number of the
//! server's home, which no other has, so they are announced without probing.
//!
//! Why not a crate: those that there are bring threads, timers and a cache of the whole network; what is
//! needed here is one message of four kinds of record.
//!
//! | module | concept |
//! |---|---|
//! | [`message`] | [`DnsMessage`], as bytes and back |
//! | [`cut`] | [`CutQueries`], questions that go on in the next message |
//! | [`responder`] | [`Announcement`], what a server says of itself, and its answers |
//! | [`browse`] | [`Browse`], what is asked and what came back |

pub mod browse;
pub mod cut;
pub mod message;
pub mod responder;

pub use browse::{Browse, FoundService};
pub use cut::CutQueries;
pub use message::DnsMessage;
pub use responder::{Announcement, OfferedService};

use std::net::{Ipv4Addr, SocketAddrV4};

/// Where multicast DNS is spoken.
pub const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5353);

/// What is offered: the kinds that are announced and looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceKind {
    /// Exports over NBD.
    Nbd,
    /// The same over iSCSI.
    Iscsi,
    /// A store, through a gateway.
    Gateway,
    /// Chunks of a store, for those that use it, too.
    Peer,
}

impl ServiceKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nbd, Self::Iscsi, Self::Gateway, Self::Peer];

    /// The two labels of its type (RFC 6763, 4.1.2).
    pub const fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Nbd => ["_nbd", "_tcp"],
            Self::Iscsi => ["_iscsi", "_tcp"],
            Self::Gateway => ["_sojourn", "_tcp"],
            Self::Peer => ["_sojourn-peer", "_tcp"],
        }
    }
}
