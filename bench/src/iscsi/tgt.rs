//! tgt, the iSCSI target of Debian that needs no kernel module: installed, or unpacked by `scripts/setup`.

use crate::process::Tree;
use crate::side_by_side::{Killed, Served};
use crate::tool::{find, run};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Where `scripts/setup bench-iscsi` unpacks it, from the repository's top.
const UNPACKED: &str = ".work/tgt/usr/sbin";
const TARGET: &str = "iqn.2026-11.io.sojourn:tgt";
/// The number of its control socket, beside that of a tgtd of the machine.
const CONTROL: &str = "62";
/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

/// Starts it on a copy of `image` in `dir`, with write-back as it has it by default.
///
/// # Errors
/// When it is not there, or does not start.
pub(super) fn start(name: &'static str, dir: &Path, image: &Path) -> Result<Served> {
    let (daemon, admin) = (program("tgtd")?, program("tgtadm")?);
    let file = dir.join("tgt.raw");
    std::fs::copy(image, &file).context("cannot copy the image")?;
    let address = super::free_address()?;
    let socket = dir.join("tgt.sock");
    let log_path = dir.join("tgt.log");
    let log = std::fs::File::create(&log_path)?;
    let mut command = Command::new(daemon);
    command.args(["-f", "-C", CONTROL, "--iscsi", &format!("portal={address}")]);
    command.env("TGT_IPC_SOCKET", &socket).stdin(Stdio::null());
    let child = command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot run tgtd")?;
    let tree = Tree::new(child.id());
    let killed = Killed(child);
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(&admin);
        command.args(["-C", CONTROL, "--lld", "iscsi"]).args(arguments);
        run(command.env("TGT_IPC_SOCKET", &socket))
    };
    let end = Instant::now() + START;
    while let Err(error) = ask(&["--mode", "target", "--op", "show"]) {
        let log = || std::fs::read_to_string(&log_path).unwrap_or_default();
        ensure!(Instant::now() < end, "it does not start: {error:#}\n{}", log().trim());
        std::thread::sleep(Duration::from_millis(20));
    }
    ask(&["--mode", "target", "--op", "new", "--tid", "1", "-T", TARGET])?;
    let file = file.to_str().context("the path of the scratch directory is not text")?;
    ask(&["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", file])?;
    ask(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
    super::await_port(address)?;
    Ok(Served { name, open: super::opener(address, TARGET, 1), tree, _process: Rc::new(killed) })
}

/// A program of tgt's.
fn program(name: &str) -> Result<PathBuf> {
    let unpacked = Path::new(UNPACKED).join(name);
    if unpacked.is_file() {
        return Ok(unpacked);
    }
    find(name).context("run `scripts/setup bench-iscsi` at the repository's top")
}
