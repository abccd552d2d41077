//! Giving up a machine that is in the store: its claim ends, and its disk is released for any other host.
//!
//! A note in the machine's directory says that this is to be done, from before the suspension is forgotten until it has
//! been: a keeper that is killed in between leaves a disk that no other host can take, and a later one finishes it.

use super::super::disks;
use super::super::requests::ASKS;
use super::Keeper;
use ::vm::claim::ClaimState;
use ::vm::{MachineSpec, Parcel, RunClaim};
use block::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio::time::timeout;

/// How long the release of a disk may take, of which the store has all: who waits for it, and a keeper that is to end,
/// wait no longer for a store that went away meanwhile.
const RELEASES: Duration = Duration::from_secs(30);

/// Ends the claim on a machine that is in the store, and releases its disk; whether that was released. What fails is
/// logged; a disk that may be released later stays noted.
pub(super) async fn give_up(keeper: &Keeper<'_>, spec: &MachineSpec) -> bool {
    let ended = timeout(ASKS, end_claim(keeper, spec)).await;
    let late = || Err(Error::unavailable("the store does not answer"));
    if let Err(error) = ended.unwrap_or_else(|_| late()) {
        tracing::warn!(%error, "the store says until the next start that the machine runs here");
    }
    release_disk(keeper, &spec.disk).await
}

async fn end_claim(keeper: &Keeper<'_>, spec: &MachineSpec) -> Result<()> {
    let store = &keeper.engine.store;
    let state = RunClaim::state(store, &spec.name, keeper.id).await?;
    match state.of_machine(&spec.uuid) {
        ClaimState::Own(claim) => claim.end(store).await,
        _ => Ok(()),
    }
}

/// Releases the disk of a machine that is in the store; whether that was done. Why not is logged, and where it may be
/// done later it stays noted.
pub(super) async fn release_disk(keeper: &Keeper<'_>, disk: &str) -> bool {
    let late = |_| Err(Error::unavailable("the store does not answer"));
    let released = timeout(RELEASES, keeper.server.release(disk)).await.unwrap_or_else(late);
    match &released {
        Err(e) if !is_moot(e) => {
            tracing::warn!(disk, error = %e, "the disk is not released; 'sojourn vm list' tries again");
        }
        _ => note_given_up(keeper),
    }
    released.is_ok()
}

/// Whether there is nothing to be released: that was done before, or another home took it.
fn is_moot(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced)
}

/// Gives up what a keeper that was killed did not: unless the machine's parcel was removed, or its disk was written or
/// taken since.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store or the disk's
/// server does not answer, [`Conflict`](ErrorKind::Conflict) when the disk is in use. It stays noted then.
pub(super) async fn finish(keeper: &Keeper<'_>, parcel: &str) -> Result<()> {
    let left = async {
        let parcel = Parcel::find(&keeper.engine.store, parcel).await?;
        let holds = disks::is_of(keeper.home, keeper.engine, &parcel).await?;
        Ok(holds.then_some(parcel.spec))
    };
    match left.await {
        Ok(Some(spec)) => drop(give_up(keeper, &spec).await),
        Ok(None) => note_given_up(keeper),
        Err(e) if is_moot(&e) => note_given_up(keeper),
        Err(e) => return Err(e),
    }
    Ok(())
}

fn note_given_up(keeper: &Keeper<'_>) {
    if let Err(error) = keeper.folder.note_unreleased(None) {
        tracing::warn!(%error, "the next keeper gives the disk up again");
    }
}
