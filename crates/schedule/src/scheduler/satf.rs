//! Shortest access time first: the request that the model says is served soonest, rotation included.

use super::{Decision, Scheduler, SchedulerKind, View, sstf::nothing};
use crate::hits::Pending;
use crate::{DiskRequest, SegmentCache, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "satf",
    about: "the shortest access by the model first, hits not known",
    make: |_| Ok(Box::new(Satf { waiting: Pending::default(), none: nothing() })),
};

#[derive(Debug)]
struct Satf {
    waiting: Pending,
    none: SegmentCache,
}

impl Scheduler for Satf {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.add(request, &self.none);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let least = self.waiting.least(|r| view.model.expected(view.start, view.head, r));
        least.map_or(Decision::Idle, |i| Decision::Go(self.waiting.take(i), Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
