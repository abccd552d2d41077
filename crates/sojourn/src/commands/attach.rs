//! `sojourn attach`: disks of distant stores, used here.
//!
//! | module | concept |
//! |---|---|
//! | [`device`] | attached disks as block devices of this machine |
//! | [`hoard`] | everything that a disk stands on comes here |
//! | [`kernel_cache`] | what the kernel has in memory of such a device |
//! | [`loss`] | a disk that is waited for and that another machine took |
//! | [`detach`] | `sojourn detach`: a disk goes up and is given up |

pub(crate) mod detach;
mod device;
mod hoard;
mod kernel_cache;
mod loss;

use super::runnable::{COMMAND_LOG, Invocation, Runnable};
use crate::allocator;
use crate::global::Global;
use crate::logging;
use crate::output::{Output, fields, visible};
use crate::progress::Bar;
use crate::runtime::block_on;
use agent::UploadState;
use agent::api::{AttachRequest, AttachedDisk, AttachedView};
use agent::homes::{self, AttachOptions, DistantStore, Preparation};
use block::{ByteSize, Error, Result};
use engine::{Config, Home, devices};
use loss::LossWatch;
use nbd::{Address, Uri};
use serde::Serialize;
use server::client::ControlClient;
use server::descriptors;
use server::options::ServerOptions;
use server::{background, daemon, listen, one_client};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How often a command that waits looks.
const LOOK: Duration = Duration::from_millis(100);
/// The command line of the process that looks after the disks of a home.
const PROCESS: [&str; 2] = ["attach", "serve"];

/// Arguments of `sojourn attach`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  sojourn attach alice --from https://lab.example.org --tls-dir ~/alice
  sojourn attach alice --from s3://lab/images --up 1MiB
  sojourn attach alice --from https://lab.example.org --source /media/usb --source /usr
  sojourn attach alice --run 'qemu-system-x86_64 -m 1G -drive file=$uri,format=raw,if=virtio'
  sojourn attach alice --device /dev/nbd0
  sojourn attach alice --from https://lab.example.org --tls-dir ~/alice --peers
  sojourn attach status
  sojourn attach hoard alice      everything comes here: then the link may go
  sojourn attach sync alice       everything goes up now
  sojourn detach alice            and gives the disk up

The disk is taken: no other machine writes it meanwhile. What is written lies in
~/.local/share/sojourn/attached and goes to the store in the background; docs/attach.md.")]
pub(crate) struct Attach {
    #[command(flatten)]
    args: Args,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Args)]
struct Args {
    /// The disk
    #[arg(value_name = "DISK", required = true)]
    disk: Option<String>,
    /// Where it is: a server with a gateway (https://HOST[:PORT]), a bucket (s3://, gs://, az://) or the
    /// directory of a store [default: where it is attached from already]
    #[arg(long, value_name = "URL|DIR")]
    from: Option<String>,
    /// What else may have chunks: a medium, an indexed tree or image (`sojourn media`), another store
    /// with the same key; may be repeated
    #[arg(long, value_name = "PLACE")]
    source: Vec<String>,
    /// The certificate that is shown to a gateway: the directory that `sojourn cert client` made
    /// [default: tls in the home]
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// Send at most so many bytes per second; 0 is no limit. For all disks of the store
    #[arg(long, value_name = "SIZE")]
    up: Option<ByteSize>,
    /// Hoard at most so many bytes per second; 0 is no limit. What a guest reads is not limited
    #[arg(long, value_name = "SIZE")]
    down: Option<ByteSize>,
    /// Ask other machines of the network for chunks, and answer them: those that attach disks of the same store with
    /// --peers, and have certificates of the same authority. Opens a port, and announces it
    #[arg(long, overrides_with = "no_peers")]
    peers: bool,
    /// Ask and answer no other machines any more
    #[arg(long, overrides_with = "peers")]
    no_peers: bool,
    /// Take it from a server that is at work: that one can publish nothing more
    #[arg(long)]
    force: bool,
    /// Make it this block device, and keep it that until it is detached: through cut links, and restarts of
    /// this machine and of the process that looks after its disks. Needs root, and the kernel's NBD driver
    /// (modprobe nbd)
    #[arg(long, value_name = "PATH", value_parser = super::device::device)]
    device: Option<u32>,
    /// Run CMD with $uri, $unixsocket and $exportname, and end with its exit code; the disk stays
    /// attached
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// What is attached, and how far the store is behind
    #[command(after_help = "\
Examples:
  sojourn attach status
  sojourn --json attach status | jq '.[].disks[].upload.behind_bytes'")]
    Status,
    /// Have everything go up now, and wait for it
    #[command(after_help = "\
Examples:
  sojourn attach sync alice")]
    Sync(AttachedName),
    /// Have everything that the disk stands on come here, and wait for it: then the link may go
    #[command(after_help = "\
Examples:
  sojourn attach hoard alice
  sojourn attach hoard alice --no-wait
  sojourn attach hoard alice --stop       what is here stays")]
    Hoard(hoard::Args),
    /// Drop what was written since the disk went up last; its client must have left
    #[command(after_help = "\
Examples:
  sojourn attach discard alice")]
    Discard(AttachedName),
    /// Have nothing of the store's disks go up for now
    #[command(after_help = "\
Examples:
  sojourn attach pause alice
  sojourn attach resume alice")]
    Pause(AttachedName),
    /// Have it go up again
    #[command(after_help = "\
Examples:
  sojourn attach resume alice")]
    Resume(AttachedName),
    /// Look after the disks of a home of attached disks, in the foreground: for a service manager
    #[command(after_help = "\
Examples:
  sojourn --home ~/.local/share/sojourn/attached/lab-images-0a1b2c3d attach serve")]
    Serve,
}

/// One attached disk.
#[derive(Debug, clap::Args)]
struct AttachedName {
    /// The disk
    disk: String,
    /// Its store, when disks of this name of several are attached
    #[arg(long, value_name = "URL|DIR")]
    from: Option<String>,
}

/// What `attach` made.
#[derive(Serialize)]
struct AttachedExport {
    disk: String,
    store: String,
    home: String,
    socket: String,
    uri: String,
    qemu: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl Attach {
    /// Whether this is the process of a home.
    pub(crate) fn is_process(&self) -> bool {
        matches!(self.verb, Some(Verb::Serve))
    }
}

// Attached disks are the user's own, in a home that is found by this one: root becomes that user.
impl Runnable for Attach {
    fn owner_of(&self, home: &Home) -> Option<(u32, u32)> {
        homes::other_owner(home)
    }

    fn default_log(&self) -> Option<&'static str> {
        if self.is_process() { None } else { Some(COMMAND_LOG) }
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        if self.is_process() {
            allocator::give_back();
            descriptors::make_room();
            return block_on(serve(invocation.global))?;
        }
        block_on(run(self, &invocation.home()?, invocation.output))?
    }
}

/// Serves a home of attached disks.
pub(crate) async fn serve(global: &Global) -> Result<ExitCode> {
    let home = global.home()?;
    if ControlClient::connect(&home).await?.is_none() {
        homes::begin(&home)?;
    }
    let config = Config::of(&home)?;
    if config.attach.is_none() {
        return Err(Error::invalid(format!(
            "{} is not a home of attached disks; `sojourn attach` makes one",
            home.dir().display()
        )));
    }
    let level = global.log.as_deref().unwrap_or(&config.log.level);
    logging::start(level, global.log_format.map_or(config.log.format, Into::into))?;
    let _completing = config.serve.io.start();
    let options = ServerOptions {
        config_path: home.config(),
        change_log_level: global.log.is_none().then_some(logging::change),
        http: None,
        gateway: None,
        vhost_user: None,
        listen: listen::ListenOptions::default(),
        default_export: None,
        trace: None,
        borrow: None,
        throttle: None,
        announce: false,
        take_over: false,
        for_machines: false,
    };
    tokio::select! {
        ended = daemon::run(&home, config, options) => ended,
        never = background::bound_log(&home) => match never {},
        never = device::look_after(&home) => match never {},
    }
}

pub(crate) async fn run(attach: &Attach, own: &Home, output: Output) -> Result<ExitCode> {
    match &attach.verb {
        None => return attach_disk(&attach.args, own, output).await,
        Some(Verb::Status) => status(own, output).await?,
        Some(Verb::Sync(named)) => sync(named, own, output).await?,
        Some(Verb::Hoard(args)) => hoard::run(args, own, output).await?,
        Some(Verb::Discard(named)) => {
            let request = AttachRequest::Discard { name: named.disk.clone() };
            named.ask(own, &request).await?;
            output.done(&format!("{}: what had not gone up is dropped", named.disk))?;
        }
        Some(Verb::Pause(named)) => pause(named, own, true, output).await?,
        Some(Verb::Resume(named)) => pause(named, own, false, output).await?,
        Some(Verb::Serve) => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn attach_disk(args: &Args, own: &Home, output: Output) -> Result<ExitCode> {
    let name = args.disk.clone().unwrap_or_default();
    store::check_name("disk", &name)?;
    let home = match &args.from {
        Some(from) => homes::of(own, &DistantStore::parse(from)?)?,
        None => homes::with_disk(own, &name, None).map_err(|e| {
            e.context("say where the disk is with --from, unless it is attached already")
        })?,
    };
    let store = match &args.from {
        Some(from) => DistantStore::parse(from)?,
        None => DistantStore::parse(&Config::of(&home)?.store)?,
    };
    if let Some(path) = own.key_file() {
        // One that is not there or cannot be a key is not remembered.
        engine::key::read(path)?;
    }
    if args.peers {
        must_be_a_peer(args, own, &home)?;
    }
    match homes::prepare(own, &home, &store, &args.options(own)?)? {
        Preparation::New => must_open(&home).await?,
        Preparation::NeedsRestart => restart(&home).await?,
        Preparation::Changed | Preparation::Unchanged => {}
    }
    if !args.source.is_empty() {
        let places = args.options(own)?.sources;
        let asked = process(&home).await?.attach(&AttachRequest::Sources { places }).await;
        if let Err(error) = asked {
            tracing::warn!(
                error = error.message(),
                "it is asked for nothing before the next start"
            );
        }
    }
    if args.up.is_some() || args.down.is_some() {
        let (up, down) = (args.up.map(|up| up.0), args.down.map(|down| down.0));
        process(&home).await?.attach(&AttachRequest::Budget { up, down }).await?;
    }
    let request = AttachRequest::Attach { name: name.clone(), force: args.force };
    let view = process(&home).await?.attach(&request).await?;
    let uri = Uri::new(Address::unix(&view.socket)?, &name).to_string();
    if let Some(index) = args.device {
        device::bring_up(&home, &name, index, process(&home).await?).await?;
    }
    if let Some(command) = &args.run {
        return one_client::command(command, &uri, view.socket.as_ref(), &name).await;
    }
    let qemu = format!("qemu-system-x86_64 -m 1G -drive 'if=virtio,format=raw,file={uri}'");
    let made = AttachedExport {
        device: devices::of(&home, &name)?,
        disk: name,
        store: view.store,
        home: view.home,
        socket: view.socket,
        uri,
        qemu,
    };
    output.print(&made, || {
        let last = match &made.device {
            Some(device) => ("device", device.clone()),
            None => ("try", made.qemu.clone()),
        };
        fields(&[
            ("disk", made.disk.clone()),
            ("from", made.store.clone()),
            ("socket", made.socket.clone()),
            ("uri", made.uri.clone()),
            last,
        ])
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn options(&self, own: &Home) -> Result<AttachOptions> {
        let sources = self.source.iter().map(|source| homes::absolute(source));
        Ok(AttachOptions {
            sources: sources.collect::<Result<_>>()?,
            up: self.up,
            down: self.down,
            key_file: own.key_file().map(Into::into),
            certificates: self.tls_dir.clone(),
            peers: (self.peers || self.no_peers).then_some(self.peers),
        })
    }
}

/// Fails when there is no certificate to show to peers.
fn must_be_a_peer(args: &Args, own: &Home, home: &Home) -> Result<()> {
    let dir = match &args.tls_dir {
        Some(dir) => dir.clone(),
        None if home.exists() => home.resolve(Path::new(&Config::load(&home.config())?.tls.dir)),
        None => own.resolve(Path::new("tls")),
    };
    let loaded = access::PeerCredentials::load(&dir);
    loaded.map(drop).map_err(|e| {
        e.context(
            "--peers: a client's certificate is shown to other machines; give it with --tls-dir",
        )
    })
}

/// The process that looks after the disks of a home; it is started if none does.
async fn process(home: &Home) -> Result<ControlClient> {
    background::running(home, &PROCESS).await
}

/// Fails when the store of a new home cannot be opened; then there is no home, unless somebody else made use
/// of it meanwhile. No disk is touched: a home without a configuration may still have some.
async fn must_open(home: &Home) -> Result<()> {
    let config = Config::load(&home.config())?;
    let opened = match is_missing(&config.store) {
        // Nobody waits for the share of a disk that is attached for the first time.
        true => {
            Err(Error::not_found(format!("there is no store in {}; is it mounted?", config.store)))
        }
        false => engine::open_store(home, &config).await,
    };
    if opened.is_err()
        && let Ok(lock) = home.lock()
    {
        let _ = std::fs::remove_file(home.config());
        // While it is held: whoever opened it before is told that it was replaced.
        let _ = std::fs::remove_file(home.dir().join("lock"));
        drop(lock);
        home.discard();
    }
    opened.map(drop)
}

/// Whether a store is to be in a directory, and is not.
fn is_missing(store: &str) -> bool {
    // One that cannot be looked at tells why when it is opened.
    !store.contains("://") && matches!(Path::new(store).join("store.json").try_exists(), Ok(false))
}

/// Ends the process of a home, if one runs and nobody uses its disks: the next one reads the configuration.
async fn restart(home: &Home) -> Result<()> {
    let Some(client) = ControlClient::connect(home).await? else { return Ok(()) };
    let sessions = client.status().await?.connections;
    if sessions > 0 {
        return Err(Error::conflict(
            "keys, certificates and peers change when the disks' process starts anew, and disks of \
             this store are in use; the change is kept for then: detach the clients and repeat the command",
        ));
    }
    match ControlClient::connect(home).await? {
        Some(client) => background::stop(client).await,
        None => Ok(()),
    }
}

impl AttachedName {
    /// Asks the process that looks after the disk.
    async fn ask(&self, own: &Home, request: &AttachRequest) -> Result<(Home, AttachedView)> {
        let home = homes::with_disk(own, &self.disk, self.from.as_deref())?;
        let view = process(&home).await?.attach(request).await?;
        Ok((home, view))
    }
}

async fn status(own: &Home, output: Output) -> Result<()> {
    let mut views = Vec::new();
    for home in homes::all(own)? {
        match ControlClient::connect(&home).await? {
            Some(client) => views.push(client.attach(&AttachRequest::Status).await?),
            None => {
                let config = Config::load(&home.config())?;
                let attach = config.attach.unwrap_or_default();
                views.push(AttachedView {
                    store: config.store,
                    home: home.dir().display().to_string(),
                    socket: home.nbd_socket().display().to_string(),
                    running: false,
                    paused: false,
                    up_bytes_per_second: attach.up.0,
                    down_bytes_per_second: attach.down.0,
                    sources: Vec::new(),
                    peers: None,
                    disks: Vec::new(),
                });
            }
        }
    }
    output.print(&views, || describe(&views))
}

fn describe(views: &[AttachedView]) -> String {
    if views.is_empty() {
        return "nothing is attached; see `sojourn attach --help`".to_owned();
    }
    let mut text = String::new();
    for view in views {
        text.push_str(&format!("{}\n", view.store));
        if !view.running {
            text.push_str("  no process looks after its disks; `sojourn attach DISK` starts one\n");
        }
        for source in view.sources.iter().filter(|_| view.sources.len() > 1) {
            let (bytes, name) = (ByteSize(source.bytes), visible(&source.name));
            text.push_str(&format!("  {bytes} from {} {name}\n", source.kind));
        }
        if let Some(peers) = &view.peers {
            let given = ByteSize(peers.counters.given_bytes);
            let there = match peers.there {
                1 => "1 peer is there".to_owned(),
                count => format!("{count} peers are there"),
            };
            text.push_str(&format!("  {there}; {given} given to others\n"));
        }
        for disk in &view.disks {
            text.push_str(&format!("  {}\n", disk.name));
            for line in &disk.text {
                text.push_str(&format!("    {}\n", visible(line)));
            }
        }
    }
    text.trim_end().to_owned()
}

async fn pause(named: &AttachedName, own: &Home, paused: bool, output: Output) -> Result<()> {
    let (_, view) = named.ask(own, &AttachRequest::Pause { paused }).await?;
    let what = if paused { "nothing goes up for now" } else { "goes up again" };
    output.done(&format!("{}: {what}", view.store))
}

async fn sync(named: &AttachedName, own: &Home, output: Output) -> Result<()> {
    let home = homes::with_disk(own, &named.disk, named.from.as_deref())?;
    if let Some(device) = devices::of(&home, &named.disk)? {
        block::offload(move || kernel_cache::write_back(device.as_ref())).await?;
    }
    let request = AttachRequest::Sync { name: named.disk.clone() };
    let mut view = process(&home).await?.attach(&request).await?;
    let (bar, mut loss) = (Bar::bytes("going up", None), LossWatch::default());
    loop {
        let disk = find(&view, &named.disk)?;
        bar.at(disk.upload.sent_bytes, 0);
        loss.must_be_ours(disk)?;
        if disk.upload.is_done() {
            return output.print(disk, || format!("{}: all is in the store", named.disk));
        }
        must_go_up(&view, disk)?;
        if disk.upload.state == UploadState::Unknown
            && let Some(error) = &disk.error
        {
            return Err(Error::unavailable(error.clone()));
        }
        tokio::time::sleep(LOOK).await;
        view = process(&home).await?.attach(&request).await?;
    }
}

/// Fails when what a disk was written does not go up until somebody says so: nobody waits for that.
fn must_go_up(view: &AttachedView, disk: &AttachedDisk) -> Result<()> {
    if view.paused && disk.upload.state == UploadState::Paused {
        let (name, left) = (&disk.name, disk.upload.text());
        return Err(Error::conflict(format!(
            "disk {name}: {left}; it goes on after `sojourn attach resume {name}`"
        )));
    }
    Ok(())
}

fn find<'a>(view: &'a AttachedView, name: &str) -> Result<&'a AttachedDisk> {
    view.disks
        .iter()
        .find(|disk| disk.name == name)
        .ok_or_else(|| Error::not_found(format!("disk {name:?} is not attached any more")))
}
