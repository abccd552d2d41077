//! Sockets at one interface.

use async_trait::async_trait;
use block::{Error, Result};
use netboot::datagram::Ports;
use netboot::{Datagrams, Frames};
use nix::sys::socket as packet;
use nix::sys::socket::LinkAddr;
use rustix::net::sockopt::{set_socket_broadcast, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tokio::net::UdpSocket;

/// A socket that hears what is sent to all in the network of an interface, and to no other.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) without the right to low ports, with the remedy;
/// [`Conflict`](block::ErrorKind::Conflict) when another server has the port.
pub(super) fn broadcast(interface: &str, port: u16) -> Result<UdpSocket> {
    let open = || -> io::Result<UdpSocket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        set_socket_broadcast(&socket, true)?;
        // A DHCP server of another interface has the port, too: of virtual machines, say.
        set_socket_reuseaddr(&socket, true)?;
        let socket = UdpSocket::from_std(StdSocket::from(socket))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
        Ok(socket)
    };
    open().map_err(|e| failed(port, e))
}

/// A socket at one address.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) without the right to low ports, with the remedy;
/// [`Conflict`](block::ErrorKind::Conflict) when another server has the port.
pub(super) fn at(address: Ipv4Addr, port: u16) -> Result<UdpSocket> {
    let open = || -> io::Result<UdpSocket> {
        let socket = StdSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    };
    open().map_err(|e| failed(port, e))
}

fn failed(port: u16, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::PermissionDenied => Error::denied(format!(
            "UDP port {port} needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW: run this as root, or by \
             the unit sojourn-netboot.service"
        )),
        io::ErrorKind::AddrInUse => {
            Error::conflict(format!("another server has UDP port {port} of this network; stop it"))
        }
        _ => Error::io(format!("UDP port {port}"), e),
    }
}

/// Ports for TFTP transfers.
pub(super) struct TransferPorts {
    pub(super) address: Ipv4Addr,
}

#[async_trait]
impl Ports for TransferPorts {
    async fn open(&self) -> io::Result<Arc<dyn Datagrams>> {
        Ok(Arc::new(UdpSocket::bind((self.address, 0)).await?))
    }
}

/// A socket that sends frames by one card, and receives none.
pub(super) struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// A socket at a card.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) without the right to send frames.
    pub(super) fn at(card: &LinkAddr) -> Result<Self> {
        let flags = packet::SockFlag::SOCK_CLOEXEC | packet::SockFlag::SOCK_NONBLOCK;
        let open = || -> io::Result<OwnedFd> {
            let (family, kind) = (packet::AddressFamily::Packet, packet::SockType::Raw);
            let socket = packet::socket(family, kind, flags, None)?;
            packet::bind(socket.as_raw_fd(), card)?;
            Ok(socket)
        };
        open().map(Self).map_err(|e| Error::io("a socket for frames", e))
    }
}

impl Frames for FrameSocket {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        Ok(rustix::io::write(&self.0, frame).map(drop)?)
    }
}
