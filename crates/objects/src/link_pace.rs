//! What reads over a network take by their length, learned from those that were made.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// A read of at least so many bytes shows how many come in some time …
const TELLING: u64 = 16 << 10;
/// … and one of at most so many, what any takes.
const FEW: u64 = 2 << 10;
/// What was measured longer ago says what the link was: the machine may have moved to another one.
const OLD: Duration = Duration::from_secs(60);

/// What a read is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkTime {
    /// The time.
    pub time: Duration,
    /// Whether so much was read at a time that this can be told. Otherwise it takes no longer.
    pub is_sure: bool,
}

/// What reads take.
#[derive(Debug, Default)]
pub(crate) struct LinkPace(Mutex<Learned>);

#[derive(Debug, Default)]
struct Learned {
    /// What the quickest short read took, in seconds, and when that was.
    trip: Option<(f64, Instant)>,
    /// Seconds for a byte.
    per_byte: Option<f64>,
    /// When a read was long enough to tell.
    told: Option<Instant>,
}

impl Learned {
    fn is_sure(&self, now: Instant) -> bool {
        self.told.is_some_and(|told| now.duration_since(told) <= OLD)
    }

    /// The quickest short read that is not old, or the last one.
    fn trip(&self) -> f64 {
        self.trip.map_or(0.0, |(trip, _)| trip)
    }
}

impl LinkPace {
    /// A read of so many bytes took so long.
    pub(crate) fn note(&self, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let (mut learned, now) = (self.0.lock(), Instant::now());
        let took = took.as_secs_f64();
        let stands = |(trip, at): &(f64, Instant)| *trip <= took && now.duration_since(*at) <= OLD;
        if bytes <= FEW && !learned.trip.as_ref().is_some_and(stands) {
            learned.trip = Some((took, now));
        }
        let (is_telling, is_sure) = (bytes >= TELLING, learned.is_sure(now));
        if !is_sure && learned.told.take().is_some() {
            learned.per_byte = None;
        }
        let known = learned.per_byte.filter(|_| is_sure == is_telling);
        match is_telling {
            true => {
                let sample = (took - learned.trip()).max(0.0) / bytes as f64;
                learned.per_byte = Some(known.map_or(sample, |known| (3.0 * known + sample) / 4.0));
                learned.told = Some(now);
            }
            // Of few bytes most of it is the way there and back: more come no slower.
            false if !is_sure => {
                let sample = took / bytes as f64;
                learned.per_byte = Some(known.map_or(sample, |known| known.min(sample)));
            }
            false => {}
        }
    }

    /// What a read of so many bytes takes; `None` before there was any.
    pub(crate) fn expected(&self, bytes: u64) -> Option<LinkTime> {
        let learned = self.0.lock();
        let seconds = learned.trip() + learned.per_byte? * bytes as f64;
        let is_sure = learned.is_sure(Instant::now());
        Some(LinkTime { time: Duration::from_secs_f64(seconds), is_sure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is learned of a link with this rate, in bytes per second, and this round trip.
    fn learned(rate: f64, trip: f64, reads: &[u64]) -> Option<LinkTime> {
        let pace = LinkPace::default();
        for bytes in reads {
            pace.note(*bytes, Duration::from_secs_f64(trip + *bytes as f64 / rate));
        }
        pace.expected(64 << 10)
    }

    #[test]
    fn what_a_read_takes_is_told_by_those_that_were_long_enough_and_bounded_by_others() {
        assert_eq!(learned(1e6, 0.02, &[0]), None);
        for (rate, trip) in [(12_500.0, 0.02), (125_000.0, 0.02), (12.5e6, 0.02), (125e6, 0.0005)] {
            let truly = Duration::from_secs_f64(trip + f64::from(64 << 10) / rate);
            let short = learned(rate, trip, &[300, 1200, 500]).unwrap();
            assert!(!short.is_sure && short.time >= truly, "{short:?} of {truly:?}");
            let long = learned(rate, trip, &[300, 1200, 40_000, 500, 200_000]).unwrap();
            let close = truly.mul_f64(0.7)..truly.mul_f64(1.4);
            assert!(long.is_sure && close.contains(&long.time), "{long:?} of {truly:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_of_a_link_grows_old_and_another_link_is_learned() {
        let pace = LinkPace::default();
        let read = |bytes: u64, rate: f64, trip: f64| {
            pace.note(bytes, Duration::from_secs_f64(trip + bytes as f64 / rate));
        };
        [500, 100_000].into_iter().for_each(|bytes| read(bytes, 12_500.0, 0.3));
        assert!(pace.expected(64 << 10).is_some_and(|at| at.is_sure && at.time.as_secs() >= 4));
        tokio::time::sleep(OLD + Duration::from_secs(1)).await;
        assert!(pace.expected(64 << 10).is_some_and(|at| !at.is_sure));
        [500, 100_000].into_iter().for_each(|bytes| read(bytes, 12.5e6, 0.4));
        let now = pace.expected(64 << 10).unwrap();
        assert!(now.is_sure && now.time.as_millis() < 500, "{now:?}");
        // A longer way counts as soon as the shorter one is old.
        let close = Duration::from_millis(300)..Duration::from_millis(500);
        assert!(close.contains(&now.time), "{now:?}");
    }
}
