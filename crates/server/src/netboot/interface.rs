//! The addresses of a network interface.

use block::{Error, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::LinkAddr;
use std::net::Ipv4Addr;

/// Linux' number of Ethernet among the kinds of card (ARPHRD_ETHER).
const ETHERNET: u16 = 1;

/// The first IPv4 address of an interface, and its mask.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is no such interface or it has no address.
pub(super) fn address(interface: &str) -> Result<(Ipv4Addr, Ipv4Addr)> {
    let all = getifaddrs().map_err(|e| Error::io("the network interfaces", e.into()))?;
    let mut there = false;
    for one in all.filter(|one| one.interface_name == interface) {
        there = true;
        let v4 = |address: Option<nix::sys::socket::SockaddrStorage>| {
            address.and_then(|address| address.as_sockaddr_in().map(|address| address.ip()))
        };
        if let (Some(address), Some(mask)) = (v4(one.address), v4(one.netmask)) {
            return Ok((address, mask));
        }
    }
    Err(Error::not_found(match there {
        true => format!("the interface {interface} has no IPv4 address; give it one first"),
        false => format!("there is no interface {interface}; `ip link` lists them"),
    }))
}

/// The card of an interface; `None` when it is no Ethernet.
pub(super) fn card(interface: &str) -> Option<LinkAddr> {
    let of_it = getifaddrs().ok()?.filter(|one| one.interface_name == interface);
    let links = of_it.filter_map(|one| one.address?.as_link_addr().copied());
    links.into_iter().find(|link| link.hatype() == ETHERNET && link.halen() == 6)
}
