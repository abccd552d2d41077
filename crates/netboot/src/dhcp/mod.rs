//! DHCP (RFC 2131, RFC 2132), and how firmware asks by it what to start (PXE 2.1; RFC 4578; UEFI 2.10,
//! 24.7 for HTTP).
//!
//! | module | concept |
//! |---|---|
//! | [`message`] | [`Message`], as bytes and back: pure |
//! | [`client`] | [`BootClient`], what a request says about who boots: pure |
//! | [`answer`] | what is answered about booting: pure |
//! | [`leases`] | [`Leases`], which addresses are handed out until when: pure |
//! | [`address`] | what is answered about addresses, where this is the only DHCP server: pure |
//! | [`server`] | [`DhcpServer`]: both on sockets, with bounds on who is answered how often |

pub mod address;
pub mod answer;
pub mod client;
pub mod leases;
pub mod message;
pub mod server;

pub use client::{BootClient, FirmwareKind};
pub use leases::{Lease, Leases};
pub use message::Message;
pub use server::DhcpServer;

use std::net::Ipv4Addr;

/// The port of servers.
pub const SERVER_PORT: u16 = 67;
/// The port of clients.
pub const CLIENT_PORT: u16 = 68;
/// The port of boot servers (PXE 2.1, 2.2.4).
pub const BOOT_PORT: u16 = 4011;

/// Where this server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAddress {
    /// Its address in the network of the machines.
    pub address: Ipv4Addr,
    /// The port of its HTTP server.
    pub http: u16,
}

/// Numbers of options.
pub(crate) mod option {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const MASK: u8 = 1;
    pub(crate) const ROUTER: u8 = 3;
    pub(crate) const NAME_SERVERS: u8 = 6;
    pub(crate) const VENDOR_OPTIONS: u8 = 43;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const KIND: u8 = 53;
    pub(crate) const SERVER: u8 = 54;
    pub(crate) const MESSAGE: u8 = 56;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const BOOT_FILE: u8 = 67;
    pub(crate) const USER_CLASS: u8 = 77;
    pub(crate) const ARCHITECTURE: u8 = 93;
    pub(crate) const MACHINE: u8 = 97;
    pub(crate) const IPXE: u8 = 175;
    pub(crate) const END: u8 = 255;
}

/// The kinds of message (RFC 2132, 9.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageType {
    /// A client looks for servers.
    Discover = 1,
    /// A server offers.
    Offer = 2,
    /// A client takes an offer, or goes on with what it has.
    Request = 3,
    /// A client found that its address is used by another one.
    Decline = 4,
    /// A server grants.
    Ack = 5,
    /// A server refuses.
    Nak = 6,
    /// A client gives its address back.
    Release = 7,
    /// A client that has an address asks for the rest.
    Inform = 8,
}

impl MessageType {
    /// The kind of this number.
    pub fn of(number: u8) -> Option<Self> {
        use MessageType::*;
        [Discover, Offer, Request, Decline, Ack, Nak, Release, Inform]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}
