//! Going back to a parcel: `sojourn vm rollback`, `sojourn vm discard`.

use super::args::RevertArgs;
use super::asking::{ask_or_gone, until_gone};
use super::disks;
use super::folder::MachineFolder;
use super::wire::KeeperRequest;
use crate::output::Output;
use crate::progress::Bar;
use ::vm::claim::ClaimState;
use ::vm::{Parcel, PendingSuspension, RunClaim};
use block::lock::LockFile;
use block::{Error, Result};
use engine::api::DiskRequest;
use engine::{Config, Engine, Home, StoreUse};

/// Makes the disk of a machine that does not run what it was in a parcel.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) while it runs, or a suspension of it is not in the store yet; any error
/// from the store, the server and the file system.
pub(super) async fn rollback(
    RevertArgs { name, lost }: &RevertArgs,
    home: &Home,
    output: Output,
) -> Result<()> {
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let parcel = Parcel::find(&engine.store, name).await?;
    let folder = MachineFolder::of(home, &parcel.spec.name)?;
    folder.must_be_of(&parcel)?;
    disks::must_not_be_pending(home, &folder).await?;
    until_gone(&folder).await?;
    // Nobody starts the machine meanwhile.
    let _lock = folder.must_stay_down()?;
    put_back(&parcel, *lost, &folder, home, &engine).await?;
    let (disk, resume) = (&parcel.spec.disk, parcel.name());
    output
        .done(&format!("disk {disk:?} is as in {resume}; go on with 'sojourn vm resume {resume}'"))
}

/// Makes the disk of a machine what it was in a parcel. The caller has the machine's lock.
async fn put_back(
    parcel: &Parcel,
    lost: bool,
    folder: &MachineFolder,
    home: &Home,
    engine: &Engine,
) -> Result<()> {
    let (disk, own) = (parcel.spec.disk.clone(), engine.disks.server().await?);
    let claimed = RunClaim::state(&engine.store, &parcel.spec.name, own).await?;
    disks::bring(home, engine, &disk, (&claimed.of_machine(&parcel.spec.uuid), lost)).await?;
    // The disk stays as it is for as long as the machine can go on from what is found here.
    PendingSuspension::set_aside(folder.path())?;
    let request = DiskRequest::Rollback { name: disk, snapshot: parcel.snapshot.clone() };
    if let Err(e) = disks::ask_once_free(home, request).await {
        if let Err(error) = PendingSuspension::put_back(folder.path()) {
            tracing::warn!(%error, "the suspension that was kept here is put back by the next command");
        }
        return Err(e);
    }
    PendingSuspension::drop_aside(folder.path())
}

/// Has the keeper of a machine end, if there is one, and nobody start the machine until the lock is dropped; none if it
/// is not of this home. A suspension that went up is to go up still, should what follows fail.
///
/// # Errors
/// What the keeper answers; [`Conflict`](block::ErrorKind::Conflict) when somebody else has the machine.
pub(super) async fn end_keeper(folder: &MachineFolder) -> Result<Option<LockFile>> {
    end_with(folder, &KeeperRequest::Stop { force: true }).await
}

/// The same by a request of its own.
async fn end_with(folder: &MachineFolder, request: &KeeperRequest) -> Result<Option<LockFile>> {
    let was_sent = folder.not_sent().is_none();
    ask_or_gone(folder, request).await?;
    let lock = folder.must_stay_down()?;
    // The keeper noted that somebody had it end, which was for this alone.
    if was_sent && lock.is_some() {
        folder.note_not_sent(None)?;
    }
    Ok(lock)
}

/// Drops what a machine is since its last parcel, running or suspended, and goes back to that.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is nothing to go back to; [`Conflict`](block::ErrorKind::Conflict) while somebody
/// else has the machine or its disk; any error from the store, the server and the file system.
pub(super) async fn discard(
    RevertArgs { name, lost }: &RevertArgs,
    home: &Home,
    output: Output,
) -> Result<()> {
    store::check_name("machine", name)?;
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let store = &engine.store;
    let folder = MachineFolder::of(home, name)?;
    folder.must_not_be_newer()?;
    // Before anything is given up: there is something to go back to, or something to drop.
    let newest = async || -> Result<Option<Parcel>> {
        Ok(Parcel::newest(store, name).await?.filter(|parcel| folder.is_of(parcel)))
    };
    let goes_back = newest().await?.is_some();
    // A machine that runs has gone on from what is kept of it.
    let is_kept = |pending: &PendingSuspension| {
        !pending.was_resumed(folder.path()) || folder.must_not_run().is_ok()
    };
    if !goes_back && !folder.pending()?.as_ref().is_some_and(is_kept) {
        return Err(Error::not_found(format!(
            "no parcel of machine {name:?} is in the store: there is nothing to go back to; 'sojourn vm stop --force {name}' \
             ends it"
        )));
    }
    let bar = Bar::waiting("discarding");
    let _lock = match goes_back {
        true => end_keeper(&folder).await?,
        // It may go on meanwhile, and must not be ended then.
        false => end_with(&folder, &KeeperRequest::StopSending).await?,
    };
    // What went up until now counts.
    let parcel = newest().await?;
    match &parcel {
        Some(parcel) => put_back(parcel, *lost, &folder, home, &engine).await?,
        None => PendingSuspension::forget(folder.path())?,
    }
    if let ClaimState::Own(claim) =
        RunClaim::state(store, name, engine.disks.server().await?).await?
    {
        claim.end(store).await?;
    }
    drop(bar);
    output.done(&match parcel {
        Some(parcel) => format!(
            "machine {name:?} is as in {} again; go on with 'sojourn vm resume {name}'",
            parcel.name()
        ),
        None => format!(
            "the suspension of machine {name:?} is dropped; 'sojourn vm start {name}' boots its disk as it is"
        ),
    })
}
