//! A question before what cannot be undone, to a person at a terminal. Scripts are not asked.

use crate::output::Output;
use crate::site::Site;
use block::{ByteSize, Error, Result};
use engine::api::{DiskReply, DiskRequest, DiskView};
use std::io::{BufRead, IsTerminal, Write};

/// Has a person at a terminal type the name of a disk that is to lose what it alone has.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when something else was typed; that of the terminal.
pub(super) async fn loss_of(name: &str, site: &Site, output: Output) -> Result<()> {
    let (input, question) = (std::io::stdin(), std::io::stderr());
    let is_seen = input.is_terminal() && question.is_terminal() && matches!(output, Output::Text);
    if !is_seen {
        return Ok(());
    }
    let known = match site.ask(DiskRequest::Show { name: name.to_owned() }).await {
        Ok(DiskReply::Disk(disk)) => Some(disk),
        // One that is damaged or elsewhere: who carries it out says what is the matter.
        _ => None,
    };
    let Some(lost) = known.as_ref().and_then(what_is_lost) else { return Ok(()) };
    let terminal = |e| Error::io("the terminal", e);
    write!(&question, "disk {name} has {lost}. Type its name to lose that for good: ")
        .and_then(|()| (&question).flush())
        .map_err(terminal)?;
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(terminal)?;
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
