//! Asking the keeper of a machine, and printing what it answers.

use super::folder::MachineFolder;
use super::show;
use super::wire::{self, KeeperReply, KeeperRequest};
use crate::output::Output;
use block::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a keeper may take to end when its machine is in the store.
const ENDS: Duration = Duration::from_secs(20);
/// How often it is asked meanwhile.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// Asks the keeper of a machine; `None` when there is none. One that ends, and answers no more, is waited for.
///
/// # Errors
/// What the keeper answers; [`Unavailable`](ErrorKind::Unavailable) and [`Conflict`](ErrorKind::Conflict) when it neither
/// answers nor ends.
pub(super) async fn ask_or_gone(
    folder: &MachineFolder,
    request: &KeeperRequest,
) -> Result<Option<KeeperReply>> {
    let until = Instant::now() + ENDS;
    loop {
        let failed = match wire::call(folder, request).await {
            Ok(Some(reply)) => return Ok(Some(reply)),
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::Unavailable => Some(e),
            Err(e) => return Err(e),
        };
        // One that keeps a machine answered that by itself, or has just begun to listen.
        let Err(busy) = until_gone(folder).await else { return Ok(None) };
        match failed {
            Some(e) => return Err(e),
            None if Instant::now() > until => return Err(busy),
            None => {}
        }
    }
}

/// Waits for the end of a keeper whose machine does not run any more, as one that has just sent it.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when the machine runs.
pub(super) async fn until_gone(folder: &MachineFolder) -> Result<()> {
    let until = Instant::now() + ENDS;
    while let Err(error) = folder.must_not_run() {
        // One that keeps a machine answers.
        let answer = timeout_at(until, wire::call(folder, &KeeperRequest::Status)).await;
        if !matches!(answer, Ok(Err(_) | Ok(None))) {
            return Err(error);
        }
        sleep(POLL).await;
        if Instant::now() > until {
            return Err(error);
        }
    }
    Ok(())
}

/// The error for a machine that has no keeper.
pub(super) fn does_not_run(name: &str) -> Error {
    Error::conflict(format!("machine {name:?} does not run here; see 'sojourn vm list'"))
}

/// Prints what a keeper answered.
pub(super) fn answered(name: &str, reply: KeeperReply, output: Output) -> Result<()> {
    match reply {
        KeeperReply::Stored(view) => show::stored(&view, output),
        KeeperReply::Kept(view) => show::kept(&view, output),
        KeeperReply::Uploading(view) => show::uploading(&view, output),
        KeeperReply::Status(status) => show::running(&status, output),
        KeeperReply::Starting(_) => output.done(&format!("machine {name:?} is starting")),
        KeeperReply::Stopped => output.done(&format!("machine {name:?} has stopped")),
        KeeperReply::NotSent(parcel) => output.done(&format!(
            "{parcel} is not sent any more, and stays on this host; 'sojourn vm suspend {name}' sends it"
        )),
    }
}
