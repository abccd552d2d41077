//! Which export of which server, as the NBD URI specification writes it.

use crate::address::{Address, split_host_port};
use block::{Error, Result};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, percent_encode,
};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

/// What is escaped: all that RFC 3986 does not call unreserved, but for the slash.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// An export of a server: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`; `nbds://`
/// and `nbds+unix://` when the connection is to be encrypted.
///
/// Source of the syntax: `doc/uri.md` of the NBD project, and libnbd's nbd_connect_uri(3) for what
/// begins with `tls-`. Names are percent-encoded UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The export's name; empty for the server's default export.
    pub export: String,
    /// That the connection is encrypted, and with what.
    pub tls: Option<UriTls>,
}

/// What a URI says of encryption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UriTls {
    /// The directory of the client's certificates: `tls-certificates=DIR`.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate, when it is not that of the host: `tls-hostname=NAME`.
    pub hostname: Option<String>,
}

impl Uri {
    /// The URI of an export, not encrypted.
    pub fn new(address: Address, export: impl Into<String>) -> Self {
        Self { address, export: export.into(), tls: None }
    }

    /// The URI of another export of the same server.
    #[must_use]
    pub fn with_export(&self, export: impl Into<String>) -> Self {
        Self { export: export.into(), ..self.clone() }
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "{text:?}: {why}: write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"
            ))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("not an NBD URI"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = String::from_utf8(decode(export).ok_or_else(|| bad("a broken % escape"))?)
            .map_err(|_| bad("the export's name is not UTF-8"))?;
        let (mut socket, mut tls) = (None, UriTls::default());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value).ok_or_else(|| bad("a broken % escape"))?;
            match key {
                "socket" => socket = Some(value),
                "tls-certificates" if !value.is_empty() => {
                    tls.certificates = Some(PathBuf::from(OsString::from_vec(value)));
                }
                "tls-hostname" if !value.is_empty() => {
                    let name = String::from_utf8(value);
                    tls.hostname = Some(name.map_err(|_| bad("tls-hostname is not UTF-8"))?);
                }
                _ => {
                    return Err(bad("an unknown query parameter (known are socket=PATH, \
                                    tls-certificates=DIR and tls-hostname=NAME)"));
                }
            }
        }
        let (scheme, tls) = match scheme {
            "nbds" => ("nbd", Some(tls)),
            "nbds+unix" => ("nbd+unix", Some(tls)),
            _ if tls != UriTls::default() => {
                return Err(bad("what is not encrypted has no certificates; nbds:// is"));
            }
            scheme => (scheme, None),
        };
        let address = match (scheme, socket) {
            ("nbd", None) => {
                let (host, port) = split_host_port(authority).map_err(|e| bad(e.message()))?;
                Address::Tcp(host, port.unwrap_or(crate::DEFAULT_PORT))
            }
            ("nbd+unix", Some(path)) if authority.is_empty() => {
                Address::unix(PathBuf::from(OsString::from_vec(path)))?
            }
            ("nbd", Some(_)) => return Err(bad("nbd:// has no socket")),
            ("nbd+unix", None) => return Err(bad("nbd+unix:// needs ?socket=PATH")),
            ("nbd+unix", Some(_)) => return Err(bad("nbd+unix:// has no host")),
            _ => return Err(bad("not an NBD URI")),
        };
        Ok(Self { address, export, tls })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encode(self.export.as_bytes());
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let mut query = Vec::new();
        match &self.address {
            Address::Tcp(_, crate::DEFAULT_PORT) => {
                let address = self.address.to_string();
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                write!(f, "{scheme}://{host}/{export}")?;
            }
            address @ Address::Tcp(..) => write!(f, "{scheme}://{address}/{export}")?,
            Address::Unix(path) => {
                write!(f, "{scheme}+unix:///{export}")?;
                query.push(("socket", path.as_os_str().as_bytes()));
            }
        }
        if let Some(UriTls { certificates, hostname }) = &self.tls {
            let certificates = certificates.as_ref().map(|dir| dir.as_os_str().as_bytes());
            query.extend(certificates.map(|dir| ("tls-certificates", dir)));
            query.extend(hostname.as_ref().map(|name| ("tls-hostname", name.as_bytes())));
        }
        for (number, (key, value)) in query.into_iter().enumerate() {
            let sign = if number == 0 { '?' } else { '&' };
            write!(f, "{sign}{key}={}", encode(value))?;
        }
        Ok(())
    }
}

fn encode(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encode(bytes, ESCAPED)
}

/// The bytes that an encoded text stands for; `None` for a `%` without two hexadecimal digits.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut escapes = text.as_bytes().split(|byte| *byte == b'%').skip(1);
    let whole = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    let all = escapes.all(|behind| behind.get(..2).is_some_and(whole));
    all.then(|| percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_the_specification_are_understood() {
        for (text, address, export) in [
            ("nbd://localhost", "localhost:10809", ""),
            ("nbd://localhost:1/disk", "localhost:1", "disk"),
            ("nbd://[::1]:7/a%20b", "[::1]:7", "a b"),
            ("nbd+unix:///?socket=/tmp/s", "unix:/tmp/s", ""),
            ("nbd+unix:///vm1?socket=/tmp/a%3Fb", "unix:/tmp/a?b", "vm1"),
            ("nbd+unix://?socket=/tmp/s", "unix:/tmp/s", ""),
        ] {
            let uri: Uri = text.parse().unwrap();
            assert_eq!((uri.address.to_string().as_str(), uri.export.as_str()), (address, export));
        }
    }

    #[test]
    fn what_is_no_uri_is_refused() {
        for text in [
            "",
            "disk",
            "http://h/",
            "nbd://",
            "nbd:///x",
            "nbd+unix:///x",
            "nbd+unix://host/x?socket=/s",
            "nbd://h/x?socket=/s",
            "nbd://h/%zz",
            "nbd://h/%f",
            "nbd://h/%ff",
            "nbd+unix:///?socket=",
            "nbd://h/?tls=1",
            "nbd://h/?tls-certificates=/tls",
            "nbds://h/?tls-certificates=",
            "nbds://h/?tls-hostname=%ff",
            "nbds://h/?tls-verify-peer=false",
            "nbds+unix:///x?tls-certificates=/tls",
            "nbds://h/x?socket=/s",
        ] {
            assert!(text.parse::<Uri>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_encrypted_says_with_what() {
        let uri: Uri = "nbds://lab/d?tls-certificates=/a%20b&tls-hostname=disks".parse().unwrap();
        let tls = UriTls { certificates: Some("/a b".into()), hostname: Some("disks".into()) };
        assert_eq!(uri, Uri { tls: Some(tls), ..Uri::new("lab:10809".parse().unwrap(), "d") });
        let other = uri.with_export("e").to_string();
        assert_eq!(other, "nbds://lab/e?tls-certificates=/a%20b&tls-hostname=disks");
        let text = "nbds+unix:///d?socket=/s&tls-certificates=/tls";
        assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
        assert_eq!("nbds://lab".parse::<Uri>().unwrap().tls, Some(UriTls::default()));
    }

    proptest! {
        #[test]
        fn any_export_and_path_survive_the_round_trip(
            export in ".*", path in "[^\0]{1,26}", tls: bool, dir in prop::option::of(".+"),
            name in prop::option::of(".+"),
        ) {
            let (certificates, hostname) = (dir.map(PathBuf::from), name);
            let tls = tls.then_some(UriTls { certificates, hostname });
            for address in [
                Address::unix(path.as_str()).unwrap(),
                Address::Tcp("::1".into(), 9),
                Address::Tcp("host".into(), crate::DEFAULT_PORT),
            ] {
                let uri = Uri { tls: tls.clone(), ..Uri::new(address, export.as_str()) };
                prop_assert_eq!(&uri.to_string().parse::<Uri>().unwrap(), &uri);
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Uri>();
            let _ = text.parse::<Address>();
        }
    }
}
