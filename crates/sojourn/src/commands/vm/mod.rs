//! `sojourn vm`: machines that are suspended here and resumed there.
//!
//! | module | concept |
//! |---|---|
//! | [`folder`] | the directory of a machine in a home |
//! | [`wire`] | what a command and the keeper of a machine say to each other |
//! | [`keeper`] | the process that a running machine belongs to, and that sends its suspensions |
//! | [`requests`] | what it is asked, also while the machine starts |
//! | [`not_sent`] | why nothing sends one, and nothing is to |
//! | [`unsent`] | suspensions that nothing sends, as after a reboot |
//! | [`args`] | the arguments of the verbs |
//! | [`asking`] | asking a keeper, and printing what it answers |
//! | [`create`], [`start`] | a machine is described, and boots |
//! | [`resume`] | going on with what was suspended |
//! | [`suspend`] | suspending a machine, and sending what was suspended |
//! | [`stop`] | ending a machine, or the sending of its suspension |
//! | [`revert`] | going back to a parcel: rollback, discard |
//! | [`clone`] | another machine of a parcel |
//! | [`remove`] | removing a machine, or a parcel that nobody needs |
//! | [`disks`] | the server that has a machine's disk |
//! | [`sharing`] | which keepers use that server |
//! | [`console`] | this terminal as the console of a guest |
//! | [`show`] | machines and parcels as they are printed |
//! | [`remote`] | the verbs on a server of another machine |

mod args;
mod asking;
mod clone;
mod console;
mod create;
mod disks;
mod folder;
mod keeper;
mod log;
mod nearby;
mod not_sent;
mod note;
mod remote;
mod remove;
mod requests;
mod resume;
mod revert;
mod sharing;
mod show;
mod start;
mod stop;
mod suspend;
mod unsent;
mod wire;

use super::runnable::{Invocation, Runnable, finish, writes};
use crate::output::Output;
use crate::progress::Bar;
use args::{
    CloneArgs, CreateArgs, ListArgs, LogArgs, MachineArg, RemoveArgs, ResumeArgs, RevertArgs,
    StartArgs, StopArgs, SuspendArgs,
};
use asking::{answered, does_not_run};
use block::Result;
use clap::Subcommand;
use engine::Home;
use folder::MachineFolder;
use server::remote::RemoteServer;
use std::process::ExitCode;
use wire::KeeperRequest;

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
    Create(CreateArgs),
    /// Boot a machine
    #[command(after_help = "\
Examples:
  sojourn vm start work
  sojourn vm start --fresh work      boots, although there is a parcel to go on with")]
    Start(StartArgs),
    /// Stop a machine as it is, and store it: it can go on here or on another host of the same store
    #[command(after_help = "\
Examples:
  sojourn vm suspend work            returns when the machine is safe here; work@5 goes up behind
  sojourn vm suspend --wait work     returns when work@5 is in the store, and the disk is released

Of a machine that is suspended already, what is still to go up is sent, if nothing sends it; when
all of it is in the store, that is told.")]
    Suspend(SuspendArgs),
    /// Go on with a suspended machine; what it touches of its memory is fetched as it touches it
    #[command(after_help = "\
Examples:
  sojourn vm resume work             its newest parcel, made here or elsewhere
  sojourn vm resume work@3           an older one, after 'sojourn vm rollback work@3'
  sojourn vm resume --lost work      the host that ran it is gone for good
  sojourn vm resume --trust-arguments work      with the QEMU arguments that its parcel brings")]
    Resume(ResumeArgs),
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
    Rollback(RevertArgs),
    /// Throw away what a machine did since its last parcel: it is suspended as that one again
    #[command(after_help = "\
Examples:
  sojourn vm discard work            ends it if it runs
  sojourn vm resume work             then go on from its parcel")]
    Discard(RevertArgs),
    /// Make another machine of a parcel: with a disk and memory of its own, which share what did not change
    #[command(after_help = "\
Examples:
  sojourn vm clone work play              as work was suspended last; then 'sojourn vm resume play'
  sojourn vm clone work@3 play --disk play-disk
  sojourn vm clone work play --keep-mac   for a network in which the two never meet

The guest is told by its VM generation id that it was cloned. Its network card has a new address,
which the guest learns when it boots next or loads the driver of its card again.")]
    Clone(CloneArgs),
    /// Machines of this home and of its store
    #[command(after_help = "\
Examples:
  sojourn vm list
  sojourn vm list --elsewhere        machines that this home has not got; 'resume' brings one
  sojourn --json vm list | jq '.[] | {name, state}'

A suspension of this home that is not in the store yet, and that nothing sends, goes up, unless
somebody had that end by 'sojourn vm stop --force'.")]
    List(ListArgs),
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
  sojourn vm log --last 4KiB work    the end of it
  sojourn vm log --qemu work         what QEMU and the keeper of the machine said")]
    Log(LogArgs),
    /// Have a guest power off
    #[command(after_help = "\
Examples:
  sojourn vm stop work               presses the power button, and waits
  sojourn vm stop --force work       as if the power failed
  sojourn vm stop --sending work     no machine, but the sending of one that is suspended

What was suspended and is going up stays on this host then, and goes up when 'sojourn vm suspend'
asks for it. --force ends that, too.")]
    Stop(StopArgs),
    /// Remove a machine with all its parcels, or one parcel; its disk stays
    #[command(after_help = "\
Examples:
  sojourn vm remove work
  sojourn vm remove work@3
  sojourn vm remove --lost work      the host that runs it is gone for good

What a machine that runs needs is not removed, wherever it runs.")]
    #[command(aliases = ["rm", "delete"])]
    Remove(RemoveArgs),
    /// Keep a machine running; other verbs call this
    #[command(hide = true)]
    #[command(after_help = "\
Examples:
  sojourn vm keep work --qemu qemu-system-x86_64 --pending     what 'resume' does behind")]
    Keep(keeper::VmKeepArgs),
}

impl Runnable for VmCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        let home = invocation.home()?;
        let work = run(self, &home, invocation.output);
        // A keeper ends its machine in order when it is told to end.
        match self {
            Self::Keep(_) => finish(work),
            _ => writes(work),
        }
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(remote::run(self, &server, output))
    }
}

async fn run(verb: &VmCommand, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    let outcome = carry_out(verb, home, output).await;
    match verb {
        VmCommand::Start(StartArgs { machine, .. })
        | VmCommand::Resume(ResumeArgs { machine, .. }) => {
            unsent::send(home, machine.name.split('@').next()).await;
        }
        VmCommand::Suspend(SuspendArgs { name, .. }) => unsent::send(home, Some(name)).await,
        VmCommand::List(ListArgs { only_look: false, .. }) => unsent::send(home, None).await,
        _ => {}
    }
    outcome
}

async fn carry_out(verb: &VmCommand, home: &Home, output: Output) -> Result<()> {
    match verb {
        VmCommand::Create(args) => create::run(args, home, output).await,
        VmCommand::Start(args) => start::run(args, home, output).await,
        VmCommand::Suspend(args) => suspend::run(args, home, output).await,
        VmCommand::Resume(args) => resume::run(args, home, output).await,
        VmCommand::Checkpoint(MachineArg { name }) => checkpoint(home, name, output).await,
        VmCommand::Rollback(args) => revert::rollback(args, home, output).await,
        VmCommand::Discard(args) => revert::discard(args, home, output).await,
        VmCommand::Clone(args) => clone::run(args, home, output).await,
        VmCommand::List(ListArgs { elsewhere, .. }) => show::list(home, *elsewhere, output).await,
        VmCommand::Show(MachineArg { name }) => show::one(home, name, output).await,
        VmCommand::Console(MachineArg { name }) => console::run(home, name).await,
        VmCommand::Log(args) => log::run(args, home),
        VmCommand::Stop(args) => stop::run(args, home, output).await,
        VmCommand::Remove(args) => remove::run(args, home, output).await,
        VmCommand::Keep(args) => keeper::run(args, home).await,
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
