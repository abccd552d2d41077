//! Where a server is, and what is shown there: what the URLs of servers have behind their scheme.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// The longest, in bytes.
const LONGEST: usize = 4096;

/// `HOST[:PORT][/][?tls-certificates=DIR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlace {
    /// The host, as a certificate names it; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The directory with the authority's certificate, and ours with its key.
    pub certificates: Option<PathBuf>,
}

impl ServerPlace {
    /// Reads what stands behind a scheme, with the port of a URL that names none.
    ///
    /// # Errors
    /// What is wrong, as a part of a sentence.
    pub fn parse(text: &str, usual: u16) -> Result<Self, &'static str> {
        if text.len() > LONGEST {
            return Err("it is too long");
        }
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let authority = place.strip_suffix('/').unwrap_or(place);
        let mut certificates = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("tls-certificates", dir)) if !dir.is_empty() && !dir.contains('%') => {
                    certificates = Some(PathBuf::from(dir));
                }
                _ => return Err("the only option is tls-certificates=DIR, a plain path"),
            }
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']').ok_or("a ] is missing")?;
                host.parse::<Ipv6Addr>().map_err(|_| "that is no IPv6 address")?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or("a : is missing")?),
                };
                (host, port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if host.is_empty() || host.len() > 255 || !host.chars().all(plain) {
            return Err("it names no host");
        }
        let port = match port {
            None => usual,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("that is no port")?,
        };
        Ok(Self { host: host.to_owned(), port, certificates })
    }
}

/// Host and port, as a request names them.
impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
