//! Busy polling: how long a connection, or a virtqueue, polls for its client's next request before it sleeps.
//!
//! A client with one request in flight sends the next one soon after an answer, or after some think time.
//! Going to sleep and being woken on an idle core takes longer than most clients need. So the connection
//! polls its socket for a while first, as KVM does for a virtual processor that halts. The window follows the
//! waits of late, whether they were polled or slept through: a client whose waits are long is not polled for,
//! and polling in vain raises the number of short waits that it takes to start again.
//!
//! Polling takes a whole processor, so few connections may do it at a time; and, unless the configuration
//! asks for it, only while the machine has some to spare, which [`idle_processors`](super::idle_processors)
//! finds out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;

/// The first window.
const FIRST: Duration = Duration::from_micros(8);
/// Short waits in a row before polling starts, at least.
const CHEAP: u32 = 4;
/// And at most, when polling was in vain again and again.
const DEAR: u32 = 1024;
/// Short waits after which a long one does not count as polling in vain: it costs little beside what they
/// gained. A machine that takes its processors away now and then makes such waits.
const PAID: u32 = 32;

/// When a connection polls for the next request before it sleeps, and for how long at most; within that it
/// finds out what is worth it. Only connections that are alone on their thread poll, one for every two
/// processors at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPoll {
    /// It does not poll.
    Never,
    /// While the machine has processors to spare, as
    /// [`spare_while_idle`](super::idle_processors::spare_while_idle) finds out.
    WhileSpare(Duration),
    /// Whatever else the machine does.
    Always(Duration),
}

impl BusyPoll {
    /// While there are processors to spare, for longer than the slowest one takes to wake up (200 us).
    pub const DEFAULT: Self = Self::WhileSpare(Duration::from_micros(200));

    /// The longest window.
    pub const fn most(self) -> Duration {
        match self {
            Self::Never => Duration::ZERO,
            Self::WhileSpare(most) | Self::Always(most) => most,
        }
    }
}

/// What the waits of one connection teach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// A longer wait is not worth polling for.
    most: Duration,
    window: Duration,
    /// Short waits in a row.
    row: u32,
    /// How many there have to be.
    price: u32,
    /// Short waits since polling started; `None` before it did.
    gained: Option<u32>,
}

impl Waits {
    /// No wait was seen yet; none longer than `most` is polled for, and none at all if that is zero.
    pub fn new(most: Duration) -> Self {
        Self { most, window: Duration::ZERO, row: 0, price: CHEAP, gained: None }
    }

    /// For how long to poll for the next request.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Starts to poll; gives for how long.
    pub fn poll(&mut self) -> Duration {
        self.gained.get_or_insert(0);
        self.window
    }

    /// The client took this long from an answer to its next request.
    pub fn waited(&mut self, wait: Duration) {
        if wait > self.most {
            self.price = match self.gained.take() {
                None => self.price,
                Some(gained) if gained < PAID => (self.price * 2).min(DEAR),
                Some(_) => CHEAP,
            };
            (self.window, self.row) = (Duration::ZERO, 0);
            return;
        }
        if let Some(gained) = &mut self.gained {
            *gained = gained.saturating_add(1);
        }
        self.row = self.row.saturating_add(1);
        if self.row < self.price {
            return;
        }
        if wait >= self.window {
            self.window = (self.window * 2).clamp(FIRST.min(self.most), self.most);
        }
    }
}

/// The processors that connections take for busy polling: at most one of every two, which leaves one for
/// the client; and for [`BusyPoll::WhileSpare`] no more than are said to be idle. Clones share them.
#[derive(Debug, Clone)]
pub struct Processors(Arc<BusyPollers>);

impl Processors {
    /// On a machine with so many processors.
    pub fn new(processors: usize) -> Self {
        Self(Arc::new(BusyPollers {
            most: processors / 2,
            now: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            wake: Notify::new(),
        }))
    }

    /// The most that are taken at a time, however many are idle.
    pub(super) fn most(&self) -> usize {
        self.0.most
    }

    /// Allows so many to be taken for [`BusyPoll::WhileSpare`] at a time. None until this is called.
    pub(crate) fn set_spare(&self, spare: usize) {
        self.0.spare.store(spare, Relaxed);
    }

    /// Waits until one was asked for by [`BusyPoll::WhileSpare`], given or not, since the last call. One
    /// caller at a time.
    pub(super) async fn asked(&self) {
        self.0.wake.notified().await;
        self.0.asked.store(false, Relaxed);
    }

    /// Whether one may be had; does not count as asking for it.
    pub fn may(&self, when: BusyPoll) -> bool {
        match when {
            BusyPoll::Never => false,
            BusyPoll::WhileSpare(_) => self.0.spare.load(Relaxed) > 0,
            BusyPoll::Always(_) => true,
        }
    }

    /// Takes one, until the result is dropped; `None` when there is none to be had.
    pub fn take(&self, when: BusyPoll) -> Option<BusyPoller<'_>> {
        let most = match when {
            BusyPoll::Never => 0,
            BusyPoll::WhileSpare(_) => self.0.spare().min(self.0.most),
            BusyPoll::Always(_) => self.0.most,
        };
        if most == 0 {
            return None;
        }
        let before = self.0.now.fetch_add(1, Relaxed);
        let poller = BusyPoller(&self.0); // leaves on drop
        (before < most).then_some(poller)
    }
}

#[derive(Debug)]
struct BusyPollers {
    most: usize,
    now: AtomicUsize,
    /// How many may be taken for [`BusyPoll::WhileSpare`].
    spare: AtomicUsize,
    /// One of these was asked for, and whoever waits in [`Processors::asked`] was woken.
    asked: AtomicBool,
    wake: Notify,
}

impl BusyPollers {
    /// Asks for one of these; gives how many there are.
    fn spare(&self) -> usize {
        // Read before it is changed: every request of every connection that polls comes by here.
        if self.most > 0 && !self.asked.load(Relaxed) && !self.asked.swap(true, Relaxed) {
            self.wake.notify_one();
        }
        self.spare.load(Relaxed)
    }
}

/// A processor that is taken.
#[derive(Debug)]
pub struct BusyPoller<'a>(&'a BusyPollers);

impl Drop for BusyPoller<'_> {
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

    /// A wait of a client that is polled for whenever it may be.
    fn wait(seen: &mut Waits, us: u64) {
        if !seen.window().is_zero() {
            seen.poll();
        }
        seen.waited(micros(us));
    }

    fn after(waits: impl IntoIterator<Item = u64>) -> Waits {
        let mut seen = Waits::new(MOST);
        waits.into_iter().for_each(|us| wait(&mut seen, us));
        seen
    }

    #[test]
    fn short_waits_in_a_row_are_polled_for_until_the_window_covers_them() {
        assert_eq!(after([60; 3]).window(), Duration::ZERO);
        assert_eq!(after([60; 4]).window(), micros(8));
        assert_eq!(after([60; 7]).window(), micros(64));
        assert_eq!(after([60; 1000]).window(), micros(64), "longer than it takes");
        assert_eq!(after([99; 1000]).window(), MOST);
        assert_eq!(after([100; 1000]).window(), MOST);
    }

    #[test]
    fn a_client_that_thinks_is_not_polled_for() {
        assert_eq!(after([101; 1000]), Waits::new(MOST));
        assert_eq!(after([60, 60, 60, 5000].repeat(100)), Waits::new(MOST));
        let mut thinks = after([60; 100]);
        wait(&mut thinks, 5000);
        assert_eq!(thinks.window(), Duration::ZERO, "at once");
    }

    #[test]
    fn polling_in_vain_again_and_again_makes_it_rarer() {
        let mut seen = after([]);
        for price in [4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            for _ in 1..price {
                wait(&mut seen, 20);
                assert_eq!(seen.window(), Duration::ZERO, "before {price} short waits");
            }
            wait(&mut seen, 20);
            assert_eq!(seen.window(), micros(8));
            wait(&mut seen, 5000);
        }
        (0..20_000).for_each(|_| wait(&mut seen, 20));
        wait(&mut seen, 5000);
        (0..8).for_each(|_| wait(&mut seen, 20));
        assert!(!seen.window().is_zero(), "a client that is quick again is not held to its past");
    }

    #[test]
    fn nothing_is_polled_for_when_it_is_off() {
        let mut off = Waits::new(Duration::ZERO);
        for us in [0, 0, 0, 0, 0, 0, 10, 0] {
            off.waited(micros(us));
            assert_eq!(off.window(), Duration::ZERO);
        }
    }

    #[test]
    fn a_connection_that_does_not_poll_pays_nothing() {
        let mut seen = Waits::new(MOST);
        for _ in 0..100 {
            [20, 20, 20, 20, 20, 5000].into_iter().for_each(|us| seen.waited(micros(us)));
        }
        assert_eq!(seen, Waits::new(MOST));
    }

    #[test]
    fn one_connection_for_two_processors_polls_and_none_on_a_single_one() {
        let always = BusyPoll::Always(MOST);
        assert!(Processors::new(1).take(always).is_none());
        let processors = Processors::new(5);
        let (one, two) = (processors.take(always), processors.take(always));
        assert!(one.is_some() && two.is_some());
        assert!(processors.take(always).is_none() && processors.take(always).is_none());
        drop(one);
        assert!(processors.take(always).is_some());
        drop(two);
        assert!(processors.take(BusyPoll::Never).is_none() && !processors.may(BusyPoll::Never));
    }

    #[test]
    fn no_more_poll_than_processors_are_to_spare() {
        let (processors, polite) = (Processors::new(8), BusyPoll::WhileSpare(MOST));
        assert!(processors.take(polite).is_none() && !processors.may(polite));
        assert!(processors.take(BusyPoll::Always(MOST)).is_some());
        processors.set_spare(1);
        assert!(processors.may(polite));
        let one = processors.take(polite);
        assert!(one.is_some() && processors.take(polite).is_none());
        processors.set_spare(2);
        assert!(processors.take(polite).is_some());
        processors.set_spare(0);
        assert!(processors.take(polite).is_none());
        processors.set_spare(100);
        let all: Vec<_> = (0..5).map_while(|_| processors.take(polite)).collect();
        assert_eq!(all.len(), 3, "with the one that still polls half of all");
    }

    #[tokio::test(start_paused = true)]
    async fn asking_for_a_processor_wakes_whoever_judges_what_is_idle() {
        let (processors, polite) = (Processors::new(2), BusyPoll::WhileSpare(MOST));
        let asked = async |processors: &Processors| {
            tokio::time::timeout(micros(1), processors.asked()).await.is_ok()
        };
        assert!(!asked(&processors).await);
        for _ in 0..3 {
            assert!(processors.take(polite).is_none());
        }
        assert!(processors.take(BusyPoll::Always(MOST)).is_some());
        assert!(asked(&processors).await && !asked(&processors).await);
        assert!(processors.take(polite).is_none());
        assert!(asked(&processors).await);
        let single = Processors::new(1);
        assert!(single.take(polite).is_none());
        assert!(!asked(&single).await, "there is none, ever");
    }

    #[test]
    fn a_long_wait_now_and_then_does_not_make_polling_rarer() {
        let mut seen = after([]);
        for round in 0..100 {
            (0..4 + PAID).for_each(|_| wait(&mut seen, 20));
            assert!(!seen.window().is_zero(), "round {round}");
            wait(&mut seen, 5000);
        }
        (0..4).for_each(|_| wait(&mut seen, 20));
        assert!(!seen.window().is_zero());
    }

    proptest! {
        /// How much a client can make the server poll in vain is bounded by its short waits.
        #[test]
        fn polling_in_vain_is_paid_for(
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
                    if !seen.window().is_zero() {
                        seen.poll();
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
