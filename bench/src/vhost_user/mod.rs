//! The way to a virtual machine on the same host: vhost-user beside QEMU's own vhost-user server, and beside
//! NBD over a unix socket, ours and nbdkit's.

mod disk;

use crate::client::{BenchConnection, Job};
use crate::contender::{self, Bench};
use crate::content;
use crate::home::Home;
use crate::process::Tree;
use crate::side_by_side::{
    self, Comparison, Connect, Driven, Figure, Killed, LOADS, SIZE, Served, SideBySideReport,
    WARM_UP,
};
use crate::tool::find;
use anyhow::{Context, Result, ensure};
use disk::VirtioDisk;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);
/// Room for what warms a server up, bytes.
const ROOM: usize = 8 * (128 << 10);

const OURS: &str = "sojourn, vhost-user";

const fn goal(
    peer: &'static str,
    writes: bool,
    depth: usize,
    figure: Figure,
    ratio: f64,
) -> Comparison {
    Comparison { ours: OURS, peer, writes, depth, figure, ratio }
}

const GOALS: [Comparison; 5] = [
    goal("nbdkit", false, 1, Figure::Median, 0.35),
    goal("qemu-storage-daemon", false, 1, Figure::Median, 0.4),
    goal("qemu-storage-daemon", false, 32, Figure::Rate, 5.0),
    goal("qemu-storage-daemon", true, 1, Figure::Median, 0.5),
    goal("qemu-storage-daemon", true, 32, Figure::Rate, 3.0),
];

/// Measures in `dir`: `rounds` windows of each load at each server, in turn.
///
/// # Errors
/// When a server of ours cannot be set up, or any one gives a wrong answer.
pub(crate) fn run(
    sojourn: &Path,
    dir: &Path,
    window: Duration,
    rounds: usize,
) -> Result<SideBySideReport> {
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
    let title = "4 KiB requests of one client in memory, one queue";
    side_by_side::run(title, servers, left_out, &GOALS, window, rounds)
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
    Ok(Served { name: OURS, open: open(socket), tree, _process: Rc::new((serving, home)) })
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
    let mut served = Served { name, open: open(socket), tree, _process: Rc::new(killed) };
    // One that cannot do it says so with its first request.
    side_by_side::measure(&mut served, LOADS[0], WARM_UP)?;
    Ok(served)
}

fn nbd(bench: &Bench, name: &str) -> Result<Served> {
    let contender = contender::ALL.iter().find(|one| one.name == name).context("no such server")?;
    let server = contender.start(bench)?;
    let (place, export, tree) = (server.place().clone(), server.export(0), server.tree());
    let name = if name == "nbdkit-file" { "nbdkit, NBD" } else { "sojourn, NBD" };
    let open = Box::new(move |_: Job| -> Result<Box<dyn Driven>> {
        Ok(Box::new(BenchConnection::open_at(&place, &export)?))
    });
    Ok(Served { name, open, tree, _process: Rc::new(server) })
}

fn await_socket(path: &Path) -> Result<()> {
    let end = Instant::now() + START;
    while !path.exists() {
        ensure!(Instant::now() < end, "{} is not there", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Connects; the server may not have noticed yet that the client before has left.
fn open(path: PathBuf) -> Connect {
    Box::new(move |job: Job| -> Result<Box<dyn Driven>> {
        let room = (job.depth * job.bytes).max(ROOM);
        let end = Instant::now() + START;
        loop {
            match VirtioDisk::open(&path, room) {
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
                Ok(disk) => return Ok(Box::new(disk)),
            }
        }
    })
}
