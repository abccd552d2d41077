//! `sojourn vm create`: a machine is described, and nothing starts.

use super::args::CreateArgs;
use super::disks;
use super::folder::MachineFolder;
use crate::output::Output;
use crate::progress::Bar;
use ::vm::{Abilities, Accelerator, MachineSpec, Parcel, RunClaim};
use block::{Error, Result};
use disk::Mode;
use engine::api::{DiskReply, DiskRequest};
use engine::{Config, Home, open_store, world};

pub(super) async fn run(args: &CreateArgs, home: &Home, output: Output) -> Result<()> {
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
    let shown = disks::ask(home, DiskRequest::Show { name: args.disk.clone() }).await?;
    if matches!(&shown, DiskReply::Disk(disk) if disk.mode == Mode::WriteThrough.as_str()) {
        return Err(Error::invalid(format!(
            "disk {:?} is written through: another server takes it when this one is silent, and not the machine with it; \
             make a persistent disk for a machine that is suspended and resumed",
            args.disk
        )));
    }
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
    described(&spec, output)
}

/// Prints that a machine is described.
pub(super) fn described(spec: &MachineSpec, output: Output) -> Result<()> {
    output.print(spec, || {
        format!(
            "machine {:?} is described; start it with 'sojourn vm start {}'",
            spec.name, spec.name
        )
    })
}
