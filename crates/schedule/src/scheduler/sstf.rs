//! Shortest seek first.

use super::{Decision, Scheduler, SchedulerKind, View};
use crate::hits::Pending;
use crate::model::disk::Travel;
use crate::{CacheShape, DiskRequest, SegmentCache};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "sstf",
    about: "the nearest request first",
    make: |_| Ok(Box::new(Sstf { waiting: Pending::default(), none: nothing() })),
};

/// A cache that never holds anything.
pub(super) fn nothing() -> SegmentCache {
    SegmentCache::new(CacheShape::default())
}

#[derive(Debug)]
struct Sstf {
    waiting: Pending,
    none: SegmentCache,
}

impl Scheduler for Sstf {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.add(request, &self.none);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let nearest = self.waiting.least(|r| (r.start.abs_diff(view.head), r.id));
        nearest.map_or(Decision::Idle, |i| Decision::Go(self.waiting.take(i), Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
