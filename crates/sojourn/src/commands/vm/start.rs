//! `sojourn vm start`: a machine boots.

use super::args::StartArgs;
use super::asking::{answered, until_gone};
use super::disks;
use super::folder::MachineFolder;
use super::keeper::{self, KeepFor};
use crate::output::Output;
use crate::progress::Bar;
use ::vm::{Abilities, Accelerator, MachineSpec, Parcel, PendingSuspension, RunClaim};
use block::{Error, Result};
use engine::{Config, Engine, Home, StoreUse};
use std::path::Path;

pub(super) async fn run(args: &StartArgs, home: &Home, output: Output) -> Result<()> {
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
    // Its guest may have powered off just now.
    until_gone(&folder).await?;
    if let Some(pending) = folder.pending()? {
        if !args.fresh && !pending.was_resumed(folder.path()) {
            return Err(pending.disk_was_written());
        }
        // Its disk is another one by now: nobody can go back.
        let _lock = folder.must_stay_down()?;
        // Somebody may have suspended it anew since; the keeper refuses that one.
        if folder.pending()?.as_ref() == Some(&pending) {
            PendingSuspension::forget(folder.path())?;
        }
    }
    let bar = Bar::waiting("starting");
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    if !args.fresh
        && let Some(parcel) = Parcel::newest(&engine.store, name).await?
        && parcel.spec.uuid == spec.uuid
        && disks::is_of(home, &engine, &parcel).await?
    {
        return Err(Error::conflict(format!(
            "machine {name:?} is suspended as {}: go on with 'sojourn vm resume {name}', or boot it with \
             'sojourn vm start --fresh {name}'",
            parcel.name()
        )));
    }
    must_run_here(&spec, &args.machine.qemu).await?;
    let was_here = bring(home, &engine, &spec, args.lost).await?;
    drop(engine);
    let reply = match keeper::spawn(home, &folder, &args.machine.qemu, KeepFor::Boot).await {
        Err(e) if !was_here => {
            disks::give_back(home, &folder, &spec.disk).await;
            return Err(e);
        }
        reply => reply?,
    };
    drop(bar);
    answered(name, reply, output)
}

/// Takes the disk of a machine, if it was released, as by a suspension; whether it was here.
async fn bring(home: &Home, engine: &Engine, spec: &MachineSpec, lost: bool) -> Result<bool> {
    if disks::is_here(home, engine, &spec.disk).await? {
        return Ok(true);
    }
    let claimed = RunClaim::state(&engine.store, &spec.name, engine.disks.server().await?).await?;
    disks::bring(home, engine, &spec.disk, (&claimed.of_machine(&spec.uuid), lost)).await
}

/// Refuses a machine that cannot run here.
pub(super) async fn must_run_here(spec: &MachineSpec, qemu: &Path) -> Result<()> {
    let scratch = tempfile::tempdir().map_err(|e| Error::io("a directory for a moment", e))?;
    let works = match spec.accelerator {
        // It works everywhere: nothing to find out.
        Accelerator::Tcg => vec![Accelerator::Tcg],
        Accelerator::Kvm => Accelerator::working(qemu, scratch.path()).await?,
    };
    Abilities::of(qemu, scratch.path(), spec).await?.check(spec, &works)
}
