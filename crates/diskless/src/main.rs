//! `sojourn-diskless`: the disk of a machine that has none. The initial RAM disk starts it before the root file system
//! is mounted, and it stays for as long as the machine runs.
//!
//! It does what `sojourn device connect` does, in a program that is linked statically and small, and waits for a server
//! that is not there yet: a machine that is switched on before its server starts when that does. Nothing that it
//! needs later is in a file system: the one that it was started from is emptied, and the root is on the device.
//!
//! This crate may know how a device is kept and how a server is reached. It must not know what starts it.

use block::{Error, Result};
use clap::Parser;
use nbd::{ClientOptions, Uri};
use nbd_device::keeper::{self, ExportServers};
use nbd_device::{Keeper, KeeperOptions, Netlink, background, resident, sysfs};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// systemd leaves processes of this mark alone when it switches roots and at the end
/// (<https://systemd.io/ROOT_STORAGE_DAEMONS>).
const NAME: &str = "@sojourn-diskless";
/// How long requests wait for a server that is away. The driver wants a limit.
const NEVER: Duration = Duration::from_secs(365 * 86_400);
/// The pause before a server is asked again that was not there when the machine started.
const PAUSE: Duration = Duration::from_secs(2);
/// Where certificates are looked for when a URI does not say.
const CERTIFICATES: &str = "/etc/pki/libnbd";

/// Makes an NBD export the disk of this machine, and keeps it: what the initial RAM disk of a machine without a disk
/// runs. `sojourn device connect` is the same for a machine that runs already.
#[derive(Debug, Parser)]
#[command(
    name = "sojourn-diskless",
    version,
    after_help = "\
Examples:
  sojourn-diskless nbd://10.0.0.1/lab-1
  sojourn-diskless nbd://10.0.0.1/lab-1 nbd://10.0.0.2/lab-1    the second when the first is away

It waits for the server, prints the device, and stays in the background. Needs root, and the kernel's
NBD driver (modprobe nbd)."
)]
struct Args {
    /// The export: nbd://HOST[:PORT]/NAME, or nbds:// with TLS. Several are the same export at several servers
    #[arg(value_name = "URI", required = true)]
    servers: Vec<Uri>,
    /// The device
    #[arg(long, value_name = "PATH", value_parser = device, default_value = "/dev/nbd0")]
    device: u32,
    /// Go to the background when the device is there.
    #[arg(long, hide = true)]
    detach: bool,
}

fn device(text: &str) -> Result<u32> {
    sysfs::index_of(Path::new(text))
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before there are threads. Who may not do this will be told by the driver.
    let _ = resident::wait_for_no_device();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(&args)),
        Err(e) => Err(Error::io("cannot start the runtime", e)),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("sojourn-diskless: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the keeper, or is it.
async fn run(args: &Args) -> Result<ExitCode> {
    if args.detach {
        return keep(args).await.map(|()| ExitCode::SUCCESS);
    }
    let line = std::env::args_os().skip(1);
    match background::spawn(line, Stdio::null(), Some(OsStr::new(NAME))).await? {
        Ok(said) => print(&said).map(|()| ExitCode::SUCCESS),
        // It has said why.
        Err(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
    }
}

fn print(text: &[u8]) -> Result<()> {
    std::io::stdout().write_all(text).map_err(|e| Error::io("standard output", e))
}

/// Keeps the device for as long as it is there.
async fn keep(args: &Args) -> Result<()> {
    let exports = args.servers.iter().map(|uri| Ok((uri.clone(), options(uri)?)));
    let exports: Vec<_> = exports.collect::<Result<_>>()?;
    let mut id = [0; 16];
    // Nothing is simulated here.
    #[allow(clippy::disallowed_methods)]
    getrandom::fill(&mut id).map_err(|e| Error::internal(format!("no random numbers: {e}")))?;
    let options = KeeperOptions {
        index: Some(args.device),
        dead_timeout: NEVER,
        // A new size comes with the next start.
        grows: false,
        id,
        number: keeper::number_since_boot(),
        ..KeeperOptions::default()
    };
    // Without the driver waiting is of no use.
    let mut driver = Netlink::open().await?;
    let mut said = None;
    let mut keeper = loop {
        let servers = ExportServers::looked_up(exports.clone()).await;
        let connected = match servers {
            Ok(servers) => Keeper::connect(driver, servers, &options).await,
            Err(e) => Err(e),
        };
        let error = match connected {
            Ok(keeper) => break keeper,
            Err(error) => error.to_string(),
        };
        if said.as_ref() != Some(&error) {
            tracing::warn!("sojourn-diskless: waiting for the disk: {error}");
            said = Some(error);
        }
        tokio::time::sleep(PAUSE).await;
        driver = Netlink::open().await?;
    };
    resident::stay()?;
    let announced = async {
        // It reads the device, whose connection may be lost meanwhile.
        sysfs::look_for_partitions(args.device).await;
        let told = print(format!("{}\n", sysfs::path(args.device).display()).as_bytes());
        // The device is there, and needs its keeper whoever started that.
        if let Err(error) = told.and_then(|()| background::leave()) {
            tracing::warn!("sojourn-diskless: {error}");
        }
        std::future::pending().await
    };
    tokio::select! {
        kept = keeper.keep() => kept,
        never = announced => never,
    }
}

/// How a server is reached: what this machine had there before it was started anew is of a system that is gone.
fn options(uri: &Uri) -> Result<ClientOptions> {
    let options = ClientOptions { initial_contact: true, ..ClientOptions::default() };
    let Some(tls) = &uri.tls else { return Ok(options) };
    let folder = tls.certificates.as_deref().unwrap_or(Path::new(CERTIFICATES));
    let tls = access::client_tls(folder).map_err(|e| e.context(uri))?;
    Ok(ClientOptions { tls: Some(tls), ..options })
}
