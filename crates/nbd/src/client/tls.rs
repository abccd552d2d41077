//! Encryption of a client's connection: `STARTTLS`, with the server's certificate checked.

use crate::buffered::Buffered;
use crate::{Address, Stream, Uri};
use block::{Error, Result};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription as Alert, ClientConfig};
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// The name that a server on a unix socket shows, unless the URI says another.
const LOCAL_NAME: &str = "localhost";

/// What a client encrypts with: whom it trusts, and what it shows to a server that asks who it is.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Trusts and shows what `config` says.
    pub fn new(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }

    /// Encrypts a connection to the server of `uri`, which agreed to that.
    pub(super) async fn connect(
        &self,
        stream: Box<dyn Stream>,
        uri: &Uri,
    ) -> Result<Box<dyn Stream>> {
        let said = uri.tls.as_ref().and_then(|tls| tls.hostname.as_deref());
        let name = match (said, &uri.address) {
            (Some(name), _) => name,
            (None, Address::Tcp(host, _)) => host,
            (None, Address::Unix(_)) => LOCAL_NAME,
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            Error::invalid(format!(
                "{name:?} cannot be in a certificate: say with ?tls-hostname=NAME which name the \
                 server's has"
            ))
        })?;
        let stream = Buffered::new(stream);
        match TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(e) => Err(refused(&e).unwrap_or_else(|| {
                Error::unavailable(format!("the connection was lost in the TLS handshake: {e}"))
                    .with_source(e)
            })),
        }
    }
}

/// The error when `error` says that one of the two does not accept the other's certificate.
pub(super) fn refused(error: &io::Error) -> Option<Error> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let whose = match tls {
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => "the server refuses this client's certificate",
        rustls::Error::AlertReceived(_) => "the server refuses the TLS handshake",
        rustls::Error::InvalidCertificate(_) => "the server's certificate is not to be trusted",
        _ => "the TLS handshake failed",
    };
    Some(Error::denied(format!("{whose}: {tls}")))
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClientTls {}
