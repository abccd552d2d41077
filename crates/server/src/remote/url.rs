//! Where a server's HTTP port is.

use block::{Error, Result};
use gateway::http::ServerPlace;
use std::fmt;
use std::str::FromStr;

/// Where a server's HTTP port is: `http[s]://HOST[:PORT][/][?tls-certificates=DIR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether it is encrypted.
    pub https: bool,
    /// The rest; without certificates where it is not encrypted.
    pub place: ServerPlace,
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
        let schemes = [("https://", true, 443), ("http://", false, 80)];
        let found = schemes.into_iter().find_map(|(scheme, https, port)| {
            text.strip_prefix(scheme).map(|rest| (rest, https, port))
        });
        let (rest, https, usual) =
            found.ok_or_else(|| wrong("it is not the URL of an HTTP port"))?;
        let place = ServerPlace::parse(rest, usual).map_err(wrong)?;
        if place.certificates.is_some() && !https {
            return Err(wrong("certificates are of https"));
        }
        Ok(Self { https, place })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    #[test]
    fn a_url_names_a_host_and_what_is_trusted_there() {
        let plain: ServerUrl = "https://lab.example.org".parse().unwrap();
        assert_eq!(
            (plain.place.host.as_str(), plain.place.port, plain.https),
            ("lab.example.org", 443, true)
        );
        let full: ServerUrl =
            "https://[::1]:9180/?tls-certificates=/etc/pki/sojourn".parse().unwrap();
        assert_eq!(full.to_string(), "https://[::1]:9180");
        assert_eq!(full.place.certificates, Some(PathBuf::from("/etc/pki/sojourn")));
        let near: ServerUrl = "http://127.0.0.1:9180".parse().unwrap();
        assert_eq!((near.place.port, near.https), (9180, false));
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
