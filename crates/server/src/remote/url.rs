//! Where a server's HTTP port is.

use block::{Error, Result};
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The longest URL, in bytes.
const LONGEST: usize = 4096;

/// Where a server's HTTP port is: `http[s]://HOST[:PORT][/][?tls-certificates=DIR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether it is encrypted.
    pub https: bool,
    /// The host; an IPv6 address without brackets.
    pub host: String,
    /// The port; that of the scheme when the URL names none.
    pub port: u16,
    /// The directory with the authority's certificate, and ours with its key if the server asks for one.
    pub certificates: Option<PathBuf>,
}

impl ServerUrl {
    /// Host and port as a request names them.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for ServerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let shown: String = text.chars().take(200).collect();
        let wrong = |why: &str| {
            Error::invalid(format!(
                "server {shown:?}: {why}; write https://HOST:PORT[?tls-certificates=DIR], or http://... on \
                 this machine"
            ))
        };
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let schemes = [("https://", true, 443), ("http://", false, 80)];
        let found = schemes.into_iter().find_map(|(scheme, https, port)| {
            text.strip_prefix(scheme).map(|rest| (rest, https, port))
        });
        let (rest, https, usual) =
            found.ok_or_else(|| wrong("it is not the URL of an HTTP port"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = place.strip_suffix('/').unwrap_or(place);
        let mut certificates = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("tls-certificates", dir))
                    if https && !dir.is_empty() && !dir.contains('%') =>
                {
                    certificates = Some(PathBuf::from(dir));
                }
                _ => {
                    return Err(wrong(
                        "the only option is tls-certificates=DIR of https, a plain path",
                    ));
                }
            }
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']').ok_or_else(|| wrong("a ] is missing"))?;
                host.parse::<Ipv6Addr>().map_err(|_| wrong("that is no IPv6 address"))?;
                match port {
                    "" => (host, None),
                    port => {
                        (host, Some(port.strip_prefix(':').ok_or_else(|| wrong("a : is missing"))?))
                    }
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if host.is_empty() || host.len() > 255 || !host.chars().all(plain) {
            return Err(wrong("it names no host"));
        }
        let port = match port {
            None => usual,
            Some(port) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                port.ok_or_else(|| wrong("that is no port"))?
            }
        };
        Ok(Self { https, host: host.to_owned(), port, certificates })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_url_names_a_host_and_what_is_trusted_there() {
        let plain: ServerUrl = "https://lab.example.org".parse().unwrap();
        assert_eq!((plain.host.as_str(), plain.port, plain.https), ("lab.example.org", 443, true));
        let full: ServerUrl =
            "https://[::1]:9180/?tls-certificates=/etc/pki/sojourn".parse().unwrap();
        assert_eq!(full.to_string(), "https://[::1]:9180");
        assert_eq!(full.certificates, Some(PathBuf::from("/etc/pki/sojourn")));
        let near: ServerUrl = "http://127.0.0.1:9180".parse().unwrap();
        assert_eq!((near.port, near.https), (9180, false));
    }

    #[test]
    fn other_urls_are_refused_with_the_right_form() {
        for bad in [
            "",
            "lab:9180",
            "ftp://lab",
            "https://",
            "https://host:0",
            "https://host:99999",
            "https://host/path",
            "https://user@host",
            "https://[::1",
            "https://[host]:1",
            "https://host?x=1",
            "http://host?tls-certificates=/x",
            "https://host\r\nx: y",
        ] {
            let error = bad.parse::<ServerUrl>().unwrap_err();
            assert!(error.message().contains("https://HOST:PORT"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_url_panics(rest in ".{0,80}") {
            let _ = rest.parse::<ServerUrl>();
            let _ = format!("https://{rest}").parse::<ServerUrl>();
        }
    }
}
