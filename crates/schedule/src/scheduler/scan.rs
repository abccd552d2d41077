//! SCAN: back and forth over the whole disk. The arm goes to the edge before it turns.

use super::{Decision, Scheduler, SchedulerKind, View, sorted::Sorted};
use crate::{DiskRequest, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "scan",
    about: "back and forth over the whole disk",
    make: |_| Ok(Box::new(ElevatorScan { waiting: Sorted::default(), up: true })),
};

#[derive(Debug)]
struct ElevatorScan {
    waiting: Sorted,
    up: bool,
}

impl Scheduler for ElevatorScan {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.add(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let (ahead, behind) = match self.up {
            true => (self.waiting.above(view.head), self.waiting.below(view.head)),
            false => (self.waiting.below(view.head), self.waiting.above(view.head)),
        };
        let edge = if self.up { view.model.sectors().saturating_sub(1) } else { 0 };
        let (request, travel) = match (ahead, behind) {
            (Some(request), _) => (request, Travel::Direct),
            (None, Some(request)) => {
                self.up = !self.up;
                (request, Travel::Via(edge))
            }
            (None, None) => return Decision::Idle,
        };
        self.waiting.remove(&request);
        Decision::Go(request, travel)
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
