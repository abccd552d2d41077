//! C-LOOK: upwards from request to request, then back to the lowest one. What Linux called CSCAN
//! until 2.6, and the seed with it.

use super::{Decision, Scheduler, SchedulerKind, View, sorted::Sorted};
use crate::{DiskRequest, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "clook",
    about: "upwards, then back to the lowest request (the seed's CSCAN)",
    make: |_| Ok(Box::new(Clook::default())),
};

#[derive(Debug, Default)]
struct Clook(Sorted);

impl Scheduler for Clook {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.0.add(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let Some(request) = self.0.circular(view.head) else { return Decision::Idle };
        self.0.remove(&request);
        Decision::Go(request, Travel::Direct)
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
