//! TLS below HTTP.

use access::ServerCredentials;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Handshakes under way at a time; clients beyond them wait to be accepted.
const HANDSHAKES: usize = 64;
/// How long one may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long accepting rests after it failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener whose clients have ended their handshake when they come out of it.
pub(crate) struct Encrypted {
    socket: TcpListener,
    credentials: Arc<ServerCredentials>,
    /// A client must show a certificate of the authority.
    certified: bool,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Encrypted {
    /// `socket`, encrypted; a client may, or if `certified` must, show a certificate.
    pub(crate) fn new(
        socket: TcpListener,
        credentials: Arc<ServerCredentials>,
        certified: bool,
    ) -> Self {
        Self { socket, credentials, certified, handshakes: JoinSet::new() }
    }

    fn begin(&mut self, stream: TcpStream, from: SocketAddr) {
        let acceptor = TlsAcceptor::from(self.credentials.https(self.certified));
        self.handshakes.spawn(async move {
            match tokio::time::timeout(DEADLINE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => return Some((stream, from)),
                Ok(Err(error)) => tracing::debug!(%from, %error, "an HTTP client cannot encrypt"),
                Err(_) => tracing::debug!(%from, "the TLS handshake did not end in time"),
            }
            None
        });
    }
}

impl axum::serve::Listener for Encrypted {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(ended) = self.handshakes.join_next() => {
                    if let Ok(Some(client)) = ended {
                        return client;
                    }
                }
                accepted = self.socket.accept(), if self.handshakes.len() < HANDSHAKES => {
                    match accepted {
                        Ok((stream, from)) => self.begin(stream, from),
                        Err(error) => {
                            tracing::warn!(%error, "accepting an HTTP client failed");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.socket.local_addr()
    }
}
