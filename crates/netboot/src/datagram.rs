//! UDP, and whole frames, as the servers here use them, so that tests bring a network of their own.

use async_trait::async_trait;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use tokio::net::UdpSocket;

/// The longest datagram that is looked at, in bytes; what is longer is cut.
pub const LONGEST: usize = 2048;

/// A socket for datagrams over IPv4.
#[async_trait]
pub trait Datagrams: Send + Sync {
    /// Waits for a datagram; its length and its sender.
    ///
    /// # Errors
    /// Any error from the socket.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4)>;

    /// Sends a datagram.
    ///
    /// # Errors
    /// Any error from the socket.
    async fn send(&self, data: &[u8], to: SocketAddrV4) -> io::Result<()>;
}

/// A way to send frames as they are, so that one card alone hears them.
pub trait Frames: Send + Sync {
    /// Sends a frame, from its Ethernet header on, or drops it when there is no room: it does not wait.
    ///
    /// # Errors
    /// Any error from the socket.
    fn send(&self, frame: &[u8]) -> io::Result<()>;
}

/// Makes sockets: TFTP answers each transfer from a port of its own.
#[async_trait]
pub trait Ports: Send + Sync {
    /// A socket at a port that nobody uses.
    ///
    /// # Errors
    /// When there are too many.
    async fn open(&self) -> io::Result<Arc<dyn Datagrams>>;
}

#[async_trait]
impl Datagrams for UdpSocket {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
        loop {
            if let (length, SocketAddr::V4(from)) = self.recv_from(buffer).await? {
                return Ok((length, from));
            }
        }
    }

    async fn send(&self, data: &[u8], to: SocketAddrV4) -> io::Result<()> {
        self.send_to(data, to).await.map(drop)
    }
}
