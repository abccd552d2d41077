//! How long a request of which a part is waited for by nobody may be: found by trying.
//!
//! A long request is cheap for what it brings, and whoever comes while it is under way waits for all
//! of it. So it is doubled as long as its bytes take no longer than somebody may be made to wait, and
//! halved when they take twice that. What a request takes before its first byte does not count: it
//! would be no less for a short one.

use objects::RoundTrip;
use std::time::Duration;

/// The longest request that is made of several chunks, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;
/// The shortest limit.
const SHORTEST: u64 = 128 << 10;
/// Where it begins.
const BEGIN: u64 = 512 << 10;
/// The bytes of a request should take no longer: somebody may come who waits.
const PATIENCE: Duration = Duration::from_millis(15);

/// The limit, and what it was found by.
#[derive(Debug, PartialEq)]
pub(super) struct Reach {
    most: u64,
    trip: RoundTrip,
}

impl Reach {
    pub(super) fn new() -> Self {
        Self { most: BEGIN, trip: RoundTrip::default() }
    }

    /// Bytes that a request may have.
    pub(super) fn get(&self) -> u64 {
        self.most
    }

    /// A request of so many bytes was answered, after `took` of the store's time.
    pub(super) fn answered(&mut self, bytes: u64, took: Duration) {
        let Some(own) = self.trip.own(bytes, took) else { return };
        // A short one does not show what a long one would take.
        if bytes * 2 <= self.most {
            return;
        }
        if own <= PATIENCE {
            self.most = (self.most * 2).min(LONGEST);
        } else if own > 2 * PATIENCE {
            self.most = (self.most / 2).max(SHORTEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where it ends up with a store of so many bytes in a second that takes so many ms more.
    fn settled(rate: u32, trip: u64, short_ones: bool) -> u64 {
        let mut reach = Reach::new();
        for _ in 0..40 {
            for bytes in [30_000, reach.get()].into_iter().skip(usize::from(!short_ones)) {
                let bytes_take = Duration::from_secs(bytes) / rate;
                reach.answered(bytes, Duration::from_millis(trip) + bytes_take);
            }
        }
        reach.get()
    }

    #[test]
    fn requests_are_long_where_bytes_are_quick_and_short_where_they_are_slow() {
        assert_eq!(settled(80_000_000, 6, true), LONGEST, "a disk");
        assert_eq!(settled(2_000_000_000, 0, true), LONGEST, "an SSD");
        assert_eq!(settled(1_250_000, 20, true), SHORTEST, "10 Mb/s");
        assert_eq!(settled(1_250_000, 20, false), SHORTEST, "with nothing to compare with");
    }

    #[test]
    fn what_any_request_takes_makes_none_shorter() {
        assert_eq!(settled(80_000_000, 200, true), LONGEST, "far away");
    }

    #[test]
    fn short_requests_say_nothing_of_long_ones() {
        let mut reach = Reach::new();
        (0..100).for_each(|_| reach.answered(BEGIN / 2, Duration::from_secs(1)));
        (0..100).for_each(|_| reach.answered(BEGIN / 2, Duration::ZERO));
        assert_eq!(reach.get(), BEGIN);
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_its_bounds(
            answers in prop::collection::vec((0u64..(4 << 20), 0u64..10_000_000), 0..200),
        ) {
            let mut reach = Reach::new();
            for (bytes, micros) in answers {
                reach.answered(bytes, Duration::from_micros(micros));
                prop_assert!((SHORTEST..=LONGEST).contains(&reach.get()));
            }
        }
    }
}
