//! LOOK: back and forth, turning at the last request of each direction.

use super::{Decision, Scheduler, SchedulerKind, View, sorted::Sorted};
use crate::{DiskRequest, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "look",
    about: "back and forth, turning at the last request",
    make: |_| Ok(Box::new(Look { waiting: Sorted::default(), up: true })),
};

#[derive(Debug)]
struct Look {
    waiting: Sorted,
    up: bool,
}

impl Scheduler for Look {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.add(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let ahead = |up: bool| match up {
            true => self.waiting.above(view.head),
            false => self.waiting.below(view.head),
        };
        let (request, up) = match (ahead(self.up), ahead(!self.up)) {
            (Some(request), _) => (request, self.up),
            (None, Some(request)) => (request, !self.up),
            (None, None) => return Decision::Idle,
        };
        self.up = up;
        self.waiting.remove(&request);
        Decision::Go(request, Travel::Direct)
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
