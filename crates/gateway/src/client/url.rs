//! Where a gateway is.

use super::ServerPlace;
use block::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What a gateway's URL begins with.
const SCHEME: &str = "gateway+https://";
/// The port of a URL that names none.
pub(crate) const DEFAULT_PORT: u16 = 9443;

/// Where a gateway is, and what is shown there: `gateway+https://HOST[:PORT][/][?tls-certificates=DIR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayUrl {
    /// The host, which must be in the server's certificate; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The directory with our certificate, our key, and the authority's certificate.
    pub certificates: Option<PathBuf>,
}

impl GatewayUrl {
    /// Whether a store's URL names a gateway, well or badly.
    pub fn is_meant(url: &str) -> bool {
        url.starts_with(SCHEME)
    }
}

impl FromStr for GatewayUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let shown: String = text.chars().take(200).collect();
        let wrong = |why: &str| {
            Error::invalid(format!(
                "store {shown:?}: {why}; write {SCHEME}HOST[:PORT][?tls-certificates=DIR]"
            ))
        };
        let rest = text.strip_prefix(SCHEME);
        let rest = rest.ok_or_else(|| wrong("it is not the URL of a gateway"))?;
        let ServerPlace { host, port, certificates } =
            ServerPlace::parse(rest, DEFAULT_PORT).map_err(wrong)?;
        Ok(Self { host, port, certificates })
    }
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "{SCHEME}[{}]:{}", self.host, self.port),
            false => write!(f, "{SCHEME}{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_and_what_is_shown_there() {
        let plain: GatewayUrl = "gateway+https://lab.example.org".parse().unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("lab.example.org", DEFAULT_PORT));
        let full = "gateway+https://[::1]:19443/?tls-certificates=/etc/pki/sojourn";
        let full: GatewayUrl = full.parse().unwrap();
        assert_eq!(full.to_string(), "gateway+https://[::1]:19443");
        assert_eq!(full.certificates, Some(PathBuf::from("/etc/pki/sojourn")));
    }

    #[test]
    fn other_urls_are_refused_with_the_right_form() {
        for bad in [
            "https://lab.example.org",
            "gateway+https://",
            "gateway+https://host:0",
            "gateway+https://host:99999",
            "gateway+https://host/path",
            "gateway+https://user@host",
            "gateway+https://[::1",
            "gateway+https://[host]:1",
            "gateway+https://host?x=1",
            "gateway+https://host?tls-certificates=",
        ] {
            let error = bad.parse::<GatewayUrl>().unwrap_err();
            assert!(error.message().contains("HOST[:PORT]"), "{bad}: {error}");
        }
    }
}
