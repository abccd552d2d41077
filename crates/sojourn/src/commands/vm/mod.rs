//! `sojourn vm`: machines that are suspended here and resumed there.
//!
//! | module | concept |
//! |---|---|
//! | [`folder`] | the directory of a machine in a home |
//! | [`wire`] | what a command and the keeper of a machine say to each other |
//! | [`keeper`] | the process that a running machine belongs to |
//! | [`requests`] | what it is asked, also while the machine starts |
//! | [`upload`] | what it does with a suspension that is not in the store yet |
//! | [`not_sent`] | why nothing sends one, and nothing is to |
//! | [`unsent`] | suspensions that nothing sends, as after a reboot |
//! | [`suspend`] | suspending a machine, and sending what was suspended |
//! | [`stop`] | ending a machine, or the sending of its suspension |
//! | [`revert`] | going back to a parcel: rollback, discard |
//! | [`clone`] | another machine of a parcel |
//! | [`remove`] | removing a machine, or a parcel that nobody needs |
//! | [`disks`] | the server that has a machine's disk |
//! | [`sharing`] | which keepers use that server |
//! | [`console`] | this terminal as the console of a guest |
//! | [`show`] | machines and parcels as they are printed |

mod clone;
mod console;
mod disks;
mod folder;
mod keeper;
mod nearby;
mod not_sent;
mod note;
mod release;
mod remove;
mod requests;
mod revert;
mod sharing;
mod show;
mod stop;
mod suspend;
mod unsent;
mod upload;
mod wire;

use crate::output::Output;
use crate::progress::Bar;
use ::vm::{
    Abilities, Accelerator, GuestClock, MachineSpec, Parcel, PendingSuspension, RunClaim, machine,
};
use block::{ByteSize, Error, ErrorKind, Result};
use clap::Subcommand;
use engine::api::DiskRequest;
use engine::world;
use engine::{Config, Engine, Home, StoreUse, open_store};
use folder::MachineFolder;
use keeper::KeepFor;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use wire::{KeeperReply, KeeperRequest};

/// How long a keeper may take to end when its machine is in the store.
const ENDS: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// How long a resume waits to tell what became of the guest's clock; the guest runs meanwhile.
const CLOCK: Duration = Duration::from_secs(1);

/// The verbs of `sojourn vm`.
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Describe a machine that has a disk of this home
    #[command(after_help = "\
Examples:
  sojourn vm create work --disk alice --memory 2G --cpus 2
  sojourn vm create work --disk alice --screen                     with a screen, over VNC
  sojourn vm create work --disk alice -- -kernel vmlinuz -append 'root=/dev/vda1 console=ttyS0'

What follows -- is given to QEMU as it is, here and wherever the machine goes on: files that it
names have to be there, too.")]
    Create(Create),
    /// Boot a machine
    #[command(after_help = "\
Examples:
  sojourn vm start work
  sojourn vm start --fresh work      boots, although there is a parcel to go on with")]
    Start(Start),
    /// Stop a machine as it is, and store it: it can go on here or on another host of the same store
    #[command(after_help = "\
Examples:
  sojourn vm suspend work            returns when the machine is safe here; work@5 goes up behind
  sojourn vm suspend --wait work     returns when work@5 is in the store, and the disk is released

Of a machine that is suspended already, what is still to go up is sent, if nothing sends it.")]
    Suspend(Suspend),
    /// Go on with a suspended machine; what it touches of its memory is fetched as it touches it
    #[command(after_help = "\
Examples:
  sojourn vm resume work             its newest parcel, made here or elsewhere
  sojourn vm resume work@3           an older one, after 'sojourn vm rollback work@3'
  sojourn vm resume --trust-arguments work      with the QEMU arguments that its parcel brings")]
    Resume(Resume),
    /// Store a running machine as it is, and let it run on
    #[command(after_help = "\
Examples:
  sojourn vm checkpoint work")]
    Checkpoint(MachineArg),
    /// Make the disk of a machine what it was in a parcel; what was written since is lost
    #[command(after_help = "\
Examples:
  sojourn vm rollback work           as it was suspended last
  sojourn vm rollback work@3
  sojourn vm resume work@3           then go on from there")]
    Rollback(MachineArg),
    /// Throw away what a machine did since its last parcel: it is suspended as that one again
    #[command(after_help = "\
Examples:
  sojourn vm discard work            ends it if it runs
  sojourn vm resume work             then go on from its parcel")]
    Discard(MachineArg),
    /// Make another machine of a parcel: with a disk and memory of its own, which share what did not change
    #[command(after_help = "\
Examples:
  sojourn vm clone work play              as work was suspended last; then 'sojourn vm resume play'
  sojourn vm clone work@3 play --disk play-disk
  sojourn vm clone work play --keep-mac   for a network in which the two never meet

The guest is told by its VM generation id that it was cloned. Its network card has a new address,
which the guest learns when it boots next or loads the driver of its card again.")]
    Clone(Clone),
    /// Machines of this home and of its store
    #[command(after_help = "\
Examples:
  sojourn vm list
  sojourn vm list --elsewhere        machines that this home has not got; 'resume' brings one
  sojourn --json vm list | jq '.[] | {name, state}'

A suspension of this home that is not in the store yet, and that nothing sends, goes up, unless
somebody had that end by 'sojourn vm stop --force'.")]
    List(ListMachines),
    /// What a machine is made of, its parcels, and how to look at it while it runs
    #[command(after_help = "\
Examples:
  sojourn vm show work")]
    Show(MachineArg),
    /// Join this terminal to the serial console of a running guest
    #[command(after_help = "\
Examples:
  sojourn vm console work            Ctrl-] leaves it; the guest runs on
  echo reboot | sojourn vm console work

One console at a time: another one sees nothing until the first one is left.")]
    Console(MachineArg),
    /// What a guest wrote to its serial console
    #[command(after_help = "\
Examples:
  sojourn vm log work
  sojourn vm log --qemu work         what QEMU and the keeper of the machine said")]
    Log(LogArgs),
    /// Have a guest power off
    #[command(after_help = "\
Examples:
  sojourn vm stop work               presses the power button, and waits
  sojourn vm stop --force work       as if the power failed

Of a machine that is suspended here and going up, --force ends that: it stays on this host, and
goes up when 'sojourn vm suspend' asks for it.")]
    Stop(Stop),
    /// Remove a machine with all its parcels, or one parcel; its disk stays
    #[command(after_help = "\
Examples:
  sojourn vm remove work
  sojourn vm remove work@3
  sojourn vm remove --lost work      the host that runs it is gone for good

What a machine that runs needs is not removed, wherever it runs.")]
    #[command(aliases = ["rm", "delete"])]
    Remove(Remove),
    /// Keep a machine running; other verbs call this
    #[command(hide = true)]
    #[command(after_help = "\
Examples:
  sojourn vm keep work --qemu qemu-system-x86_64 --parcel work@5     what 'resume' does behind")]
    Keep(keeper::VmKeepArgs),
}

impl VmCommand {
    /// Whether it lasts as long as a machine does.
    pub(crate) fn is_keeper(&self) -> bool {
        matches!(self, Self::Keep(_))
    }
}

/// Arguments that name a machine.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArg {
    /// The machine's name, or that of a parcel of it where the examples show one
    name: String,
}

/// Arguments of `sojourn vm list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListMachines {
    /// Only machines of the store that this home has not got
    #[arg(long)]
    elsewhere: bool,
}

/// Arguments of `sojourn vm resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    machine: Qemu,
    /// Use the QEMU arguments that the parcel brings, although they were not given in this home
    #[arg(long)]
    trust_arguments: bool,
}

/// Arguments of `sojourn vm suspend`.
#[derive(Debug, clap::Args)]
pub(crate) struct Suspend {
    /// The machine's name
    name: String,
    /// Wait until the parcel is in the store
    #[arg(long)]
    wait: bool,
}

/// A machine, and what runs it.
#[derive(Debug, clap::Args)]
pub(crate) struct Qemu {
    /// The machine, or one of its parcels
    name: String,
    /// The QEMU to use
    #[arg(long, env = "SOJOURN_QEMU", value_name = "PROGRAM", default_value_os = machine::default_qemu().as_os_str())]
    qemu: PathBuf,
}

/// Arguments of `sojourn vm start`.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    machine: Qemu,
    /// Boot, although the machine is suspended
    #[arg(long)]
    fresh: bool,
}

/// Arguments of `sojourn vm create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The machine's name
    name: String,
    /// The disk that it has
    #[arg(long)]
    disk: String,
    /// Its memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: ByteSize,
    /// Its processors
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    cpus: u32,
    /// QEMU's CPU model [default: one that most hosts have]
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// Give it a screen, which is shown over VNC
    #[arg(long)]
    screen: bool,
    /// The QEMU to use
    #[arg(long, env = "SOJOURN_QEMU", value_name = "PROGRAM", default_value_os = machine::default_qemu().as_os_str())]
    qemu: PathBuf,
    /// More arguments for QEMU
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Arguments of `sojourn vm clone`.
#[derive(Debug, clap::Args)]
pub(crate) struct Clone {
    /// The machine, or one of its parcels
    parcel: String,
    /// The new machine's name
    new: String,
    /// The new disk's name [default: that of the new machine]
    #[arg(long)]
    disk: Option<String>,
    /// Keep the address of the network card
    #[arg(long)]
    keep_mac: bool,
    /// Use the QEMU arguments that the parcel brings, although they were not given in this home
    #[arg(long)]
    trust_arguments: bool,
}

/// Arguments of `sojourn vm remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// The machine, or one of its parcels
    name: String,
    /// Although it ran on a host that has fallen silent: what it did there is lost
    #[arg(long)]
    lost: bool,
}

/// Arguments of `sojourn vm log`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// The machine's name
    name: String,
    /// What QEMU and the keeper said
    #[arg(long)]
    qemu: bool,
}

/// Arguments of `sojourn vm stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// The machine's name
    name: String,
    /// End it at once
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(verb: &VmCommand, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    let outcome = carry_out(verb, home, output).await;
    match verb {
        VmCommand::Start(Start { machine, .. }) | VmCommand::Resume(Resume { machine, .. }) => {
            unsent::send(home, machine.name.split('@').next()).await;
        }
        VmCommand::Suspend(Suspend { name, .. }) => unsent::send(home, Some(name)).await,
        VmCommand::List(_) => unsent::send(home, None).await,
        _ => {}
    }
    outcome
}

async fn carry_out(verb: &VmCommand, home: &Home, output: Output) -> Result<()> {
    match verb {
        VmCommand::Create(args) => create(args, home, output).await,
        VmCommand::Start(args) => start(args, home, output).await,
        VmCommand::Suspend(args) => suspend::run(args, home, output).await,
        VmCommand::Resume(args) => resume(args, home, output).await,
        VmCommand::Checkpoint(MachineArg { name }) => checkpoint(home, name, output).await,
        VmCommand::Rollback(MachineArg { name }) => revert::rollback(name, home, output).await,
        VmCommand::Discard(MachineArg { name }) => revert::discard(name, home, output).await,
        VmCommand::Clone(args) => clone::run(args, home, output).await,
        VmCommand::List(ListMachines { elsewhere }) => show::list(home, *elsewhere, output).await,
        VmCommand::Show(MachineArg { name }) => show::one(home, name, output).await,
        VmCommand::Console(MachineArg { name }) => console::run(home, name).await,
        VmCommand::Log(args) => log(args, home),
        VmCommand::Stop(args) => stop::run(args, home, output).await,
        VmCommand::Remove(args) => remove::run(args, home, output).await,
        VmCommand::Keep(args) => keeper::run(args, home).await,
    }
}

async fn create(args: &Create, home: &Home, output: Output) -> Result<()> {
    let folder = MachineFolder::of(home, &args.name)?;
    folder.must_be_free()?;
    let store = open_store(home, &Config::of(home)?).await?;
    if let Some(parcel) = Parcel::newest(&store, &args.name).await? {
        return Err(Error::conflict(format!(
            "the store has a machine {:?}, last suspended as {}; go on with it ('sojourn vm resume {}') or choose another name",
            args.name,
            parcel.name(),
            args.name
        )));
    }
    if RunClaim::find(&store, &args.name).await?.is_some() {
        return Err(Error::conflict(format!(
            "another home on this store runs a machine {:?}; choose another name, or, if that home is gone, forget \
             it with 'sojourn vm remove --lost {}'",
            args.name, args.name
        )));
    }
    disks::ask(home, DiskRequest::Show { name: args.disk.clone() }).await?;
    let bar = Bar::waiting("looking what QEMU can do");
    let scratch = tempfile::tempdir().map_err(|e| Error::io("a directory for a moment", e))?;
    let works = Accelerator::working(&args.qemu, scratch.path()).await?;
    let mut random = [0; 16];
    world::system().entropy.fill(&mut random)?;
    let accelerator = works.first().copied().unwrap_or(Accelerator::Tcg);
    let mut spec =
        MachineSpec::new(&args.name, &args.disk, args.memory.0, args.cpus, accelerator, random);
    spec.screen = args.screen;
    spec.arguments.clone_from(&args.arguments);
    if let Some(cpu) = &args.cpu {
        spec.cpu.clone_from(cpu);
    }
    spec.give_agent();
    spec.check()?;
    Abilities::of(&args.qemu, scratch.path(), &spec).await?.check(&spec, &works)?;
    folder.make(&spec)?;
    drop(bar);
    output.print(&spec, || {
        format!(
            "machine {:?} is described; start it with 'sojourn vm start {}'",
            spec.name, spec.name
        )
    })
}

/// Refuses a machine that cannot run here.
async fn must_run_here(spec: &MachineSpec, qemu: &Path) -> Result<()> {
    let scratch = tempfile::tempdir().map_err(|e| Error::io("a directory for a moment", e))?;
    let works = match spec.accelerator {
        // It works everywhere: nothing to find out.
        Accelerator::Tcg => vec![Accelerator::Tcg],
        Accelerator::Kvm => Accelerator::working(qemu, scratch.path()).await?,
    };
    Abilities::of(qemu, scratch.path(), spec).await?.check(spec, &works)
}

async fn start(args: &Start, home: &Home, output: Output) -> Result<()> {
    let name = &args.machine.name;
    let folder = MachineFolder::of(home, name)?;
    let spec = folder.spec()?;
    if let Some(pending) = disks::pending(home, &folder).await? {
        return Err(Error::conflict(format!(
            "machine {name:?} is suspended here as {}: go on with 'sojourn vm resume {name}', or drop it with 'sojourn \
             vm discard {name}'",
            pending.parcel()
        )));
    }
    if let Some(pending) = folder.pending()? {
        if !args.fresh && !pending.was_resumed(folder.path()) {
            return Err(pending.disk_was_written());
        }
        // Its disk is another one by now: nobody can go back.
        let _lock = folder.must_stay_down()?;
        PendingSuspension::forget(folder.path())?;
    }
    folder.must_not_run()?;
    let bar = Bar::waiting("starting");
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    if !args.fresh
        && let Some(parcel) = Parcel::newest(&engine.store, name).await?
        && disks::is_of(home, &engine, &parcel).await?
    {
        return Err(Error::conflict(format!(
            "machine {name:?} is suspended as {}: go on with 'sojourn vm resume {name}', or boot it with \
             'sojourn vm start --fresh {name}'",
            parcel.name()
        )));
    }
    drop(engine);
    must_run_here(&spec, &args.machine.qemu).await?;
    let reply = keeper::spawn(home, &folder, &args.machine.qemu, KeepFor::Boot).await?;
    drop(bar);
    answered(name, reply, output)
}

/// Refuses QEMU arguments that nobody gave in this home: they reach every file of the user, and programs.
fn must_be_trusted(parcel: &Parcel, folder: &MachineFolder) -> Result<()> {
    let arguments = &parcel.spec.arguments;
    if arguments.is_empty() || folder.spec().is_ok_and(|known| known.arguments == *arguments) {
        return Ok(());
    }
    Err(Error::denied(format!(
        "{} was made elsewhere and brings arguments for QEMU, which can use any file and program of yours: {}; if \
         you trust them, resume it with --trust-arguments",
        parcel.name(),
        arguments.join(" ")
    )))
}

async fn resume(args: &Resume, home: &Home, output: Output) -> Result<()> {
    let machine = args.machine.name.split('@').next().unwrap_or_default();
    let folder = MachineFolder::of(home, machine)?;
    let mut here = None;
    if let Some(pending) = folder.pending()? {
        if args.machine.name != machine && args.machine.name != pending.parcel() {
            disks::must_not_be_pending(home, &folder).await?;
        }
        match resume_here(&args.machine, &folder, &pending, home, output).await {
            // It came to be in the store in between: whoever sent it was about to end.
            Err(e) if folder.pending()?.is_none() => here = Some(e),
            other => return other,
        }
    }
    resume_parcel(args, &folder, home, output).await.map_err(|e| match here {
        Some(here) => told_with(e, &here),
        None => e,
    })
}

/// What keeps a machine from going on with a parcel, with what kept it from going on with the suspension that was
/// here.
fn told_with(error: Error, here: &Error) -> Error {
    let text = format!(
        "{}; nor did it go on with the suspension that was kept here: {}",
        error.message(),
        here.message()
    );
    Error::new(error.kind(), text)
}

/// Goes on with a parcel.
async fn resume_parcel(
    Resume { machine: args, trust_arguments }: &Resume,
    folder: &MachineFolder,
    home: &Home,
    output: Output,
) -> Result<()> {
    let machine = folder.name();
    until_gone(folder).await?;
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let parcel = Parcel::find(&engine.store, &args.name).await?;
    if !trust_arguments {
        must_be_trusted(&parcel, folder)?;
    }
    let bar = Bar::waiting("resuming");
    must_run_here(&parcel.spec, &args.qemu).await?;
    let was_here = disks::bring(home, &engine, &parcel.spec.disk).await.map_err(|e| match e.kind() {
        ErrorKind::Conflict => e.context(format!(
            "machine {machine:?} runs on another host, or has not all gone up from there ('sojourn vm list' on that host \
             says which, and has what nothing sends go up)"
        )),
        _ => e,
    })?;
    // The keeper looks again, and at a disk that was just taken alone.
    if was_here && !disks::is_of(home, &engine, &parcel).await? {
        disks::must_not_be_taken(home, &engine, &parcel.spec.disk).await?;
        return Err(parcel.disk_was_written());
    }
    drop(engine);
    let reply = keeper::spawn(home, folder, &args.qemu, KeepFor::Parcel(&parcel)).await?;
    let reply = with_clock(folder, reply).await;
    drop(bar);
    answered(machine, reply, output)
}

/// What a keeper says of a machine that goes on, once it knows of the guest's clock, if that is soon.
async fn with_clock(folder: &MachineFolder, mut reply: KeeperReply) -> KeeperReply {
    let until = Instant::now() + CLOCK;
    while let KeeperReply::Status(status) = &mut reply
        && status.clock == Some(GuestClock::Setting)
        && Instant::now() < until
    {
        sleep(POLL).await;
        let Ok(Ok(Some(KeeperReply::Status(now)))) =
            timeout_at(until, wire::call(folder, &KeeperRequest::Status)).await
        else {
            break;
        };
        status.clock = now.clock;
    }
    reply
}

/// Waits for the end of a keeper whose machine does not run any more, as one that has just sent it.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when the machine runs.
async fn until_gone(folder: &MachineFolder) -> Result<()> {
    let until = Instant::now() + ENDS;
    while let Err(error) = folder.must_not_run() {
        // One that keeps a machine answers.
        let answer = timeout_at(until, wire::call(folder, &KeeperRequest::Status)).await;
        if !matches!(answer, Ok(Err(_) | Ok(None))) {
            return Err(error);
        }
        sleep(POLL).await;
        if Instant::now() > until {
            return Err(error);
        }
    }
    Ok(())
}

/// Goes on with what was kept here of a machine, whether or not it is going up.
async fn resume_here(
    args: &Qemu,
    folder: &MachineFolder,
    pending: &PendingSuspension,
    home: &Home,
    output: Output,
) -> Result<()> {
    let bar = Bar::waiting("resuming");
    must_run_here(&pending.machine, &args.qemu).await?;
    let began = Instant::now();
    let request = KeeperRequest::Resume { qemu: args.qemu.clone() };
    let reply = match ask_or_gone(folder, &request).await? {
        Some(KeeperReply::Status(mut status)) => {
            status.started_seconds = began.elapsed().as_secs_f64();
            KeeperReply::Status(status)
        }
        Some(reply) => reply,
        None => keeper::spawn(home, folder, &args.qemu, KeepFor::Pending).await?,
    };
    let reply = with_clock(folder, reply).await;
    drop(bar);
    answered(folder.name(), reply, output)
}

/// Asks the keeper of a machine; `None` when there is none. One that ends, and answers no more, is waited for.
///
/// # Errors
/// What the keeper answers; [`Unavailable`](ErrorKind::Unavailable) and [`Conflict`](ErrorKind::Conflict) when it neither
/// answers nor ends.
async fn ask_or_gone(
    folder: &MachineFolder,
    request: &KeeperRequest,
) -> Result<Option<KeeperReply>> {
    let until = Instant::now() + ENDS;
    loop {
        let failed = match wire::call(folder, request).await {
            Ok(Some(reply)) => return Ok(Some(reply)),
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::Unavailable => Some(e),
            Err(e) => return Err(e),
        };
        // One that keeps a machine answered that by itself, or has just begun to listen.
        let Err(busy) = until_gone(folder).await else { return Ok(None) };
        match failed {
            Some(e) => return Err(e),
            None if Instant::now() > until => return Err(busy),
            None => {}
        }
    }
}

fn does_not_run(name: &str) -> Error {
    Error::conflict(format!("machine {name:?} does not run here; see 'sojourn vm list'"))
}

/// Prints what a keeper answered.
fn answered(name: &str, reply: KeeperReply, output: Output) -> Result<()> {
    match reply {
        KeeperReply::Stored(view) => show::stored(&view, output),
        KeeperReply::Kept(view) => show::kept(&view, output),
        KeeperReply::Uploading(view) => show::uploading(&view, output),
        KeeperReply::Status(status) => show::running(&status, output),
        KeeperReply::Starting(_) => output.done(&format!("machine {name:?} is starting")),
        KeeperReply::Stopped => output.done(&format!("machine {name:?} has stopped")),
        KeeperReply::NotSent(parcel) => output.done(&format!(
            "{parcel} is not sent any more, and stays on this host; 'sojourn vm suspend {name}' sends it"
        )),
    }
}

/// Has the keeper of a running machine make a parcel of it.
async fn checkpoint(home: &Home, name: &str, output: Output) -> Result<()> {
    let folder = MachineFolder::of(home, name)?;
    folder.spec()?;
    let request = KeeperRequest::Checkpoint;
    let bar = Bar::waiting(request.doing());
    let reply = wire::call(&folder, &request).await?.ok_or_else(|| does_not_run(name))?;
    drop(bar);
    answered(name, reply, output)
}

fn log(args: &LogArgs, home: &Home) -> Result<()> {
    let folder = MachineFolder::of(home, &args.name)?;
    folder.spec()?;
    let names: &[&str] = if args.qemu { &["qemu.log", "keeper.log"] } else { &["console.log"] };
    for name in names {
        let path = folder.path().join(name);
        match std::fs::read(&path) {
            Ok(bytes) => crate::output::raw(&bytes)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(path.display(), e)),
        }
    }
    Ok(())
}
