//! A server that encrypts, and clients that it knows or does not know.
//!
//! The certificates are made when the process begins, by the crate that makes a real server's.

use crate::scratch;
use access::{Authority, ServerCredentials};
use nbd::Credentials;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the client that the server knows.
pub const CLIENT: &str = "client";
const SERVER: &str = "localhost";
const DAYS: u32 = 10;

/// The two sides' certificates.
pub struct World {
    /// The server's.
    pub credentials: Arc<dyn Credentials>,
    known: Arc<ClientConfig>,
    foreign: Arc<ClientConfig>,
    nobody: Arc<ClientConfig>,
}

/// What a client shows to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// A certificate that the server trusts.
    Known,
    /// One of the same name by another authority.
    Foreign,
    /// None.
    Nothing,
}

impl World {
    /// The one of this process.
    pub fn shared() -> &'static Self {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(Self::create)
    }

    fn create() -> Self {
        let (ours, theirs) = (scratch().join("ours"), scratch().join("theirs"));
        for dir in [&ours, &theirs] {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
            Authority::create(dir, "fuzz", DAYS, now).expect("an authority");
            let authority = Authority::open(dir, now).expect("an authority");
            authority.server(&[SERVER.to_owned()], DAYS).expect("a server");
            authority.client(CLIENT, DAYS).expect("a client");
        }
        let client = |dir: &Path| dir.join("clients").join(CLIENT);
        Self {
            credentials: Arc::new(ServerCredentials::load(&ours).expect("credentials")),
            known: config(&ours, Some(&client(&ours))),
            foreign: config(&ours, Some(&client(&theirs))),
            nobody: config(&ours, None),
        }
    }

    /// A client at the beginning of its handshake.
    pub fn client(&self, shows: Shows) -> TlsClient {
        let config = match shows {
            Shows::Known => &self.known,
            Shows::Foreign => &self.foreign,
            Shows::Nothing => &self.nobody,
        };
        let name = ServerName::try_from(SERVER).expect("a name");
        let mut tls = ClientConnection::new(Arc::clone(config), name).expect("a client");
        tls.set_buffer_limit(None);
        TlsClient(tls)
    }
}

/// A client that trusts the server of `trusted`.
fn config(trusted: &Path, identity: Option<&Path>) -> Arc<ClientConfig> {
    let pem = |path: &Path| std::fs::read(path).expect("a file");
    let certificate =
        |path: &Path| CertificateDer::from_pem_slice(&pem(path)).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&trusted.join("ca-cert.pem"))).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => config.with_no_client_auth(),
        Some(dir) => {
            let chain = vec![certificate(&dir.join("client-cert.pem"))];
            let key = PrivateKeyDer::from_pem_slice(&pem(&dir.join("client-key.pem")));
            config.with_client_auth_cert(chain, key.expect("a key")).expect("a pair")
        }
    })
}

/// A client's side of TLS, apart from any stream.
pub struct TlsClient(ClientConnection);

impl TlsClient {
    /// The server is known, though not whether it takes the client.
    pub fn has_shaken_hands(&self) -> bool {
        !self.0.is_handshaking()
    }

    /// What is to be sent now.
    pub fn to_send(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut out).expect("a vector");
        }
        out
    }

    /// Bytes as they are to be sent; in front of them what was to be sent before.
    pub fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.writer().write_all(bytes).expect("no limit");
        self.to_send()
    }

    /// What says in good order that nothing more is sent.
    pub fn close(&mut self) -> Vec<u8> {
        self.0.send_close_notify();
        self.to_send()
    }

    /// Takes what came; forgets what is inside.
    ///
    /// # Errors
    /// When it is no TLS, or is one of the server's alerts.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        let mut inside = Vec::new();
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).expect("a slice");
            self.0.process_new_packets()?;
            inside.clear();
            // It ends with an error unless the server has closed.
            let _ = self.0.reader().read_to_end(&mut inside);
        }
        Ok(())
    }
}
