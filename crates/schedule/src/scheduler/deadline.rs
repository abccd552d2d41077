//! Linux' mq-deadline: batches in ascending order, reads before writes, each with a soft deadline.

use super::{Decision, Parameters, Scheduler, SchedulerKind, View, sorted::Sorted};
use crate::{DiskRequest, Nanos, Op, model::disk::Travel};
use block::Result;
use std::collections::VecDeque;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "deadline",
    about: "Linux' mq-deadline: ascending batches, reads first, soft deadlines",
    make,
};

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    Ok(Box::new(Deadline {
        sides: [
            Side::new(parameters.time("read-expire", 500.0)?),
            Side::new(parameters.time("write-expire", 5000.0)?),
        ],
        batch: parameters.number("batch", 16.0, 1.0, 1e6)? as u32,
        writes_starved: parameters.number("writes-starved", 2.0, 0.0, 1e6)? as u32,
        side: 0,
        batching: 0,
        starved: 0,
        expired: 0,
    }))
}

/// Reads or writes.
#[derive(Debug)]
struct Side {
    sorted: Sorted,
    /// In order of arrival; some of them are gone from `sorted`.
    fifo: VecDeque<DiskRequest>,
    expire: Nanos,
    /// Where the last request ended in the order.
    next: Option<u64>,
}

impl Side {
    fn new(expire: Nanos) -> Self {
        Self { sorted: Sorted::default(), fifo: VecDeque::new(), expire, next: None }
    }

    /// The one behind the last one.
    fn following(&self) -> Option<DiskRequest> {
        self.next.and_then(|sector| self.sorted.above(sector))
    }

    /// The one that has waited longest.
    fn oldest(&mut self) -> Option<DiskRequest> {
        while let Some(first) = self.fifo.front() {
            if self.sorted.has(first) {
                return Some(*first);
            }
            self.fifo.pop_front();
        }
        None
    }
}

#[derive(Debug)]
struct Deadline {
    sides: [Side; 2],
    batch: u32,
    writes_starved: u32,
    /// Which side the batch is of.
    side: usize,
    batching: u32,
    /// How often reads went before waiting writes.
    starved: u32,
    expired: u64,
}

impl Deadline {
    /// Begins a batch: which side, and where.
    fn begin(&mut self, now: Nanos) -> Option<DiskRequest> {
        let (reads, writes) = (self.sides[0].sorted.len() > 0, self.sides[1].sorted.len() > 0);
        self.side = match (reads, writes) {
            (true, true) if self.starved >= self.writes_starved => 1,
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => return None,
        };
        self.starved = if self.side == 0 && writes { self.starved + 1 } else { 0 };
        self.batching = 0;
        let side = &mut self.sides[self.side];
        let oldest = side.oldest()?;
        let expired = now.saturating_sub(oldest.arrived) > side.expire;
        self.expired += u64::from(expired);
        match side.following() {
            Some(following) if !expired => Some(following),
            _ => Some(oldest),
        }
    }
}

impl Scheduler for Deadline {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        let side = &mut self.sides[usize::from(request.op == Op::Write)];
        side.sorted.add(request);
        side.fifo.push_back(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let following = match self.batching < self.batch {
            true => self.sides[self.side].following(),
            false => None,
        };
        let Some(request) = following.or_else(|| self.begin(view.now)) else {
            return Decision::Idle;
        };
        self.batching += 1;
        let side = &mut self.sides[self.side];
        side.next = Some(request.start.saturating_add(1));
        side.sorted.remove(&request);
        Decision::Go(request, Travel::Direct)
    }

    fn waiting(&self) -> usize {
        self.sides.iter().map(|side| side.sorted.len()).sum()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("expired", self.expired)]
    }
}
