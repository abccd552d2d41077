//! `sojourn vm resume`: a machine goes on with what was suspended, from this host or from the store.

use super::args::ResumeArgs;
use super::asking::{POLL, answered, ask_or_gone, until_gone};
use super::disks;
use super::folder::MachineFolder;
use super::keeper::{self, KeepFor};
use super::start::must_run_here;
use super::wire::{self, KeeperReply, KeeperRequest};
use crate::output::Output;
use crate::progress::Bar;
use ::vm::claim::ClaimState;
use ::vm::{GuestClock, Parcel, PendingSuspension, RunClaim};
use block::{Error, ErrorKind, Result};
use engine::{Config, Engine, Home, StoreUse};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a resume waits to tell what became of the guest's clock; the guest runs meanwhile.
const CLOCK: Duration = Duration::from_secs(1);

pub(super) async fn run(args: &ResumeArgs, home: &Home, output: Output) -> Result<()> {
    let machine = args.machine.name.split('@').next().unwrap_or_default();
    let folder = MachineFolder::of(home, machine)?;
    let mut here = None;
    if let Some(pending) = folder.pending()? {
        if args.machine.name != machine && args.machine.name != pending.parcel() {
            disks::must_not_be_pending(home, &folder).await?;
        }
        match resume_here(args, &folder, &pending, home, output).await {
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
    asked: &ResumeArgs,
    folder: &MachineFolder,
    home: &Home,
    output: Output,
) -> Result<()> {
    let ResumeArgs { machine: args, trust_arguments, lost, .. } = asked;
    let machine = folder.name();
    until_gone(folder).await?;
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let own = engine.disks.server().await?;
    let (parcel, claimed) = tokio::try_join!(
        Parcel::find(&engine.store, &args.name),
        RunClaim::state(&engine.store, machine, own)
    )?;
    folder.must_be_of(&parcel)?;
    if !trust_arguments {
        must_be_trusted(&parcel, folder)?;
    }
    let bar = Bar::waiting("resuming");
    must_run_here(&parcel.spec, &args.qemu).await?;
    let claimed = claimed.of_machine(&parcel.spec.uuid);
    let bringing = disks::bring(home, &engine, &parcel.spec.disk, (&claimed, *lost));
    let was_here = bringing.await.map_err(|e| match e.kind() {
        // Of a machine that is in the store, and its disk not released.
        ErrorKind::Conflict if matches!(claimed, ClaimState::Free | ClaimState::Own(_)) => e.context(format!(
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
    let reply =
        match keeper::spawn(home, folder, &args.qemu, KeepFor::Parcel(&parcel, asked.fill())).await
        {
            Err(e) if !was_here => {
                disks::give_back(home, folder, &parcel.spec.disk).await;
                return Err(e);
            }
            reply => reply?,
        };
    let reply = with_clock(folder, reply).await;
    drop(bar);
    answered(machine, reply, output)
}

/// Goes on with what was kept here of a machine, whether or not it is going up.
async fn resume_here(
    asked: &ResumeArgs,
    folder: &MachineFolder,
    pending: &PendingSuspension,
    home: &Home,
    output: Output,
) -> Result<()> {
    let args = &asked.machine;
    let bar = Bar::waiting("resuming");
    must_run_here(&pending.machine, &args.qemu).await?;
    let began = Instant::now();
    let request = KeeperRequest::Resume { qemu: args.qemu.clone(), no_fill: asked.no_fill };
    let reply = match ask_or_gone(folder, &request).await? {
        Some(KeeperReply::Status(mut status)) => {
            status.started_seconds = began.elapsed().as_secs_f64();
            KeeperReply::Status(status)
        }
        Some(reply) => reply,
        None => keeper::spawn(home, folder, &args.qemu, KeepFor::Pending(asked.fill())).await?,
    };
    let reply = with_clock(folder, reply).await;
    drop(bar);
    answered(folder.name(), reply, output)
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

/// Refuses QEMU arguments that nobody gave in this home: they reach every file of the user, and programs.
pub(super) fn must_be_trusted(parcel: &Parcel, folder: &MachineFolder) -> Result<()> {
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
