//! The way to a virtual machine on the same host: vhost-user beside QEMU's own vhost-user server, and beside
//! NBD over a unix socket, ours and nbdkit's.

mod disk;

use crate::client::{self, Connection, Job, Tally};
use crate::contender::{self, Bench};
use crate::content;
use crate::home::Home;
use crate::process::Tree;
use crate::tool::find;
use anyhow::{Context, Result, ensure};
use disk::VirtioDisk;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Length of a request, bytes.
const REQUEST: usize = 4096;
/// What is read and written, bytes; it is in memory.
const SIZE: u64 = 256 << 20;
/// Blocks that are written again and again, bytes.
const REWRITTEN: u64 = 64 << 20;
/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);
/// Unmeasured running before a window.
const WARM_UP: Duration = Duration::from_millis(100);

const LOADS: [Job; 5] = [
    Job { writes: false, bytes: REQUEST, depth: 1 },
    Job { writes: false, bytes: REQUEST, depth: 8 },
    Job { writes: false, bytes: REQUEST, depth: 32 },
    Job { writes: true, bytes: REQUEST, depth: 1 },
    Job { writes: true, bytes: REQUEST, depth: 32 },
];

/// Medians over the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    rows: Vec<Cell>,
    left_out: Vec<String>,
    goals: Vec<Goal>,
}

#[derive(Debug, Clone, Serialize)]
struct Cell {
    server: &'static str,
    writes: bool,
    depth: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the server, per request.
    cpu_us: f64,
}

/// Something that is to be reached.
#[derive(Debug, Serialize)]
struct Goal {
    what: String,
    found: f64,
    wanted: f64,
    reached: bool,
}

impl Report {
    /// Whether all goals that could be measured are reached.
    pub(crate) fn all_reached(&self) -> bool {
        self.goals.iter().all(|goal| goal.reached)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "4 KiB requests of one client in memory, one queue")?;
        writeln!(
            f,
            "load        server                            IOPS   p50 us   p99 us  CPU us"
        )?;
        for row in &self.rows {
            let load = format!("{}-{}", if row.writes { "write" } else { "read" }, row.depth);
            let Cell { server, per_second, p50_us, p99_us, cpu_us, .. } = row;
            writeln!(
                f,
                "{load:<11} {server:<28} {per_second:9.0} {p50_us:8.1} {p99_us:8.1} {cpu_us:7.2}"
            )?;
        }
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        for Goal { what, found, wanted, reached } in &self.goals {
            let verdict = if *reached { "reached" } else { "MISSED" };
            writeln!(f, "{what}: {found:.2} (wanted {wanted:.2}): {verdict}")?;
        }
        Ok(())
    }
}

/// A server that is measured.
struct Served {
    name: &'static str,
    how: How,
    tree: Tree,
    /// Stopped when this is dropped.
    _server: Box<dyn std::any::Any>,
}

enum How {
    VhostUser(PathBuf),
    Nbd(crate::place::Place, String),
}

/// A client of one of them.
enum Driven {
    VhostUser(VirtioDisk),
    Nbd(Connection),
}

impl Driven {
    fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        next: impl FnMut() -> Option<u64>,
    ) -> Result<Tally> {
        match self {
            Self::VhostUser(disk) => disk.drive(job, until, next),
            Self::Nbd(connection) => connection.drive(job, until, next),
        }
    }
}

/// Measures in `dir`: `rounds` windows of each load at each server, in turn.
///
/// # Errors
/// When a server of ours cannot be set up, or any one gives a wrong answer.
pub(crate) fn run(sojourn: &Path, dir: &Path, window: Duration, rounds: usize) -> Result<Report> {
    let bench = Bench::new(dir, SIZE, sojourn.to_owned())?;
    let mut left_out = Vec::new();
    let mut servers = vec![ours(sojourn, dir)?];
    for aio in ["threads", "io_uring"] {
        match qemu(dir, aio) {
            Ok(server) => servers.push(server),
            Err(e) => left_out.push(format!("qemu-storage-daemon, aio={aio}: {e:#}")),
        }
    }
    for name in ["sojourn-disk", "nbdkit-file"] {
        match nbd(&bench, name) {
            Ok(server) => servers.push(server),
            Err(e) => left_out.push(format!("{name}: {e:#}")),
        }
    }
    let mut rows = Vec::new();
    for job in LOADS {
        let mut samples = vec![Vec::new(); servers.len()];
        for round in 1..=rounds {
            for (server, samples) in servers.iter_mut().zip(&mut samples) {
                let kind = if job.writes { "write" } else { "read" };
                eprintln!("{kind}-{}, round {round} of {rounds}: {}", job.depth, server.name);
                samples.push(measure(server, job, window)?);
            }
        }
        rows.extend(samples.into_iter().filter_map(median));
    }
    let goals = goals(&rows);
    Ok(Report { rows, left_out, goals })
}

/// The window in the middle, by rate.
fn median(mut samples: Vec<Cell>) -> Option<Cell> {
    samples.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    let middle = samples.len() / 2;
    samples.into_iter().nth(middle)
}

const OURS: &str = "sojourn, vhost-user";

fn goals(rows: &[Cell]) -> Vec<Goal> {
    let best = |of: &str, writes: bool, depth: usize, figure: fn(&Cell) -> f64, least: bool| {
        let cells = rows.iter().filter(|row| row.server.starts_with(of));
        let figures = cells.filter(|row| (row.writes, row.depth) == (writes, depth)).map(figure);
        figures.reduce(if least { f64::min } else { f64::max })
    };
    let p50: fn(&Cell) -> f64 = |cell| cell.p50_us;
    let rate: fn(&Cell) -> f64 = |cell| cell.per_second;
    let mut goals = Vec::new();
    let mut add = |what: &str, peer: &str, writes, depth, latency: bool, wanted: f64| {
        let figure = if latency { p50 } else { rate };
        let (ours, theirs) = (
            best(OURS, writes, depth, figure, latency),
            best(peer, writes, depth, figure, latency),
        );
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let found = ours / theirs;
            let reached = if latency { found <= wanted } else { found >= wanted };
            goals.push(Goal { what: what.to_owned(), found, wanted, reached });
        }
    };
    add("read-1, p50 of nbdkit's", "nbdkit", false, 1, true, 0.35);
    add("read-1, p50 of qemu-storage-daemon's", "qemu", false, 1, true, 0.4);
    add("read-32, rate of qemu-storage-daemon's", "qemu", false, 32, false, 5.0);
    add("write-1, p50 of qemu-storage-daemon's", "qemu", true, 1, true, 0.5);
    add("write-32, rate of qemu-storage-daemon's", "qemu", true, 32, false, 3.0);
    goals
}

fn ours(sojourn: &Path, dir: &Path) -> Result<Served> {
    let at = dir.join("vhost-user-home");
    let store = at.join("store");
    let store = store.to_str().context("the path of the scratch directory is not text")?;
    let home = Home::make(sojourn, &at, store, Vec::new())?;
    home.import(&dir.join("image.raw"), "bench")?;
    home.run(&["disk", "create", "disk", "--from", "bench"])?;
    let cache = block::ByteSize(2 * SIZE);
    let configuration = format!("[cache]\nsize = \"{cache}\"\n[serve]\nvhost_user = \"vu\"\n");
    let serving = home.serve(&configuration, None)?;
    let socket = at.join("vu/disk");
    await_socket(&socket)?;
    let tree = Tree::new(serving.pid());
    let how = How::VhostUser(socket);
    Ok(Served { name: OURS, how, tree, _server: Box::new((serving, home)) })
}

fn qemu(dir: &Path, aio: &str) -> Result<Served> {
    let program = find("qemu-storage-daemon")?;
    let (file, socket) = (dir.join(format!("qemu-{aio}.raw")), dir.join(format!("{aio}.sock")));
    content::write_image(&file, SIZE)?;
    let mut command = Command::new(program);
    command.arg("--blockdev").arg(format!(
        "driver=file,filename={},node-name=disk,aio={aio},discard=unmap",
        file.display()
    ));
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=export,node-name=disk,writable=on,addr.type=unix,addr.path={}",
        socket.display()
    ));
    let log = std::fs::File::create(dir.join(format!("qemu-{aio}.log")))?;
    let child = command.stdin(Stdio::null()).stderr(log).spawn()?;
    let tree = Tree::new(child.id());
    let killed = Killed(child);
    await_socket(&socket)?;
    let name = match aio {
        "threads" => "qemu-storage-daemon, threads",
        _ => "qemu-storage-daemon, io_uring",
    };
    let mut served = Served { name, how: How::VhostUser(socket), tree, _server: Box::new(killed) };
    // One that cannot do it says so with its first request.
    measure(&mut served, LOADS[0], WARM_UP)?;
    Ok(served)
}

fn nbd(bench: &Bench, name: &str) -> Result<Served> {
    let contender = contender::ALL.iter().find(|one| one.name == name).context("no such server")?;
    let server = contender.start(bench)?;
    let how = How::Nbd(server.place().clone(), server.export(0));
    let tree = server.tree();
    let name = if name == "nbdkit-file" { "nbdkit, NBD" } else { "sojourn, NBD" };
    Ok(Served { name, how, tree, _server: Box::new(server) })
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn await_socket(path: &Path) -> Result<()> {
    let end = Instant::now() + START;
    while !path.exists() {
        ensure!(Instant::now() < end, "{} is not there", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn measure(server: &mut Served, job: Job, window: Duration) -> Result<Cell> {
    let mut driven = match &server.how {
        How::VhostUser(path) => Driven::VhostUser(open(path, job)?),
        How::Nbd(place, export) => Driven::Nbd(Connection::open_at(place, export)?),
    };
    let len = if job.writes { REWRITTEN } else { SIZE };
    // What is read was read before; what is written was written.
    let large = Job { writes: job.writes, bytes: 128 << 10, depth: 8 };
    // Written blocks are apart from those whose content is checked: behind them.
    let base = if job.writes { SIZE - REWRITTEN } else { 0 };
    let len = if job.writes { len } else { SIZE - REWRITTEN };
    let mut offsets = (base..base + len).step_by(large.bytes);
    driven.drive(large, None, || offsets.next()).context("warm-up")?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(base + state % (len / REQUEST as u64) * REQUEST as u64)
    };
    driven.drive(job, Some(Instant::now() + WARM_UP), &mut next).context("warm-up")?;
    server.tree.refresh();
    let before = server.tree.usage();
    let start = Instant::now();
    let tally = driven.drive(job, Some(start + window), &mut next)?;
    server.tree.refresh();
    let cpu = server.tree.usage().since(&before);
    if let Driven::Nbd(connection) = driven {
        connection.close();
    }
    let requests = tally.latency.total();
    ensure!(requests > 0, "no request was answered");
    let quantile = |part: f64| tally.latency.percentile(part) as f64 / 1e3;
    Ok(Cell {
        server: server.name,
        writes: job.writes,
        depth: job.depth,
        per_second: client::rate(start, std::iter::once(&tally)),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        cpu_us: cpu / requests as f64 * 1e6,
    })
}

/// Connects; the server may not have noticed yet that the client before has left.
fn open(path: &Path, job: Job) -> Result<VirtioDisk> {
    let room = (job.depth * job.bytes).max(8 * (128 << 10));
    let end = Instant::now() + START;
    loop {
        match VirtioDisk::open(path, room) {
            Err(e) if Instant::now() > end => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened,
        }
    }
}
