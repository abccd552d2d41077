//! `sojourn serve`.

use super::runnable::{Invocation, Runnable};
use crate::allocator;
use crate::global::Global;
use crate::logging;
use crate::runtime::block_on;
use crate::values::TlsMode;
use block::{ByteSize, Error, Result};
use engine::config::listener;
use engine::config::throttle::ThrottleRule;
use engine::{Config, Home};
use formats::Format;
use nbd::Address;
use server::borrow::shadow::BorrowRequest;
use server::daemon;
use server::descriptors;
use server::listen::ListenOptions;
use server::options::ServerOptions;
use server::until::{self, ServeUntil};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `sojourn serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn serve                                     unix socket nbd.sock in the home
  sojourn serve --nbd 127.0.0.1:10809 --http 127.0.0.1:9180
  sojourn serve --nbd 0.0.0.0:10809 --tls required  after sojourn cert ca, server, client
  sojourn serve --gateway 0.0.0.0:9443              the store by HTTPS; docs/gateway.md
  sojourn serve --iscsi 127.0.0.1:3260              iqn.2026-11.io.sojourn:DISK by iSCSI, too
  sojourn serve --vhost-user /run/vu                a socket for each disk; docs/vhost-user.md
  sojourn serve --take-over                         in the place of the one that runs
  sojourn serve --export alice --run 'nbdcopy $uri alice.raw'
  sojourn serve --file disk.qcow2 --run 'nbdinfo $uri'
  sojourn serve --throttle hdd-7200                 as slow as that disk; docs/disk-lab.md
  sojourn serve --shadow borrowed --borrow /dev/sda --borrow-size 100G
  nbdinfo -- [ sojourn serve --export alice ]       by socket activation
  nbdsh -c 'h.connect_command([\"sojourn\", \"serve\", \"--export\", \"alice\", \"--single\"])'

Every disk is the writable export of its name. Every image version NAME:TAG is a read-only export,
and NAME is the newest of them. SIGTERM stops the server when everything is flushed; a second one
stops it at once. SIGHUP reads the configuration again.")]
pub(crate) struct Args {
    /// The configuration file [default: sojourn.toml in the home]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen here for NBD: unix:PATH or HOST:PORT; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub(crate) nbd: Vec<Address>,
    /// Listen here for iSCSI: HOST:PORT, of which 3260 is the usual one; may be repeated. Every disk and
    /// every image version is a target (docs/iscsi.md)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) iscsi: Vec<String>,
    /// Ask iSCSI clients for a secret of this file, which has lines of USER:SECRET and is its owner's
    /// alone to read
    #[arg(long, value_name = "FILE")]
    pub(crate) iscsi_chap: Option<PathBuf>,
    /// Make a vhost-user socket for every disk, by its name, in this directory: the shortest way to a
    /// virtual machine on this host (docs/vhost-user.md)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["single", "run", "file"])]
    pub(crate) vhost_user: Option<PathBuf>,
    /// Announce the server, by DNS-SD, to the networks in which it listens: sojourn discover finds it
    #[arg(long, conflicts_with_all = ["single", "run", "file"])]
    pub(crate) announce: bool,
    /// Listen here for the dashboard, /metrics, /healthz and /v1/status: IP:PORT
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) http: Option<std::net::SocketAddr>,
    /// Open the store to clients with certificates by HTTPS, each as far as the access rules let it
    /// (docs/gateway.md) [default address: 127.0.0.1:9443]
    #[arg(
        long,
        value_name = "IP:PORT",
        num_args = 0..=1,
        default_missing_value = server::gateway::DEFAULT_ADDRESS
    )]
    pub(crate) gateway: Option<std::net::SocketAddr>,
    /// Whether --http is encrypted: off, optional (a client may show a certificate) or required (it
    /// must)
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = true, requires = "http")]
    pub(crate) http_tls: Option<TlsMode>,
    /// Whether connections are encrypted, by TCP and by unix sockets: off, optional or required. Needs
    /// certificates (sojourn cert), and access rules in the configuration, where a listener can have a
    /// mode of its own [default: by TCP as serve.tls of the configuration says, else off]
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = true)]
    pub(crate) tls: Option<TlsMode>,
    /// Where the certificates are [default: tls.dir of the configuration, which is tls in the home]
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// Allow addresses that other machines reach, without encryption or authentication
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Serve one client on stdin and stdout, or on a socket from LISTEN_FDS, then end
    #[arg(long, conflicts_with_all = ["nbd", "iscsi", "http", "gateway", "run"])]
    pub(crate) single: bool,
    /// Serve on private sockets, run CMD with $uri, $unixsocket, $exportname and, for vhost-user,
    /// $socket, and end with its exit code
    #[arg(long, value_name = "CMD", conflicts_with_all = ["nbd", "iscsi", "http", "gateway"])]
    pub(crate) run: Option<String>,
    /// The export that $uri, and a client that names none, get
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub(crate) export: Option<String>,
    /// Serve this file alone, without a home
    #[arg(long, value_name = "PATH", conflicts_with = "gateway")]
    pub(crate) file: Option<PathBuf>,
    /// The format of --file [default: found by its magic]; raw takes the bytes as they are
    #[arg(long, requires = "file", value_parser = parse_format)]
    pub(crate) format: Option<Format>,
    /// What else may have chunks: another store with the same key, a medium, an indexed tree or image
    /// (`sojourn media`); may be repeated
    #[arg(long, value_name = "PLACE", conflicts_with = "file")]
    pub(crate) source: Vec<String>,
    /// Record what clients ask in this file, which must not exist; `trace.dir` of the configuration
    /// records every run
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Have every export behave like this disk: a shipped profile, or a file
    #[arg(long, value_name = "PROFILE")]
    pub(crate) throttle: Option<String>,
    /// Like --throttle, but everything takes so many times as long
    #[arg(long, value_name = "TIMES", requires = "throttle")]
    pub(crate) throttle_times: Option<f64>,
    /// Have this part of reads and writes fail, such as 1e-6
    #[arg(long, value_name = "PART")]
    pub(crate) fail: Option<f64>,
    /// Refuse writes to --file
    #[arg(long, requires = "file")]
    pub(crate) read_only: bool,
    /// Where ephemeral disks keep what their clients write. In borrowed room it is gone when the
    /// server ends, flushed or not; persistent disks always keep theirs in the home
    #[arg(long, value_enum, default_value = "home", value_name = "PLACE", conflicts_with = "file")]
    pub(crate) shadow: EphemeralStorage,
    /// Borrow from this disk, partition or image whose system is not running, or from this directory
    /// of the running one; may be repeated
    #[arg(long, value_name = "DEVICE|IMAGE|DIR", required_if_eq("shadow", "borrowed"))]
    pub(crate) borrow: Vec<PathBuf>,
    /// Borrow so much
    #[arg(long, value_name = "SIZE", requires = "borrow", required_if_eq("shadow", "borrowed"))]
    pub(crate) borrow_size: Option<ByteSize>,
    /// Follow the server that runs on this home: its listeners and clients go on here, no connection
    /// is dropped, and that server ends
    #[arg(long, conflicts_with_all = ["single", "run", "file"])]
    pub(crate) take_over: bool,
    /// For the machines of this home: what is kept of the store's settings is good enough
    #[arg(long, hide = true, conflicts_with_all = ["single", "run", "file", "take_over"])]
    pub(crate) for_machines: bool,
    /// No system is suspended where nobody can look, such as in an encrypted part of the machine
    #[arg(long, requires = "borrow")]
    pub(crate) nothing_suspended: bool,
}

/// Where private blocks of ephemeral disks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EphemeralStorage {
    /// In the home
    Home,
    /// On free blocks of other disks
    Borrowed,
}

fn parse_format(text: &str) -> block::Result<Format> {
    text.parse()
}

impl Runnable for Args {
    fn works_as_owner(&self) -> bool {
        // Other disks are borrowed from by root alone.
        self.file.is_none() && self.shadow == EphemeralStorage::Home
    }

    fn default_log(&self) -> Option<&'static str> {
        None // the server's configuration says
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        allocator::give_back();
        descriptors::make_room();
        block_on(run(self, invocation.global))?
    }
}

/// Serves in the way that was asked for.
async fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    if args.shadow == EphemeralStorage::Home && !args.borrow.is_empty() {
        return Err(Error::invalid("--borrow is for --shadow borrowed; say that too"));
    }
    if args.run.is_some() && args.tls.is_some_and(|tls| tls != TlsMode::Off) {
        return Err(Error::invalid(
            "--tls is not for --run, whose socket is the command's alone and plain; leave --tls out, or \
             serve at an address (--nbd ADDR --tls MODE) and run the command yourself",
        ));
    }
    let home = global.home()?;
    let path = args.config.clone().unwrap_or_else(|| home.config());
    let config = match (&args.file, &args.config) {
        (Some(_), None) => Config::of_a_file(args.tls.map(Into::into)),
        (Some(_), Some(path)) => Config::load(path)?,
        (None, _) => {
            home.must_exist()?;
            home.must_be_ours()?;
            Config::load(&path)?
        }
    };
    let level = global.log.as_deref().unwrap_or(if args.until().is_some() {
        "warn"
    } else {
        &config.log.level
    });
    logging::start(level, global.log_format.map_or(config.log.format, Into::into))?;
    let _completing = config.serve.io.start();
    match &args.file {
        Some(file) => serve_file(args, file, &home, &config).await,
        None => serve_home(args, global, &home, config, path).await,
    }
}

impl Args {
    /// What the server serves, if it ends by itself.
    fn until(&self) -> Option<ServeUntil> {
        match &self.run {
            Some(command) => Some(ServeUntil::Command(command.clone())),
            None => self.single.then_some(ServeUntil::OneClient),
        }
    }

    /// The throttle of the command line: for what no rule of the configuration is.
    fn throttle(&self) -> Option<ThrottleRule> {
        let rule = ThrottleRule::for_all(self.throttle.clone(), self.throttle_times, self.fail);
        (self.throttle.is_some() || self.fail.is_some()).then_some(rule)
    }

    /// Where to listen.
    fn listen(&self) -> ListenOptions {
        ListenOptions {
            nbd: self.nbd.clone(),
            tls: self.tls.map(Into::into),
            tcp_tls: listener::TlsMode::Off,
            tls_dir: self.tls_dir.clone(),
            insecure: self.insecure,
            iscsi: self.iscsi.clone(),
            iscsi_chap: self.iscsi_chap.clone(),
        }
    }

    fn options(&self, config_path: PathBuf, log_fixed: bool) -> ServerOptions {
        let http = self.http.map(|address| listener::ConfiguredListener {
            address: address.to_string(),
            tls: self.http_tls.map(Into::into),
        });
        ServerOptions {
            config_path,
            change_log_level: (!log_fixed).then_some(logging::change),
            http,
            gateway: self.gateway.map(|address| address.to_string()),
            vhost_user: self.vhost_user.clone(),
            listen: self.listen(),
            default_export: self.export.clone(),
            trace: self.trace.clone(),
            borrow: self.wanted(),
            throttle: self.throttle(),
            announce: self.announce,
            take_over: self.take_over,
            for_machines: self.for_machines,
        }
    }

    /// What is to be borrowed, if anything.
    fn wanted(&self) -> Option<BorrowRequest> {
        let size = self.borrow_size.filter(|_| self.shadow == EphemeralStorage::Borrowed)?;
        let targets = self.borrow.clone();
        Some(BorrowRequest { targets, size, nothing_suspended: self.nothing_suspended })
    }
}

async fn serve_home(
    args: &Args,
    global: &Global,
    home: &Home,
    mut config: Config,
    path: PathBuf,
) -> Result<ExitCode> {
    for source in &args.source {
        config.sources.push(in_working_directory(source)?);
    }
    let options = args.options(path, global.log.is_some());
    match args.until() {
        Some(until) => until::serve_home(home, &config, &options, &until).await,
        None => daemon::run(home, config, options).await,
    }
}

async fn serve_file(args: &Args, file: &Path, home: &Home, config: &Config) -> Result<ExitCode> {
    let opening = formats::OpenOptions {
        format: args.format,
        read_only: args.read_only,
        scratch: std::env::temp_dir(),
    };
    let options = args.options(home.config(), true);
    until::serve_file(file, opening, home, config, &options, args.until().as_ref()).await
}

/// A source that the user named, so that it does not depend on where we are.
fn in_working_directory(source: &str) -> Result<String> {
    if source.contains("://") {
        return Ok(source.to_owned());
    }
    let path = std::path::absolute(source).map_err(|e| block::Error::io(source, e))?;
    Ok(path.display().to_string())
}
