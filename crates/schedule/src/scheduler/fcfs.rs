//! First come, first served.

use super::{Decision, Scheduler, SchedulerKind, View};
use crate::{DiskRequest, model::disk::Travel};
use std::collections::VecDeque;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "fcfs",
    about: "first come, first served",
    make: |_| Ok(Box::new(Fcfs::default())),
};

#[derive(Debug, Default)]
struct Fcfs(VecDeque<DiskRequest>);

impl Scheduler for Fcfs {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.0.push_back(request);
    }

    fn next(&mut self, _: &View<'_>) -> Decision {
        self.0.pop_front().map_or(Decision::Idle, |r| Decision::Go(r, Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
