//! How many requests a store is given at a time: found by trying.
//!
//! A store in a data centre answers sixteen at a time as soon as one; a disk with one arm answers
//! one after the other, and whoever comes late waits for all that were given to it before. So the
//! number that makes most of throughput over response time, "power" (L. Kleinrock, "Power and
//! Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications", ICC 1979), is
//! looked for: it is raised and lowered while that pays. Only times in which somebody had to wait
//! say anything.

use std::time::Duration;

/// The least: one is answered while the next one is on its way.
const LEAST: usize = 2;
/// Where it begins.
const BEGIN: usize = 8;
/// Requests that are measured together, for each that may be under way.
const EPOCH: u32 = 4;
/// … and at least so many.
const SHORTEST: u32 = 16;
/// How much better another number must be.
const BETTER: f64 = 1.05;
/// The most measurements between two trials.
const REST: u32 = 128;

/// How many requests a store is given at a time, and what was found out about it.
#[derive(Debug)]
pub struct LoadDepth {
    most: usize,
    now: usize,
    /// Nothing is tried.
    is_fixed: bool,
    /// The best so far and its power, while another one is tried.
    best: Option<(usize, f64)>,
    up: bool,
    /// Measurements until the next trial.
    rest: u32,
    /// The same after the next one that fails.
    pause: u32,
    epoch: Epoch,
}

#[derive(Debug, Default)]
struct Epoch {
    began: Option<Duration>,
    requests: u32,
    cost: u64,
    waited: Duration,
}

impl LoadDepth {
    /// A number from 2 to `most` (at least 1), which begins at 8.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            most,
            now: BEGIN.min(most),
            is_fixed: false,
            best: None,
            up: false,
            rest: 0,
            pause: 1,
            epoch: Epoch::default(),
        }
    }

    /// Always `most` (at least 1): for a store that orders what it is given, and is the better at it the more that is.
    pub fn fixed(most: usize) -> Self {
        let most = most.max(1);
        Self { now: most, is_fixed: true, ..Self::new(most) }
    }

    /// How many requests may be under way.
    pub fn get(&self) -> usize {
        self.now
    }

    /// A request was answered at `now`, `took` after it was sent; `cost` is what it is worth, such as its
    /// bytes and a constant. `wanted`: others waited for it.
    pub fn answered(&mut self, now: Duration, took: Duration, cost: u64, wanted: bool) {
        if !wanted || self.is_fixed {
            self.epoch = Epoch::default();
            return;
        }
        let Some(began) = self.epoch.began else {
            self.epoch.began = Some(now);
            return;
        };
        self.epoch.requests += 1;
        self.epoch.cost += cost;
        self.epoch.waited += took;
        if self.epoch.requests < (self.now as u32 * EPOCH).max(SHORTEST) {
            return;
        }
        let seconds = now.saturating_sub(began).as_secs_f64().max(1e-6);
        let response = (self.epoch.waited / self.epoch.requests).as_secs_f64().max(1e-6);
        let power = self.epoch.cost as f64 / seconds / response;
        self.epoch = Epoch::default();
        self.judge(power);
    }

    fn judge(&mut self, power: f64) {
        match self.best {
            None if self.rest > 0 => self.rest -= 1,
            None => {
                let tried = self.next();
                self.best = (tried != self.now).then_some((self.now, power));
                self.now = tried;
                if self.best.is_none() {
                    self.up = !self.up;
                }
            }
            Some((_, before)) if power > before * BETTER => {
                // Further in the same direction, as long as it goes on.
                self.best = None;
                (self.rest, self.pause) = (0, 1);
                let tried = self.next();
                if tried != self.now {
                    self.best = Some((self.now, power));
                    self.now = tried;
                }
            }
            Some((best, _)) => {
                self.now = best;
                self.best = None;
                self.up = !self.up;
                self.rest = self.pause;
                self.pause = (self.pause * 2).min(REST);
            }
        }
    }

    fn next(&self) -> usize {
        let step = (self.now / 2).max(1);
        let tried = if self.up { self.now + step } else { self.now.saturating_sub(step) };
        tried.clamp(LEAST.min(self.most), self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that serves `parallel` at a time, each for `service` ms, and takes `trip` ms more for
    /// every request; where it ends up after so many, everybody asking for as much as they can get.
    fn settled(
        parallel: usize,
        service: u64,
        trip: u64,
        requests: usize,
    ) -> (Vec<usize>, LoadDepth) {
        let mut depth = LoadDepth::new(64);
        let mut free = vec![0u64; parallel];
        let mut under_way: Vec<(u64, u64)> = Vec::new();
        let (mut now, mut seen) = (0, Vec::new());
        for number in 0..requests as u64 {
            while under_way.len() < depth.get() {
                let server = free.iter_mut().min().unwrap();
                // Service times vary by half, in a way that does not change from run to run.
                let varied =
                    service * (75 + (number * 37 + under_way.len() as u64 * 11) % 50) / 100;
                *server = (*server).max(now) + varied.max(1);
                under_way.push((*server + trip, now));
            }
            under_way.sort_unstable();
            let (done, began) = under_way.remove(0);
            now = done.max(now);
            let [at, took] = [now, now - began].map(Duration::from_millis);
            depth.answered(at, took, 100, true);
            seen.push(depth.get());
        }
        (seen.split_off(requests / 2), depth)
    }

    fn share(seen: &[usize], range: std::ops::RangeInclusive<usize>) -> f64 {
        seen.iter().filter(|depth| range.contains(depth)).count() as f64 / seen.len() as f64
    }

    #[test]
    fn a_fixed_number_stays_whatever_is_answered() {
        let mut depth = LoadDepth::fixed(64);
        for ms in 0..1000 {
            depth.answered(Duration::from_millis(ms), Duration::from_millis(ms), 100, true);
            assert_eq!(depth.get(), 64);
        }
    }

    #[test]
    fn one_arm_is_given_two_at_a_time() {
        let (seen, _) = settled(1, 7, 1, 8000);
        assert!(share(&seen, 2..=2) > 0.95, "{}", share(&seen, 2..=2));
    }

    #[test]
    fn what_is_far_away_and_wide_is_given_as_many_as_it_takes() {
        let (seen, _) = settled(200, 30, 30, 20000);
        assert!(share(&seen, 24..=64) > 0.9, "{seen:?}");
        let (seen, _) = settled(16, 10, 1, 20000);
        assert!(share(&seen, 8..=24) > 0.9, "{seen:?}");
    }

    #[test]
    fn times_in_which_nobody_waited_say_nothing() {
        let mut depth = LoadDepth::new(64);
        for second in 0..1000 {
            let second = Duration::from_secs(second);
            depth.answered(
                second,
                Duration::from_millis(5),
                1,
                !second.as_secs().is_multiple_of(8),
            );
        }
        assert_eq!(depth.get(), BEGIN);
        assert_eq!(LoadDepth::new(1).get(), 1);
    }
}
