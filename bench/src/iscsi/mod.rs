//! iSCSI over TCP on this machine: ours beside Debian's tgt, and beside NBD on the same disk of the same server.

mod initiator;
mod tgt;

use crate::client::{BenchConnection, Job};
use crate::content;
use crate::home::Home;
use crate::place::Endpoint;
use crate::process::Tree;
use crate::side_by_side::{
    self, Comparison, Connect, Driven, Figure, SIZE, Served, SideBySideReport,
};
use anyhow::{Context, Result, bail, ensure};
use initiator::Initiator;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(30);

const OURS: &str = "sojourn, iSCSI";
/// The same where a connection sleeps at once: how much of the processor's time is for looking.
const ASLEEP: &str = "sojourn, asleep";
const OUR_NBD: &str = "sojourn, NBD";
const TGT: &str = "tgt";

const fn goal(peer: &'static str, depth: usize, figure: Figure, ratio: f64) -> Comparison {
    Comparison { ours: OURS, peer, writes: false, depth, figure, ratio }
}

const GOALS: [Comparison; 7] = [
    goal(TGT, 1, Figure::Rate, 3.0),
    goal(TGT, 32, Figure::Rate, 3.0),
    goal(OUR_NBD, 1, Figure::Rate, 0.8),
    goal(OUR_NBD, 32, Figure::Rate, 0.8),
    goal(TGT, 1, Figure::Cpu, 0.4),
    goal(TGT, 32, Figure::Cpu, 0.4),
    Comparison { ours: ASLEEP, ..goal(TGT, 1, Figure::Cpu, 0.4) },
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
    let image = dir.join("image.raw");
    content::write_image(&image, SIZE).context("cannot write the image")?;
    let mut left_out = Vec::new();
    let [iscsi, nbd] = ours(sojourn, &dir.join("iscsi-home"), &image, OURS, "")?;
    let [asleep, _] =
        ours(sojourn, &dir.join("asleep-home"), &image, ASLEEP, "busy_poll_us = 0\n")?;
    let mut servers = vec![iscsi, asleep, nbd];
    match tgt::start(TGT, dir, &image) {
        Ok(server) => servers.push(server),
        Err(e) => left_out.push(format!("tgt: {e:#}")),
    }
    let title = "4 KiB requests of one client in memory, over TCP on this machine";
    side_by_side::run(title, servers, left_out, &GOALS, window, rounds)
}

/// One server with its home at `at` and this in its configuration, and a disk that it serves by both protocols.
fn ours(
    sojourn: &Path,
    at: &Path,
    image: &Path,
    name: &'static str,
    serve: &str,
) -> Result<[Served; 2]> {
    let store = at.join("store");
    let store = store.to_str().context("the path of the scratch directory is not text")?;
    let home = Home::make(sojourn, at, store, Vec::new())?;
    home.import(image, "bench")?;
    home.run(&["disk", "create", "disk", "--from", "bench"])?;
    let (nbd, iscsi) = (free_address()?, free_address()?);
    let cache = block::ByteSize(2 * SIZE);
    let configuration =
        format!("[cache]\nsize = \"{cache}\"\n[serve]\niscsi = [\"{iscsi}\"]\n{serve}");
    let serving = home.serve(&configuration, Some(nbd))?;
    await_port(iscsi)?;
    let tree = Tree::new(serving.pid());
    let process = Rc::new((serving, home));
    let by_nbd = move |_: Job| -> Result<Box<dyn Driven>> {
        Ok(Box::new(BenchConnection::open_at(&Endpoint::Tcp(nbd), "disk")?))
    };
    Ok([
        Served {
            name,
            open: opener(iscsi, "iqn.2026-11.io.sojourn:disk", 0),
            tree: tree.clone(),
            _process: Rc::<(_, _)>::clone(&process),
        },
        Served { name: OUR_NBD, open: Box::new(by_nbd), tree, _process: process },
    ])
}

/// Logs in to one unit again and again.
fn opener(address: SocketAddr, target: &'static str, lun: u8) -> Connect {
    Box::new(move |_: Job| -> Result<Box<dyn Driven>> {
        Ok(Box::new(Initiator::open(address, target, lun, SIZE)?))
    })
}

/// An address that is free now.
fn free_address() -> Result<SocketAddr> {
    match Endpoint::free_tcp().context("no TCP on this machine")? {
        Endpoint::Tcp(address) => Ok(address),
        Endpoint::Unix(path) => bail!("{} is no address", path.display()),
    }
}

fn await_port(address: SocketAddr) -> Result<()> {
    let end = Instant::now() + START;
    while TcpStream::connect(address).is_err() {
        ensure!(Instant::now() < end, "nobody listens at {address}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
