//! The verbs on a server of another machine, by its HTTP API, printed as they are on a home.

use super::args::{
    CloneArgs, CreateArgs, ListArgs, LogArgs, MachineArg, RemoveArgs, ResumeArgs, RevertArgs,
    StartArgs, StopArgs, SuspendArgs,
};
use super::wire::{KeptView, PendingView, RunningView, StoredView};
use super::{VmCommand, clone, create, show};
use crate::output::{self, Output};
use crate::progress::Bar;
use ::vm::MachineSpec;
use ::vm::machine::default_qemu;
use block::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use server::remote::RemoteServer;
use server::vm_verbs::VmRequest;
use std::path::Path;

/// What a verb prints as JSON.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum VmAnswer {
    Running(RunningView),
    Stored(StoredView),
    Kept(KeptView),
    Uploading(PendingView),
    Done { done: String },
}

pub(super) async fn run(verb: &VmCommand, server: &RemoteServer, output: Output) -> Result<()> {
    let request = match verb {
        VmCommand::List(ListArgs { elsewhere, .. }) => {
            let machines: Vec<show::MachineView> = server.vms(*elsewhere).await?;
            return show::print_list(&machines, *elsewhere, output);
        }
        VmCommand::Show(MachineArg { name }) => {
            return show::print_one(&server.vm(name).await?, output);
        }
        VmCommand::Log(LogArgs { name, qemu, last }) => {
            let text = server.vm_log(name, *qemu).await?.text.into_bytes();
            let last = last.map_or(u64::MAX, |last| last.0);
            let start = (text.len() as u64).saturating_sub(last) as usize;
            return output::raw(&text[start..]);
        }
        VmCommand::Console(_) | VmCommand::Keep(_) => {
            return Err(Error::unsupported(
                "a console is joined on the server's machine; with --server, 'sojourn vm log' shows what was said there",
            ));
        }
        VmCommand::Create(args) => {
            let request = create_request(args)?;
            let spec: MachineSpec = asked(server, &request).await?;
            return create::described(&spec, output);
        }
        VmCommand::Clone(CloneArgs { parcel, new, disk, keep_mac, trust_arguments }) => {
            must_not_trust(*trust_arguments)?;
            let (name, new, disk, keep_mac) =
                (parcel.clone(), new.clone(), disk.clone(), *keep_mac);
            let request = VmRequest::Clone { name, new, disk, keep_mac };
            let spec: MachineSpec = asked(server, &request).await?;
            return clone::cloned(&spec, parcel, output);
        }
        other => changes(other)?,
    };
    let answer: VmAnswer = asked(server, &request).await?;
    match answer {
        VmAnswer::Running(view) => show::running(&view, output),
        VmAnswer::Stored(view) => show::stored(&view, output),
        VmAnswer::Kept(view) => show::kept(&view, output),
        VmAnswer::Uploading(view) => show::uploading(&view, output),
        VmAnswer::Done { done } => output.done(&done),
    }
}

async fn asked<T: DeserializeOwned>(server: &RemoteServer, request: &VmRequest) -> Result<T> {
    let _bar = Bar::waiting("asking");
    server.change_vm(request).await
}

/// The description of a machine as the server takes it.
fn create_request(args: &CreateArgs) -> Result<VmRequest> {
    must_not_choose(&args.qemu)?;
    if !args.arguments.is_empty() {
        return Err(Error::unsupported(
            "arguments for QEMU reach every file and program of the server's user: give them on the server's machine",
        ));
    }
    Ok(VmRequest::Create {
        name: args.name.clone(),
        disk: args.disk.clone(),
        memory: Some(args.memory.0),
        cpus: Some(args.cpus),
        cpu: args.cpu.clone(),
        screen: args.screen,
    })
}

/// The changes that answer with a machine's state, or say that they are done.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) for what is chosen on the server's machine.
fn changes(verb: &VmCommand) -> Result<VmRequest> {
    Ok(match verb {
        VmCommand::Start(StartArgs { machine, fresh, lost }) => {
            must_not_choose(&machine.qemu)?;
            VmRequest::Start { name: machine.name.clone(), fresh: *fresh, lost: *lost }
        }
        VmCommand::Suspend(SuspendArgs { name, wait }) => {
            VmRequest::Suspend { name: name.clone(), wait: *wait }
        }
        VmCommand::Resume(ResumeArgs { machine, trust_arguments, lost, no_fill }) => {
            must_not_choose(&machine.qemu)?;
            must_not_trust(*trust_arguments)?;
            VmRequest::Resume { name: machine.name.clone(), lost: *lost, no_fill: *no_fill }
        }
        VmCommand::Checkpoint(MachineArg { name }) => VmRequest::Checkpoint { name: name.clone() },
        VmCommand::Rollback(RevertArgs { name, lost }) => {
            VmRequest::Rollback { name: name.clone(), lost: *lost }
        }
        VmCommand::Discard(RevertArgs { name, lost }) => {
            VmRequest::Discard { name: name.clone(), lost: *lost }
        }
        VmCommand::Stop(StopArgs { name, force, sending }) => {
            VmRequest::Stop { name: name.clone(), force: *force, sending: *sending }
        }
        VmCommand::Remove(RemoveArgs { name, lost }) => {
            VmRequest::Remove { name: name.clone(), lost: *lost }
        }
        other => return Err(Error::internal(format!("{other:?} is no such change"))),
    })
}

/// Refuses a QEMU that was chosen here; one of the environment is for this machine.
fn must_not_choose(qemu: &Path) -> Result<()> {
    let of_environment = std::env::var_os("SOJOURN_QEMU").is_some_and(|own| own == qemu);
    match of_environment || qemu == default_qemu() {
        true => Ok(()),
        false => Err(Error::unsupported(
            "which QEMU runs a machine is chosen on the server's machine: leave --qemu out",
        )),
    }
}

fn must_not_trust(trust_arguments: bool) -> Result<()> {
    match trust_arguments {
        false => Ok(()),
        true => Err(Error::unsupported(
            "whether QEMU arguments of a parcel are trusted is said on the server's machine: they reach every file \
             and program of the server's user",
        )),
    }
}
