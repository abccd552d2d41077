//! `sojourn vm suspend`: a machine that runs is suspended; what was suspended here, and nothing sends, goes up; of one
//! that is in the store already, that is told.

use super::args::SuspendArgs;
use super::asking::{answered, ask_or_gone, does_not_run};
use super::disks;
use super::folder::MachineFolder;
use super::keeper::{self, KeepFor};
use super::not_sent::NotSent;
use super::wire::{KeeperReply, KeeperRequest, StoredView};
use crate::output::Output;
use crate::progress::Bar;
use ::vm::claim::{ClaimState, RunClaim};
use ::vm::{Parcel, PendingSuspension, machine};
use block::{Error, ErrorKind, Result};
use engine::{Config, Engine, Home, StoreUse};

/// Suspends a machine that runs, or has what was suspended here go up, if it is not in the store yet.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when it is not suspended and does not run here; what the keeper answers.
pub(super) async fn run(args: &SuspendArgs, home: &Home, output: Output) -> Result<()> {
    let SuspendArgs { name, wait } = args;
    let folder = MachineFolder::of(home, name)?;
    folder.spec()?;
    let bar = Bar::waiting(if *wait { "storing" } else { "suspending" });
    let request = KeeperRequest::Suspend { wait: *wait };
    let reply = match ask_or_gone(&folder, &request).await? {
        Some(reply) => reply,
        None => match (folder.pending()?, folder.unreleased()) {
            (Some(pending), _) => send_kept(home, &folder, &pending, &request).await?,
            // Its keeper was killed when that alone was left to do.
            (None, Some(parcel)) => {
                release(home, &folder).await?;
                KeeperReply::Stored(StoredView::of(parcel))
            }
            // It went up before anybody could ask.
            (None, None) => KeeperReply::Stored(in_store(home, &folder).await?),
        },
    };
    drop(bar);
    answered(name, reply, output)
}

/// What a machine that does not run was suspended as, when that is in the store and its disk holds it still.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when it is not suspended, or runs on another host; any error from the store.
async fn in_store(home: &Home, folder: &MachineFolder) -> Result<StoredView> {
    let name = folder.name();
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let uuid = folder.spec()?.uuid;
    let own = engine.disks.server().await?;
    let state = RunClaim::state(&engine.store, name, own).await?.of_machine(&uuid);
    if let ClaimState::Elsewhere { host, .. } | ClaimState::Silent { host, .. } = &state {
        return Err(Error::conflict(format!("machine {name:?} runs on {host}; suspend it there")));
    }
    let newest = Parcel::newest(&engine.store, name).await?;
    let Some(parcel) = newest.filter(|parcel| parcel.spec.uuid == uuid) else {
        return Err(does_not_run(name));
    };
    let here = disks::is_here(home, &engine, &parcel.spec.disk).await?;
    let is_of = match here {
        // It ran when its keeper was killed: who suspends it ends the claim, and notes it where the disk stays.
        true if matches!(state, ClaimState::Own(_)) => false,
        // Not by the room that its blocks take: what was trimmed since takes none.
        true => disks::holds_all(home, &engine, &parcel).await?,
        // Where the claim could not be ended, the disk was given up all the same.
        false => disks::is_of(home, &engine, &parcel).await?,
    };
    match is_of {
        true => Ok(StoredView { released: !here, ..StoredView::of(parcel.name()) }),
        false => Err(does_not_run(name)),
    }
}

/// Has a new keeper release the disk of a machine that is in the store.
async fn release(home: &Home, folder: &MachineFolder) -> Result<()> {
    keeper::spawn(home, folder, machine::default_qemu(), KeepFor::Upload).await?;
    match folder.unreleased() {
        None => Ok(()),
        Some(parcel) => Err(Error::unavailable(format!(
            "{parcel} is in the store, and its disk is not released; 'sojourn vm log --qemu {}' says why",
            folder.name()
        ))),
    }
}

/// Has a new keeper send what was kept here, which nothing sends; what that answers to a request to suspend.
async fn send_kept(
    home: &Home,
    folder: &MachineFolder,
    pending: &PendingSuspension,
    request: &KeeperRequest,
) -> Result<KeeperReply> {
    // QEMU is not needed for that.
    let sending = keeper::spawn(home, folder, machine::default_qemu(), KeepFor::Upload).await;
    let reply = match (sending, request) {
        (Ok(KeeperReply::Uploading(_)), KeeperRequest::Suspend { wait: true }) => {
            ask_or_gone(folder, request).await?.unwrap_or(KeeperReply::Stopped)
        }
        // Somebody else's keeper was quicker.
        (Err(e), _) if e.kind() == ErrorKind::Conflict && folder.not_sent().is_none() => {
            ask_or_gone(folder, request).await?.ok_or(e)?
        }
        // It had all gone up when this one had the machine.
        (Err(e), _) if e.kind() == ErrorKind::NotFound && folder.pending()?.is_none() => {
            KeeperReply::Stopped
        }
        (sending, _) => sending?,
    };
    match reply {
        KeeperReply::Stopped if folder.pending()?.is_some() => {
            let parcel = pending.parcel();
            Err(match folder.not_sent() {
                Some(NotSent::GivenUp(why)) => why.context(format!("{parcel} did not go up")),
                Some(NotSent::Stopped) => {
                    Error::conflict(format!("{parcel} did not go up: somebody had it end"))
                }
                None => Error::unavailable(format!(
                    "{parcel} did not go up; 'sojourn vm log --qemu {}' says why",
                    folder.name()
                )),
            })
        }
        // It was done before anybody could ask.
        KeeperReply::Stopped => Ok(KeeperReply::Stored(StoredView::of(pending.parcel()))),
        other => Ok(other),
    }
}
