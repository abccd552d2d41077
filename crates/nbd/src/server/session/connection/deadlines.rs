//! What a connection does when time has passed: it drops a client that is in the way, asks the limits
//! again, and gives its buffers back.

use super::{Connection, Receiving};
use crate::server::sockets::stream::{Hangup, Watch};
use block::Error;
use std::future::Future;
use std::task::Context;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// How long a connection is quiet before it gives its buffers back.
const QUIET: Duration = Duration::from_secs(5);
/// What a client that is in the way must take or send until the deadline, in bytes.
const PACE: u64 = 64 << 10;
/// Or, where that is more, what it holds divided by this: who holds much is not in the way for much longer
/// than two deadlines.
const HOLDINGS: u64 = 2;
/// Deadlines after which a client is dropped that takes nothing of its replies, in nobody's way.
const PATIENCE: u32 = 10;
/// The longest that a paced client waits until its limits are asked again: they may have changed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Has the task woken when the client's limits may let the next request in, or may have
    /// changed; true when that is now.
    pub(super) fn pause(&mut self, cx: &mut Context<'_>, wait: Duration) -> bool {
        if !std::mem::replace(&mut self.paced, true) {
            self.engine.tally.paced += 1;
        }
        if self.pause.is_none() && self.has_left() {
            self.lose(Error::unavailable("the client left while its limits held it back"));
            return true;
        }
        let pause =
            self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait.min(LONGEST_PAUSE))));
        let over = pause.as_mut().poll(cx).is_ready();
        if over {
            self.pause = None;
            self.engine.timer.begin_anew(Instant::now());
        }
        over
    }

    /// Whether the client is gone; one that has closed its side alone still gets its answers for a
    /// while.
    fn has_left(&mut self) -> bool {
        match self.watch.as_ref().map(Watch::hangup) {
            Some(Hangup::All) => true,
            Some(Hangup::ItsSide) => {
                let since = *self.side_closed.get_or_insert_with(Instant::now);
                since.elapsed() >= self.stall_deadline
            }
            Some(Hangup::Nothing) | None => false,
        }
    }

    /// Whether the client was in the way for too long. The device's time is not the client's.
    pub(super) fn is_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let closed = matches!(self.receiving, Receiving::Closed);
        let owes = closed || self.engine.replies.unsent() > 0 || self.engine.budget_held() > 0;
        let owes = owes && self.engine.in_flight() == 0;
        if !owes {
            (self.calm, self.silent) = (true, 0);
            if self.stall.is_none() {
                return false;
            }
        }
        let stall = self.stall.get_or_insert_with(|| {
            (self.calm, self.silent, self.moved) = (false, 0, 0);
            Box::pin(tokio::time::sleep(self.stall_deadline))
        });
        while stall.as_mut().poll(cx).is_ready() {
            if !owes {
                self.stall = None;
                return false;
            }
            if !std::mem::take(&mut self.calm) {
                self.silent = if self.moved == 0 { self.silent + 1 } else { 0 };
                let slow = match self.engine.is_in_the_way() {
                    true => self.moved < PACE.max(self.engine.budget_held() / HOLDINGS),
                    false => closed && self.moved < PACE,
                };
                if slow || self.silent >= PATIENCE {
                    return true;
                }
            }
            self.moved = 0;
            stall.as_mut().reset(Instant::now() + self.stall_deadline);
        }
        false
    }

    /// Gives memory back after a while of quiet.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>) {
        let grown =
            self.input.is_grown() || self.engine.replies.is_grown() || self.engine.spare.is_grown();
        if !grown {
            self.quiet = None;
            return;
        }
        loop {
            let quiet = self.quiet.get_or_insert_with(|| {
                self.active = false;
                Box::pin(tokio::time::sleep(QUIET))
            });
            if quiet.as_mut().poll(cx).is_pending() {
                return;
            }
            if !std::mem::take(&mut self.active) {
                self.input.shrink();
                self.engine.replies.shrink();
                self.engine.spare.shrink();
                self.quiet = None;
                return;
            }
            quiet.as_mut().reset(Instant::now() + QUIET);
        }
    }
}
