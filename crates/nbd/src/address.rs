//! Where a server listens.

use block::{Error, Result};
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The longest path that a unix socket address holds on Linux, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// The address of a server: `unix:PATH`, `HOST:PORT` or `[::1]:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port of a host; the host is a name or an address without brackets.
    Tcp(String, u16),
}

impl Address {
    /// The address of a unix socket.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the path is empty or too long for a socket.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let len = path.as_os_str().len();
        if len == 0 {
            return Err(Error::invalid("the path of a unix socket is empty: give unix:PATH"));
        }
        if len > UNIX_PATH_MAX {
            return Err(Error::invalid(format!(
                "{}: too long for a unix socket ({len} bytes, at most {UNIX_PATH_MAX}): use a shorter path",
                path.display()
            )));
        }
        Ok(Self::Unix(path))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::unix(path);
        }
        let (host, port) = split_host_port(text)?;
        let Some(port) = port else {
            return Err(Error::invalid(format!(
                "address {text:?} has no port: write unix:PATH or HOST:PORT"
            )));
        };
        Ok(Self::Tcp(host, port))
    }
}

/// Splits `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
pub(crate) fn split_host_port(text: &str) -> Result<(String, Option<u16>)> {
    let bad = |why: &str| {
        Error::invalid(format!("address {text:?}: {why}: write unix:PATH or HOST:PORT"))
    };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or_else(|| bad("no closing bracket"))?;
        let address = host.split_once('%').map_or(host, |(address, _zone)| address);
        if address.parse::<Ipv6Addr>().is_err() {
            return Err(bad("what is in the brackets is not an IPv6 address"));
        }
        match behind.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if behind.is_empty() => (host, None),
            None => return Err(bad("something other than a port follows the bracket")),
        }
    } else {
        match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(bad("an IPv6 address needs brackets"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err(bad("no host"));
    }
    // Also in the zone of an IPv6 address.
    if host.chars().any(|c| c.is_control() || c.is_whitespace() || "[]/".contains(c)) {
        return Err(bad("the host has a character that no host has"));
    }
    let port = match port {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| bad("the port is not a number up to 65535"))?)
        }
        Some(_) => return Err(bad("the port is not a number up to 65535")),
        None => None,
    };
    Ok((host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_are_written() {
        for text in [
            "unix:/run/a b.sock",
            "localhost:10809",
            "127.0.0.1:0",
            "[::1]:65535",
            "[fe80::1%eth0]:1",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_remedy() {
        for text in [
            "",
            "unix:",
            "host",
            ":1",
            "host:",
            "host:65536",
            "host:+1",
            "::1:5",
            "[::1",
            "[::1]5",
            "[host]:1",
            "[[::1]:1",
            "a b:1",
            "a\n:1",
            "[::1%a]b]:1",
            "[]:1",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Invalid, "{text}");
            assert!(error.message().contains("unix:PATH"), "{error}");
        }
        assert!(format!("unix:{}", "x".repeat(108)).parse::<Address>().is_err());
    }
}
