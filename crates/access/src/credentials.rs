//! What a server shows to clients, and whose certificates it trusts.

use crate::{files, name};
use arc_swap::ArcSwap;
use block::{Error, ErrorKind, Result};
use nbd::Credentials;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The certificates of a directory, as a server uses them: TLS 1.3 alone, and a certificate asked
/// of every client.
///
/// | file | what |
/// |---|---|
/// | `server-cert.pem` | the server's certificate, and those between it and the authority's |
/// | `server-key.pem` | its key |
/// | `ca-cert.pem` | whose clients are trusted |
/// | `ca-crl.pem` | what these have revoked; need not be there |
pub struct ServerCredentials {
    dir: PathBuf,
    config: ArcSwap<ServerConfig>,
    /// There was a list of what was revoked, once.
    has_list: AtomicBool,
}

impl ServerCredentials {
    /// Reads the directory.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) naming the file that is missing,
    /// [`Invalid`](block::ErrorKind::Invalid) naming the one that is wrong,
    /// [`Denied`](block::ErrorKind::Denied) when everybody may read the key.
    pub fn load(dir: &Path) -> Result<Self> {
        let (config, has_list) = config(dir)?;
        Ok(Self { dir: dir.to_owned(), config: ArcSwap::new(config), has_list: has_list.into() })
    }

    /// Reads the directory again: certificates that were renewed, and what was revoked. Holds for
    /// the next handshake; on an error everything stays as it is.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`NotFound`](block::ErrorKind::NotFound) also when the list of what
    /// was revoked is gone: without it everybody on it would be let in again.
    pub fn reload(&self) -> Result<()> {
        let (config, has_list) = config(&self.dir)?;
        if self.has_list.fetch_or(has_list, SeqCst) && !has_list {
            let list = self.dir.join(files::REVOKED);
            let list = list.display();
            return Err(Error::not_found(format!("{list} is gone; put it back, or restart")));
        }
        self.config.store(config);
        Ok(())
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Credentials for ServerCredentials {
    fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    fn name(&self, certificate: &CertificateDer<'_>) -> Result<String> {
        name::of_certificate(certificate)
    }
}

/// What the directory says, and whether it has a list of what was revoked.
fn config(dir: &Path) -> Result<(Arc<ServerConfig>, bool)> {
    let wrong = |file: &str, why: &dyn std::fmt::Display| {
        Error::invalid(format!("{}: {why}", dir.join(file).display()))
    };
    let mut roots = RootCertStore::empty();
    for authority in all::<CertificateDer<'static>>(dir, files::CA_CERTIFICATE)? {
        roots.add(authority).map_err(|e| wrong(files::CA_CERTIFICATE, &e))?;
    }
    let revoked = match all::<CertificateRevocationListDer<'static>>(dir, files::REVOKED) {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        revoked => revoked?,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let has_list = !revoked.is_empty();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .with_crls(revoked)
            .build()
            .map_err(|e| wrong(files::REVOKED, &e))?;
    let key_path = dir.join(files::SERVER_KEY);
    let key = PrivateKeyDer::from_pem_slice(&files::read_key(&key_path)?)
        .map_err(|e| wrong(files::SERVER_KEY, &e))?;
    let chain = all::<CertificateDer<'static>>(dir, files::SERVER_CERTIFICATE)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::internal(format!("TLS 1.3 is not there: {e}")))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| wrong(files::SERVER_CERTIFICATE, &e))?;
    // A session that is resumed was not checked against what was revoked, or has ended, since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), has_list))
}

/// All items of one kind in a file; there must be one at least.
fn all<T: PemObject>(dir: &Path, file: &str) -> Result<Vec<T>> {
    let path = dir.join(file);
    let bytes = files::read(&path)?;
    let items: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    match items {
        Ok(items) if !items.is_empty() => Ok(items),
        Ok(_) => Err(Error::invalid(format!("{} holds nothing of use", path.display()))),
        Err(e) => Err(Error::invalid(format!("{}: {e}", path.display()))),
    }
}
