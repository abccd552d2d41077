//! The certificate authority: a directory that holds its key, and the certificates made with it.
//!
//! | file | what |
//! |---|---|
//! | `ca-cert.pem`, `ca-key.pem` | the authority |
//! | `ca-crl.pem` | what was revoked |
//! | `server-cert.pem`, `server-key.pem` | the server's certificate |
//! | `clients/NAME/` | what client NAME needs: `ca-cert.pem`, `client-cert.pem`, `client-key.pem` |
//! | `issued/NAME.SERIAL.pem` | every client's certificate, to be able to revoke it |
//!
//! Keys are ECDSA on P-256, as every TLS library of an NBD client knows them.

use crate::files::{self, Readers};
use crate::name;
use block::lock::{LockFile, Taking};
use block::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::path::{Path, PathBuf};
use std::time::Duration;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// The longest life of a certificate, in days.
pub const LONGEST_LIFE: u32 = 36_500;
/// The most names of a server.
pub const MOST_NAMES: usize = 100;

const DAY: u64 = 86_400;
/// Certificates begin to hold so much before they are made, in seconds: clocks differ.
const HEAD_START: u64 = 3600;
/// When the next list of what was revoked is due, in days. Nobody checks it; a list holds until the
/// next one.
const LIST_LIFE: u64 = 3650;
/// The last moment that a certificate can name (RFC 5280, 4.1.2.5): the end of the year 9999.
const LAST: u64 = 253_402_300_799;

/// A certificate that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The directory that it is in.
    pub dir: PathBuf,
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// When it ends, in seconds since 1970.
    pub until: u64,
}

/// An authority that can sign. Others wait, or are refused, while one is open.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pem: String,
    now: u64,
    _lock: LockFile,
}

impl Authority {
    /// Makes one in `dir`, called `name`, good for `days`. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is one; any error from the files.
    pub fn create(dir: &Path, name: &str, days: u32, now: u64) -> Result<Issued> {
        files::make(dir)?;
        let _lock = lock(dir)?;
        let path = dir.join(files::CA_CERTIFICATE);
        if path.exists() {
            let path = path.display();
            let why = format!("{path} exists: use that authority, or give another --dir");
            return Err(Error::conflict(why));
        }
        if let Some(why) = key_alone(dir) {
            return Err(Error::conflict(why));
        }
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(name, Vec::new(), days, now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?;
        let empty = list_of_revoked(Vec::new(), 1, now, &Issuer::from_params(&params, &key))?;
        let made = issued(dir, certificate.der(), days, now)?;
        let write = |file, text: &str, readers| files::write(&dir.join(file), text, readers);
        // The certificate is the last: with it the authority exists.
        let written = write(files::CA_KEY, &key.serialize_pem(), Readers::Owner)
            .and_then(|()| write(files::REVOKED, &empty, Readers::Everybody))
            .and_then(|()| write(files::CA_CERTIFICATE, &certificate.pem(), Readers::Everybody));
        if written.is_err() {
            // Neither was there before, and nothing was made with that key.
            for file in [files::CA_CERTIFICATE, files::CA_KEY] {
                let _ = std::fs::remove_file(dir.join(file)); // if it was written at all
            }
        }
        written.map(|()| made)
    }

    /// Opens the one in `dir`.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is none,
    /// [`Denied`](block::ErrorKind::Denied) when everybody may read its key,
    /// [`Conflict`](block::ErrorKind::Conflict) while another command uses it.
    pub fn open(dir: &Path, now: u64) -> Result<Self> {
        let path = dir.join(files::CA_CERTIFICATE);
        if !path.exists() {
            if let Some(why) = key_alone(dir) {
                return Err(Error::not_found(why));
            }
            let dir = dir.display();
            let why = format!("{dir} has no certificate authority; make one with sojourn cert ca");
            return Err(Error::not_found(why));
        }
        let _lock = lock(dir)?;
        let pem = text(&path, files::read(&path)?)?;
        let key_path = dir.join(files::CA_KEY);
        let key = text(&key_path, files::read_key(&key_path)?)?;
        let bad = |path: &Path, e: rcgen::Error| {
            Error::invalid(format!("{}: {e}; restore it from a copy", path.display()))
        };
        let key = KeyPair::from_pem(&key).map_err(|e| bad(&key_path, e))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|e| bad(&path, e))?;
        Ok(Self { dir: dir.to_owned(), issuer, pem, now, _lock })
    }

    /// Makes the server's certificate, good for these host names and IP addresses; replaces the one
    /// that is there. What may fail is done before either of its files changes; a server that reads
    /// one of them before and one after says that they do not belong together, and keeps what it has.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a name that is none; any error from the files.
    pub fn server(&self, names: &[String], days: u32) -> Result<Issued> {
        let Some(first) = names.first().filter(|_| names.len() <= MOST_NAMES) else {
            let why = format!("give 1 to {MOST_NAMES} host names or addresses of the server");
            return Err(Error::invalid(why));
        };
        for host in names {
            check_host(host)?;
        }
        let common: String = first.chars().take(name::LONGEST).collect();
        let mut params = params(&common, names.to_vec(), days, self.now)?;
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        let (certificate, key) = self.sign(&mut params)?;
        let (key, certificate_pem) = (key.serialize_pem(), certificate.pem());
        files::write_pair(
            (&self.dir.join(files::SERVER_KEY), &key, Readers::Owner),
            (&self.dir.join(files::SERVER_CERTIFICATE), &certificate_pem, Readers::Everybody),
        )?;
        issued(&self.dir, certificate.der(), days, self.now)
    }

    /// Makes a certificate for the client `name` and puts all that the client needs into
    /// `clients/NAME`.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a name that is none,
    /// [`Conflict`](block::ErrorKind::Conflict) when `clients/NAME` is there; any error from the files.
    pub fn client(&self, name: &str, days: u32) -> Result<Issued> {
        name::check(name)?;
        let dir = self.dir.join("clients").join(name);
        if dir.exists() {
            let shown = dir.display();
            return Err(Error::conflict(format!(
                "{shown} exists: move it to the client first, or revoke {name}"
            )));
        }
        let mut params = params(name, Vec::new(), days, self.now)?;
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ClientAuth);
        let (certificate, key) = self.sign(&mut params)?;
        let made = issued(&dir, certificate.der(), days, self.now)?;
        // First the copy that revokes it: there must be none that cannot be revoked.
        let record = self.dir.join("issued");
        files::make(&record)?;
        let record = record.join(format!("{name}.{}.pem", made.serial));
        files::write(&record, &certificate.pem(), Readers::Owner)?;
        files::make(&dir)?;
        files::write(&dir.join(files::CLIENT_KEY), &key.serialize_pem(), Readers::Owner)?;
        files::write(&dir.join(files::CA_CERTIFICATE), &self.pem, Readers::Everybody)?;
        let path = dir.join(files::CLIENT_CERTIFICATE);
        files::write(&path, &certificate.pem(), Readers::Everybody)?;
        Ok(made)
    }

    /// Revokes all certificates of the client `name`, and removes `clients/NAME`. Gives their
    /// serial numbers.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it has none that is not revoked; any error from the
    /// files.
    pub fn revoke(&self, name: &str) -> Result<Vec<String>> {
        name::check(name)?;
        let (mut revoked, number) = self.revoked()?;
        let mut serials = Vec::new();
        for path in self.issued_to(name)? {
            let bad = |why: String| Error::invalid(format!("{}: {why}", path.display()));
            let pem = files::read(&path)?;
            let der = CertificateDer::from_pem_slice(&pem).map_err(|e| bad(e.to_string()))?;
            let (_, certificate) =
                X509Certificate::from_der(&der).map_err(|e| bad(e.to_string()))?;
            let serial = certificate.raw_serial();
            if revoked.iter().any(|other| same(other.serial_number.as_ref(), serial)) {
                continue;
            }
            serials.push(hex(serial));
            revoked.push(RevokedCertParams {
                serial_number: SerialNumber::from_slice(serial),
                revocation_time: moment(self.now),
                reason_code: None,
                invalidity_date: None,
            });
        }
        if serials.is_empty() {
            return Err(Error::not_found(format!(
                "client {name} has no certificate of this authority that is not revoked; see {}",
                self.dir.join("issued").display()
            )));
        }
        let list = list_of_revoked(revoked, number.saturating_add(1), self.now, &self.issuer)?;
        files::write(&self.dir.join(files::REVOKED), &list, Readers::Everybody)?;
        let dir = self.dir.join("clients").join(name);
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(dir.display(), e).context("revoked; but what it needed is left"))
            }
            _ => Ok(serials),
        }
    }

    /// Signs what `params` say, for a new key.
    fn sign(&self, params: &mut CertificateParams) -> Result<(rcgen::Certificate, KeyPair)> {
        // Older releases of GnuTLS and QEMU want both, whatever the kind of key.
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((certificate, key))
    }

    /// The certificates that were made for a client.
    fn issued_to(&self, name: &str) -> Result<Vec<PathBuf>> {
        let dir = self.dir.join("issued");
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| Error::io(dir.display(), e))?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| Error::io(dir.display(), e))?.path();
            let stem = path.file_name().and_then(|file| file.to_str()?.strip_suffix(".pem"));
            if stem.and_then(|stem| stem.rsplit_once('.')).is_some_and(|(owner, _)| owner == name) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// What was revoked so far, and the number of that list.
    fn revoked(&self) -> Result<(Vec<RevokedCertParams>, u64)> {
        let path = self.dir.join(files::REVOKED);
        let pem = match files::read(&path) {
            Err(e) if e.kind() == block::ErrorKind::NotFound => {
                // A new list would let everybody in again who was on the old one.
                let path = path.display();
                return Err(Error::not_found(format!(
                    "{path} is gone, and with it what was revoked before; restore it from a copy \
                     or from a server, or make a new authority"
                )));
            }
            pem => pem?,
        };
        let bad = |why: String| {
            Error::invalid(format!("{}: {why}; restore it from a copy", path.display()))
        };
        let der = CertificateRevocationListDer::from_pem_slice(&pem);
        let der = der.map_err(|e| bad(e.to_string()))?;
        let (_, list) =
            CertificateRevocationList::from_der(&der).map_err(|e| bad(e.to_string()))?;
        let entries = list.iter_revoked_certificates().map(|entry| {
            let seconds = u64::try_from(entry.revocation_date.timestamp()).unwrap_or(0);
            RevokedCertParams {
                serial_number: SerialNumber::from_slice(entry.raw_serial()),
                revocation_time: moment(seconds),
                reason_code: None,
                invalidity_date: None,
            }
        });
        let entries = entries.collect();
        let number = list.crl_number().map_or(0, |number| {
            let last = number.to_bytes_be().into_iter().rev().take(8).enumerate();
            last.fold(0, |sum, (place, byte)| sum | u64::from(byte) << (8 * place))
        });
        Ok((entries, number))
    }
}

/// What to do about an authority's key that is there without its certificate, if it is: a command that made both was
/// killed in between, or the certificate was lost.
fn key_alone(dir: &Path) -> Option<String> {
    let (key, certificate) = (dir.join(files::CA_KEY), dir.join(files::CA_CERTIFICATE));
    let (key, certificate) = (key.exists().then(|| key.display())?, certificate.display());
    Some(format!(
        "{key} is there, and {certificate} is not: restore that from a copy; if no certificate was ever made with the \
         key, delete {key}, and make the authority with sojourn cert ca"
    ))
}

fn lock(dir: &Path) -> Result<LockFile> {
    match LockFile::take(dir.join("lock"))? {
        Taking::Ours(lock) => Ok(lock),
        Taking::Held(by) => {
            let dir = dir.display();
            Err(Error::conflict(format!("{dir} is in use by {by}; try again")))
        }
        Taking::Replaced => {
            Err(Error::conflict(format!("the lock of {} was replaced; try again", dir.display())))
        }
    }
}

/// What all certificates have in common.
fn params(common: &str, names: Vec<String>, days: u32, now: u64) -> Result<CertificateParams> {
    if days == 0 || days > LONGEST_LIFE {
        return Err(Error::invalid(format!("a certificate holds for 1 to {LONGEST_LIFE} days")));
    }
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.not_before = moment(now.saturating_sub(HEAD_START));
    params.not_after = moment(end(days, now));
    Ok(params)
}

fn end(days: u32, now: u64) -> u64 {
    now.saturating_add(u64::from(days) * DAY).min(LAST)
}

fn moment(seconds: u64) -> time::OffsetDateTime {
    date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.min(LAST))
}

fn issued(dir: &Path, der: &[u8], days: u32, now: u64) -> Result<Issued> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|e| Error::internal(format!("a new certificate cannot be read: {e}")))?;
    let serial = hex(certificate.raw_serial());
    Ok(Issued { dir: dir.to_owned(), serial, until: end(days, now) })
}

fn list_of_revoked(
    revoked_certs: Vec<RevokedCertParams>,
    number: u64,
    now: u64,
    issuer: &Issuer<'_, impl rcgen::SigningKey>,
) -> Result<String> {
    let list = CertificateRevocationListParams {
        this_update: moment(now),
        next_update: moment(now + LIST_LIFE * DAY),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(issuer).and_then(|list| list.pem()).map_err(failed)
}

/// A host name (RFC 1123) or an IP address.
fn check_host(host: &str) -> Result<()> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    if is_address || (host.len() <= 253 && host.split('.').all(label)) {
        return Ok(());
    }
    let shown: String = host.chars().take(80).collect();
    Err(Error::invalid(format!("{shown:?} is neither a host name nor an IP address")))
}

/// Whether two serial numbers are the same: they may begin with zeroes.
fn same(one: &[u8], other: &[u8]) -> bool {
    let zeroes = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == 0).count();
    one[zeroes(one)..] == other[zeroes(other)..]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{} is no text", path.display())))
}

fn failed(e: rcgen::Error) -> Error {
    Error::internal(format!("cannot make the certificate: {e}")).with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    const NOW: u64 = 1_795_000_000;

    #[test]
    fn a_key_without_its_certificate_is_not_lost_and_there_is_a_way_on() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, key) = (dir.path(), dir.path().join(files::CA_KEY));
        Authority::create(dir, "lab", 30, NOW).unwrap();
        let before = std::fs::read(&key).unwrap();
        std::fs::remove_file(dir.join(files::CA_CERTIFICATE)).unwrap();
        std::fs::remove_file(dir.join(files::REVOKED)).unwrap();
        let created = Authority::create(dir, "lab", 30, NOW).unwrap_err();
        let opened = Authority::open(dir, NOW).err().unwrap();
        assert_eq!((created.kind(), opened.kind()), (ErrorKind::Conflict, ErrorKind::NotFound));
        for error in [created, opened] {
            let delete = format!("delete {}", key.display());
            assert!(error.message().contains(&delete), "{error}");
            assert!(error.message().contains("restore"), "{error}");
        }
        assert_eq!(std::fs::read(&key).unwrap(), before);
        std::fs::remove_file(&key).unwrap();
        Authority::create(dir, "lab", 30, NOW).unwrap();
        Authority::open(dir, NOW).unwrap().client("alice", 10).unwrap();
    }

    #[test]
    fn an_authority_that_cannot_be_written_leaves_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, key) = (dir.path(), dir.path().join(files::CA_KEY));
        // A directory is in the way of its certificate.
        let in_the_way = dir.join(files::CA_CERTIFICATE).with_extension("new");
        std::fs::create_dir(&in_the_way).unwrap();
        Authority::create(dir, "lab", 30, NOW).unwrap_err();
        assert!(!key.exists());
        std::fs::remove_dir(&in_the_way).unwrap();
        Authority::create(dir, "lab", 30, NOW).unwrap();
    }
}
