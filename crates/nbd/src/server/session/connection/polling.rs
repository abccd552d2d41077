//! Busy polling after the answer of a single request, before the task sleeps.

use super::Connection;
use std::future::Future;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// The answers of what was taken were sent, as far as the client takes them.
    pub(super) fn note_answered(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            let nothing_left = self.engine.in_flight() == 0 && self.engine.replies.is_empty();
            self.fresh = taken == 1 && nothing_left;
            self.answered = self.fresh.then(|| self.engine.timer.now());
        }
    }

    /// Whether polling for the next request is worth it.
    fn would_busy_poll(&self) -> bool {
        self.fresh
            && self.watch.is_some()
            && !self.waits.window().is_zero()
            && self.receiver.is_alone()
    }

    /// Whether the next receive will probably poll.
    pub(super) fn busy_polls(&self) -> bool {
        self.would_busy_poll()
            && self.processors.is_some_and(|(processors, when)| processors.may(when))
    }

    /// Receives once, and polls for something if that is worth it.
    pub(super) fn receive_or_poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let poller = match (self.processors, &self.watch) {
            (Some((processors, when)), Some(watch)) if self.would_busy_poll() => {
                let poller = processors.take(when);
                poller.map(|poller| {
                    let window = self.waits.poll();
                    watch.busy_poll(window);
                    (poller, window, Instant::now())
                })
            }
            _ => None,
        };
        self.fresh = false;
        let received = self.receive(cx);
        if let (Some((_, window, from)), Some(watch)) = (poller, &self.watch) {
            watch.busy_poll(Duration::ZERO); // one that was not needed
            let now = Instant::now();
            // It may have waited for the processor, too.
            self.engine.tally.busy_poll_nanos += (now - from).min(window).as_nanos() as u64;
            if let Poll::Ready(Ok(1..)) = received {
                self.engine.timer.begin_anew(now);
                self.engine.tally.busy_polled += 1;
            }
        }
        if received.is_ready() {
            self.receiver.received();
            if let Some(answered) = self.answered.take() {
                self.waits.waited(self.engine.timer.now() - answered);
            }
        }
        received
    }
}

/// Has the task woken once the runtime has given everything else its turn.
pub(super) fn yield_now(cx: &mut Context<'_>) {
    let woken = std::pin::pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(woken.is_pending());
}
