//! Large reads with encryption and without, from one server: what TLS costs.

use crate::client::{Connection, Job, Tally};
use crate::content;
use crate::process::Tree;
use anyhow::{Context, Result, anyhow, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
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
pub(crate) struct Report {
    clients: usize,
    depth: usize,
    request_bytes: usize,
    plain: Figures,
    encrypted: Figures,
    /// Throughput with TLS by that without.
    ratio: f64,
    wanted: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    mb_per_s: f64,
    /// CPU time of the server, per request.
    cpu_us_per_request: f64,
}

impl Report {
    /// Whether TLS is fast enough.
    pub(crate) fn is_reached(&self) -> bool {
        self.ratio >= self.wanted
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, depth, .. } = self;
        writeln!(f, "128 KiB cached reads in order, {clients} clients x {depth}, unix socket")?;
        for (name, figures) in [("without TLS", self.plain), ("TLS 1.3", self.encrypted)] {
            let Figures { mb_per_s, cpu_us_per_request } = figures;
            writeln!(
                f,
                "  {name:<12} {mb_per_s:8.0} MB/s {cpu_us_per_request:8.1} us CPU/request"
            )?;
        }
        let verdict = if self.is_reached() { "reached" } else { "MISSED" };
        writeln!(
            f,
            "  TLS / plain  {:8.2}      at least {:.2} wanted: {verdict}",
            self.ratio, self.wanted
        )
    }
}

/// A server with both kinds of listener; killed when it is dropped.
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Drop for Server {
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
pub(crate) fn run(sojourn: &Path, dir: &Path, window: Duration, rounds: usize) -> Result<Report> {
    let server = start(sojourn, dir)?;
    let config = client_config(&dir.join("home/tls"))?;
    let (mut plain, mut encrypted) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        plain.push(measure(&server, window, || {
            Connection::open(&server.dir.join("plain.sock"), "bench")
        })?);
        encrypted.push(measure(&server, window, || {
            Connection::open_encrypted(&server.dir.join("tls.sock"), "bench", Arc::clone(&config))
        })?);
    }
    let (plain, encrypted) = (median(plain), median(encrypted));
    Ok(Report {
        clients: CLIENTS,
        depth: DEPTH,
        request_bytes: READ,
        plain,
        encrypted,
        ratio: encrypted.mb_per_s / plain.mb_per_s,
        wanted: WANTED,
    })
}

/// The window in the middle, by throughput.
fn median(mut windows: Vec<Figures>) -> Figures {
    windows.sort_by(|a, b| a.mb_per_s.total_cmp(&b.mb_per_s));
    windows[windows.len() / 2]
}

fn start(sojourn: &Path, dir: &Path) -> Result<Server> {
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
    let uid = rustix::process::getuid().as_raw();
    let socket = |name: &str| format!("unix:{}", dir.join(name).display());
    let config = format!(
        "access = [{{ certificate = \"*\", read = [\"*\"] }}, {{ uid = {uid}, read = [\"*\"] }}]\n\
         [cache]\nsize = \"{}\"\n[serve]\n\
         nbd = [\"{}\", {{ address = \"{}\", tls = \"required\" }}]\n",
        block::ByteSize(2 * SIZE),
        socket("plain.sock"),
        socket("tls.sock"),
    );
    std::fs::write(home.join("sojourn.toml"), config)?;
    let log = std::fs::File::create(dir.join("log"))?;
    let mut command = Command::new(sojourn);
    command.arg("--home").arg(&home).arg("serve").stdin(Stdio::null()).stderr(log);
    let child = command.spawn().context("cannot start the server")?;
    let server = Server { child, dir: dir.to_owned() };
    let end = Instant::now() + START;
    while let Err(error) = warm_up(&dir.join("plain.sock")) {
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        ensure!(Instant::now() < end, "the server does not start: {error:#}\n{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}

fn job() -> Job {
    Job { writes: false, bytes: READ, depth: DEPTH }
}

/// Reads everything once.
fn warm_up(socket: &Path) -> Result<()> {
    let mut connection = Connection::open(socket, "bench")?;
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
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)?;
    Ok(Arc::new(config))
}

/// One window.
fn measure(
    server: &Server,
    window: Duration,
    open: impl Fn() -> Result<Connection> + Sync,
) -> Result<Figures> {
    let connections = (0..CLIENTS).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let mut tree = Tree::new(server.child.id());
    let before = tree.usage();
    let until = Instant::now() + window;
    let done: Vec<Result<(Connection, Tally)>> = std::thread::scope(|scope| {
        let drive = |(index, mut connection): (usize, Connection)| {
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
    let (mut rate, mut requests) = (0.0, 0);
    for done in done {
        let (connection, tally) = done?;
        rate += tally.in_window as f64 / tally.busy.as_secs_f64();
        requests += tally.latency.total();
        connection.close();
    }
    ensure!(requests > 0, "no request was answered");
    Ok(Figures {
        mb_per_s: rate * READ as f64 / 1e6,
        cpu_us_per_request: cpu / requests as f64 * 1e6,
    })
}
