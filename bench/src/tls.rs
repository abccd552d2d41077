//! Large reads with encryption and without, over TCP from one server: what TLS costs, beside what the
//! cipher alone costs on this machine.

use crate::client::{self, BenchConnection, ConnectionResult, Job};
use crate::content;
use crate::process::Tree;
use access::{ServerCredentials, cryptography};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustls::crypto::cipher::OutboundPlainMessage;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion,
    RootCertStore, ServerConnection, SupportedCipherSuite,
};
use serde::Serialize;
use std::fmt;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length of a read, bytes.
const READ: usize = 128 << 10;
const CLIENTS: usize = 2;
const DEPTH: usize = 8;
/// What is read again and again, bytes; it is in the server's cache.
const SIZE: u64 = 256 << 20;
/// How long the server may take to start.
const START: Duration = Duration::from_secs(30);
/// The least that TLS is to reach of the throughput without it.
const WANTED: f64 = 0.5;

/// Medians over the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct TlsReport {
    clients: usize,
    depth: usize,
    request_bytes: usize,
    plain: Figures,
    encrypted: Figures,
    /// Throughput with TLS by that without.
    ratio: f64,
    /// What one core encrypts into records of 16 KiB, MB/s, by the cipher that the server chose.
    cipher_mb_per_s: f64,
    /// The ratio, if TLS cost both sides nothing but that and all cores were busy.
    limit: f64,
    wanted: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    mb_per_s: f64,
    /// CPU time of the server, per request.
    cpu_us_per_request: f64,
}

impl TlsReport {
    /// Whether TLS is fast enough.
    pub(crate) fn is_reached(&self) -> bool {
        self.ratio >= self.wanted
    }
}

impl fmt::Display for TlsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, depth, .. } = self;
        writeln!(
            f,
            "128 KiB cached reads in order, {clients} clients x {depth}, TCP on this machine"
        )?;
        for (name, figures) in [("without TLS", self.plain), ("TLS 1.3", self.encrypted)] {
            let Figures { mb_per_s, cpu_us_per_request } = figures;
            writeln!(
                f,
                "  {name:<12} {mb_per_s:8.0} MB/s {cpu_us_per_request:8.1} us CPU/request"
            )?;
        }
        writeln!(
            f,
            "  cipher       {:8.0} MB/s of one core; with nothing else TLS / plain were {:.2}",
            self.cipher_mb_per_s, self.limit
        )?;
        let verdict = if self.is_reached() { "reached" } else { "MISSED" };
        writeln!(
            f,
            "  TLS / plain  {:8.2}      at least {:.2} wanted: {verdict}",
            self.ratio, self.wanted
        )
    }
}

/// A server with both kinds of listener; killed when it is dropped.
struct TlsServer {
    child: Child,
    plain: SocketAddr,
    encrypted: SocketAddr,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures in `dir`: `rounds` windows of each kind, in turn.
///
/// # Errors
/// When the server cannot be set up, or gives a wrong answer.
pub(crate) fn run(
    sojourn: &Path,
    dir: &Path,
    window: Duration,
    rounds: usize,
) -> Result<TlsReport> {
    let server = start(sojourn, dir)?;
    let config = client_config(&dir.join("home/tls"))?;
    let (mut plain, mut encrypted) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        plain.push(measure(&server, window, || {
            BenchConnection::open_tcp(server.plain, "bench", START)
        })?);
        encrypted.push(measure(&server, window, || {
            BenchConnection::open_encrypted(server.encrypted, "bench", Arc::clone(&config))
        })?);
    }
    let (plain, encrypted) = (median(plain), median(encrypted));
    let cipher = cipher(&dir.join("home/tls"), (*config).clone())?;
    let cores = std::thread::available_parallelism()?.get().min(2 * CLIENTS) as f64;
    // Each byte is encrypted once and decrypted once, on cores that were busy with it before.
    let seconds = cores / plain.mb_per_s;
    Ok(TlsReport {
        clients: CLIENTS,
        depth: DEPTH,
        request_bytes: READ,
        plain,
        encrypted,
        ratio: encrypted.mb_per_s / plain.mb_per_s,
        cipher_mb_per_s: cipher,
        limit: seconds / (seconds + 2.0 / cipher),
        wanted: WANTED,
    })
}

/// The window in the middle, by throughput.
fn median(mut windows: Vec<Figures>) -> Figures {
    windows.sort_by(|a, b| a.mb_per_s.total_cmp(&b.mb_per_s));
    windows[windows.len() / 2]
}

fn start(sojourn: &Path, dir: &Path) -> Result<TlsServer> {
    let image = dir.join("image.raw");
    content::write_image(&image, SIZE).context("cannot write the image")?;
    let home = dir.join("home");
    let run = |arguments: &[&str]| {
        let output = Command::new(sojourn).arg("--home").arg(&home).args(arguments).output();
        let output = output.with_context(|| format!("cannot run {}", sojourn.display()))?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "sojourn {arguments:?}: {message}");
        Ok(())
    };
    run(&["init"])?;
    run(&["image", "import", &image.to_string_lossy(), "bench"])?;
    run(&["cert", "ca"])?;
    run(&["cert", "server", "localhost"])?;
    run(&["cert", "client", "bench"])?;
    // Both at once, so that they differ.
    let taken = (
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
    );
    let (plain, encrypted) = (taken.0.local_addr()?, taken.1.local_addr()?);
    drop(taken);
    // Where TLS is required, nobody gets in without access rules, and those know no client without it.
    let config = format!(
        "[cache]\nsize = \"{}\"\n[serve]\n\
         nbd = [\"{plain}\", {{ address = \"{encrypted}\", tls = \"optional\" }}]\n",
        block::ByteSize(2 * SIZE),
    );
    std::fs::write(home.join("sojourn.toml"), config)?;
    let log = std::fs::File::create(dir.join("log"))?;
    let mut command = Command::new(sojourn);
    command.arg("--home").arg(&home).arg("serve").stdin(Stdio::null()).stderr(log);
    let child = command.spawn().context("cannot start the server")?;
    let server = TlsServer { child, plain, encrypted };
    let end = Instant::now() + START;
    while let Err(error) = warm_up(server.plain) {
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        ensure!(Instant::now() < end, "the server does not start: {error:#}\n{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}

/// What one core encrypts with the cipher that a server with these certificates chooses, MB/s.
fn cipher(certificates: &Path, mut config: ClientConfig) -> Result<f64> {
    const RECORD: usize = 16 << 10;
    const WINDOW: Duration = Duration::from_millis(100);
    const WINDOWS: usize = 5;
    let credentials = ServerCredentials::load(certificates)?;
    let mut server = ServerConnection::new(credentials.https(true))?;
    config.enable_secret_extraction = true;
    let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into()?)?;
    let mut sent = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        client.write_tls(&mut sent)?;
        hand_over(&mut sent, |bytes| server.read_tls(bytes))?;
        server.process_new_packets()?;
        server.write_tls(&mut sent)?;
        hand_over(&mut sent, |bytes| client.read_tls(bytes))?;
        client.process_new_packets()?;
    }
    let Some(SupportedCipherSuite::Tls13(suite)) = client.negotiated_cipher_suite() else {
        bail!("no cipher was chosen");
    };
    let (_, secrets) = client.dangerous_extract_secrets()?.tx;
    let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
        bail!("the server chose another cipher than AES-128-GCM");
    };
    let mut cipher = suite.aead_alg.encrypter(key, iv);
    let data = vec![7; RECORD];
    let (mut records, mut best) = (0, 0.0);
    // A limit: what the machine does otherwise must not lower it.
    for _ in 0..WINDOWS {
        let (begin, before) = (Instant::now(), records);
        while begin.elapsed() < WINDOW {
            let message = OutboundPlainMessage {
                typ: ContentType::ApplicationData,
                version: ProtocolVersion::TLSv1_2,
                payload: data.as_slice().into(),
            };
            std::hint::black_box(cipher.encrypt(message, records)?);
            records += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        best = f64::max(best, (records - before) as f64 * RECORD as f64 / 1e6 / seconds);
    }
    Ok(best)
}

/// Lets `take` have all of `sent`.
fn hand_over(
    sent: &mut Vec<u8>,
    mut take: impl FnMut(&mut dyn Read) -> std::io::Result<usize>,
) -> Result<()> {
    let mut rest = &sent[..];
    while !rest.is_empty() {
        take(&mut rest)?;
    }
    sent.clear();
    Ok(())
}

fn job() -> Job {
    Job { writes: false, bytes: READ, depth: DEPTH }
}

/// Reads everything once.
fn warm_up(address: SocketAddr) -> Result<()> {
    let mut connection = BenchConnection::open_tcp(address, "bench", START)?;
    let mut offsets = (0..SIZE).step_by(READ);
    connection.drive(job(), None, || offsets.next())?;
    connection.close();
    Ok(())
}

fn client_config(tls: &Path) -> Result<Arc<ClientConfig>> {
    let own = tls.join("clients/bench");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(tls.join("ca-cert.pem"))?)?;
    let certificate = CertificateDer::from_pem_file(own.join("client-cert.pem"))?;
    let key = PrivateKeyDer::from_pem_file(own.join("client-key.pem"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(cryptography::provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)?;
    Ok(Arc::new(config))
}

/// One window.
fn measure(
    server: &TlsServer,
    window: Duration,
    open: impl Fn() -> Result<BenchConnection> + Sync,
) -> Result<Figures> {
    let connections = (0..CLIENTS).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let mut tree = Tree::new(server.child.id());
    let before = tree.usage();
    let start = Instant::now();
    let until = start + window;
    let done: Vec<Result<(BenchConnection, ConnectionResult)>> = std::thread::scope(|scope| {
        let drive = |(index, mut connection): (usize, BenchConnection)| {
            scope.spawn(move || {
                let mut offset = index as u64 * (SIZE / CLIENTS as u64);
                let next = || {
                    offset = (offset + READ as u64) % SIZE;
                    Some(offset)
                };
                connection.drive(job(), Some(until), next).map(|tally| (connection, tally))
            })
        };
        let threads: Vec<_> = connections.into_iter().enumerate().map(drive).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("the load generator panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    tree.refresh();
    let cpu = tree.usage().since(&before);
    let mut tallies = Vec::new();
    for done in done {
        let (connection, tally) = done?;
        tallies.push(tally);
        connection.close();
    }
    let requests: u64 = tallies.iter().map(|tally| tally.latency.count()).sum();
    let rate = client::rate(start, tallies.iter());
    ensure!(requests > 0, "no request was answered");
    Ok(Figures {
        mb_per_s: rate * READ as f64 / 1e6,
        cpu_us_per_request: cpu / requests as f64 * 1e6,
    })
}
