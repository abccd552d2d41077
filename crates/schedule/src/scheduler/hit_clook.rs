//! Hit-first and C-LOOK: what is left of CATS when the disk is saturated, without a table.

use super::{Decision, Scheduler, SchedulerKind, View, table::clook};
use crate::hits::Pending;
use crate::{DiskRequest, model::disk::Travel};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "hit-clook",
    about: "predicted hits first, else upwards and back",
    make: |_| Ok(Box::new(HitClook::default())),
};

#[derive(Debug, Default)]
struct HitClook(Pending);

impl Scheduler for HitClook {
    fn add(&mut self, request: DiskRequest, view: &View<'_>) {
        self.0.add(request, view.shadow);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let next = self.0.oldest_hit(view.shadow).or_else(|| clook(&self.0, view.head));
        next.map_or(Decision::Idle, |i| Decision::Go(self.0.take(i), Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
