//! How long a disk with many private blocks takes to open after a crash: from the start of the
//! server's process to the first block read, beside the same for a disk with a single private block.

use crate::client::{BenchConnection, Job};
use crate::content::GRAIN;
use anyhow::{Context, Result, ensure};
use block::ByteSize;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Length of the private blocks, bytes.
const BLOCK: u64 = GRAIN as u64;
/// Crashes and openings of each disk; the median is reported.
const ROUNDS: usize = 5;
/// How long one opening may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A prime that divides no count of blocks below: steps of it touch every block once.
const STRIDE: u64 = 1_000_003;

/// Milliseconds from the start of the process to the first block read, after a kill -9.
#[derive(Debug, Serialize)]
pub(crate) struct Reopened {
    /// Size of both disks, bytes.
    pub(crate) disk_bytes: u64,
    /// Private bytes of the second one, scattered 4 KiB blocks.
    pub(crate) private_bytes: u64,
    /// Opening a disk with one private block: what starting a server costs.
    pub(crate) one_block_ms: f64,
    /// Opening the disk with all of them.
    pub(crate) all_blocks_ms: f64,
}

impl std::fmt::Display for Reopened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "open after kill -9, process start to first block read, {} disk, median of {ROUNDS}:\n  \
             one private block   {:8.1} ms\n  {:<9} private   {:8.1} ms   ({:.2} x)",
            ByteSize(self.disk_bytes),
            self.one_block_ms,
            ByteSize(self.private_bytes).to_string(),
            self.all_blocks_ms,
            self.all_blocks_ms / self.one_block_ms
        )
    }
}

/// Makes both disks in `dir`, writes to them, and opens each some times after a crash.
pub(crate) fn run(sojourn: &Path, dir: &Path, size: u64, private: u64) -> Result<Reopened> {
    let blocks = size / BLOCK;
    ensure!(
        private <= size && private >= BLOCK && !blocks.is_multiple_of(STRIDE),
        "the private part must be smaller than the disk"
    );
    let home = dir.join("home");
    let sojourn = |arguments: &[&str]| {
        let mut command = Command::new(sojourn);
        command.arg("--home").arg(&home).args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let blank = dir.join("blank.raw");
    fs::File::create(&blank)?.set_len(size)?;
    let blank = blank.to_str().context("the scratch directory's name is not text")?;
    for arguments in [
        &["init"][..],
        &["image", "import", blank, "blank"],
        &["disk", "create", "one", "--from", "blank"],
        &["disk", "create", "all", "--from", "blank"],
    ] {
        let status = sojourn(arguments).status().context("cannot run sojourn")?;
        ensure!(status.success(), "sojourn {arguments:?} failed ({status})");
    }
    let socket = home.join("nbd.sock");
    let mut serve = sojourn(&["serve"]);
    {
        let (_server, mut one) = open(&mut serve, &socket, "one")?;
        let mut all = BenchConnection::open(&socket, "all")?;
        for (connection, count) in [(&mut one, 1), (&mut all, private / BLOCK)] {
            let mut offsets = (0..count).map(|index| index * STRIDE % blocks * BLOCK);
            let job = Job { writes: true, bytes: GRAIN, depth: 64 };
            connection.drive(job, None, || offsets.next())?;
            connection.flush()?;
        }
    } // killed here, as after each opening
    let mut median = |disk: &str| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let (_server, mut connection) = open(&mut serve, &socket, disk)?;
            let mut offsets = std::iter::once(0);
            let job = Job { writes: false, bytes: GRAIN, depth: 1 };
            connection.drive(job, None, || offsets.next())?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    };
    let one_block_ms = median("one")?;
    let all_blocks_ms = median("all")?;
    Ok(Reopened { disk_bytes: size, private_bytes: private, one_block_ms, all_blocks_ms })
}

/// A server that is killed, not stopped, when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and connects to a disk as soon as it answers.
fn open(serve: &mut Command, socket: &Path, disk: &str) -> Result<(Killed, BenchConnection)> {
    let mut server = Killed(serve.spawn().context("cannot start the server")?);
    let end = Instant::now() + PATIENCE;
    loop {
        match BenchConnection::open(socket, disk) {
            Ok(connection) => return Ok((server, connection)),
            Err(error) => {
                ensure!(Instant::now() < end, "{disk} cannot be opened: {error:#}");
                let ended = server.0.try_wait()?;
                ensure!(ended.is_none(), "the server ended ({ended:?})");
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
