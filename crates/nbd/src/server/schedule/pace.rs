//! How fast one client may go: token buckets, as the generic cell rate algorithm (ITU-T I.371,
//! annex A), which keeps one number to a bucket and needs no timer to fill it.
//!
//! A request is let in whole when the bucket is not overdrawn, however large it is; what it costs
//! beyond that delays the next one. So no request is too long for a small bucket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What may be taken at once after a pause, in nanoseconds of the rate.
const BURST: u64 = 100_000_000;
const SECOND: u64 = 1_000_000_000;

/// What one client may take, over all its connections. 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests in a second, of any kind.
    pub requests: u64,
    /// Bytes read and written in a second.
    pub bytes: u64,
}

/// One bucket. Times are nanoseconds since any moment that all its users share.
#[derive(Debug, Default)]
struct TokenBucket {
    rate: AtomicU64,
    /// When everything that was taken is paid for.
    due: AtomicU64,
}

impl TokenBucket {
    /// How long it stays overdrawn.
    #[inline]
    fn wait(&self, now: u64) -> u64 {
        if self.rate.load(Relaxed) == 0 {
            return 0;
        }
        self.due.load(Relaxed).saturating_sub(now.saturating_add(BURST))
    }

    #[inline]
    fn charge(&self, now: u64, units: u64) {
        let rate = self.rate.load(Relaxed);
        if rate == 0 {
            return;
        }
        let cost = (u128::from(units) * u128::from(SECOND) / u128::from(rate)) as u64;
        let next = |due: u64| Some(due.max(now).saturating_add(cost));
        let _ = self.due.fetch_update(Relaxed, Relaxed, next);
    }

    fn set(&self, rate: u64) {
        if self.rate.swap(rate, Relaxed) != rate {
            self.due.store(0, Relaxed); // what was owed was owed at another price
        }
    }
}

/// The buckets of one client.
#[derive(Debug, Default)]
pub(crate) struct ClientBuckets {
    requests: TokenBucket,
    bytes: TokenBucket,
}

impl ClientBuckets {
    /// Changes the rates.
    pub(crate) fn set(&self, rates: Rates) {
        self.requests.set(rates.requests);
        self.bytes.set(rates.bytes);
    }

    /// How long the next request has to wait; `None` when it may go now.
    #[inline]
    pub(crate) fn wait(&self, now: u64) -> Option<Duration> {
        let wait = self.requests.wait(now).max(self.bytes.wait(now));
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    /// A request with so many bytes of payload, in either direction, was let in.
    #[inline]
    pub(crate) fn charge(&self, now: u64, bytes: u64) {
        self.requests.charge(now, 1);
        self.bytes.charge(now, bytes);
    }

    /// Whether a fresh client would be let in no sooner.
    pub(crate) fn is_even(&self, now: u64) -> bool {
        [&self.requests, &self.bytes].iter().all(|bucket| bucket.due.load(Relaxed) <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greedy_client_gets_its_rate_and_no_more(
            rate in 1u64..1_000_000_000, sizes in prop::collection::vec(1u64..1 << 25, 1..50),
        ) {
            let pace = ClientBuckets::default();
            pace.set(Rates { requests: 0, bytes: rate });
            let (mut now, mut sent) = (7u64, 0u64);
            let last = sizes[sizes.len() - 1];
            for size in sizes {
                if let Some(wait) = pace.wait(now) {
                    now += wait.as_nanos() as u64;
                }
                prop_assert_eq!(pace.wait(now), None);
                pace.charge(now, size);
                sent += size;
            }
            let paid = (sent - last) as f64; // the last request is let in and not paid for
            let most = (now - 7 + BURST) as f64 / 1e9 * rate as f64;
            prop_assert!(paid <= most * 1.0001 + 50.0, "{paid} of {most}");
            if now > 7 {
                prop_assert!(sent as f64 >= (now - 7) as f64 / 1e9 * rate as f64 * 0.999 - 1.0);
            }
        }
    }

    #[test]
    fn without_a_rate_nothing_waits_and_a_change_forgets_what_was_owed() {
        let pace = ClientBuckets::default();
        pace.charge(0, u64::MAX);
        assert!(pace.wait(0).is_none() && pace.is_even(0));
        pace.set(Rates { requests: 1, bytes: 0 });
        pace.charge(0, 0);
        pace.charge(0, 0);
        assert_eq!(pace.wait(0), Some(Duration::from_nanos(2 * SECOND - BURST)));
        assert!(!pace.is_even(0));
        pace.set(Rates { requests: 1, bytes: 0 });
        assert!(pace.wait(0).is_some(), "the same rates change nothing");
        pace.set(Rates::default());
        assert!(pace.wait(0).is_none() && pace.is_even(0));
    }
}
