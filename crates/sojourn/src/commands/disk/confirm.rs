//! A question before what cannot be undone, to a person at a terminal. Scripts are not asked.

use crate::output::Output;
use crate::site::Site;
use block::{ByteSize, Error, ErrorKind, Result, offload};
use engine::api::{DiskReply, DiskRequest, DiskView};
use std::io::{BufRead, IsTerminal, Write};

/// Has a person at a terminal type the name of a disk that is to lose what it alone has.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when something else was typed; that of the terminal.
pub(super) async fn loss_of(name: &str, site: &Site, output: Output) -> Result<()> {
    if !is_watched(output) {
        return Ok(());
    }
    match site.ask(DiskRequest::Show { name: name.to_owned() }).await {
        Ok(DiskReply::Disk(disk)) => match what_is_lost(&disk) {
            Some(lost) => typed(name, &format!("disk {name} has {lost}")).await,
            None => Ok(()),
        },
        // Who carries it out says what is the matter.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => {
            typed(name, &format!("what disk {name} has is not known ({})", e.message())).await
        }
        Ok(_) => typed(name, &format!("what disk {name} has is not known")).await,
    }
}

/// The same of a disk of which only its name and its snapshots are left, in the store.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when something else was typed; that of the terminal.
pub(super) async fn loss_of_name(name: &str, output: Output) -> Result<()> {
    match is_watched(output) {
        true => {
            typed(name, &format!("disk {name} and its snapshots will be gone from the store")).await
        }
        false => Ok(()),
    }
}

fn is_watched(output: Output) -> bool {
    let terminals = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    terminals && matches!(output, Output::Text)
}

/// Fails unless the name is typed. The answer is waited for on another thread: a signal ends the question.
async fn typed(name: &str, why: &str) -> Result<()> {
    let question = std::io::stderr();
    let terminal = |e| Error::io("the terminal", e);
    write!(&question, "{why}. Type its name to lose that for good: ")
        .and_then(|()| (&question).flush())
        .map_err(terminal)?;
    let line = offload(move || {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(terminal)?;
        Ok(line)
    })
    .await?;
    if line.trim() == name {
        return Ok(());
    }
    Err(Error::conflict(format!(
        "disk {name} is as it was: another name was typed; --yes asks nothing"
    )))
}

/// What a disk alone has, in words; `None` for nothing.
fn what_is_lost(disk: &DiskView) -> Option<String> {
    let own =
        (disk.private_bytes > 0).then(|| format!("{} of its own", ByteSize(disk.private_bytes)));
    let snapshots = match disk.snapshots.len() {
        0 => None,
        1 => Some("a snapshot".to_owned()),
        count => Some(format!("{count} snapshots")),
    };
    match (own, snapshots) {
        (Some(own), Some(snapshots)) => Some(format!("{own} and {snapshots}")),
        (own, snapshots) => own.or(snapshots),
    }
}
