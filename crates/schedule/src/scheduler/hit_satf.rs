//! Hit-first aged SATF: the shortest access time first, by which a predicted hit nearly always goes first, less a credit
//! for the time that a request has waited. One dial between mean and tail instead of CATS' switch at `read-delay`.
//!
//! The credit is a part of what a good choice saves now: of how much longer the mean access of those that wait is than the
//! shortest. So it is worth as much on a disk whose accesses differ by their seeks alone as on one with rotation, and on a
//! fast disk as on a slow one. It grows with the time waited, in units of the mean of all, to a power below one: most of
//! it goes to who has waited about as long as the others, and little is left for the longest waits, which cost the mean
//! most. With a credit in proportion to the wait (0.02 of it) the 99th percentile was 8 % longer at nearly the same mean.

use super::{Decision, Parameters, Scheduler, SchedulerKind, View};
use crate::hits::Pending;
use crate::{DiskRequest, model::disk::Travel};
use block::Result;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "hit-satf",
    about: "hit-first aged SATF: shortest access, hits known, less a credit for the wait",
    make,
};

/// How far accesses of predicted hits count in what a good choice saves. Where they count in full, hits are put off for
/// old requests too often; where they do not, too seldom.
const HITS_COUNT: f64 = 0.85;

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    Ok(Box::new(HitSatf {
        waiting: Pending::default(),
        age: parameters.number("age", 0.72, 0.0, 1e6)?,
        power: parameters.number("power", 0.4, 0.0, 8.0)?,
        candidates: Vec::new(),
        hits: 0,
    }))
}

#[derive(Debug)]
struct HitSatf {
    waiting: Pending,
    /// The part of what a good choice saves that a request of mean wait is credited.
    age: f64,
    /// How the credit grows with the wait.
    power: f64,
    candidates: Vec<Candidate>,
    /// Decisions while a hit was waiting.
    hits: u64,
}

/// A waiting request, in the order of [`Pending`]; times in nanoseconds.
#[derive(Debug)]
struct Candidate {
    access: f64,
    wait: f64,
    is_hit: bool,
}

impl HitSatf {
    /// How much longer the mean access of those that wait is than the shortest, in nanoseconds.
    fn saving(&self) -> f64 {
        let of = |chosen: &dyn Fn(&Candidate) -> bool| {
            let (mut sum, mut count, mut least) = (0.0, 0.0, f64::MAX);
            for candidate in self.candidates.iter().filter(|candidate| chosen(candidate)) {
                sum += candidate.access;
                count += 1.0;
                least = least.min(candidate.access);
            }
            if count > 0.0 { sum / count - least } else { 0.0 }
        };
        HITS_COUNT * of(&|_| true) + (1.0 - HITS_COUNT) * of(&|candidate| !candidate.is_hit)
    }

    /// The index of the next request.
    fn choose(&self) -> Option<usize> {
        let mean = self.candidates.iter().map(|candidate| candidate.wait).sum::<f64>()
            / self.candidates.len() as f64;
        let credit = self.age * self.saving();
        let keys = self.candidates.iter().map(|Candidate { access, wait, .. }| {
            access - credit * (wait / mean.max(1.0)).powf(self.power)
        });
        keys.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index)
    }
}

impl Scheduler for HitSatf {
    fn add(&mut self, request: DiskRequest, view: &View<'_>) {
        self.waiting.add(request, view.shadow);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        self.hits += u64::from(self.waiting.oldest_hit(view.shadow).is_some());
        self.candidates.clear();
        let expected_hit = view.model.expected_hit();
        let candidates = self.waiting.known().map(|(request, is_hit)| Candidate {
            access: match is_hit {
                true => expected_hit,
                false => view.model.expected(view.start, view.head, request),
            } as f64,
            wait: view.now.saturating_sub(request.arrived) as f64,
            is_hit,
        });
        self.candidates.extend(candidates);
        let next = self.choose();
        next.map_or(Decision::Idle, |i| Decision::Go(self.waiting.take(i), Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("chances_of_hits", self.hits)]
    }
}
