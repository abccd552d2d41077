//! The cryptography of TLS: key exchange and signatures by aws-lc, and the cipher suites of whichever
//! of two libraries encrypts faster on this processor.

use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

/// What NBD and HTTP connections are made with, on both sides.
///
/// AES-128-GCM comes first: nobody breaks it either, it takes less of the CPU than AES-256-GCM, and
/// most of what TLS costs a server of disks is the cipher. Peers that do not offer it get what they
/// offer.
pub fn provider() -> CryptoProvider {
    with_suites(if is_between() { Suites::Ring } else { Suites::AwsLc })
}

/// Whose cipher suites.
#[derive(Debug, Clone, Copy)]
enum Suites {
    AwsLc,
    Ring,
}

/// Whether the processor has 256-bit vectors of AES, but not AVX-512 (AMD's Zen 3, Intel's Alder Lake).
/// aws-lc has AES-GCM for AVX-512 and for plain AES instructions; between them ring's is twice as fast.
fn is_between() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && !is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn with_suites(suites: Suites) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if let Suites::Ring = suites {
        provider.cipher_suites = ring::default_provider().cipher_suites;
    }
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
    use std::io::{Read, Write};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{SystemTime, UNIX_EPOCH};

    fn server(dir: &Path, provider: CryptoProvider) -> ServerConnection {
        let chain = vec![CertificateDer::from_pem_file(dir.join("server-cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(dir.join("server-key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        ServerConnection::new(Arc::new(config)).unwrap()
    }

    fn client(dir: &Path, provider: CryptoProvider) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("ca-cert.pem")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
    }

    /// Sends both ways what there is to send.
    fn exchange(server: &mut ServerConnection, client: &mut ClientConnection) {
        while client.wants_write() || server.wants_write() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            let mut rest = &sent[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            let mut rest = &sent[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "TLS itself looks at the clock")]
    fn the_suites_of_either_library_work_with_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Authority::create(dir.path(), "test", 10, now).unwrap();
        Authority::open(dir.path(), now).unwrap().server(&["localhost".into()], 10).unwrap();
        for servers in [Suites::AwsLc, Suites::Ring] {
            for clients in [Suites::AwsLc, Suites::Ring] {
                let mut server = server(dir.path(), with_suites(servers));
                let mut client = client(dir.path(), with_suites(clients));
                exchange(&mut server, &mut client);
                assert!(!client.is_handshaking() && !server.is_handshaking());
                let suite = server.negotiated_cipher_suite().unwrap().suite();
                assert_eq!(suite, CipherSuite::TLS13_AES_128_GCM_SHA256);
                let (request, answer) = (vec![7; 10_000], vec![8; 30_000]);
                client.writer().write_all(&request).unwrap();
                server.writer().write_all(&answer).unwrap();
                exchange(&mut server, &mut client);
                let (mut asked, mut answered) = (vec![0; 10_000], vec![0; 30_000]);
                server.reader().read_exact(&mut asked).unwrap();
                client.reader().read_exact(&mut answered).unwrap();
                assert!(asked == request && answered == answer, "{servers:?}, {clients:?}");
            }
        }
    }
}
