//! `sojourn device`: NBD exports as block devices of this machine's kernel.

use super::runnable::{COMMAND_LOG, Invocation, Runnable, finish};
use crate::output::{self, Output};
use crate::remote;
use block::{ByteSize, Error, Result};
use engine::config::time::duration;
use engine::devices::KeeperLock;
use nbd::Uri;
use nbd_device::keeper::ExportServers;
use nbd_device::{
    Backend, BlockDevices, Driver, Keeper, KeeperOptions, Netlink, background, keeper, resident,
    sysfs,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use server::notify::notify;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often is looked whether a device is still used that a keeper stays for.
const LOOK: Duration = Duration::from_secs(1);

/// `sojourn device …`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DeviceCommand {
    /// Make an NBD export a block device, and keep it through restarts and cuts
    Connect(Connect),
    /// List the NBD devices of this machine that are connected
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  sojourn device list
  sojourn --json device list"
    )]
    List,
    /// End a device that nothing uses
    Disconnect(Disconnect),
}

/// Arguments of `sojourn device connect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn device connect nbd://lab/alice
  sojourn device connect nbds://lab/alice --device /dev/nbd0 --connections 4
  sojourn device connect nbd://lab/alice nbd://lab2/alice    the second when the first is away

Prints the device. Its keeper stays in the background, or here with --foreground: when the server
is restarted or hangs, or the link is cut, whatever uses the device waits until the server is there
again. The keeper is locked in memory, so that the root file system may be on the device; what it
has to say is in the kernel's log. SIGTERM ends the keeper and leaves the device as it is: the same
command takes it up again. One in the background that encrypts (nbds://) stays until the device is
neither mounted, swapped to nor held by another device. Needs root, and the kernel's NBD driver
(modprobe nbd).")]
pub(crate) struct Connect {
    /// The export: nbd://HOST[:PORT]/NAME, nbds:// with TLS, nbd+unix:///NAME?socket=PATH. Several are
    /// the same export at several servers
    #[arg(value_name = "URI", required = true)]
    servers: Vec<Uri>,
    /// The device [default: a free one]
    #[arg(long, value_name = "PATH", value_parser = device)]
    device: Option<u32>,
    /// Connections, where the server allows more than one. With more, a request that timed out may be
    /// carried out twice, late: docs/device.md
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// A request that is not answered for this long makes its connection count as dead, and begins anew on
    /// the next one: give more than a read takes where the server has a slow store
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    request_timeout: Duration,
    /// How long requests wait for a server that is away; they fail then, and what is on the device
    /// with them
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "24h")]
    give_up_after: Duration,
    /// Stay here: for systemd and other supervisors
    #[arg(long)]
    foreground: bool,
    /// Go to the background when the device is there.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    detach: bool,
}

impl Connect {
    /// Whether its end would be the end of what uses the device, with nobody who ends the two in order: connections
    /// that are encrypted go through this process, and a shell's session is ended while its mounts are still there. A
    /// supervisor knows the order, and may start it anew.
    fn must_stay(&self) -> bool {
        self.detach && self.servers.iter().any(|uri| uri.tls.is_some())
    }
}

/// Arguments of `sojourn device disconnect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn device disconnect /dev/nbd0

A device that is mounted, swapped to or held otherwise is refused. With --force it ends all the
same: what waits for an answer fails, and what was not written is lost.")]
pub(crate) struct Disconnect {
    /// The device
    #[arg(value_name = "PATH", value_parser = device)]
    device: u32,
    /// Though something uses it
    #[arg(long)]
    force: bool,
}

/// A device as this command shows it.
#[derive(Debug, Serialize)]
struct DeviceView {
    device: PathBuf,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<usize>,
    server: Option<String>,
}

impl DeviceView {
    fn line(&self) -> String {
        let server = self.server.as_deref().unwrap_or("(unknown)");
        format!("{}  {}  {server}", self.device.display(), ByteSize(self.size))
    }
}

pub(crate) fn device(text: &str) -> Result<u32> {
    sysfs::index_of(Path::new(text))
}

impl Runnable for DeviceCommand {
    fn default_log(&self) -> Option<&'static str> {
        Some(match self {
            // A keeper tells what happens to its device.
            Self::Connect(_) => "warn,nbd_device=info,panic=off",
            _ => COMMAND_LOG,
        })
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        if matches!(self, Self::Connect(args) if args.foreground || args.detach) {
            // Before there are threads. Who may not do this will be told by the driver.
            let _ = resident::wait_for_no_device();
        }
        finish(run(self, invocation.output))
    }
}

/// Carries the verb out.
async fn run(verb: &DeviceCommand, output: Output) -> Result<()> {
    match verb {
        DeviceCommand::Connect(args) if args.foreground || args.detach => {
            connect(args, output).await
        }
        DeviceCommand::Connect(_) => start().await,
        DeviceCommand::List => list(output),
        DeviceCommand::Disconnect(args) => disconnect(args, output).await,
    }
}

/// Starts the keeper with the command line of this process, and prints what it prints until the device
/// is there. One that fails says why itself, and this process ends with its code.
async fn start() -> Result<()> {
    match background::spawn(std::env::args_os().skip(1), Stdio::null(), None).await? {
        Ok(said) => output::raw(&said),
        Err(code) => std::process::exit(code),
    }
}

async fn connect(args: &Connect, output: Output) -> Result<()> {
    let exports = args.servers.iter().map(|uri| Ok((uri.clone(), remote::options(uri)?)));
    let servers = ExportServers::looked_up(exports.collect::<Result<_>>()?).await?;
    let mut id = [0; 16];
    engine::world::system().entropy.fill(&mut id)?;
    let options = KeeperOptions {
        index: args.device,
        connections: args.connections,
        request_timeout: args.request_timeout,
        dead_timeout: args.give_up_after,
        grows: true,
        id,
        number: keeper::number_since_boot(),
    };
    let mut keeper = Keeper::connect(Netlink::open().await?, servers, &options).await?;
    resident::stay()?;
    let index = keeper.index();
    let view = DeviceView {
        device: sysfs::path(index),
        size: keeper.size(),
        connections: Some(keeper.connections()),
        server: Some(args.servers[0].to_string()),
    };
    let announced = async {
        // It reads the device, whose connection may be lost meanwhile.
        sysfs::look_for_partitions(index).await;
        output.print(&view, || view.device.display().to_string())?;
        notify("READY=1");
        if args.detach {
            background::leave()?;
        }
        std::future::pending::<Result<()>>().await
    };
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        return Err(Error::unavailable("cannot listen to signals"));
    };
    // systemd hangs up on the processes of a session right behind its SIGTERM.
    let _hangup = args.must_stay().then(|| signal(SignalKind::hangup()));
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if args.must_stay() {
            until_unused(&sysfs::path(index)).await;
        }
    };
    tokio::select! {
        kept = keeper.keep() => kept,
        failed = announced => failed,
        () = told => Ok(()),
    }
}

/// Waits until nothing uses a device, and says so if it has to.
async fn until_unused(path: &Path) {
    let mut said = false;
    loop {
        let at = path.to_owned();
        // One that cannot be looked at is not there.
        if !block::offload(move || is_used(&at)).await.unwrap_or(false) {
            return;
        }
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(
                device = %path.display(),
                "told to end, and stays: the device is in use, and this process encrypts its connection; it ends when \
                 nothing uses the device any more"
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn list(output: Output) -> Result<()> {
    let devices: Vec<_> = BlockDevices::open()?
        .connected()?
        .into_iter()
        .map(|device| DeviceView {
            device: device.path(),
            size: device.size,
            connections: None,
            server: device.backend.map(|text| match Backend::parse(&text) {
                Some(backend) => backend.server,
                None => text,
            }),
        })
        .collect();
    output.print(&devices, || match devices.is_empty() {
        true => "no NBD device is connected".to_owned(),
        false => devices.iter().map(DeviceView::line).collect::<Vec<_>>().join("\n"),
    })
}

async fn disconnect(args: &Disconnect, output: Output) -> Result<()> {
    let path = sysfs::path(args.device);
    let mut driver = Netlink::open().await?;
    if !driver.is_connected(args.device)? {
        return Err(Error::not_found(format!(
            "{} is not connected; `sojourn device list` shows those that are",
            path.display()
        )));
    }
    if !args.force {
        let at = path.clone();
        block::offload(move || must_be_free(&at)).await?;
    }
    driver.disconnect(args.device).await?;
    output.done(&format!("disconnected {}", path.display()))
}

/// Starts the keeper of a device in the background, which holds `lock` as long as it lives; when it fails, its
/// exit code.
///
/// # Errors
/// When it cannot be started.
pub(crate) async fn keep(uri: &Uri, index: u32, lock: KeeperLock) -> Result<Result<(), i32>> {
    let path = sysfs::path(index);
    let verb = ["device", "connect"].map(OsString::from);
    let rest = [uri.to_string().into(), "--device".into(), path.into_os_string()];
    let held = lock.pass().map_or_else(Stdio::null, Stdio::from);
    let kept = background::spawn(verb.into_iter().chain(rest), held, None).await?;
    Ok(kept.map(drop))
}

/// Writes what the kernel has in memory of a device, which is refused when something uses it.
pub(crate) fn sync_free(path: &Path) -> Result<()> {
    must_be_free(path)?;
    let synced = File::open(path).and_then(|device| device.sync_all());
    synced.map_err(|e| Error::io(path.display(), e))
}

/// Whether a device is mounted, swapped to, or held by another device. Nobody is told that it was looked at: what would
/// read a device that was open for writing would wait for its keeper.
fn is_used(path: &Path) -> Result<bool> {
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(e) => Err(Error::io(path.display(), e.into())),
    }
}

/// Refuses a device that is mounted, swapped to, or held by another device.
fn must_be_free(path: &Path) -> Result<()> {
    match rustix::fs::open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(()),
        Err(Errno::BUSY) => Err(Error::conflict(format!(
            "{} is in use (mounted, swapped to, or part of another device); give that up first",
            path.display()
        ))),
        Err(e) => Err(Error::io(path.display(), e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        verb: DeviceCommand,
    }

    fn connect(line: impl IntoIterator<Item = OsString>) -> Connect {
        match Line::try_parse_from(line).unwrap().verb {
            DeviceCommand::Connect(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_keeper_stays_for_its_device_where_it_encrypts_and_nobody_looks_after_it() {
        for (line, stays) in [
            ("device connect nbds://lab/alice --detach", true),
            ("device connect nbd://lab/alice nbds://lab2/alice --detach", true),
            ("device connect nbd://lab/alice --detach", false),
            ("device connect nbds://lab/alice --foreground", false),
        ] {
            assert_eq!(connect(words(line)).must_stay(), stays, "{line}");
        }
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_is_not_stayed_for() {
        let dir = tempfile::tempdir().unwrap();
        until_unused(&dir.path().join("nbd3")).await;
    }
}
