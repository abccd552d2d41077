//! From the place of a store to its backend, whichever kind of place it is.

use access::client_config;
use block::Result;
use block::fs::is_network;
use gateway::{GatewayStore, GatewayUrl};
use objects::{OpenStoreOptions, Opened};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest that writing an object through a gateway may take: 8 MiB over 100 kb/s.
const LONGEST_WRITE: Duration = Duration::from_secs(900);

/// Opens the backend at a place: a directory, a URL, or a gateway, to which the certificate in
/// `certificates` is shown unless its URL names another directory. Nothing is asked over the network yet.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a place that is none, and any error from a gateway's certificates.
pub fn open(place: &str, certificates: &Path, options: &OpenStoreOptions) -> Result<Opened> {
    match GatewayUrl::is_meant(place) {
        true => through_gateway(place, certificates, options),
        false => objects::open(place, options),
    }
}

/// Checks what can be seen of a place alone: nothing is opened, and no file is read.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) and [`Unsupported`](block::ErrorKind::Unsupported) for a place that is none.
pub fn check(place: &str) -> Result<()> {
    match GatewayUrl::is_meant(place) {
        true => place.parse::<GatewayUrl>().map(drop),
        false => objects::check_url(place),
    }
}

/// Opens the place of a new store: a directory is made if need be.
///
/// # Errors
/// Any error from [`objects::create`]; any error from the certificates.
pub fn create(place: &str, certificates: &Path, options: &OpenStoreOptions) -> Result<Opened> {
    match GatewayUrl::is_meant(place) {
        true => through_gateway(place, certificates, options),
        false => objects::create(place, options),
    }
}

/// Whether a store cannot be made there, but only used.
pub fn is_given(place: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| place.starts_with(scheme))
        || GatewayUrl::is_meant(place)
}

/// Whether a directory is on a file system that comes over a network. Looks into the file system, which may take
/// long.
pub fn is_over_network(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|found| is_network(found.f_type as u32))
}

fn through_gateway(place: &str, certificates: &Path, options: &OpenStoreOptions) -> Result<Opened> {
    let url: GatewayUrl = place.parse()?;
    let dir = url.certificates.clone().unwrap_or_else(|| certificates.to_owned());
    let config = client_config(&dir)
        .map_err(|e| e.context(format!("store {url} needs a client's certificate")))?;
    let mut options = options.clone();
    options.patience.write = options.patience.write.max(LONGEST_WRITE);
    // The certificate says what may be read, and so what can have been kept.
    let place = format!("{url} {}", dir.display());
    Ok(objects::exact(Arc::new(GatewayStore::new(url, &config)?), &place, &options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn a_directory_that_is_not_there_comes_over_no_network() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_over_network(&dir.path().join("nothing")));
    }

    #[test]
    fn a_gateway_needs_a_certificate_which_its_url_may_name() {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenStoreOptions::default();
        let error = |place: &str| open(place, dir.path(), &options).err().unwrap();
        let missing = error("gateway+https://lab.example.org");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.message().contains(&dir.path().display().to_string()), "{missing}");
        let named = error("gateway+https://lab.example.org?tls-certificates=/no/such");
        assert!(named.message().contains("/no/such"), "{named}");
        assert_eq!(error("gateway+https://").kind(), ErrorKind::Invalid);
        assert!(is_given("gateway+https://lab") && is_given("https://lab") && !is_given("s3://b"));
    }
}
