//! `sojourn vm stop`.

use super::args::StopArgs;
use super::asking::{answered, ask_or_gone, does_not_run};
use super::folder::MachineFolder;
use super::not_sent::NotSent;
use super::wire::{KeeperReply, KeeperRequest};
use crate::output::Output;
use crate::progress::Bar;
use block::{ErrorKind, Result};
use engine::Home;

/// Ends a machine, or the sending of what it was suspended as.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when there is neither; what the keeper answers.
pub(super) async fn run(args: &StopArgs, home: &Home, output: Output) -> Result<()> {
    let name = &args.name;
    let folder = MachineFolder::of(home, name)?;
    folder.spec()?;
    let request = match args.sending {
        true => KeeperRequest::StopSending,
        false => KeeperRequest::Stop { force: args.force },
    };
    let bar = Bar::waiting(request.doing());
    let was_kept = folder.must_not_run().is_err();
    let reply = match ask_or_gone(&folder, &request).await? {
        Some(reply) => reply,
        None if args.force || args.sending => match keep_here(&folder) {
            // Not of a suspension that has just gone up: no machine was to end.
            Err(e) if was_kept && args.force && e.kind() == ErrorKind::Conflict => {
                KeeperReply::Stopped
            }
            other => other?,
        },
        // It ended by itself, as when its guest powers off.
        None if was_kept => KeeperReply::Stopped,
        None => return Err(does_not_run(name)),
    };
    drop(bar);
    answered(name, reply, output)
}

/// Notes of a suspension that nothing sends that nothing is to, until somebody asks for it.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when there is none, as when the machine has gone on from it, or while somebody has
/// the machine; any error from the file system.
fn keep_here(folder: &MachineFolder) -> Result<KeeperReply> {
    let _lock = folder.lock()?;
    match folder.pending()? {
        Some(pending) if !pending.was_resumed(folder.path()) => {
            // Why it was given up is worth more.
            if folder.not_sent().is_none() {
                folder.note_not_sent(Some(&NotSent::Stopped))?;
            }
            Ok(KeeperReply::NotSent(pending.parcel()))
        }
        _ => Err(does_not_run(folder.name())),
    }
}
