//! Which virtual machines a token is for. A machine is its disk's: who may not see the disk of anything that goes by its
//! name, here or in the store, sees no machine, be there one or not. Who makes one names it as it may name disks.

use crate::bearer::Caller;
use crate::running::RunningServer;
use crate::vm_verbs::VmRequest;
use block::{Error, Result};
use engine::machine_disks::{MachineDisks, machine_disks};
use std::collections::BTreeMap;
use store::machines::machine_of;

/// The disks of machines, by the machine's name.
pub(super) struct DisksOfVms(BTreeMap<String, MachineDisks>);

impl DisksOfVms {
    /// Those of one name, or of all.
    ///
    /// # Errors
    /// Any error from [`machine_disks`].
    async fn find(running: &RunningServer, only: Option<&str>) -> Result<Self> {
        let engine = &running.engine;
        machine_disks(&running.home, &engine.store, only).await.map(Self)
    }

    /// Whether a caller sees the machine of this name.
    pub(super) fn covers(&self, caller: &Caller, vm: &str) -> bool {
        self.0.get(vm).is_some_and(|of_name| {
            !of_name.some_unknown && of_name.disks.iter().all(|disk| caller.sees_disk(disk))
        })
    }

    fn has(&self, vm: &str) -> bool {
        self.0.contains_key(vm)
    }
}

/// The disks of all machines, for a caller who sees some of them; `None` for one who sees all.
///
/// # Errors
/// Any error from the home and the store.
pub(super) async fn disks_of_all(
    caller: &Caller,
    running: &RunningServer,
) -> Result<Option<DisksOfVms>> {
    match caller.is_limited() {
        true => DisksOfVms::find(running, None).await.map(Some),
        false => Ok(None),
    }
}

/// Fails when a caller does not see the machine of this name, or of this parcel.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied), whether or not there is such a machine; any error from the home and the store.
pub(super) async fn must_see(caller: &Caller, running: &RunningServer, name: &str) -> Result<()> {
    if !caller.is_limited() {
        return Ok(());
    }
    let vm = machine_of(name);
    match DisksOfVms::find(running, Some(vm)).await?.covers(caller, vm) {
        true => Ok(()),
        false => Err(denied(caller, vm)),
    }
}

/// Fails when a caller may not have this done to the machines and disks that it names.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied), whether or not there is what it names; any error from the home and the store.
pub(super) async fn check(
    caller: &Caller,
    running: &RunningServer,
    request: &VmRequest,
) -> Result<()> {
    if !caller.is_limited() {
        return Ok(());
    }
    if let Some(vm) = request.works_on() {
        must_see(caller, running, vm).await?;
    }
    let Some((vm, disk)) = request.makes() else { return Ok(()) };
    caller.must_see_disk(disk)?;
    if !caller.sees_disk(vm) {
        return Err(denied(caller, vm));
    }
    let known = DisksOfVms::find(running, Some(vm)).await?;
    match !known.has(vm) || known.covers(caller, vm) {
        true => Ok(()),
        false => Err(denied(caller, vm)),
    }
}

fn denied(caller: &Caller, vm: &str) -> Error {
    let (token, vm): (_, String) =
        (caller.token().unwrap_or_default(), vm.chars().take(80).collect());
    Error::denied(format!(
        "the token {token} is not for machine {vm:?}, or there is none: it is for those whose disk --disk names, and makes \
         some of such names only"
    ))
}
