//! Results by client, and in the course of time.

use serde::Serialize;
use std::time::Duration;

/// Stretches of time that are kept at most; beyond, two become one.
const MOST_INTERVALS: usize = 4096;

/// Answers to one client, or in one stretch of time.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    answers: u64,
    bytes: u64,
    errors: u64,
    /// Nanoseconds from sending to the answer, of all together.
    time: u64,
    longest: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64, failed: bool, latency: u64) {
        let one =
            Self { answers: 1, bytes, errors: u64::from(failed), time: latency, longest: latency };
        self.join(&one);
    }

    fn join(&mut self, other: &Self) {
        self.answers += other.answers;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.time = self.time.saturating_add(other.time);
        self.longest = self.longest.max(other.longest);
    }

    fn report(&self) -> Answers {
        Answers {
            requests: self.answers,
            bytes: self.bytes,
            errors: self.errors,
            mean_us: self.time as f64 / self.answers.max(1) as f64 / 1e3,
            max_us: self.longest as f64 / 1e3,
        }
    }
}

/// Answers that were counted together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Answers {
    /// How many.
    pub requests: u64,
    /// Bytes that they read or wrote.
    pub bytes: u64,
    /// How many were errors.
    pub errors: u64,
    /// From sending to the answer: the mean, in microseconds.
    pub mean_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

/// What one emulated client got.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClientAnswers {
    /// Its number, from 1 on, as in the names of exports.
    pub client: u32,
    /// Its answers.
    #[serde(flatten)]
    pub answers: Answers,
}

/// What was answered in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// When it began, in seconds since the start.
    pub from: f64,
    /// The answers that came in it.
    #[serde(flatten)]
    pub answers: Answers,
}

/// What a replay was asked to tell apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detail {
    clients: Vec<Sum>,
    /// Nanoseconds of a stretch; 0: time is not told apart.
    width: u64,
    intervals: Vec<Sum>,
}

impl Detail {
    /// For so many clients, 0 when they are not told apart, and stretches of this length, if any.
    pub(crate) fn new(clients: u32, interval: Option<Duration>) -> Self {
        let width = interval.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Self { clients: vec![Sum::default(); clients as usize], width, intervals: Vec::new() }
    }

    /// Counts an answer at `now`, nanoseconds since the start.
    pub(crate) fn add(&mut self, client: u32, now: u64, bytes: u64, failed: bool, latency: u64) {
        if let Some(sum) = self.clients.get_mut(client as usize) {
            sum.add(bytes, failed, latency);
        }
        if self.width == 0 {
            return;
        }
        while now / self.width >= MOST_INTERVALS as u64 {
            self.halve();
        }
        let at = (now / self.width) as usize;
        if at >= self.intervals.len() {
            self.intervals.resize(at + 1, Sum::default());
        }
        self.intervals[at].add(bytes, failed, latency);
    }

    /// Makes one of each two stretches.
    fn halve(&mut self) {
        let joined = self.intervals.chunks(2).map(|two| {
            let mut sum = Sum::default();
            two.iter().for_each(|one| sum.join(one));
            sum
        });
        self.intervals = joined.collect();
        self.width = self.width.saturating_mul(2);
    }

    pub(crate) fn by_client(&self) -> Vec<ClientAnswers> {
        let one = |(client, sum): (u32, &Sum)| ClientAnswers { client, answers: sum.report() };
        (1..).zip(&self.clients).map(one).collect()
    }

    pub(crate) fn intervals(&self) -> Vec<Interval> {
        let one = |(at, sum): (usize, &Sum)| Interval {
            from: at as f64 * self.width as f64 / 1e9,
            answers: sum.report(),
        };
        self.intervals.iter().enumerate().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_replay_has_longer_stretches_instead_of_more() {
        let mut detail = Detail::new(0, Some(Duration::from_secs(1)));
        for second in 0..3 * MOST_INTERVALS as u64 {
            detail.add(7, second * 1_000_000_000, 512, second == 0, 1000 * (second + 1));
        }
        let all = detail.intervals();
        assert_eq!(all.len(), MOST_INTERVALS * 3 / 4);
        assert_eq!((all[1].from, all[1].answers.requests), (4.0, 4));
        assert_eq!((all[0].answers.errors, all[0].answers.bytes), (1, 2048));
        assert_eq!((all[0].answers.mean_us, all[0].answers.max_us), (2.5, 4.0));
        assert!(detail.by_client().is_empty());
    }
}
