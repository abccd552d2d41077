//! `sojourn vm remove`: a machine with its parcels, or one parcel. What a machine that runs needs stays.

use super::args::RemoveArgs;
use super::asking::ask_or_gone;
use super::disks;
use super::folder::MachineFolder;
use super::revert::end_keeper;
use super::wire::{KeeperReply, KeeperRequest};
use crate::interrupt;
use crate::output::Output;
use ::vm::claim::ClaimState;
use ::vm::{Parcel, RunClaim};
use block::{Error, ErrorKind, Result};
use engine::api::DiskRequest;
use engine::{Config, Engine, Home, StoreUse};
use store::Store;

/// `sojourn vm remove`.
pub(super) async fn run(args: &RemoveArgs, home: &Home, output: Output) -> Result<()> {
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    let store = &engine.store;
    interrupt::remember(store);
    match args.name.split_once('@') {
        Some((machine, _)) => {
            let folder = MachineFolder::of(home, machine)?;
            let state = RunClaim::state(store, machine, engine.disks.server().await?).await?;
            one(args, home, store, &folder, &state, output).await
        }
        None => {
            let folder = MachineFolder::of(home, &args.name)?;
            folder.must_not_be_newer()?;
            let asked = ask_or_gone(&folder, &KeeperRequest::Status).await?;
            let _lock = match asked {
                Some(KeeperReply::Uploading(_)) => end_keeper(&folder).await?,
                _ => folder.must_stay_down()?,
            };
            let state = RunClaim::state(store, &args.name, engine.disks.server().await?).await?;
            // A machine that this home cannot read is told from no other one.
            let own = folder.spec().ok().map(|spec| spec.uuid);
            let state = match &own {
                Some(uuid) => state.of_machine(uuid),
                None => state,
            };
            whole(args, home, store, (&folder, own), &state, output).await
        }
    }
}

/// Removes one parcel; its machine may run, as long as it does not run from that one.
async fn one(
    args: &RemoveArgs,
    home: &Home,
    store: &Store,
    folder: &MachineFolder,
    state: &ClaimState,
    output: Output,
) -> Result<()> {
    let name = &args.name;
    state.must_allow(false, &|parcel| parcel == name, args.lost)?;
    if let ClaimState::Own(claim) = state
        && claim.parcel.as_ref() == Some(name)
    {
        // Its keeper may have been killed; then nobody runs from it.
        folder.must_not_run().map_err(|e| {
            e.context(format!("parcel {name} is in use; suspend or stop its machine first"))
        })?;
    }
    if folder.pending()?.is_some_and(|pending| pending.parcel() == *name) {
        disks::must_not_be_pending(home, folder).await?;
    }
    let parcel = Parcel::find(store, name).await?;
    let left = parcels(home, store, &[parcel]).await?;
    output.done(&format!("removed {name}{}", snapshots_left(left)))
}

/// Removes a machine, with the parcels of that machine: another one of the same name keeps its own.
async fn whole(
    args: &RemoveArgs,
    home: &Home,
    store: &Store,
    (folder, own): (&MachineFolder, Option<String>),
    state: &ClaimState,
    output: Output,
) -> Result<()> {
    let name = &args.name;
    let (mut all, damaged) = Parcel::list(store, Some(name)).await?;
    let found = all.len();
    all.retain(|parcel| own.as_ref().is_none_or(|uuid| parcel.spec.uuid == *uuid));
    let others = found - all.len();
    state.must_allow(true, &|parcel| parcel.starts_with(&format!("{name}@")), args.lost)?;
    if let Some(bad) = damaged.into_iter().next().filter(|_| others == 0) {
        return Err(bad.error);
    }
    if all.is_empty() && !folder.exists() && matches!(state, ClaimState::Free) {
        return Err(Error::not_found(format!(
            "there is no machine {name:?}; see 'sojourn vm list'"
        )));
    }
    let left = parcels(home, store, &all).await?;
    if let Some(claim) = state.claim() {
        claim.end(store).await?;
    }
    folder.remove()?;
    let mut note = snapshots_left(left);
    if others > 0 {
        note.push_str(&format!(
            "; {others} parcels of another machine of that name stay in the store"
        ));
    }
    output.done(&format!("removed {name}{note}"))
}

fn snapshots_left(left: usize) -> String {
    match left {
        0 => String::new(),
        _ => format!("; {left} snapshots of its disk stay, as the disk is not here"),
    }
}

/// Removes parcels, the oldest first, each with the snapshot of its disk; says how many snapshots stay.
async fn parcels(home: &Home, store: &Store, parcels: &[Parcel]) -> Result<usize> {
    let mut left = 0;
    for parcel in parcels {
        parcel.remove(store).await?;
        let (name, snapshot) = (parcel.spec.disk.clone(), parcel.snapshot.clone());
        match disks::ask(home, DiskRequest::RemoveSnapshot { name, snapshot }).await {
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
    Ok(left)
}
