//! The IPv4 networks that this machine is in.

use block::{Error, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::net::Ipv4Addr;

/// An address of this machine, and its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalNetwork {
    pub(super) address: Ipv4Addr,
    pub(super) mask: Ipv4Addr,
}

impl LocalNetwork {
    /// Whether an address is of it.
    pub(super) fn holds(&self, other: Ipv4Addr) -> bool {
        let net = |address: Ipv4Addr| u32::from(address) & u32::from(self.mask);
        net(self.address) == net(other)
    }
}

/// The addresses of all interfaces that are up.
///
/// # Errors
/// Any error from the system, when it does not tell them.
pub(super) fn all() -> Result<Vec<LocalNetwork>> {
    let v4 = |address: Option<SockaddrStorage>| {
        address.and_then(|address| address.as_sockaddr_in().map(|address| address.ip()))
    };
    let all = getifaddrs().map_err(|e| Error::io("the network interfaces", e.into()))?;
    let up = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP));
    let networks = up
        .filter_map(|one| Some(LocalNetwork { address: v4(one.address)?, mask: v4(one.netmask)? }));
    Ok(networks.collect())
}
