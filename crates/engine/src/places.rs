//! From the place of a store to its backend, whichever kind of place it is.

use access::client_config;
use block::Result;
use gateway::{GatewayStore, GatewayUrl};
use objects::{OpenOptions, Opened};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// File systems that come over a network, by the numbers that statfs(2) gives them (linux/magic.h and their
/// sources). FUSE counts as one, as sshfs, rclone and GlusterFS do; a key under ntfs-3g does, too, and is taken for
/// slower than it is until it was measured.
const NETWORK: [u32; 16] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2
    0x6573_5546, // FUSE
    0x0187,      // autofs: what is mounted there comes when it is looked at
    0x5346_414f, // AFS
    0x6b41_4653, // the kernel's AFS
    0x00c3_6400, // Ceph
    0x7375_7245, // Coda
    0x0102_1997, // 9P
    0x0bd0_0bd0, // Lustre
    0x564c,      // NCP
    0x786f_4256, // shared folders of VirtualBox
    0xaad7_aaea, // PanFS
    0x1983_0326, // BeeGFS
];

/// The longest that writing an object through a gateway may take: 8 MiB over 100 kb/s.
const LONGEST_WRITE: Duration = Duration::from_secs(900);

/// Opens the backend at a place: a directory, a URL, or a gateway, to which the certificate in
/// `certificates` is shown unless its URL names another directory. Nothing is asked over the network yet.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a place that is none, and those of a gateway's certificates.
pub fn open(place: &str, certificates: &Path, options: &OpenOptions) -> Result<Opened> {
    match GatewayUrl::is_meant(place) {
        true => through_gateway(place, certificates, options),
        false => objects::open(place, options),
    }
}

/// Opens the place of a new store: a directory is made if need be.
///
/// # Errors
/// As [`objects::create`]; those of the certificates.
pub fn create(place: &str, certificates: &Path, options: &OpenOptions) -> Result<Opened> {
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

fn is_network(number: u32) -> bool {
    NETWORK.contains(&number)
}

fn through_gateway(place: &str, certificates: &Path, options: &OpenOptions) -> Result<Opened> {
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
    fn file_systems_of_a_network_and_of_this_machine_are_told_apart() {
        assert!([0x6969, 0xff53_4d42, 0x6573_5546].into_iter().all(is_network));
        // ext4, XFS, btrfs, tmpfs, FAT, exFAT, ISO 9660.
        let own = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x4d44, 0x2011_bab0, 0x9660];
        assert!(!own.into_iter().any(is_network));
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_over_network(&dir.path().join("nothing")));
    }

    #[test]
    fn a_gateway_needs_a_certificate_which_its_url_may_name() {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions::default();
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
