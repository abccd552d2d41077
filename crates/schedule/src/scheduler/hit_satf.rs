//! Hit-first aged SATF: the shortest access time, by which a predicted hit nearly always goes first,
//! less a part of the time that a request has waited. One dial between mean and tail instead of
//! CATS' switch at `read-delay`.

use super::{Decision, Kind, Parameters, Scheduler, View};
use crate::hits::Pending;
use crate::{Request, model::disk::Travel};
use block::Result;

pub(super) const KIND: Kind = Kind {
    name: "hit-satf",
    about: "hit-first aged SATF: shortest access, hits known, less 0.02 of the wait",
    make,
};

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    let age = parameters.number("age", 0.02, 0.0, 1e6)?;
    Ok(Box::new(HitSatf { waiting: Pending::default(), age, hits: 0 }))
}

#[derive(Debug)]
struct HitSatf {
    waiting: Pending,
    age: f64,
    /// Decisions while a hit was waiting.
    hits: u64,
}

impl Scheduler for HitSatf {
    fn add(&mut self, request: Request, view: &View<'_>) {
        self.waiting.add(request, view.shadow);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        let expected_hit = view.model.expected_hit();
        let key = |r: &Request, hit: bool| {
            let access = match hit {
                true => expected_hit,
                false => view.model.expected(view.start, view.head, r),
            };
            access as f64 - self.age * view.now.saturating_sub(r.arrived) as f64
        };
        self.hits += u64::from(self.waiting.oldest_hit(view.shadow).is_some());
        let next = self.waiting.least_known(key);
        next.map_or(Decision::Idle, |i| Decision::Go(self.waiting.take(i), Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("chances_of_hits", self.hits)]
    }
}
