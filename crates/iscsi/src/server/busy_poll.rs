//! Busy polling for an initiator's next command before the connection sleeps, as NBD connections do it
//! ([`nbd::server::BusyPoll`]): after the answer of a single one, for as long as its waits of late suggest.

use super::Inner;
use nbd::server::{BusyPoll, BusyPoller, LoneReceiver, Processors, Waits, Watch};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// How long a connection may answer and poll for more before the runtime has to be asked whether there is
/// anything else.
const ATTENTION: Duration = Duration::from_micros(200);

/// Whether, and for how long, one connection polls.
pub(super) struct BusyPolling<'a> {
    inner: &'a Inner,
    processors: &'a Processors,
    when: BusyPoll,
    watch: Watch,
    waits: Waits,
    receiver: LoneReceiver,
    /// Commands that were taken since something was received.
    taken: u32,
    /// When the answer of a single command was sent, until the next one comes.
    answered: Option<Instant>,
    /// And it was sent just now.
    fresh: bool,
    /// When the connection was polled last, after it slept.
    polled: Instant,
    slept: bool,
}

impl<'a> BusyPolling<'a> {
    /// For the connection whose socket this is.
    pub(super) fn new(inner: &'a Inner, watch: Watch) -> Self {
        let when = inner.limits.busy_poll;
        Self {
            inner,
            processors: &inner.processors,
            when,
            watch,
            waits: Waits::new(when.most()),
            receiver: LoneReceiver::new(),
            taken: 0,
            answered: None,
            fresh: false,
            polled: Instant::now(),
            slept: false,
        }
    }

    /// A command was taken.
    pub(super) fn take(&mut self) {
        self.taken = self.taken.saturating_add(1);
    }

    /// The answers to what was taken were sent, as far as the initiator takes them; `idle` when nothing is left.
    pub(super) fn answered(&mut self, idle: bool) {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.fresh = taken == 1 && idle;
            self.answered = self.fresh.then(Instant::now);
        }
    }

    fn would_poll(&self) -> bool {
        self.fresh && !self.waits.window().is_zero() && self.receiver.is_alone()
    }

    /// Whether others have to have their turn before the connection polls on.
    pub(super) fn is_long(&self) -> bool {
        self.would_poll() && self.processors.may(self.when) && self.polled.elapsed() >= ATTENTION
    }

    /// The connection is about to receive; has it poll if that is worth it.
    pub(super) fn begin(&mut self) -> Option<BusyPoller<'a>> {
        if std::mem::take(&mut self.slept) {
            self.polled = Instant::now();
        }
        let polls = self.would_poll();
        self.fresh = false;
        let poller = if polls { self.processors.take(self.when)? } else { return None };
        self.watch.busy_poll(self.waits.poll());
        Some(poller)
    }

    /// It has tried; whether it `received` something.
    pub(super) fn end(&mut self, poller: Option<BusyPoller<'_>>, received: bool) {
        self.slept = !received;
        if poller.is_some() {
            self.watch.busy_poll(Duration::ZERO); // one that was not needed
            self.inner.counts.busy_polled.fetch_add(u64::from(received), Relaxed);
        }
        if received {
            self.receiver.received();
            if let Some(answered) = self.answered.take() {
                self.waits.waited(answered.elapsed());
            }
        }
    }
}
