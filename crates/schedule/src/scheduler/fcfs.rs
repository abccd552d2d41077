//! First come, first served.

use super::{Decision, Kind, Scheduler, View};
use crate::{Request, model::disk::Travel};
use std::collections::VecDeque;

pub(super) const KIND: Kind = Kind {
    name: "fcfs",
    about: "first come, first served",
    make: |_| Ok(Box::new(Fcfs::default())),
};

#[derive(Debug, Default)]
struct Fcfs(VecDeque<Request>);

impl Scheduler for Fcfs {
    fn add(&mut self, request: Request, _: &View<'_>) {
        self.0.push_back(request);
    }

    fn next(&mut self, _: &View<'_>) -> Decision {
        self.0.pop_front().map_or(Decision::Idle, |r| Decision::Go(r, Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
