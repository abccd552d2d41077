//! The clients of one connection: what they send when, and what becomes of it.
//!
//! One task carries the connection. Whenever it is woken it takes all replies that are there, sends
//! everything that is due in one go, and sleeps until the next reply or the next due time.

use crate::pattern;
use crate::replies::Replies;
use crate::script::ScriptStep;
use crate::state::ReplayState;
use crate::verify::Expected;
use block::{Error, Result};
use nbd::codec::ReplyStyle;
use nbd::codec::constants::{command, command_flags, export_flags};
use nbd::codec::request::RequestHeader;
use nbd::{Stream, Terms};
use requests::RequestTable;
use std::cmp::Reverse;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use trace::Op;

mod dial;
mod requests;

pub(crate) use dial::open;

/// Nothing more is sent while so many bytes wait for the server to take them.
const MOST_OUT: usize = 256 << 10;
/// Receives in a row before what is due is sent.
const RECEIVES: u32 = 8;

/// A client on its way through its part of the script.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number among all clients, from 0.
    client: u32,
    part: usize,
    next: usize,
    under_way: u32,
    /// The time that its script's time 0 is, in nanoseconds since the start.
    base: u64,
    /// When it may send its next request, for the client's part: it waits for no answer.
    free: u64,
    /// Whether it stands in the queue of due times.
    queued: bool,
    /// Requests left out in a row because the export does not offer them.
    skipped: usize,
    expected: Expected,
}

/// A connection.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    pub(crate) terms: Terms,
    replies: Replies,
    table: RequestTable,
    number: usize,
    out: Vec<u8>,
    /// How much of `out` was taken by the server.
    taken: usize,
    /// Encryption may still hold back what was taken.
    unflushed: bool,
}

impl Connection {
    /// A connection that carries these clients.
    ///
    /// # Errors
    /// When the export does not fit the script.
    pub(crate) fn new(
        shared: &Arc<ReplayState>,
        number: usize,
        export: String,
        clients: &[u32],
        (stream, terms): (Box<dyn Stream>, Terms),
    ) -> Result<Self> {
        let lanes: Vec<Lane> = clients
            .iter()
            .map(|client| Lane {
                client: *client,
                part: shared.plan.part(*client, &shared.script),
                next: 0,
                under_way: 0,
                base: shared.plan.begin(*client),
                free: 0,
                queued: false,
                skipped: 0,
                expected: Expected::default(),
            })
            .collect();
        for lane in &lanes {
            let part = &shared.script.parts[lane.part];
            if part.end > terms.size && !(shared.plan.wrap && terms.size > 0) {
                return Err(Error::invalid(format!(
                    "export {export:?} has {} bytes, but the trace goes up to {}: use a larger \
                     export, or --wrap to move what is beyond into it",
                    terms.size, part.end
                )));
            }
            let longest = u64::from(terms.limits.maximum).min(terms.size);
            if u64::from(part.longest) > longest {
                return Err(Error::unsupported(format!(
                    "export {export:?} takes requests of {longest} bytes, but the trace has one \
                     of {}: leave it out with `sojourn trace cut`",
                    part.longest
                )));
            }
            if part.changes && terms.has(export_flags::READ_ONLY) {
                return Err(Error::denied(format!(
                    "export {export:?} is read-only, but the trace writes: use --reads-only"
                )));
            }
        }
        let table = RequestTable::new(Arc::clone(shared), lanes, export);
        let replies = Replies::new(terms.style);
        let (out, taken, unflushed) = (Vec::new(), 0, false);
        Ok(Self { stream, terms, replies, table, number, out, taken, unflushed })
    }

    /// Replays, until every client has done all and has its answers.
    ///
    /// # Errors
    /// When the connection is lost, or the server breaks the protocol.
    pub(crate) async fn drive(mut self) -> Result<()> {
        let result = std::future::poll_fn(|context| self.poll(context)).await;
        result.map_err(|e| e.context(format!("export {:?}", self.table.export)))?;
        self.table.shared.left.fetch_add(self.table.left(), Ordering::Relaxed);
        // Ends the session cleanly; a server that is gone already needs no goodbye.
        self.out.clear();
        let goodbye =
            RequestHeader { flags: 0, command: command::DISCONNECT, cookie: 0, offset: 0, len: 0 };
        goodbye.put(self.terms.style, &mut self.out);
        use tokio::io::AsyncWriteExt;
        let _ = self.stream.write_all(&self.out).await;
        let _ = self.stream.shutdown().await;
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            self.table.tick();
            let mut buffer = self.table.shared.take_buffer();
            let received = self.receive(context, &mut buffer);
            self.table.shared.give_buffer(buffer);
            let more = received?;
            self.send(context)?;
            if self.table.under_way == 0 && self.table.due.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(Reverse((due, _))) = self.table.due.peek()
                && self.out.is_empty()
            {
                let at = self.table.shared.start() + Duration::from_nanos(*due);
                self.table.shared.timer.wake_at(self.number, at, context.waker())?;
            }
            if !more {
                return Poll::Pending;
            }
        }
    }

    /// Takes replies; whether there may be more.
    fn receive(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..RECEIVES {
            let mut into = ReadBuf::new(buffer);
            match Pin::new(&mut self.stream).poll_read(context, &mut into) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(e)) => return Err(Error::io("receiving replies", e)),
                Poll::Ready(Ok(())) if into.filled().is_empty() => {
                    return Err(Error::unavailable("the server closed the connection"));
                }
                Poll::Ready(Ok(())) => {
                    self.table.tick();
                    self.replies.take(into.filled(), &mut self.table)?;
                }
            }
        }
        Ok(true)
    }

    /// Sends what is due, as far as the server takes it.
    fn send(&mut self, context: &mut Context<'_>) -> Result<()> {
        loop {
            while self.out.len() - self.taken < MOST_OUT
                && let Some((lane, due)) = self.table.next_due()
            {
                self.launch(lane, due);
            }
            if self.out.len() == self.taken && !self.unflushed {
                return Ok(());
            }
            match self.flush(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result?,
            }
        }
    }

    fn flush(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.taken < self.out.len() {
            let rest = &self.out[self.taken..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, rest))
                .map_err(|e| Error::io("sending requests", e))?;
            if count == 0 {
                return Poll::Ready(Err(Error::unavailable("the server takes no more requests")));
            }
            self.taken += count;
            self.unflushed = true;
        }
        self.out.clear();
        self.out.shrink_to(64 << 10);
        self.taken = 0;
        ready!(Pin::new(&mut self.stream).poll_flush(context))
            .map_err(|e| Error::io("sending requests", e))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// Puts a client's next request into what is sent.
    fn launch(&mut self, lane: usize, due: u64) {
        let step = self.table.step(lane);
        let Some((command, mut flags)) = self.command(step) else {
            self.table.skip(lane);
            return;
        };
        let grain = u64::from(self.terms.limits.minimum);
        let (offset, length) = place(step, self.terms.size, grain);
        if step.op == Op::Write && self.terms.style == ReplyStyle::Extended {
            flags |= command_flags::PAYLOAD_LEN;
        }
        let (cookie, stamp) = self.table.launch(lane, due, step.op, offset, length);
        let request = RequestHeader { flags, command, cookie, offset, len: u64::from(length) };
        request.put(self.terms.style, &mut self.out);
        if step.op == Op::Write {
            let from = self.out.len();
            self.out.resize(from + length as usize, 0);
            pattern::fill(&mut self.out[from..], offset, stamp);
        }
    }

    /// The command and its flags; `None` when the export does not offer it.
    fn command(&self, step: ScriptStep) -> Option<(u16, u16)> {
        let (command, needed) = match step.op {
            Op::Read => (command::READ, 0),
            Op::Write => (command::WRITE, 0),
            Op::Flush => (command::FLUSH, export_flags::SEND_FLUSH),
            Op::Trim => (command::TRIM, export_flags::SEND_TRIM),
            Op::Zero => (command::WRITE_ZEROES, export_flags::SEND_WRITE_ZEROES),
        };
        let durable = step.durable
            && matches!(step.op, Op::Write | Op::Trim | Op::Zero)
            && self.terms.has(export_flags::SEND_FUA);
        let flags = if durable { command_flags::FUA } else { 0 };
        (self.terms.flags & needed == needed).then_some((command, flags))
    }
}

/// Where a request goes in an export of `size` bytes that takes multiples of `grain`: moved into it, and rounded
/// outwards.
fn place(step: ScriptStep, size: u64, grain: u64) -> (u64, u32) {
    if step.op == Op::Flush {
        return (0, 0);
    }
    let length = u64::from(step.length).min(size);
    let mut offset = step.offset;
    if offset.saturating_add(length) > size {
        // Keep the alignment, up to a block.
        let aligned = 1u64 << offset.trailing_zeros().min(12);
        offset = offset % (size - length + 1) / aligned * aligned;
    }
    let from = offset / grain * grain;
    let to = (offset + length).next_multiple_of(grain).min(size);
    // The longest trims are as long as a request can be: rounded outwards they would be longer.
    let most = u64::from(u32::MAX) / grain * grain;
    (from, (to - from).min(most) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_lie_in_the_export_and_the_longest_trim_is_as_long_as_a_request_can_be() {
        let step = |offset, length, op| ScriptStep { time: 0, offset, length, op, durable: false };
        let placed = |offset, length| place(step(offset, length, Op::Trim), 8 << 30, 512);
        assert_eq!(placed(1000, 100), (512, 1024));
        assert_eq!(placed(512, u32::MAX), (512, u32::MAX - 511));
        assert_eq!(placed(1, u32::MAX), (0, u32::MAX - 511));
        assert_eq!(placed(u64::MAX / 512 * 512, 512).1, 512);
        assert_eq!(place(step(1, u32::MAX, Op::Trim), 8 << 30, 1), (1, u32::MAX));
        assert_eq!(place(step(5, 0, Op::Flush), 512, 512), (0, 0));
    }
}
