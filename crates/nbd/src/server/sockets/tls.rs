//! Encryption of a listener's connections: `STARTTLS`, with a certificate asked of every client.

use crate::buffered::Buffered;
use crate::server::exports::Peer;
use block::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What a server shows to clients, and how it knows them. Implemented by the daemon, which reads
/// keys and certificates.
pub trait Credentials: Send + Sync {
    /// What the next handshake is made with. It must ask for a certificate of the client and must
    /// not resume sessions: a resumed one was not checked against what was revoked since.
    fn config(&self) -> Arc<ServerConfig>;

    /// The client's name in a certificate that the handshake has verified.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when it has no usable name.
    fn name(&self, certificate: &CertificateDer<'_>) -> Result<String>;
}

/// What a listener asks of its clients.
#[derive(Clone)]
pub struct Tls {
    /// Whether a client must encrypt, before anything else. If not, it may.
    pub required: bool,
    /// The server's identity and that of its clients.
    pub credentials: Arc<dyn Credentials>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("required", &self.required).finish_non_exhaustive()
    }
}

impl Tls {
    /// Encrypts a connection whose client was told to begin. Gives it with the client's name.
    pub(in crate::server) async fn accept<S>(
        &self,
        stream: S,
        peer: &Peer,
    ) -> Result<(TlsStream<Buffered<S>>, Peer)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.credentials.config());
        let stream = acceptor
            .accept(Buffered::new(stream))
            .await
            .map_err(|e| Error::denied(format!("the TLS handshake failed: {e}")).with_source(e))?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let Some(certificate) = shown else {
            return Err(Error::denied("the client showed no certificate; give it one"));
        };
        let name = self.credentials.name(certificate)?;
        Ok((stream, peer.clone().certified(name)))
    }
}
