//! Commands that are answered in the connection's own task.

use super::observed::tell;
use super::{FullFeatureSession, Phase, is_first};
use crate::codec::request::CommandPdu;
use crate::codec::response::{self, Residual};
use crate::scsi::{Command, Sense, Status};
use block::Span;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// The longest read that is answered at once, in bytes.
const AT_ONCE: u64 = 256 << 10;

impl FullFeatureSession<'_> {
    /// Answers a command in the connection's own task, if that needs no waiting.
    pub(super) fn at_once(
        &mut self,
        wire: &CommandPdu,
        command: &std::result::Result<Command, Sense>,
        data: &[u8],
    ) -> bool {
        let (Phase::Normal { nexus, observer, .. }, Ok(command)) = (&self.phase, command) else {
            return false;
        };
        let simple = self.ordered.is_empty() && self.queue.is_empty() && wire.attribute <= 1;
        if !simple || !is_first(&wire.lun) || self.held_back().is_some() {
            return false;
        }
        let whole = wire.expected as usize == data.len() && wire.last && self.agreed.immediate_data;
        if wire.writes
            && whole
            && let Some(span) = nexus.try_write(command, data)
        {
            if let Some(observer) = observer {
                tell(observer.as_ref(), Instant::now(), *command, Some(span), false);
            }
            self.charge(span.len());
            self.inner.counts.commands.fetch_add(1, Relaxed);
            self.inner.counts.written_bytes.fetch_add(span.len(), Relaxed);
            let counts = self.counts();
            let status = Status::Good.code();
            self.output.put(response::command(wire.tag, status, Residual::None, 0, counts), &[]);
            return true;
        }
        if !wire.reads {
            return false;
        }
        let exact = |span: &Span| span.len() == u64::from(wire.expected) && span.len() <= AT_ONCE;
        let Some(span) = nexus.plain_read(command).filter(exact).filter(|span| !span.is_empty())
        else {
            return false;
        };
        let (nexus, observer) = (Arc::clone(nexus), observer.clone());
        if !self.room.hold(span.len()) {
            return false;
        }
        let (mark, before) = (self.output.mark(), self.stat_sn);
        let read = |at: u64, buffer: &mut [u8]| {
            let from = span.offset() + at;
            let part = Span::between(from, from + buffer.len() as u64);
            if nexus.try_read(part, buffer) { Ok(()) } else { Err(()) }
        };
        if self.data_in(wire.tag, span.len(), Residual::None, read).is_err() {
            self.output.take_back(mark);
            self.stat_sn = before;
            self.room.give_back(span.len());
            return false;
        }
        if let Some(observer) = observer {
            tell(observer.as_ref(), Instant::now(), *command, Some(span), false);
        }
        self.answered += span.len();
        self.charge(span.len());
        self.inner.counts.commands.fetch_add(1, Relaxed);
        true
    }

    /// How long the limits of its client hold the next command back.
    pub(super) fn held_back(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Normal { pace: Some(pace), .. } => pace.wait(Instant::now()),
            _ => None,
        }
    }

    /// A command that moves so many bytes was let in.
    pub(super) fn charge(&self, bytes: u64) {
        if let Phase::Normal { pace: Some(pace), .. } = &self.phase {
            pace.charge(Instant::now(), bytes);
        }
    }

    /// Sends data, and with its last piece that the command is done.
    pub(super) fn data_in(
        &mut self,
        tag: u32,
        length: u64,
        residual: Residual,
        fill: impl Fn(u64, &mut [u8]) -> std::result::Result<(), ()>,
    ) -> std::result::Result<(), ()> {
        let (segment, burst) =
            (u64::from(self.agreed.initiator_segment), u64::from(self.agreed.max_burst));
        let (mut at, mut data_sn, mut sequence) = (0, 0, 0);
        while at < length {
            let piece = segment.min(length - at).min(burst - sequence);
            sequence += piece;
            let last = at + piece == length;
            let ends = last || sequence == burst;
            if ends {
                sequence = 0;
            }
            let status = last.then_some((Status::Good.code(), residual));
            let counts = if last { self.counts() } else { self.look() };
            let offset = u32::try_from(at).unwrap_or(u32::MAX);
            let header = response::data_in(tag, ends, status, data_sn, offset, counts);
            self.output.put_with(header, piece as usize, |buffer| fill(at, buffer))?;
            at += piece;
            data_sn += 1;
        }
        self.inner.counts.read_bytes.fetch_add(length, Relaxed);
        Ok(())
    }
}
