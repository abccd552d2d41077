//! How long a connection looks for its client's next request before it sleeps.
//!
//! A client with one request in flight sends the next one soon after an answer, or after it thought. To
//! sleep and be woken, by an idle core, takes longer than most clients do. So, as KVM does for a
//! processor that halts, the connection looks into its socket for a while first. How long the waits
//! were of late decides for how long, whether they were slept through or not: nobody looks for a client
//! whose waits are long, and what looks in vain pays for it with waits that it has to sleep through.
//!
//! Looking takes a whole processor, so only few connections may at a time; and unless it is asked for,
//! only while the machine has some to spare, which whoever runs the server finds out.

use super::limits::BusyPoll;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The first time that is looked for.
const FIRST: Duration = Duration::from_micros(8);
/// Short waits in a row before there is looking, at least.
const CHEAP: u32 = 4;
/// And at most, when looking was in vain again and again.
const DEAR: u32 = 1024;
/// Short waits after which a long one does not say that looking was in vain: what it costs is little
/// beside what they gained. A machine that takes its processors away now and then makes such waits.
const PAID: u32 = 32;

/// What the waits of one connection teach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waits {
    /// A longer wait is not worth looking for.
    most: Duration,
    window: Duration,
    /// Short waits in a row.
    row: u32,
    /// How many there have to be.
    price: u32,
    /// Short waits since there is looking.
    gained: u32,
}

impl Waits {
    /// No wait was seen yet; none longer than `most` is looked for, and none at all if that is zero.
    pub(super) fn new(most: Duration) -> Self {
        Self { most, window: Duration::ZERO, row: 0, price: CHEAP, gained: 0 }
    }

    /// For how long to look for the next request.
    pub(super) fn window(&self) -> Duration {
        self.window
    }

    /// The client took this long from an answer to its next request.
    pub(super) fn waited(&mut self, wait: Duration) {
        if wait > self.most {
            if !self.window.is_zero() {
                let in_vain = self.gained < PAID;
                self.price = if in_vain { (self.price * 2).min(DEAR) } else { CHEAP };
            }
            (self.window, self.row, self.gained) = (Duration::ZERO, 0, 0);
            return;
        }
        self.gained = self.gained.saturating_add(u32::from(!self.window.is_zero()));
        self.row = self.row.saturating_add(1);
        if self.row < self.price {
            return;
        }
        if wait >= self.window {
            self.window = (self.window * 2).clamp(FIRST.min(self.most), self.most);
        }
    }
}

/// The connections that look at a time: at most one for every two processors, so that there is one for
/// a client, too.
#[derive(Debug)]
pub(super) struct Lookers {
    most: usize,
    now: AtomicUsize,
    /// The machine has processors to spare.
    spare: AtomicBool,
    /// Somebody asked for one that is to spare.
    asked: AtomicBool,
}

impl Lookers {
    /// Where there are so many processors.
    pub(super) fn new(processors: usize) -> Self {
        Self {
            most: processors / 2,
            now: AtomicUsize::new(0),
            spare: AtomicBool::new(false),
            asked: AtomicBool::new(false),
        }
    }

    /// Says whether there are processors to spare; not, at first.
    pub(super) fn spare(&self, spare: bool) {
        self.spare.store(spare, Relaxed);
    }

    /// Whether a processor that is to spare was asked for since the last time.
    pub(super) fn take_asked(&self) -> bool {
        self.asked.swap(false, Relaxed)
    }

    /// One more, until the result is dropped; `None` when there are enough, or none is to spare.
    pub(super) fn join(&self, when: BusyPoll) -> Option<Looker<'_>> {
        if matches!(when, BusyPoll::WhileSpare(_)) {
            // Written once only: all who look share it.
            if !self.asked.load(Relaxed) {
                self.asked.store(true, Relaxed);
            }
            if !self.spare.load(Relaxed) {
                return None;
            }
        }
        let before = self.now.fetch_add(1, Relaxed);
        let looker = Looker(self); // leaves on drop
        (before < self.most).then_some(looker)
    }
}

/// One that looks.
#[derive(Debug)]
pub(super) struct Looker<'a>(&'a Lookers);

impl Drop for Looker<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: Duration = Duration::from_micros(100);

    fn micros(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn after(waits: impl IntoIterator<Item = u64>) -> Waits {
        let mut seen = Waits::new(MOST);
        waits.into_iter().for_each(|us| seen.waited(micros(us)));
        seen
    }

    #[test]
    fn short_waits_in_a_row_are_looked_for_until_they_are_covered() {
        assert_eq!(after([60; 3]).window(), Duration::ZERO);
        assert_eq!(after([60; 4]).window(), micros(8));
        assert_eq!(after([60; 7]).window(), micros(64));
        assert_eq!(after([60; 1000]).window(), micros(64), "longer than it takes");
        assert_eq!(after([99; 1000]).window(), MOST);
        assert_eq!(after([100; 1000]).window(), MOST);
    }

    #[test]
    fn a_client_that_thinks_is_not_looked_for() {
        assert_eq!(after([101; 1000]), Waits::new(MOST));
        assert_eq!(after([60, 60, 60, 5000].repeat(100)), Waits::new(MOST));
        let mut thinks = after([60; 100]);
        thinks.waited(micros(5000));
        assert_eq!(thinks.window(), Duration::ZERO, "at once");
    }

    #[test]
    fn what_was_in_vain_again_and_again_is_tried_less_and_less() {
        let mut seen = after([]);
        for price in [4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            for _ in 1..price {
                seen.waited(micros(20));
                assert_eq!(seen.window(), Duration::ZERO, "before {price} short waits");
            }
            seen.waited(micros(20));
            assert_eq!(seen.window(), micros(8));
            seen.waited(micros(5000));
        }
        (0..20_000).for_each(|_| seen.waited(micros(20)));
        seen.waited(micros(5000));
        (0..8).for_each(|_| seen.waited(micros(20)));
        assert!(!seen.window().is_zero(), "a client that is quick again is not held to its past");
    }

    #[test]
    fn nothing_is_looked_for_when_it_is_off() {
        let mut off = Waits::new(Duration::ZERO);
        for us in [0, 0, 0, 0, 0, 0, 10, 0] {
            off.waited(micros(us));
            assert_eq!(off.window(), Duration::ZERO);
        }
    }

    #[test]
    fn one_connection_for_two_processors_looks_and_none_on_a_single_one() {
        let always = BusyPoll::Always(MOST);
        assert!(Lookers::new(1).join(always).is_none());
        let lookers = Lookers::new(5);
        let (one, two) = (lookers.join(always), lookers.join(always));
        assert!(one.is_some() && two.is_some());
        assert!(lookers.join(always).is_none() && lookers.join(always).is_none());
        drop(one);
        assert!(lookers.join(always).is_some());
    }

    #[test]
    fn who_may_only_have_what_is_to_spare_is_refused_until_something_is() {
        let (lookers, polite) = (Lookers::new(8), BusyPoll::WhileSpare(MOST));
        assert!(lookers.join(polite).is_none());
        assert!(lookers.take_asked());
        assert!(lookers.join(BusyPoll::Always(MOST)).is_some());
        assert!(!lookers.take_asked());
        lookers.spare(true);
        assert!(lookers.join(polite).is_some());
        lookers.spare(false);
        assert!(lookers.join(polite).is_none());
        assert!(lookers.take_asked() && !lookers.take_asked());
    }

    #[test]
    fn a_long_wait_now_and_then_does_not_make_looking_dearer() {
        let mut seen = after([]);
        for round in 0..100 {
            (0..4 + PAID).for_each(|_| seen.waited(micros(20)));
            assert!(!seen.window().is_zero(), "round {round}");
            seen.waited(micros(5000));
        }
        (0..4).for_each(|_| seen.waited(micros(20)));
        assert!(!seen.window().is_zero());
    }

    proptest! {
        /// What a client can make the server look for in vain is bounded by its short waits.
        #[test]
        fn looking_in_vain_is_paid_for(
            rows in prop::collection::vec((0u32..3000, 0u64..=100, 101u64..10_000), 1..40),
        ) {
            let mut seen = Waits::new(MOST);
            let (mut short, mut lost, mut in_vain) = (0u64, 0u64, Duration::ZERO);
            for (count, us, long) in rows {
                for wait in std::iter::repeat_n(us, count as usize).chain([long]) {
                    let (wait, window) = (micros(wait), seen.window());
                    prop_assert!(window <= MOST);
                    prop_assert!(window.is_zero() || window >= FIRST);
                    if wait > window {
                        in_vain += window;
                    }
                    match wait > MOST {
                        true => lost += u64::from(!window.is_zero()),
                        false => short += 1,
                    }
                    seen.waited(wait);
                    if wait > MOST {
                        prop_assert_eq!(seen.window(), Duration::ZERO);
                    }
                }
            }
            prop_assert!(lost <= short / u64::from(CHEAP));
            // Until a window covers a wait it doubles: all of them together take less than two of
            // the longest.
            prop_assert!(in_vain <= 3 * MOST * lost as u32 + 2 * MOST);
        }
    }
}
