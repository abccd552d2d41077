//! `sojourn vm`: machines that are suspended here and resumed there.
//!
//! | module | concept |
//! |---|---|
//! | [`folder`] | the directory of a machine in a home |
//! | [`wire`] | what a command and the keeper of a machine say to each other |
//! | [`keeper`] | the process that a running machine belongs to |
//! | [`disks`] | the server that has a machine's disk |
//! | [`show`] | machines and parcels as they are printed |

mod disks;
mod folder;
mod keeper;
mod show;
mod wire;

use crate::interrupt;
use crate::output::Output;
use crate::progress::Bar;
use ::vm::{Abilities, Accelerator, MachineSpec, Parcel, machine};
use block::{ByteSize, Error, ErrorKind, Result};
use clap::Subcommand;
use engine::api::DiskRequest;
use engine::world;
use engine::{Config, Home, open_store};
use folder::MachineFolder;
use std::path::{Path, PathBuf};
use wire::{KeeperReply, KeeperRequest};

/// The verbs of `sojourn vm`.
#[derive(Debug, Subcommand)]
pub(crate) enum Vm {
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
  sojourn vm suspend work            makes the parcel work@5, and releases the disk")]
    Suspend(MachineArg),
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
    /// Machines of this home and of its store
    #[command(after_help = "\
Examples:
  sojourn vm list
  sojourn --json vm list | jq '.[] | {name, state}'")]
    List,
    /// What a machine is made of, its parcels, and how to look at it while it runs
    #[command(after_help = "\
Examples:
  sojourn vm show work")]
    Show(MachineArg),
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
  sojourn vm stop --force work       as if the power failed")]
    Stop(Stop),
    /// Remove a machine with all its parcels, or one parcel; its disk stays
    #[command(after_help = "\
Examples:
  sojourn vm remove work
  sojourn vm remove work@3")]
    #[command(aliases = ["rm", "delete"])]
    Remove(MachineArg),
    /// Keep a machine running; other verbs call this
    #[command(hide = true)]
    #[command(after_help = "\
Examples:
  sojourn vm keep work --qemu qemu-system-x86_64 --parcel work@5     what 'resume' does behind")]
    Keep(keeper::Keep),
}

impl Vm {
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

/// Arguments of `sojourn vm resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    machine: Qemu,
    /// Use the QEMU arguments that the parcel brings, although they were not given in this home
    #[arg(long)]
    trust_arguments: bool,
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

pub(crate) async fn run(verb: &Vm, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    match verb {
        Vm::Create(args) => create(args, home, output).await,
        Vm::Start(args) => start(args, home, output).await,
        Vm::Suspend(MachineArg { name }) => ask(home, name, KeeperRequest::Suspend, output).await,
        Vm::Resume(args) => resume(args, home, output).await,
        Vm::Checkpoint(MachineArg { name }) => {
            ask(home, name, KeeperRequest::Checkpoint, output).await
        }
        Vm::Rollback(MachineArg { name }) => rollback(name, home, output).await,
        Vm::List => show::list(home, output).await,
        Vm::Show(MachineArg { name }) => show::one(home, name, output).await,
        Vm::Log(args) => log(args, home),
        Vm::Stop(args) => {
            ask(home, &args.name, KeeperRequest::Stop { force: args.force }, output).await
        }
        Vm::Remove(MachineArg { name }) => remove(name, home, output).await,
        Vm::Keep(args) => keeper::run(args, home).await,
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
    folder.must_not_run()?;
    let bar = Bar::waiting("starting");
    let store = open_store(home, &Config::of(home)?).await?;
    if !args.fresh
        && let Some(parcel) = Parcel::newest(&store, name).await?
        && disks::is_of(home, &store, &parcel).await?
    {
        return Err(Error::conflict(format!(
            "machine {name:?} is suspended as {}: go on with 'sojourn vm resume {name}', or boot it with \
             'sojourn vm start --fresh {name}'",
            parcel.name()
        )));
    }
    must_run_here(&spec, &args.machine.qemu).await?;
    let status = keeper::spawn(home, &folder, &args.machine.qemu, None).await?;
    drop(bar);
    show::running(&status, output)
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
    let Resume { machine: args, trust_arguments } = args;
    let store = open_store(home, &Config::of(home)?).await?;
    let parcel = Parcel::find(&store, &args.name).await?;
    let folder = MachineFolder::of(home, &parcel.spec.name)?;
    folder.must_not_run()?;
    if !trust_arguments {
        must_be_trusted(&parcel, &folder)?;
    }
    let bar = Bar::waiting("resuming");
    must_run_here(&parcel.spec, &args.qemu).await?;
    disks::bring(home, &parcel.spec.disk).await?;
    if !disks::is_of(home, &store, &parcel).await? {
        return Err(Error::conflict(format!(
            "disk {:?} was written since {} was made; drop what was written with 'sojourn vm rollback {}', then \
             resume it by that name",
            parcel.spec.disk,
            parcel.name(),
            parcel.name()
        )));
    }
    folder.put(&parcel.spec)?;
    let status = keeper::spawn(home, &folder, &args.qemu, Some(&parcel)).await?;
    drop(bar);
    show::running(&status, output)
}

/// Has the keeper of a running machine do something.
async fn ask(home: &Home, name: &str, request: KeeperRequest, output: Output) -> Result<()> {
    let folder = MachineFolder::of(home, name)?;
    folder.spec()?;
    let bar = Bar::waiting(request.doing());
    let reply = wire::call(&folder, &request).await?.ok_or_else(|| {
        Error::conflict(format!("machine {name:?} does not run here; see 'sojourn vm list'"))
    })?;
    drop(bar);
    match reply {
        KeeperReply::Stored(view) => show::stored(&view, output),
        KeeperReply::Status(status) => show::running(&status, output),
        KeeperReply::Stopped => output.done(&format!("machine {name:?} has stopped")),
    }
}

async fn rollback(name: &str, home: &Home, output: Output) -> Result<()> {
    let store = open_store(home, &Config::of(home)?).await?;
    let parcel = Parcel::find(&store, name).await?;
    MachineFolder::of(home, &parcel.spec.name)?.must_not_run()?;
    let disk = parcel.spec.disk.clone();
    disks::bring(home, &disk).await?;
    let request = DiskRequest::Rollback { name: disk.clone(), snapshot: parcel.snapshot.clone() };
    disks::ask_once_free(home, request).await?;
    let resume = parcel.name();
    output
        .done(&format!("disk {disk:?} is as in {resume}; go on with 'sojourn vm resume {resume}'"))
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

async fn remove(name: &str, home: &Home, output: Output) -> Result<()> {
    let store = open_store(home, &Config::of(home)?).await?;
    interrupt::remember(&store);
    let machine = name.split('@').next().unwrap_or(name);
    let folder = MachineFolder::of(home, machine)?;
    folder.must_not_run()?;
    let (mut parcels, damaged) = Parcel::list(&store, Some(machine)).await?;
    if machine != name {
        parcels.retain(|parcel| parcel.name() == name);
    } else if let Some(bad) = damaged.into_iter().next() {
        return Err(bad.error);
    }
    if parcels.is_empty() && (machine != name || !folder.exists()) {
        return Err(Error::not_found(format!(
            "there is no machine or parcel {name:?}; see 'sojourn vm list'"
        )));
    }
    let mut left = 0;
    for parcel in &parcels {
        parcel.remove(&store).await?;
        let request = DiskRequest::RemoveSnapshot {
            name: parcel.spec.disk.clone(),
            snapshot: parcel.snapshot.clone(),
        };
        match disks::ask(home, request).await {
            // The disk is elsewhere, or gone: its snapshots are removed with it.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Fenced
                ) =>
            {
                left += 1
            }
            other => drop(other?),
        }
    }
    if machine == name {
        folder.remove()?;
    }
    let note = match left {
        0 => String::new(),
        _ => format!("; {left} snapshots of its disk stay, as the disk is not here"),
    };
    output.done(&format!("removed {name}{note}"))
}
