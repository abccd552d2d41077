//! How soon a server gives its first byte, and how long a recorded boot takes from a cold cache.
//!
//! A boot is its read requests, one after the other as the guest sent them, without the time that the
//! guest computed in between. Every byte is compared with the image's, outside of the time that
//! counts. The files lie in the page cache, of ours and of the other alike.

use super::{Images, command, peer, ranges};
use crate::client::BenchConnection;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is read of the image first, for the first byte.
const FIRST: usize = 4096;

/// What boots took, milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Boot {
    requests: usize,
    bytes: u64,
    /// From the start of the server's process to its first byte.
    pub(crate) first_byte_ms: f64,
    /// A boot from a cold cache, its boot list being loaded ahead.
    pub(crate) ahead_ms: f64,
    /// The same without a boot list.
    plain_ms: f64,
    /// The same again, from the warm cache of the same server.
    warm_ms: f64,
    /// qemu-nbd on a qcow2 image that is compressed with zstd.
    pub(crate) qemu_ms: Option<f64>,
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "first byte {:.1} ms after process start; a boot ({} reads, {:.1} MB) from a cold cache \
             {:.0} ms, {:.0} without boot list, {:.0} once warm",
            self.first_byte_ms,
            self.requests,
            self.bytes as f64 / 1e6,
            self.ahead_ms,
            self.plain_ms,
            self.warm_ms
        )?;
        match self.qemu_ms {
            Some(qemu) => write!(f, "; qemu-nbd on qcow2 with zstd {qemu:.0} ms"),
            None => Ok(()),
        }
    }
}

/// A server that is killed when it is dropped.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ServerProcess {
    /// Starts a server and connects as soon as it answers.
    fn start(
        command: &mut Command,
        socket: &Path,
        export: &str,
    ) -> Result<(Self, BenchConnection)> {
        let _ = std::fs::remove_file(socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self(command.spawn().with_context(|| format!("cannot run {command:?}"))?);
        let end = Instant::now() + PATIENCE;
        loop {
            match BenchConnection::open(socket, export) {
                Ok(connection) => return Ok((server, connection)),
                Err(error) => {
                    ensure!(Instant::now() < end, "no answer from {command:?}: {error:#}");
                    let ended = server.0.try_wait()?;
                    ensure!(ended.is_none(), "{command:?} ended ({ended:?})");
                }
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// The reads of a boot, and what they must give.
struct BootReads {
    reads: Vec<(u64, usize)>,
    image: std::fs::File,
}

impl BootReads {
    /// Plays it; milliseconds.
    fn play(&self, connection: &mut BenchConnection) -> Result<f64> {
        let mut took = Duration::ZERO;
        let (mut buffer, mut expected) = (Vec::new(), Vec::new());
        for (offset, len) in &self.reads {
            buffer.resize(*len, 0);
            let start = Instant::now();
            connection.read(*offset, &mut buffer)?;
            took += start.elapsed();
            expected.resize(*len, 0);
            self.image.read_exact_at(&mut expected, *offset)?;
            ensure!(buffer == expected, "wrong bytes at offset {offset}");
        }
        Ok(took.as_secs_f64() * 1e3)
    }
}

/// The least of some tries.
fn least(rounds: usize, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        best = best.min(once()?);
    }
    Ok(best)
}

/// Measures boots of the image that `home` has as `a`.
pub(crate) fn measure(
    sojourn: &Path,
    images: &Images,
    home: &Path,
    scratch: &Path,
    rounds: usize,
) -> Result<Boot> {
    let size = std::fs::metadata(&images.image)?.len();
    let mut reads = ranges(&images.boot)?;
    reads.retain(|(offset, len)| *len > 0 && offset + *len as u64 <= size);
    ensure!(!reads.is_empty(), "{} names no range of the image", images.boot.display());
    let trace = BootReads { reads, image: std::fs::File::open(&images.image)? };
    // What was written is not to be written back while boots are timed.
    command::run(&mut Command::new("sync"))?;
    command::run(peer::sojourn(sojourn, home).args(["disk", "create", "d", "--from", "a"]))?;
    let socket = scratch.join("boot.sock");
    let mut serve = peer::sojourn(sojourn, home);
    serve.args(["serve", "--nbd"]).arg(format!("unix:{}", socket.display()));
    let first_byte_ms = least(3 * rounds, || {
        let start = Instant::now();
        let (_server, mut connection) = ServerProcess::start(&mut serve, &socket, "d")?;
        connection.read(0, &mut [0; FIRST])?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    })?;
    let mut warm_ms = f64::INFINITY;
    let mut cold = |serve: &mut Command| {
        least(rounds, || {
            let (_server, mut connection) = ServerProcess::start(serve, &socket, "d")?;
            let cold = trace.play(&mut connection)?;
            warm_ms = warm_ms.min(trace.play(&mut connection)?);
            Ok(cold)
        })
    };
    let plain_ms = cold(&mut serve)?;
    let mut record = peer::sojourn(sojourn, home);
    command::run(record.args(["image", "boot-list", "record", "a"]).arg(&images.boot))?;
    let ahead_ms = cold(&mut serve)?;
    let qemu_ms = qemu(images, scratch, &trace, rounds)?;
    let bytes = trace.reads.iter().map(|(_, len)| *len as u64).sum();
    Ok(Boot {
        requests: trace.reads.len(),
        bytes,
        first_byte_ms,
        ahead_ms,
        plain_ms,
        warm_ms,
        qemu_ms,
    })
}

/// A boot from qemu-nbd on a compressed qcow2 image.
fn qemu(images: &Images, scratch: &Path, trace: &BootReads, rounds: usize) -> Result<Option<f64>> {
    if peer::Peer::QemuImg.ready().is_err() {
        return Ok(None);
    }
    let qcow2 = scratch.join("boot.qcow2");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-c", "-O", "qcow2", "-o", "compression_type=zstd"]);
    command::run(convert.arg(&images.image).arg(&qcow2))?;
    command::run(&mut Command::new("sync"))?;
    let socket = scratch.join("qemu.sock");
    let mut serve = Command::new("qemu-nbd");
    serve.args(["--read-only", "--persistent", "--format", "qcow2", "--socket"]);
    serve.arg(&socket).arg(&qcow2);
    let ms = least(rounds, || {
        let (_server, mut connection) = ServerProcess::start(&mut serve, &socket, "")?;
        trace.play(&mut connection)
    })?;
    Ok(Some(ms))
}
