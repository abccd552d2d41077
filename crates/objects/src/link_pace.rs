//! What reads over a network take by their length, learned from those that were made.

use parking_lot::Mutex;
use std::time::Duration;

/// A read of at least so many bytes shows how many come in some time …
const TELLING: u64 = 16 << 10;
/// … and one of at most so many, what any takes.
const FEW: u64 = 2 << 10;

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
    /// What the quickest short read took, in seconds.
    trip: f64,
    /// Seconds for a byte.
    per_byte: Option<f64>,
    is_sure: bool,
}

impl LinkPace {
    /// A read of so many bytes took so long.
    pub(crate) fn note(&self, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let mut learned = self.0.lock();
        let took = took.as_secs_f64();
        if bytes <= FEW && (learned.trip == 0.0 || took < learned.trip) {
            learned.trip = took;
        }
        let is_telling = bytes >= TELLING;
        let known = learned.per_byte.filter(|_| learned.is_sure == is_telling);
        match is_telling {
            true => {
                let sample = (took - learned.trip).max(0.0) / bytes as f64;
                learned.per_byte = Some(known.map_or(sample, |known| (3.0 * known + sample) / 4.0));
                learned.is_sure = true;
            }
            // Of few bytes most of it is the way there and back: more come no slower.
            false if !learned.is_sure => {
                let sample = took / bytes as f64;
                learned.per_byte = Some(known.map_or(sample, |known| known.min(sample)));
            }
            false => {}
        }
    }

    /// What a read of so many bytes takes; `None` before there was any.
    pub(crate) fn expected(&self, bytes: u64) -> Option<LinkTime> {
        let learned = self.0.lock();
        let seconds = learned.trip + learned.per_byte? * bytes as f64;
        Some(LinkTime { time: Duration::from_secs_f64(seconds), is_sure: learned.is_sure })
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
}
