//! What a request takes before its first byte: on a network the way there and back, on a disk the seek.

use std::time::Duration;

/// What so few bytes take is what any request takes.
const FEW: u64 = 64 << 10;

/// What any request to a store takes, learned from requests of few bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrip(Duration);

impl RoundTrip {
    /// A request of so many bytes took so long. What it took for its bytes alone; nothing when they were too
    /// few to tell, at most 64 KiB.
    pub fn own(&mut self, bytes: u64, took: Duration) -> Option<Duration> {
        if bytes > FEW {
            return Some(took.saturating_sub(self.0));
        }
        self.0 = match self.0 {
            Duration::ZERO => took,
            // Few of them are slow for a reason of their own: the quick ones count for more.
            trip if took < trip => (trip + took) / 2,
            trip => trip + (took - trip) / 32,
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_requests_count_for_more_than_slow_ones() {
        let ms = Duration::from_millis;
        let mut trip = RoundTrip::default();
        assert_eq!(trip.own(1 << 20, ms(50)), Some(ms(50)), "nothing to compare with yet");
        for took in [20, 20, 20, 340, 20, 20] {
            assert_eq!(trip.own(FEW, ms(took)), None);
        }
        let own = trip.own(1 << 20, ms(50)).unwrap();
        assert!(own > ms(26) && own <= ms(30), "{own:?}");
        (0..20).for_each(|_| assert_eq!(trip.own(1, ms(5)), None));
        assert!(trip.own(1 << 20, ms(50)).unwrap() > ms(44), "it became quicker");
        assert_eq!(trip.own(1 << 20, ms(1)), Some(Duration::ZERO));
    }
}
