//! When each process goes on.

use crate::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Moments and processes, the earliest first; at one moment, in order of process.
#[derive(Debug, Default)]
pub(super) struct Wakes(BinaryHeap<Reverse<(Nanos, u32)>>);

impl Wakes {
    pub(super) fn add(&mut self, at: Nanos, process: u32) {
        self.0.push(Reverse((at, process)));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// A process that goes on now.
    pub(super) fn take(&mut self, now: Nanos) -> Option<u32> {
        let due = self.next().is_some_and(|at| at <= now);
        due.then(|| self.0.pop().map(|Reverse((_, process))| process)).flatten()
    }
}
