//! The static-optimal table as a scheduler: a plan is followed until a request arrives. Reads before
//! writes; writes in ascending order.

use super::{Decision, Parameters, Scheduler, SchedulerKind, View, sorted::Sorted, sstf::nothing};
use crate::hits::Pending;
use crate::model::disk::Travel;
use crate::optimal::{Move, Planner};
use crate::{DiskRequest, Op, SegmentCache};
use block::Result;
use std::collections::VecDeque;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "table",
    about: "the order that is optimal if nothing more arrives (O(N^2) table)",
    make,
};

/// With more requests than this a plan costs more than it saves: C-LOOK.
const MOST: usize = 128;

fn make(_: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    Ok(Box::new(TableScheduler {
        reads: Pending::default(),
        writes: Sorted::default(),
        plan: ReadPlan::default(),
        none: nothing(),
    }))
}

/// A plan for waiting reads.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    planner: Planner,
    positions: Vec<(u64, u64)>,
    sectors: Vec<u64>,
    moves: Vec<Move>,
    order: VecDeque<u64>,
    stale: bool,
    /// Plans made.
    pub(super) made: u64,
}

impl ReadPlan {
    /// What was planned no longer holds.
    pub(super) fn spoil(&mut self) {
        self.stale = true;
    }

    /// The index of the read that the plan has next; of requests that left it otherwise nothing needs
    /// to be said.
    pub(super) fn next(&mut self, reads: &Pending, head: u64) -> Option<usize> {
        if reads.len() > MOST {
            self.stale = true;
            return clook(reads, head);
        }
        if !self.stale {
            while let Some(id) = self.order.pop_front() {
                if let Some(index) = reads.all().iter().position(|r| r.id == id) {
                    return Some(index);
                }
            }
        }
        if reads.len() == 0 {
            return None;
        }
        self.make(reads, head);
        let id = self.order.pop_front()?;
        reads.all().iter().position(|r| r.id == id)
    }

    fn make(&mut self, reads: &Pending, head: u64) {
        self.positions.clear();
        self.positions.extend(reads.all().iter().map(|r| (r.start, r.id)));
        self.positions.sort_unstable();
        self.sectors.clear();
        self.sectors.extend(self.positions.iter().map(|(start, _)| *start));
        self.planner.plan(head, &self.sectors, &mut self.moves);
        let mut right = self.sectors.partition_point(|p| *p < head);
        let mut left = right;
        self.order.clear();
        for m in &self.moves {
            let index = match m {
                Move::Left => {
                    left -= 1;
                    left
                }
                Move::Right => {
                    right += 1;
                    right - 1
                }
            };
            self.order.push_back(self.positions[index].1);
        }
        self.stale = false;
        self.made += 1;
    }
}

/// The index of the read that C-LOOK has next.
pub(super) fn clook(reads: &Pending, head: u64) -> Option<usize> {
    reads.least(|r| (r.start < head, r.start, r.id))
}

#[derive(Debug)]
struct TableScheduler {
    reads: Pending,
    writes: Sorted,
    plan: ReadPlan,
    none: SegmentCache,
}

impl Scheduler for TableScheduler {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        match request.op {
            Op::Read => {
                self.reads.add(request, &self.none);
                self.plan.spoil();
            }
            Op::Write => self.writes.add(request),
        }
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        if let Some(index) = self.plan.next(&self.reads, view.head) {
            return Decision::Go(self.reads.take(index), Travel::Direct);
        }
        let Some(request) = self.writes.circular(view.head) else { return Decision::Idle };
        self.writes.remove(&request);
        Decision::Go(request, Travel::Direct)
    }

    fn waiting(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("plans", self.plan.made)]
    }
}
