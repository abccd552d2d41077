//! Writes that are done on the spot: they go into the system's memory, and wait all the same when that
//! is full of what a slow file system has not taken yet. Measured without a lock.

use super::{FinishedWaits, Slow, SlowBound, WaitKind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// How long such writes took since the last look.
#[derive(Debug)]
pub(super) struct Quick {
    bound: SlowBound,
    /// Times are in nanoseconds from here on.
    base: Instant,
    /// When one that is under way began; 0 for none that is seen. One that begins beside it is seen only
    /// when it ends, or when the next one begins.
    began: AtomicU64,
    all: AtomicU64,
    slow: AtomicU64,
    longest: AtomicU64,
}

/// A write, until it is dropped.
pub(crate) struct Write<'a> {
    quick: &'a Quick,
    began: u64,
    /// It is the one that is seen while it is under way.
    seen: bool,
    counts: bool,
}

impl Quick {
    pub(super) fn new(bound: SlowBound) -> Self {
        let none = || AtomicU64::new(0);
        let base = Instant::now();
        Self { bound, base, began: none(), all: none(), slow: none(), longest: none() }
    }

    /// Now; never 0.
    #[inline]
    fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64 | 1
    }

    #[inline]
    pub(super) fn begin(&self) -> Write<'_> {
        let began = self.now();
        let seen = self.began.load(Relaxed) == 0
            && self.began.compare_exchange(0, began, Relaxed, Relaxed).is_ok();
        Write { quick: self, began, seen, counts: true }
    }

    /// Those that are over since the last look, and the one that is under way for too long.
    pub(super) fn look(&self) -> (FinishedWaits, Option<Slow>) {
        let over = FinishedWaits {
            all: self.all.swap(0, Relaxed),
            slow: self.slow.swap(0, Relaxed),
            longest: Duration::from_nanos(self.longest.swap(0, Relaxed)),
        };
        let under_way = match self.began.load(Relaxed) {
            0 => None,
            began => {
                let took = Duration::from_nanos(self.now().saturating_sub(began));
                Some(Slow { what: WaitKind::Write.name(), took, under_way: true })
            }
        };
        (over, under_way.filter(|slow| self.bound.is_exceeded_by(slow.took)))
    }
}

impl Write<'_> {
    /// It could not be done on the spot: whoever waits for it counts it.
    pub(crate) fn would_wait(mut self) {
        self.counts = false;
    }
}

impl Drop for Write<'_> {
    #[inline]
    fn drop(&mut self) {
        let Self { quick, began, seen, counts } = *self;
        if seen {
            quick.began.store(0, Relaxed);
        }
        if !counts {
            return;
        }
        quick.all.fetch_add(1, Relaxed);
        let took = quick.now().saturating_sub(began);
        if quick.bound.is_exceeded_by(Duration::from_nanos(took)) {
            quick.slow.fetch_add(1, Relaxed);
            quick.longest.fetch_max(took, Relaxed);
        }
    }
}
