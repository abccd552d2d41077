//! What a client shows to servers, and whose servers it trusts.

use crate::credentials::{all, revoked};
use crate::{cryptography, files};
use block::{Error, Result};
use nbd::ClientTls;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Reads the certificates of a client from a directory; TLS 1.3 alone.
///
/// | file | what |
/// |---|---|
/// | `ca-cert.pem` | whose servers are trusted |
/// | `ca-crl.pem` | what these have revoked; need not be there |
/// | `client-cert.pem` | the client's certificate, and those between it and the authority's; need not be there, for servers that ask for none |
/// | `client-key.pem` | its key |
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) naming the file that is missing,
/// [`Invalid`](block::ErrorKind::Invalid) naming the one that is wrong,
/// [`Denied`](block::ErrorKind::Denied) when others may read the key.
pub fn client_tls(dir: &Path) -> Result<ClientTls> {
    client_config(dir).map(|config| ClientTls::new(Arc::new(config)))
}

/// The same, for another protocol than NBD.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) naming the file that is missing,
/// [`Invalid`](block::ErrorKind::Invalid) naming the one that is wrong,
/// [`Denied`](block::ErrorKind::Denied) when others may read the key.
pub fn client_config(dir: &Path) -> Result<ClientConfig> {
    let wrong = |file: &str, why: &dyn std::fmt::Display| {
        Error::invalid(format!("{}: {why}", dir.join(file).display()))
    };
    let mut roots = RootCertStore::empty();
    for authority in all::<CertificateDer<'static>>(dir, files::CA_CERTIFICATE)? {
        roots.add(authority).map_err(|e| wrong(files::CA_CERTIFICATE, &e))?;
    }
    let provider = Arc::new(cryptography::provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .with_crls(revoked(dir)?)
            .build()
            .map_err(|e| wrong(files::REVOKED, &e))?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::internal(format!("TLS 1.3 is not there: {e}")))?
        .with_webpki_verifier(verifier);
    let mut config = if dir.join(files::CLIENT_CERTIFICATE).exists() {
        let chain = all::<CertificateDer<'static>>(dir, files::CLIENT_CERTIFICATE)?;
        let key = PrivateKeyDer::from_pem_slice(&files::read_key(&dir.join(files::CLIENT_KEY))?)
            .map_err(|e| wrong(files::CLIENT_KEY, &e))?;
        config
            .with_client_auth_cert(chain, key)
            .map_err(|e| wrong(files::CLIENT_CERTIFICATE, &e))?
    } else {
        config.with_no_client_auth()
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}
