//! CATS, the cache-aware table scheduler ("Predicting Disk Scheduling Performance with Virtual
//! Machines", 2010, section 3). Its rules, in order, each of which can be switched off:
//!
//! 1. The oldest read that the shadow cache predicts to be a hit goes at once.
//! 2. The bus driver: after a request no seek begins for `hold`, in case a near one arrives.
//! 3. While the oldest read has waited longer than `read-delay`: C-LOOK.
//! 4. The static-optimal table.
//!
//! Writes go in C-LOOK order while no read waits. The seed has no guard against reads that never
//! end; here a write that has waited `write-delay` starts a batch of 16.

use super::table::{ReadPlan, clook};
use super::{Decision, Parameters, Scheduler, SchedulerKind, View, sorted::Sorted, sstf::nothing};
use crate::hits::Pending;
use crate::model::disk::Travel;
use crate::{DiskRequest, Nanos, Op, SegmentCache};
use block::Result;
use std::collections::VecDeque;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "cats",
    about: "the seed's: predicted hits, then the table, C-LOOK while reads are late",
    make: |parameters| make(parameters, true),
};

pub(super) const PLAIN: SchedulerKind = SchedulerKind {
    name: "cats-no-cache",
    about: "CATS without its shadow cache",
    make: |parameters| make(parameters, false),
};

/// Writes that go together once one of them has waited too long.
const WRITE_BATCH: u32 = 16;

fn make(parameters: &mut Parameters, hits: bool) -> Result<Box<dyn Scheduler>> {
    Ok(Box::new(Cats {
        hits_first: parameters.switch("hits", hits)?,
        use_table: parameters.switch("table", true)?,
        hold: parameters.time("hold", 0.0)?,
        hold_below: parameters.number("hold-below", f64::INFINITY, 1.0, 1e9)? as usize,
        read_delay: parameters.time("read-delay", 100.0)?,
        write_delay: parameters.time("write-delay", 500.0)?,
        reads: Pending::default(),
        writes: Writes::default(),
        plan: ReadPlan::default(),
        none: nothing(),
        last_done: None,
        counted: Counted::default(),
    }))
}

/// How often each rule decided.
#[derive(Debug, Default)]
struct Counted {
    hits: u64,
    late: u64,
    planned: u64,
    held: u64,
}

/// Waiting writes.
#[derive(Debug, Default)]
struct Writes {
    sorted: Sorted,
    fifo: VecDeque<DiskRequest>,
    batch: u32,
}

impl Writes {
    /// The next write, if writes are to go now.
    fn next(&mut self, no_reads: bool, delay: Nanos, view: &View<'_>) -> Option<DiskRequest> {
        while self.fifo.front().is_some_and(|first| !self.sorted.has(first)) {
            self.fifo.pop_front();
        }
        let Some(oldest) = self.fifo.front() else {
            // The next batch begins with its own.
            self.batch = 0;
            return None;
        };
        if self.batch == 0 && !no_reads && view.now.saturating_sub(oldest.arrived) > delay {
            self.batch = WRITE_BATCH;
        }
        if self.batch == 0 && !no_reads {
            return None;
        }
        self.batch = self.batch.saturating_sub(1);
        let request = self.sorted.circular(view.head)?;
        self.sorted.remove(&request);
        Some(request)
    }
}

#[derive(Debug)]
struct Cats {
    hits_first: bool,
    use_table: bool,
    hold: Nanos,
    /// Hold only while fewer reads than this wait.
    hold_below: usize,
    read_delay: Nanos,
    write_delay: Nanos,
    reads: Pending,
    writes: Writes,
    plan: ReadPlan,
    none: SegmentCache,
    last_done: Option<Nanos>,
    counted: Counted,
}

impl Cats {
    /// Until when the bus driver waits.
    fn held(&self, now: Nanos) -> Option<Nanos> {
        let until = self.last_done?.saturating_add(self.hold);
        (now < until && self.reads.len() < self.hold_below).then_some(until)
    }

    /// The index of the next read by the rules for seeks.
    fn seek(&mut self, view: &View<'_>) -> Option<usize> {
        let oldest = self.reads.all().iter().map(|r| r.arrived).min()?;
        if view.now.saturating_sub(oldest) > self.read_delay {
            self.counted.late += 1;
            self.plan.spoil();
            return clook(&self.reads, view.head);
        }
        self.counted.planned += 1;
        match self.use_table {
            true => self.plan.next(&self.reads, view.head),
            false => clook(&self.reads, view.head),
        }
    }
}

impl Scheduler for Cats {
    fn add(&mut self, request: DiskRequest, view: &View<'_>) {
        if request.op == Op::Write {
            self.writes.sorted.add(request);
            self.writes.fifo.push_back(request);
            return;
        }
        self.reads.add(request, if self.hits_first { view.shadow } else { &self.none });
        self.plan.spoil();
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let no_reads = self.reads.len() == 0;
        if let Some(request) = self.writes.next(no_reads, self.write_delay, view) {
            return Decision::Go(request, Travel::Direct);
        }
        if no_reads {
            return Decision::Idle;
        }
        if self.hits_first
            && let Some(index) = self.reads.oldest_hit(view.shadow)
        {
            self.counted.hits += 1;
            return Decision::Go(self.reads.take(index), Travel::Direct);
        }
        if let Some(until) = self.held(view.now) {
            self.counted.held += 1;
            return Decision::Wait(until);
        }
        let index = self.seek(view);
        index.map_or(Decision::Idle, |i| Decision::Go(self.reads.take(i), Travel::Direct))
    }

    fn done(&mut self, _: &DiskRequest, view: &View<'_>) {
        self.last_done = Some(view.now);
    }

    fn waiting(&self) -> usize {
        self.reads.len() + self.writes.sorted.len()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counted;
        vec![
            ("predicted_hits", c.hits),
            ("late", c.late),
            ("planned", c.planned),
            ("plans", self.plan.made),
            ("held", c.held),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn what_a_batch_of_writes_did_not_use_is_not_another_batch_s() {
        const MS: Nanos = 1_000_000;
        let model = Profile::named("hdd-7200").unwrap().model().unwrap();
        let shadow = SegmentCache::new(model.cache());
        let view = |now| View { now, start: now, head: 0, shadow: &shadow, model: &*model };
        let mut cats = crate::scheduler::make("cats").unwrap();
        let request = |id, op, arrived| DiskRequest {
            id,
            op,
            start: id * 1000,
            sectors: 8,
            arrived,
            ..DiskRequest::default()
        };
        let add =
            |cats: &mut dyn Scheduler, id, op, now| cats.add(request(id, op, now), &view(now));
        let next = |cats: &mut dyn Scheduler, now| match cats.next(&view(now)) {
            Decision::Go(request, _) => request.id,
            other => panic!("{other:?}"),
        };
        add(&mut *cats, 1, Op::Write, 0);
        (2..9).for_each(|id| add(&mut *cats, id, Op::Read, 0));
        assert_eq!(next(&mut *cats, 600 * MS), 1, "it is late");
        assert_ne!(next(&mut *cats, 601 * MS), 1);
        // This one is not late.
        add(&mut *cats, 9, Op::Write, 602 * MS);
        assert_ne!(next(&mut *cats, 603 * MS), 9, "before reads that wait");
        assert_eq!(next(&mut *cats, 1200 * MS), 9);
    }
}
