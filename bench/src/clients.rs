//! Many clients: how soon all of those are served that connect in the same instant, and what they take
//! of the server's memory.

use crate::client::{BenchConnection, Job};
use crate::content::{GRAIN, check, write_image};
use crate::home::{Home, Serving};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The image, and the cache, which holds a half of it.
const IMAGE: u64 = 256 * MIB;
const CACHE: u64 = 128 * MIB;
/// How many connect in the same instant.
const INSTANTS: [usize; 3] = [50, 500, 2000];
/// Until when the last of the fewest must have read.
const FIRST_READ: Duration = Duration::from_millis(250);
/// Clients that work, and what the server may take for them: this much, and this much for each.
const WORKING: usize = 50;
const BASE: u64 = 64 * MIB;
const EACH: u64 = MIB;
/// What each of them does: so many reads and writes.
const REQUESTS: u64 = 2_000;
/// Clients that do nothing, and what the server may take for each.
const IDLE: usize = 1000;
const IDLE_EACH: u64 = 100 << 10;
/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// A client's thread needs little.
const STACK: usize = 128 << 10;
/// Until idle connections have given back what the handshake took.
const REST: Duration = Duration::from_secs(6);

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct ClientsReport {
    format: u32,
    storms: Vec<Storm>,
    cache_bytes: u64,
    working: usize,
    /// Resident bytes of the server when the working clients were done.
    working_rss: u64,
    working_limit: u64,
    idle: usize,
    /// What each idle client added, bytes.
    idle_each: f64,
    idle_limit: u64,
    threads: usize,
}

/// Clients that connect in the same instant.
#[derive(Debug, Serialize)]
struct Storm {
    clients: usize,
    served: usize,
    /// From the instant to the first 4 KiB of the middle one and of the last, milliseconds.
    median_ms: f64,
    last_ms: f64,
}

impl ClientsReport {
    /// Whether all limits are kept.
    pub(crate) fn all_reached(&self) -> bool {
        self.verdicts().iter().all(|(reached, _)| *reached)
    }

    fn verdicts(&self) -> Vec<(bool, String)> {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        let mut list: Vec<_> = self
            .storms
            .iter()
            .map(|storm| {
                let served = format!("{} of {} served", storm.served, storm.clients);
                (storm.served == storm.clients, served)
            })
            .collect();
        if let Some(storm) = self.storms.first() {
            let limit = FIRST_READ.as_millis();
            let what = format!(
                "first read of the last of {} after {:.0} ms (at most {limit})",
                storm.clients, storm.last_ms
            );
            list.push((storm.last_ms <= limit as f64, what));
        }
        list.push((
            self.working_rss <= self.working_limit,
            format!(
                "{} working clients with private disks: {:.0} MiB resident (at most {:.0}: a cache of \
                 {:.0}, {:.0}, and {:.0} for each)",
                self.working,
                mib(self.working_rss),
                mib(self.working_limit),
                mib(self.cache_bytes),
                mib(BASE),
                mib(EACH)
            ),
        ));
        list.push((
            self.idle_each <= self.idle_limit as f64,
            format!(
                "{} idle clients: {:.1} KiB each (at most {})",
                self.idle,
                self.idle_each / 1024.0,
                self.idle_limit >> 10
            ),
        ));
        list
    }
}

impl fmt::Display for ClientsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for storm in &self.storms {
            writeln!(
                f,
                "{:>5} clients connect in the same instant: median {:.1} ms to the first 4 KiB, the last \
                 {:.1} ms",
                storm.clients, storm.median_ms, storm.last_ms
            )?;
        }
        writeln!(f, "      threads of the server with {} clients: {}\n", self.idle, self.threads)?;
        for (reached, what) in self.verdicts() {
            writeln!(f, "{} {what}", if reached { "ok  " } else { "MISS" })?;
        }
        Ok(())
    }
}

/// Measures all of it.
pub(crate) fn run(sojourn: &Path, scratch: &Path) -> Result<ClientsReport> {
    let limit = getrlimit(Resource::Nofile);
    // With fewer descriptors the last storm says what is missing.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let image = scratch.join("image.raw");
    write_image(&image, IMAGE)?;
    let home = Home::make(
        sojourn,
        &scratch.join("home"),
        &scratch.join("store").display().to_string(),
        Vec::new(),
    )?;
    home.import(&image, "golden:1")?;
    home.disks("d", WORKING, "golden:1")?;
    let configuration = format!("[cache]\nsize = {CACHE}\n");
    let mut storms = Vec::new();
    for clients in INSTANTS {
        eprintln!("{clients} clients connect …");
        let address = free_port()?;
        let _serving = home.serve(&configuration, Some(address))?;
        // As many as there are disks have one each; more than that share the image.
        storms.push(connect_all(clients, |number| match number < WORKING {
            true if clients == WORKING => ServedExport { address, export: format!("d{number}") },
            _ => ServedExport { address, export: "golden:1".to_owned() },
        })?);
    }
    let serving = home.serve(&configuration, None)?;
    eprintln!("{WORKING} clients work …");
    work(&serving)?;
    let working_rss = serving.memory();
    drop(serving);
    eprintln!("{IDLE} clients are idle …");
    let serving = home.serve(&configuration, None)?;
    serving.connect("golden:1")?.close();
    let before = serving.memory();
    let idle: Vec<_> = (0..IDLE).map(|_| serving.connect("golden:1")).collect::<Result<_>>()?;
    std::thread::sleep(REST);
    let grown = serving.memory().saturating_sub(before);
    let threads = serving.threads();
    drop(idle);
    Ok(ClientsReport {
        format: 1,
        storms,
        cache_bytes: CACHE,
        working: WORKING,
        working_rss,
        working_limit: CACHE + BASE + EACH * WORKING as u64,
        idle: IDLE,
        idle_each: grown as f64 / IDLE as f64,
        idle_limit: IDLE_EACH,
        threads,
    })
}

struct ServedExport {
    address: SocketAddr,
    export: String,
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Connects all in the same instant; each reads 4 KiB, and stays until all have.
fn connect_all(clients: usize, target: impl Fn(usize) -> ServedExport) -> Result<Storm> {
    let (gate, waiting) = (RwLock::new(Instant::now()), AtomicUsize::new(0));
    let each = |target: &ServedExport| -> Result<(BenchConnection, Duration)> {
        waiting.fetch_add(1, Ordering::Relaxed);
        let instant = *gate.read().unwrap_or_else(PoisonError::into_inner);
        let mut connection = BenchConnection::open_tcp(target.address, &target.export, PATIENCE)?;
        let mut buffer = vec![0; GRAIN];
        connection.read(0, &mut buffer)?;
        let took = instant.elapsed();
        check(&buffer, 0)?;
        Ok((connection, took))
    };
    let (mut served, mut failed) = (Vec::new(), None);
    std::thread::scope(|scope| {
        let each = &each;
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::new();
        for number in 0..clients {
            let target = target(number);
            let thread = std::thread::Builder::new().stack_size(STACK);
            let thread = thread.spawn_scoped(scope, move || each(&target));
            threads.push(thread.context("cannot start a client's thread")?);
        }
        while waiting.load(Ordering::Relaxed) < clients {
            std::thread::sleep(Duration::from_millis(1));
        }
        *closed = Instant::now();
        drop(closed);
        for thread in threads {
            match thread.join() {
                Ok(Ok(one)) => served.push(one),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => bail!("a client's thread failed"),
            }
        }
        Ok(())
    })?;
    let mut times: Vec<_> = served.iter().map(|(_, took)| took.as_secs_f64() * 1e3).collect();
    if let Some(error) = failed {
        eprintln!("{} of {clients} were not served: {error:#}", clients - times.len());
    }
    ensure!(!times.is_empty(), "nobody was served");
    times.sort_by(f64::total_cmp);
    served.into_iter().for_each(|(connection, _)| connection.close());
    Ok(Storm {
        clients,
        served: times.len(),
        median_ms: times[times.len() / 2],
        last_ms: times[times.len() - 1],
    })
}

/// Has clients read all over the image and write to disks of their own.
fn work(serving: &Serving) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKING)
            .map(|number| {
                scope.spawn(move || -> Result<()> {
                    let mut connection = serving.connect(&format!("d{number}"))?;
                    for writes in [false, true] {
                        let mut state = number as u64 * 7919 + 1;
                        let mut left = REQUESTS;
                        let next = || {
                            left = left.checked_sub(1)?;
                            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                            Some((state >> 33) % (IMAGE / GRAIN as u64) * GRAIN as u64)
                        };
                        let job = Job { writes, bytes: GRAIN, depth: 16 };
                        connection.drive(job, None, next)?;
                    }
                    connection.flush()?;
                    connection.close();
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(outcome) => outcome?,
                Err(_) => bail!("a client's thread failed"),
            }
        }
        Ok(())
    })
}
