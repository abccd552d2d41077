//! What a server shows to clients, and whose certificates it trusts.

use crate::{cryptography, files, name};
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
    configs: ArcSwap<Configs>,
    /// There was a list of what was revoked, once.
    has_list: AtomicBool,
}

/// What one reading of the directory gives.
struct Configs {
    /// Every client must show a certificate.
    certified: Arc<ServerConfig>,
    /// A client may show one.
    open: Arc<ServerConfig>,
}

impl ServerCredentials {
    /// Reads the directory.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) naming the file that is missing,
    /// [`Invalid`](block::ErrorKind::Invalid) naming the one that is wrong,
    /// [`Denied`](block::ErrorKind::Denied) when everybody may read the key.
    pub fn load(dir: &Path) -> Result<Self> {
        let (configs, has_list) = read(dir)?;
        let configs = ArcSwap::from_pointee(configs);
        Ok(Self { dir: dir.to_owned(), configs, has_list: has_list.into() })
    }

    /// Reads the directory again: certificates that were renewed, and what was revoked. Holds for
    /// the next handshake; on an error everything stays as it is.
    ///
    /// # Errors
    /// Any error from [`load`](Self::load); [`NotFound`](block::ErrorKind::NotFound) also when the list of what
    /// was revoked is gone: without it everybody on it would be let in again.
    pub fn reload(&self) -> Result<()> {
        let (configs, has_list) = read(&self.dir)?;
        if self.has_list.fetch_or(has_list, SeqCst) && !has_list {
            let list = self.dir.join(files::REVOKED);
            let list = list.display();
            return Err(Error::not_found(format!("{list} is gone; put it back, or restart")));
        }
        self.configs.store(Arc::new(configs));
        Ok(())
    }

    /// What the next handshake below HTTP is made with: a client may, or if `certified` must, show a
    /// certificate.
    pub fn https(&self, certified: bool) -> Arc<ServerConfig> {
        let configs = self.configs.load();
        Arc::clone(if certified { &configs.certified } else { &configs.open })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Credentials for ServerCredentials {
    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.configs.load().certified)
    }

    fn name(&self, certificate: &CertificateDer<'_>) -> Result<String> {
        name::of_certificate(certificate)
    }
}

/// What the directory says, and whether it has a list of what was revoked.
fn read(dir: &Path) -> Result<(Configs, bool)> {
    let wrong = |file: &str, why: &dyn std::fmt::Display| {
        Error::invalid(format!("{}: {why}", dir.join(file).display()))
    };
    let mut roots = RootCertStore::empty();
    for authority in all::<CertificateDer<'static>>(dir, files::CA_CERTIFICATE)? {
        roots.add(authority).map_err(|e| wrong(files::CA_CERTIFICATE, &e))?;
    }
    let revoked = revoked(dir)?;
    let provider = Arc::new(cryptography::provider());
    let has_list = !revoked.is_empty();
    let key_path = dir.join(files::SERVER_KEY);
    let key = PrivateKeyDer::from_pem_slice(&files::read_key(&key_path)?)
        .map_err(|e| wrong(files::SERVER_KEY, &e))?;
    let chain = all::<CertificateDer<'static>>(dir, files::SERVER_CERTIFICATE)?;
    let config = |certified: bool| {
        let (roots, provider) = (Arc::new(roots.clone()), Arc::clone(&provider));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .with_crls(revoked.clone());
        let verifier = if certified { verifier } else { verifier.allow_unauthenticated() };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| Error::internal(format!("TLS 1.3 is not there: {e}")))?
            .with_client_cert_verifier(verifier.build().map_err(|e| wrong(files::REVOKED, &e))?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|e| match e {
                rustls::Error::InconsistentKeys(_) => wrong(
                    files::SERVER_CERTIFICATE,
                    &format!(
                        "it is not the certificate of {}: a command that makes both was killed \
                         between them; make them again with sojourn cert server, or restore both",
                        files::SERVER_KEY
                    ),
                ),
                e => wrong(files::SERVER_CERTIFICATE, &e),
            })?;
        config.ignore_client_order = true;
        // A session that is resumed was not checked against what was revoked, or has ended, since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    };
    Ok((Configs { certified: config(true)?, open: config(false)? }, has_list))
}

/// The lists of what was revoked, if there are any.
pub(crate) fn revoked(dir: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    match all(dir, files::REVOKED) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        revoked => revoked,
    }
}

/// All items of one kind in a file; there must be one at least.
pub(crate) fn all<T: PemObject>(dir: &Path, file: &str) -> Result<Vec<T>> {
    let path = dir.join(file);
    let bytes = files::read(&path)?;
    let items: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    match items {
        Ok(items) if !items.is_empty() => Ok(items),
        Ok(_) => Err(Error::invalid(format!("{} holds nothing of use", path.display()))),
        Err(e) => Err(Error::invalid(format!("{}: {e}", path.display()))),
    }
}
