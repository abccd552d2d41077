//! CSCAN as textbooks have it: upwards to the last sector, back to the first, upwards again.

use super::{Decision, Scheduler, SchedulerKind, View, sorted::Sorted};
use crate::{DiskRequest, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "cscan",
    about: "upwards to the last sector, back to the first",
    make: |_| Ok(Box::new(Cscan::default())),
};

#[derive(Debug, Default)]
struct Cscan(Sorted);

impl Scheduler for Cscan {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.0.add(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let (request, travel) = match (self.0.above(view.head), self.0.lowest()) {
            (Some(request), _) => (request, Travel::Direct),
            (None, Some(request)) => (request, Travel::Around),
            (None, None) => return Decision::Idle,
        };
        self.0.remove(&request);
        Decision::Go(request, travel)
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
