//! TLS below HTTP.

use super::HttpClients;
use super::guests::{Guest, Guests};
use crate::origin::Origin;
use access::ServerCredentials;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take. How many there are is bounded by the places of clients.
const DEADLINE: Duration = Duration::from_secs(10);

/// A listener whose clients have ended their handshake when they come out of it.
pub(crate) struct Encrypted {
    clients: Guests,
    credentials: Arc<ServerCredentials>,
    /// A client must show a certificate of the authority.
    certified: bool,
    handshakes: JoinSet<Option<(TlsStream<Guest>, SocketAddr)>>,
}

impl Encrypted {
    /// `clients`, encrypted; a client may, or if `certified` must, show a certificate.
    pub(crate) fn new(
        clients: Guests,
        credentials: Arc<ServerCredentials>,
        certified: bool,
    ) -> Self {
        Self { clients, credentials, certified, handshakes: JoinSet::new() }
    }

    fn begin(&mut self, stream: Guest, from: SocketAddr) {
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

impl HttpClients for Encrypted {
    type Stream = TlsStream<Guest>;

    async fn next(&mut self) -> (TlsStream<Guest>, Origin) {
        let (stream, from) = loop {
            tokio::select! {
                Some(ended) = self.handshakes.join_next() => {
                    if let Ok(Some(client)) = ended {
                        break client;
                    }
                }
                (stream, from) = self.clients.accept() => self.begin(stream, from),
            }
        };
        let (guest, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
        let certificate = certificate.and_then(|der| access::name::of_certificate(der).ok());
        let origin = guest.origin(from).certified(certificate);
        (stream, origin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer;
    use super::super::guests::MOST;
    use super::*;
    use crate::signals::Switch;
    use access::Authority;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    #[tokio::test]
    async fn clients_that_are_silent_in_the_handshake_keep_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        Authority::create(dir.path(), "test", 10, 1_700_000_000).unwrap();
        let authority = Authority::open(dir.path(), 1_700_000_000).unwrap();
        authority.server(&["localhost".to_owned()], 36_500).unwrap();
        let credentials = Arc::new(ServerCredentials::load(dir.path()).unwrap());
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let encrypted = Encrypted::new(Guests::new(socket), credentials, false);
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(encrypted, router, Switch::new(), || false));

        let mut silent = Vec::new();
        for _ in 0..2 * MOST {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.path().join("ca-cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(access::cryptography::provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let asked = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let connector = TlsConnector::from(Arc::new(config));
            let mut stream = connector.connect(name, stream).await.unwrap();
            stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            assert!(answer.ends_with("ok\n"), "{answer}");
        };
        tokio::time::timeout(DEADLINE / 2, asked)
            .await
            .expect("those who are silent are waited for");
    }
}
