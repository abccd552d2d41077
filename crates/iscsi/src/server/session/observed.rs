//! What the observer of a session is told.

use crate::scsi::{Command, Nexus};
use block::{Action, Answered, Observer, Span};
use tokio::time::Instant;

/// Where a command reads, writes or flushes.
pub(super) fn span(command: &Command, nexus: &Nexus) -> Option<Span> {
    match command {
        Command::Read { blocks }
        | Command::Write { blocks, .. }
        | Command::WriteAndVerify { blocks, .. }
        | Command::WriteSame { blocks, .. } => {
            let block = u64::from(nexus.block);
            let offset = blocks.first.checked_mul(block)?;
            Span::within(offset, u64::from(blocks.count) * block, nexus.device.size()).ok()
        }
        Command::SynchronizeCache { .. } => Some(Span::between(0, 0)),
        _ => None,
    }
}

/// Tells of a command that reads, writes or flushes.
pub(super) fn tell(
    observer: &dyn Observer,
    began: Instant,
    command: Command,
    span: Option<Span>,
    failed: bool,
) {
    let (action, durable) = match command {
        Command::Read { .. } => (Action::Read, false),
        Command::Write { forced, .. } => (Action::Write, forced),
        Command::WriteAndVerify { .. } => (Action::Write, true),
        Command::WriteSame { .. } => (Action::Zero, false),
        Command::SynchronizeCache { .. } => (Action::Flush, false),
        _ => return,
    };
    if let Some(span) = span {
        observer.answered(began, began.elapsed(), &[Answered { span, action, durable, failed }]);
    }
}
