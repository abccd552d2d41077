//! Where a server listens: at a unix socket, or over TCP on this machine.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// A socket of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// TCP on a port that is free now.
    pub(crate) fn free_tcp() -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?))
    }

    /// An address with its port, or the path of a socket.
    pub(crate) fn parse(text: &Path) -> Self {
        match text.to_str().map(str::parse) {
            Some(Ok(address)) => Self::Tcp(address),
            _ => Self::Unix(text.to_owned()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_parsed_to_the_same() {
        for place in [Endpoint::free_tcp().unwrap(), Endpoint::Unix("/tmp/nbd.sock".into())] {
            assert_eq!(Endpoint::parse(Path::new(&place.to_string())), place);
        }
    }
}
