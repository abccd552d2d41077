//! What peers show each other, and whom they trust: both have certificates of clients of one authority.

use crate::credentials::{all, revoked};
use crate::{cryptography, files};
use block::{Error, Result};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// What a peer shows and trusts, in both directions; TLS 1.3 alone.
#[derive(Debug, Clone)]
pub struct PeerCredentials {
    /// For those that come.
    pub server: Arc<ServerConfig>,
    /// For those that are asked.
    pub client: Arc<ClientConfig>,
    /// The certificates and lists that they were made of, each as it is in its file.
    files: Vec<Vec<u8>>,
    /// Whether there is a list of what was revoked.
    has_list: bool,
}

impl PeerCredentials {
    /// Reads the certificates of a client from a directory.
    ///
    /// | file | what |
    /// |---|---|
    /// | `ca-cert.pem` | whose clients are trusted |
    /// | `ca-crl.pem` | what these have revoked; need not be there |
    /// | `client-cert.pem` | the client's certificate, and those between it and the authority's |
    /// | `client-key.pem` | its key |
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) naming the file that is missing,
    /// [`Invalid`](block::ErrorKind::Invalid) naming the one that is wrong,
    /// [`Denied`](block::ErrorKind::Denied) when others may read the key.
    pub fn load(dir: &Path) -> Result<Self> {
        let wrong = |file: &str, why: &dyn std::fmt::Display| {
            Error::invalid(format!("{}: {why}", dir.join(file).display()))
        };
        let no_tls = |e: rustls::Error| Error::internal(format!("TLS 1.3 is not there: {e}"));
        let (mut roots, mut files) = (RootCertStore::empty(), Vec::new());
        for authority in all::<CertificateDer<'static>>(dir, files::CA_CERTIFICATE)? {
            files.push(authority.to_vec());
            roots.add(authority).map_err(|e| wrong(files::CA_CERTIFICATE, &e))?;
        }
        let provider = Arc::new(cryptography::provider());
        let lists = revoked(dir)?;
        let has_list = !lists.is_empty();
        files.extend(lists.iter().map(|list| list.to_vec()));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .with_crls(lists)
                .build()
                .map_err(|e| wrong(files::REVOKED, &e))?;
        let chain = all::<CertificateDer<'static>>(dir, files::CLIENT_CERTIFICATE)?;
        files.extend(chain.iter().map(|certificate| certificate.to_vec()));
        let key = PrivateKeyDer::from_pem_slice(&files::read_key(&dir.join(files::CLIENT_KEY))?)
            .map_err(|e| wrong(files::CLIENT_KEY, &e))?;
        let unfit = |e: rustls::Error| wrong(files::CLIENT_CERTIFICATE, &e);
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        server.ignore_client_order = true;
        // A session that is resumed was not checked against what was revoked, or has ended, since.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyClient(verifier)))
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        client.resumption = Resumption::disabled();
        Ok(Self { server: Arc::new(server), client: Arc::new(client), files, has_list })
    }

    /// Reads the directory again; `None` when it is as it was.
    ///
    /// # Errors
    /// Any error from [`load`](Self::load); [`NotFound`](block::ErrorKind::NotFound) also when the list of what
    /// was revoked is gone: without it everybody on it would be a peer again.
    pub fn reload(&self, dir: &Path) -> Result<Option<Self>> {
        let read = Self::load(dir)?;
        if self.has_list && !read.has_list {
            let list = dir.join(files::REVOKED);
            let list = list.display();
            return Err(Error::not_found(format!("{list} is gone; put it back, or restart")));
        }
        Ok((read.files != self.files).then_some(read))
    }
}

/// Has whoever is asked show the certificate of a client of the authority, as whoever asks has to. Which client, and at
/// which address, is the same to a peer: nothing that it gives is believed.
#[derive(Debug)]
struct AnyClient(Arc<dyn ClientCertVerifier>);

impl ServerCertVerifier for AnyClient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now);
        verified.map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;
    use rustls::{ClientConnection, ServerConnection};
    use std::time::{SystemTime, UNIX_EPOCH};

    /// Whether two peers with these certificates agree.
    fn agree(asked: &PeerCredentials, asker: &PeerCredentials) -> bool {
        let name = ServerName::try_from("192.0.2.1").unwrap();
        let mut server = ServerConnection::new(Arc::clone(&asked.server)).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&asker.client), name).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut &wire[..]).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut &wire[..]).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[allow(clippy::disallowed_methods, reason = "TLS itself looks at the clock")]
    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn clients_of_one_authority_trust_each_other_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let now = now();
        let lab = |name: &str| {
            let tls = dir.path().join(name);
            Authority::create(&tls, name, 30, now).unwrap();
            let authority = Authority::open(&tls, now).unwrap();
            authority.server(&["localhost".to_owned()], 10).unwrap();
            authority.client("alice", 10).unwrap();
            authority.client("bob", 10).unwrap();
            authority.revoke("bob").map(|_| tls.join("clients")).unwrap()
        };
        let load = |dir: &Path| PeerCredentials::load(dir).unwrap();
        let (here, elsewhere) = (lab("here"), lab("elsewhere"));
        let (alice, stranger) = (load(&here.join("alice")), load(&elsewhere.join("alice")));
        assert!(agree(&alice, &alice));
        assert!(!agree(&alice, &stranger) && !agree(&stranger, &alice));
        // A server's certificate is none of a client.
        let server = dir.path().join("server");
        std::fs::create_dir(&server).unwrap();
        for (from, to) in [
            ("ca-cert.pem", "ca-cert.pem"),
            ("server-cert.pem", "client-cert.pem"),
            ("server-key.pem", "client-key.pem"),
        ] {
            std::fs::copy(dir.path().join("here").join(from), server.join(to)).unwrap();
        }
        let server = load(&server);
        assert!(!agree(&server, &alice) && !agree(&alice, &server));
    }

    #[test]
    fn who_was_revoked_is_no_peer_where_that_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let now = now();
        let tls = dir.path().join("tls");
        Authority::create(&tls, "lab", 30, now).unwrap();
        let authority = Authority::open(&tls, now).unwrap();
        for name in ["alice", "bob"] {
            authority.client(name, 10).unwrap();
        }
        let (alice_dir, kept) = (tls.join("clients/alice"), dir.path().join("bob"));
        std::fs::rename(tls.join("clients/bob"), &kept).unwrap();
        let (alice, bob) =
            (PeerCredentials::load(&alice_dir).unwrap(), PeerCredentials::load(&kept).unwrap());
        assert!(agree(&alice, &bob) && agree(&bob, &alice));
        authority.revoke("bob").unwrap();
        std::fs::copy(tls.join("ca-crl.pem"), alice_dir.join("ca-crl.pem")).unwrap();
        let alice = alice.reload(&alice_dir).unwrap().expect("there is a list now");
        assert!(!agree(&alice, &bob) && !agree(&bob, &alice));
        assert!(alice.reload(&alice_dir).unwrap().is_none(), "nothing has changed");
        // A list that is gone lets nobody in again.
        std::fs::remove_file(alice_dir.join("ca-crl.pem")).unwrap();
        let error = alice.reload(&alice_dir).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::NotFound, "{error}");
    }
}
