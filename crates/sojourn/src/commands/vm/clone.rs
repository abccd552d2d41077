//! `sojourn vm clone`: a machine of a parcel of another one.

use super::args::CloneArgs;
use super::disks;
use super::folder::MachineFolder;
use super::resume::must_be_trusted;
use crate::interrupt;
use crate::output::Output;
use crate::progress::Bar;
use ::vm::{MachineSpec, Parcel, RunClaim};
use block::{Error, ErrorKind, Result};
use disk::Mode;
use engine::api::{DiskReply, DiskRequest};
use engine::world;
use engine::{Config, Home, open_store};
use store::{RefKind, Store, machines};

/// `sojourn vm clone`. The parcel is made last but one, and the directory last: a try that was interrupted leaves a
/// disk, and no machine.
pub(super) async fn run(args: &CloneArgs, home: &Home, output: Output) -> Result<()> {
    let store = open_store(home, &Config::of(home)?).await?;
    interrupt::remember(&store);
    let parcel = Parcel::find(&store, &args.parcel).await?;
    if parcel.name() != args.parcel {
        // The newest one is meant.
        disks::must_not_be_pending(home, &MachineFolder::of(home, &args.parcel)?).await?;
    }
    let folder = MachineFolder::of(home, &args.new)?;
    folder.must_be_free()?;
    if !args.trust_arguments {
        must_be_trusted(&parcel, &MachineFolder::of(home, &parcel.spec.name)?)?;
    }
    let taken = Parcel::newest(&store, &args.new).await?.is_some()
        || RunClaim::find(&store, &args.new).await?.is_some();
    if taken {
        return Err(Error::conflict(format!(
            "the store has a machine {:?}; choose another name",
            args.new
        )));
    }
    let disk = args.disk.as_ref().unwrap_or(&args.new);
    let mut random = [0; 16];
    world::system().entropy.fill(&mut random)?;
    let spec = parcel.spec.twin(&args.new, disk, random, args.keep_mac);
    spec.check()?;
    let bar = Bar::waiting("cloning");
    let from = format!("{}@{}", parcel.spec.disk, parcel.snapshot);
    let request =
        DiskRequest::Create { name: disk.clone(), from, mode: Mode::Persistent, size: None };
    disks::ask(home, request).await?;
    let made = parcel_of_clone(&store, home, &parcel, &spec).await;
    if let Err(error) = made {
        // Nothing of its own is on it yet, unless somebody used it.
        if error.kind() == ErrorKind::Conflict {
            return Err(error.context(format!("disk {disk:?} stays")));
        }
        if let Err(left) =
            disks::ask(home, DiskRequest::Remove { name: disk.clone(), lost: false }).await
        {
            tracing::warn!(disk, error = %left, "the disk of a clone that was not made stays");
        }
        return Err(error);
    }
    folder.make(&spec)?;
    drop(bar);
    cloned(&spec, &parcel.name(), output)
}

/// Prints that a machine was made of a parcel.
pub(super) fn cloned(spec: &MachineSpec, from: &str, output: Output) -> Result<()> {
    output.print(spec, || {
        format!(
            "machine {:?} is as {from}; go on with it by 'sojourn vm resume {}'",
            spec.name, spec.name
        )
    })
}

/// Makes the first parcel of a clone, whose disk is there.
async fn parcel_of_clone(
    store: &Store,
    home: &Home,
    from: &Parcel,
    spec: &MachineSpec,
) -> Result<()> {
    let snapshot = machines::snapshot_name(&spec.name, 1);
    let request = DiskRequest::Snapshot { name: spec.disk.clone(), snapshot: snapshot.clone() };
    let DiskReply::Snapshot(_) = disks::ask(home, request).await? else {
        return Err(Error::internal("a snapshot was asked for, and something else came"));
    };
    let session = store.session(&format!("clone of parcel {}", from.name())).await?;
    let made = async {
        let full = format!("{}@{snapshot}", spec.disk);
        let found = session.hold(RefKind::Snapshot, &full).await?;
        // Somebody may have written the disk between its making and its snapshot.
        if found.and_then(|found| found.body.manifest) != Some(from.disk) {
            return Err(Error::conflict(format!(
                "disk {:?} was used by somebody else while the machine was cloned; try again",
                spec.disk
            )));
        }
        from.copy_to(&session, spec, from.disk).await
    }
    .await;
    session.close(made).await.map(drop)
}
