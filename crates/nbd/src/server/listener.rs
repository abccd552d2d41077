//! Listening sockets.

use crate::Address;
use block::{Error, Result};
use std::os::fd::OwnedFd;

/// The backlog for clients that connect at the same instant: a class that boots at nine.
pub const DEFAULT_BACKLOG: u32 = 4096;

/// A listening socket. The file of a unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    address: Address,
}

impl Listener {
    /// Listens at `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody listens there already.
    pub async fn bind(address: &Address, backlog: u32) -> Result<Self> {
        let _ = (address, backlog);
        Err(Error::internal("not yet"))
    }

    /// Uses a socket that listens already, such as one from a service manager.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is not a listening TCP or unix stream socket.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let _ = fd;
        Err(Error::internal("not yet"))
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> &Address {
        &self.address
    }
}
