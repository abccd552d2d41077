//! A server with certificates, under a client that speaks the raw protocol: what may be said before
//! and inside TLS, and who gets in.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use access::{Authority, ServerCredentials, client_tls};
use async_trait::async_trait;
use block::{Device, Durability, Error, ErrorKind, Memory, Result, Span};
use nbd::codec::Parsed;
use nbd::codec::constants::{info, option_reply as rep};
use nbd::codec::option::{
    ClientFlags, GREETING, InfoRequest, MetaRequest, OptionReplyHeader, OptionRequest, REPLY_HEADER,
};
use nbd::{
    Address, ClientOptions, Credentials, ExportSummary, Exports, Listener, Peer, Purpose, Remote,
    Server, ServerLimits, Session, SessionEnding, Tls, Uri, UriTls,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DAY: u64 = 86_400;

/// One export, `d`.
struct One;

struct Open(Arc<dyn Device>);

#[async_trait]
impl Exports for One {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(vec![ExportSummary { name: "d".into(), description: String::new() }])
    }
    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        match name {
            "d" => Ok(Box::new(Open(Arc::new(Memory::new(1 << 20))))),
            _ => Err(Error::not_found("no such export")),
        }
    }
}

#[async_trait]
impl Session for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "d"
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An authority with a server and the client alice.
fn authority() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Authority::create(dir.path(), "test", 10, now()).unwrap();
    let authority = Authority::open(dir.path(), now()).unwrap();
    authority.server(&["localhost".into(), "127.0.0.1".into()], 10).unwrap();
    authority.client("alice", 10).unwrap();
    dir
}

/// Serves on a unix socket in `dir` while `work` runs.
async fn with_server(
    dir: &Path,
    required: bool,
    work: impl AsyncFnOnce(&Path, &ServerCredentials),
) {
    with_limits(dir, required, ServerLimits::default(), work).await;
}

/// The same with limits of its own.
async fn with_limits(
    dir: &Path,
    required: bool,
    limits: ServerLimits,
    work: impl AsyncFnOnce(&Path, &ServerCredentials),
) {
    let credentials = Arc::new(ServerCredentials::load(dir).unwrap());
    let socket = dir.join("socket");
    let listener = Listener::bind(&Address::unix(&socket).unwrap(), 16).await.unwrap();
    let shown = Arc::clone(&credentials) as Arc<dyn Credentials>;
    let listener = listener.with_tls(Tls { required, credentials: shown });
    let server = Server::new(Arc::new(One), limits);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = server.serve(listener, async {
        let _ = stopped.await;
    });
    let working = async {
        work(&socket, &credentials).await;
        drop(stop);
    };
    tokio::join!(async { serving.await.unwrap() }, working);
}

/// Connects and sends the client's flags.
async fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.read_exact(&mut [0; GREETING]).await.unwrap();
    let mut out = Vec::new();
    ClientFlags { fixed_newstyle: true, no_zeroes: true }.put(&mut out);
    stream.write_all(&out).await.unwrap();
    stream
}

/// Sends an option; gives the kinds of the replies up to the last, or `None` when the server
/// closed.
async fn ask<S>(stream: &mut S, option: &OptionRequest<'_>) -> Option<Vec<u32>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = Vec::new();
    option.put(&mut out);
    stream.write_all(&out).await.ok()?;
    stream.flush().await.ok()?;
    let mut kinds = Vec::new();
    loop {
        let mut header = [0; REPLY_HEADER];
        stream.read_exact(&mut header).await.ok()?;
        let Parsed::Complete(header, _) = OptionReplyHeader::parse(&header).unwrap() else {
            panic!("a header has a fixed length");
        };
        stream.read_exact(&mut vec![0; header.len as usize]).await.ok()?;
        kinds.push(header.kind);
        if header.kind == rep::ACK || header.kind & rep::ERROR_BIT != 0 {
            return Some(kinds);
        }
    }
}

fn go() -> OptionRequest<'static> {
    OptionRequest::Go(InfoRequest { name: "d", wanted: vec![info::BLOCK_SIZE] })
}

/// The client's side, with the certificate of `identity` or none, that trusts `trusted`.
fn connector(trusted: &Path, identity: Option<&Path>) -> TlsConnector {
    connector_with(aws_lc_rs::default_provider(), trusted, identity)
}

/// The same with other cipher suites.
fn connector_with(
    provider: CryptoProvider,
    trusted: &Path,
    identity: Option<&Path>,
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = |path: &Path| std::fs::read(path).unwrap();
    let ca = CertificateDer::from_pem_slice(&pem(&trusted.join("ca-cert.pem"))).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(dir) => {
            let chain = CertificateDer::from_pem_slice(&pem(&dir.join("client-cert.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_slice(&pem(&dir.join("client-key.pem"))).unwrap();
            config.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn encrypt(mut stream: UnixStream, with: &TlsConnector) -> Option<TlsStream<UnixStream>> {
    assert_eq!(ask(&mut stream, &OptionRequest::StartTls).await.unwrap(), [rep::ACK]);
    with.connect(ServerName::try_from("localhost").unwrap(), stream).await.ok()
}

#[tokio::test]
async fn the_cheaper_cipher_of_any_library_is_taken_unless_the_client_does_not_offer_it() {
    let dir = authority();
    with_server(dir.path(), true, async |socket, _| {
        let alice = dir.path().join("clients/alice");
        for (leave_out, taken) in [
            (None, CipherSuite::TLS13_AES_128_GCM_SHA256),
            (Some(CipherSuite::TLS13_AES_128_GCM_SHA256), CipherSuite::TLS13_AES_256_GCM_SHA384),
        ] {
            for mut provider in [aws_lc_rs::default_provider(), ring::default_provider()] {
                provider.cipher_suites.retain(|suite| Some(suite.suite()) != leave_out);
                let with = connector_with(provider, dir.path(), Some(&alice));
                let mut stream = encrypt(connect(socket).await, &with).await.unwrap();
                let suite = stream.get_ref().1.negotiated_cipher_suite().unwrap().suite();
                assert_eq!(suite, taken);
                assert_eq!(ask(&mut stream, &go()).await.unwrap().last(), Some(&rep::ACK));
            }
        }
    })
    .await;
}

/// Whether a client gets to use the export.
async fn gets_in(socket: &Path, with: &TlsConnector) -> bool {
    let Some(mut stream) = encrypt(connect(socket).await, with).await else { return false };
    ask(&mut stream, &go()).await.is_some_and(|kinds| kinds.last() == Some(&rep::ACK))
}

#[tokio::test]
async fn where_tls_is_required_nothing_is_answered_before_it() {
    let dir = authority();
    with_server(dir.path(), true, async |socket, _| {
        let mut stream = connect(socket).await;
        for option in [
            OptionRequest::List,
            OptionRequest::StructuredReply,
            OptionRequest::ExtendedHeaders,
            go(),
            OptionRequest::Info(InfoRequest { name: "d", wanted: Vec::new() }),
            OptionRequest::SetMetaContext(MetaRequest { name: "d", queries: Vec::new() }),
            OptionRequest::Unknown(77),
        ] {
            assert_eq!(ask(&mut stream, &option).await.unwrap(), [rep::ERR_TLS_REQD]);
        }
        // Refusals leave the connection in step.
        let mut stream =
            encrypt(stream, &connector(dir.path(), Some(&dir.path().join("clients/alice"))))
                .await
                .unwrap();
        assert_eq!(*ask(&mut stream, &go()).await.unwrap().last().unwrap(), rep::ACK);

        let mut stream = connect(socket).await;
        assert_eq!(ask(&mut stream, &OptionRequest::ExportName("d")).await, None);
        let mut stream = connect(socket).await;
        assert_eq!(ask(&mut stream, &OptionRequest::Abort).await.unwrap(), [rep::ACK]);
    })
    .await;
}

#[tokio::test]
async fn connections_are_counted_by_certificate_as_soon_as_it_is_shown() {
    let dir = authority();
    Authority::open(dir.path(), now()).unwrap().client("bob", 10).unwrap();
    let known = |name: &str| connector(dir.path(), Some(&dir.path().join("clients").join(name)));
    let (alice, bob) = (known("alice"), known("bob"));
    let limits = ServerLimits { client_connections: 2, ..ServerLimits::default() };
    with_limits(dir.path(), true, limits, async |socket, _| {
        let enter = async |with: &TlsConnector| {
            let mut stream = encrypt(connect(socket).await, with).await?;
            let kinds = ask(&mut stream, &go()).await?;
            (kinds.last() == Some(&rep::ACK)).then_some(stream)
        };
        let one = enter(&alice).await.unwrap();
        let two = enter(&alice).await.unwrap();
        assert!(enter(&alice).await.is_none(), "a third of alice");
        let other = enter(&bob).await;
        assert!(other.is_some(), "bob comes from the same place, and is another client");
        drop((one, two, other));
    })
    .await;
}

#[tokio::test]
async fn what_was_agreed_before_tls_is_forgotten() {
    let dir = authority();
    let alice = connector(dir.path(), Some(&dir.path().join("clients/alice")));
    with_server(dir.path(), false, async |socket, _| {
        let contexts = || {
            OptionRequest::SetMetaContext(MetaRequest {
                name: "d",
                queries: vec!["base:allocation"],
            })
        };
        let mut stream = connect(socket).await;
        assert_eq!(ask(&mut stream, &OptionRequest::StructuredReply).await.unwrap(), [rep::ACK]);
        assert_eq!(ask(&mut stream, &contexts()).await.unwrap(), [rep::META_CONTEXT, rep::ACK]);
        let mut stream = encrypt(stream, &alice).await.unwrap();
        // Contexts need structured replies, which nobody has asked for in here.
        assert_eq!(ask(&mut stream, &contexts()).await.unwrap(), [rep::ERR_INVALID]);
        let again = ask(&mut stream, &OptionRequest::StartTls).await.unwrap();
        assert_eq!(again, [rep::ERR_INVALID]);
        assert_eq!(*ask(&mut stream, &go()).await.unwrap().last().unwrap(), rep::ACK);
    })
    .await;
}

#[tokio::test]
async fn plain_bytes_behind_starttls_end_the_connection() {
    let dir = authority();
    with_server(dir.path(), false, async |socket, _| {
        let mut stream = connect(socket).await;
        let mut out = Vec::new();
        OptionRequest::StartTls.put(&mut out);
        OptionRequest::List.put(&mut out);
        stream.write_all(&out).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_never_ends_the_handshake_is_dropped() {
    let dir = authority();
    // Its beginning has that time as well.
    let handshake_deadline = Duration::from_secs(5);
    let limits = ServerLimits { handshake_deadline, ..ServerLimits::default() };
    with_limits(dir.path(), true, limits, async |socket, _| {
        let mut stream = connect(socket).await;
        assert_eq!(ask(&mut stream, &OptionRequest::StartTls).await.unwrap(), [rep::ACK]);
        stream.write_all(&[22, 3, 1]).await.unwrap();
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
        assert!(closed.is_ok(), "the server keeps the connection");
    })
    .await;
}

#[tokio::test]
async fn only_certificates_that_hold_let_in() {
    let (dir, other) = (authority(), authority());
    let clients = dir.path().join("clients");
    let authority = Authority::open(dir.path(), now() - 20 * DAY).unwrap();
    authority.client("late", 10).unwrap();
    drop(authority);
    Authority::open(dir.path(), now()).unwrap().client("bob", 10).unwrap();
    with_server(dir.path(), true, async |socket, credentials| {
        let own = |name: &str| connector(dir.path(), Some(&clients.join(name)));
        let (alice, bob) = (own("alice"), own("bob"));
        assert!(gets_in(socket, &alice).await);
        assert!(gets_in(socket, &bob).await);
        assert!(!gets_in(socket, &own("late")).await, "it has ended");
        assert!(!gets_in(socket, &connector(dir.path(), None)).await, "no certificate");
        let foreign = other.path().join("clients/alice");
        assert!(
            !gets_in(socket, &connector(dir.path(), Some(&foreign))).await,
            "unknown authority"
        );
        let wrong = connector(other.path(), Some(&clients.join("alice")));
        assert!(!gets_in(socket, &wrong).await, "the client does not know the server");

        let authority = Authority::open(dir.path(), now()).unwrap();
        assert_eq!(authority.revoke("alice").unwrap().len(), 1);
        credentials.reload().unwrap();
        assert!(!gets_in(socket, &alice).await, "revoked");
        assert!(gets_in(socket, &bob).await);
        assert_eq!(authority.revoke("alice").unwrap_err().kind(), ErrorKind::NotFound);
        // The list grows: who is on it stays there.
        authority.client("alice", 10).unwrap();
        let second = own("alice");
        authority.revoke("bob").unwrap();
        credentials.reload().unwrap();
        assert!(gets_in(socket, &second).await);
        assert!(!gets_in(socket, &alice).await);
        assert!(!gets_in(socket, &bob).await);
        std::fs::remove_file(dir.path().join("ca-crl.pem")).unwrap();
        assert_eq!(credentials.reload().unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!gets_in(socket, &bob).await, "a lost list lets nobody in again");
    })
    .await;
}

#[test]
fn a_list_that_came_with_a_reload_may_not_go_with_the_next() {
    let dir = authority();
    let (list, away) = (dir.path().join("ca-crl.pem"), dir.path().join("away"));
    std::fs::rename(&list, &away).unwrap();
    let credentials = ServerCredentials::load(dir.path()).unwrap();
    credentials.reload().unwrap();
    std::fs::rename(&away, &list).unwrap();
    credentials.reload().unwrap();
    std::fs::remove_file(&list).unwrap();
    assert_eq!(credentials.reload().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_key_that_everybody_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = authority();
    let key = dir.path().join("server-key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = ServerCredentials::load(dir.path()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.message().contains("chmod 600"), "{error}");
}

#[test]
fn a_key_and_a_certificate_that_do_not_belong_together_are_told_apart() {
    let dir = authority();
    let credentials = ServerCredentials::load(dir.path()).unwrap();
    let key = std::fs::read(dir.path().join("server-key.pem")).unwrap();
    let authority = Authority::open(dir.path(), now()).unwrap();
    authority.server(&["localhost".into()], 10).unwrap();
    credentials.reload().unwrap();
    // As when the command was killed between the two.
    let path = dir.path().join("server-key.pem");
    std::fs::write(&path, key).unwrap();
    for error in
        [credentials.reload().unwrap_err(), ServerCredentials::load(dir.path()).err().unwrap()]
    {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let names = ["server-cert.pem", "server-key.pem", "sojourn cert server"];
        assert!(names.iter().all(|name| error.message().contains(name)), "{error}");
    }
}

#[test]
fn without_the_list_of_what_was_revoked_nothing_is_revoked_anew() {
    let dir = authority();
    let authority = Authority::open(dir.path(), now()).unwrap();
    authority.client("bob", 10).unwrap();
    authority.revoke("alice").unwrap();
    let (list, away) = (dir.path().join("ca-crl.pem"), dir.path().join("away"));
    std::fs::rename(&list, &away).unwrap();
    let error = authority.revoke("bob").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("ca-crl.pem"), "{error}");
    assert!(!list.exists(), "a new list would let alice in again");
    std::fs::rename(&away, &list).unwrap();
    assert_eq!(authority.revoke("bob").unwrap().len(), 1);
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    for file in ["ca-cert.pem", "server-cert.pem", "server-key.pem", "ca-crl.pem"] {
        let dir = authority();
        std::fs::write(dir.path().join(file), "nonsense").unwrap();
        let error = ServerCredentials::load(dir.path()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{file}");
        assert!(error.message().contains(file), "{error}");
        std::fs::remove_file(dir.path().join(file)).unwrap();
        match (file, ServerCredentials::load(dir.path())) {
            ("ca-crl.pem", loaded) => assert!(loaded.is_ok(), "it need not be there"),
            (_, loaded) => assert_eq!(loaded.err().unwrap().kind(), ErrorKind::NotFound, "{file}"),
        }
    }
}

#[test]
fn an_authority_is_made_once_and_used_by_one_command_at_a_time() {
    let dir = authority();
    let again = Authority::create(dir.path(), "test", 10, now());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict);
    let _held = Authority::open(dir.path(), now()).unwrap();
    assert_eq!(Authority::open(dir.path(), now()).err().unwrap().kind(), ErrorKind::Conflict);
}

#[test]
fn names_that_are_none_make_no_certificate() {
    let dir = authority();
    let authority = Authority::open(dir.path(), now()).unwrap();
    for host in ["", "a b", "-a", "a..b", "*.lab", "a/b", &"x".repeat(64)] {
        assert_eq!(authority.server(&[host.to_owned()], 1).unwrap_err().kind(), ErrorKind::Invalid);
    }
    authority.server(&["pc-7.lab".into(), "::1".into()], 1).unwrap();
    assert_eq!(authority.client("../x", 1).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(authority.client("x", 0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(authority.client("x", 36_501).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Connects our own client, with the certificates in `dir`; the server's is to be in this name, if any
/// is given.
async fn our_client(socket: &Path, dir: &Path, name: Option<&str>) -> Result<Remote> {
    let tls = UriTls { certificates: None, hostname: name.map(str::to_owned) };
    let uri = Uri { tls: Some(tls), ..Uri::new(Address::unix(socket)?, "d") };
    let tls = Some(client_tls(dir)?);
    let options = ClientOptions { tls, reconnect: Duration::ZERO, ..ClientOptions::default() };
    Remote::connect(&uri, options).await
}

#[tokio::test]
async fn our_own_client_encrypts_and_trusts_whom_it_is_told_to_trust() {
    let (dir, other) = (authority(), authority());
    let alice = dir.path().join("clients/alice");
    // One that trusts the right server and has no certificate, and one that has another's.
    let nobody = tempfile::tempdir().unwrap();
    std::fs::copy(alice.join("ca-cert.pem"), nobody.path().join("ca-cert.pem")).unwrap();
    let foreign = other.path().join("clients/alice");
    std::fs::copy(alice.join("ca-cert.pem"), foreign.join("ca-cert.pem")).unwrap();
    with_server(dir.path(), true, async |socket, _| {
        for name in [None, Some("localhost"), Some("127.0.0.1")] {
            let remote = our_client(socket, &alice, name).await.unwrap();
            let data: Vec<u8> = (0..300_000u32).map(|i| (i % 241) as u8).collect();
            let span = Span::between(1000, 301_000);
            remote.write(span, &data, Durability::Durable).await.unwrap();
            let mut read = vec![0; data.len()];
            remote.read(span, &mut read).await.unwrap();
            assert!(read == data, "{name:?}");
            remote.close().await;
        }
        let denied = async |dir: &Path, name: Option<&str>| {
            let error = our_client(socket, dir, name).await.expect_err("it is let in");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            error.message().to_owned()
        };
        let told = denied(&alice, Some("elsewhere")).await;
        assert!(told.contains("the server's certificate"), "{told}");
        let told = denied(nobody.path(), None).await;
        assert!(told.contains("refuses this client's certificate"), "{told}");
        denied(&foreign, None).await;
        // The server's certificate is of an authority that the client does not know, or was revoked.
        denied(other.path(), None).await;
        let plain = Uri::new(Address::unix(socket).unwrap(), "d");
        let plain = Remote::connect(&plain, ClientOptions::default()).await;
        assert!(plain.is_err(), "the server wants it encrypted");
    })
    .await;
    // A server without TLS is not spoken to in plain text.
    let socket = other.path().join("plain");
    let listener = Listener::bind(&Address::unix(&socket).unwrap(), 16).await.unwrap();
    let server = Server::new(Arc::new(One), ServerLimits::default());
    let asked = async {
        let error = our_client(&socket, &alice, None).await.err().unwrap();
        assert!(error.message().contains("does not encrypt"), "{error}");
    };
    server.serve(listener, asked).await.unwrap();
}

#[test]
fn what_is_wrong_with_a_clients_certificates_is_named() {
    for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem", "ca-crl.pem"] {
        let dir = authority();
        let alice = dir.path().join("clients/alice");
        client_tls(&alice).unwrap();
        std::fs::write(alice.join(file), "nonsense").unwrap();
        let error = client_tls(&alice).unwrap_err();
        assert!(error.message().contains(file), "{error}");
    }
    let dir = authority();
    let alice = dir.path().join("clients/alice");
    std::fs::remove_file(alice.join("client-cert.pem")).unwrap();
    client_tls(&alice).unwrap(); // for a server that asks nobody who they are
    std::fs::remove_file(alice.join("ca-cert.pem")).unwrap();
    assert_eq!(client_tls(&alice).unwrap_err().kind(), ErrorKind::NotFound);
}
