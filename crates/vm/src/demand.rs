//! What somebody waits for: reads of guest memory that the store has not answered yet, and what is fetched ahead
//! beside them. Extents of memory are told by their numbers.

use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A read that was answered so soon says nothing of a link: most come from the cache.
const SOON: Duration = Duration::from_millis(50);

/// What of a machine's memory is on its way.
#[derive(Debug, Default)]
pub(crate) struct ExtentDemand {
    under_way: watch::Sender<UnderWay>,
    /// When the last read ended that waited for longer than a cache takes.
    ended: Mutex<Option<Instant>>,
}

/// Extents, each as often as it is asked for. There are few.
#[derive(Debug, Default)]
struct UnderWay {
    waited_for: Vec<u64>,
    ahead: Vec<u64>,
    /// How many have fetching ahead wait.
    pauses: usize,
    /// Since when nothing came over a link of what is waited for; none while nothing is.
    silent_since: Option<Instant>,
}

impl UnderWay {
    fn list(&mut self, is_ahead: bool) -> &mut Vec<u64> {
        if is_ahead { &mut self.ahead } else { &mut self.waited_for }
    }

    fn began(&mut self, extents: &[u64], is_ahead: bool) {
        self.list(is_ahead).extend(extents);
        if !is_ahead && self.silent_since.is_none() {
            self.silent_since = Some(Instant::now());
        }
    }

    fn ended(&mut self, extents: &[u64], is_ahead: bool, came_after: Option<Duration>) {
        let list = self.list(is_ahead);
        for extent in extents {
            if let Some(at) = list.iter().position(|other| other == extent) {
                list.swap_remove(at);
            }
        }
        if self.waited_for.is_empty() {
            self.silent_since = None;
        } else if !is_ahead && came_after.is_some_and(|took| took > SOON) {
            self.silent_since = Some(Instant::now());
        }
    }
}

/// A read that waits, or extents that are fetched ahead, until it is dropped.
#[derive(Debug)]
pub(crate) struct Fetching<'a> {
    demand: &'a ExtentDemand,
    extents: Vec<u64>,
    is_ahead: bool,
    began: Instant,
    /// Nothing came of it.
    in_vain: bool,
}

/// Nothing is begun ahead until this is dropped.
#[derive(Debug)]
pub(crate) struct AheadPause<'a>(&'a ExtentDemand);

impl ExtentDemand {
    /// Somebody waits for extents from now on.
    pub(crate) fn wait_for(&self, extents: Range<u64>) -> Fetching<'_> {
        self.begin(extents.collect(), false)
    }

    /// Extents, or parts of them, are fetched ahead from now on.
    pub(crate) fn ahead(&self, extents: Vec<u64>) -> Fetching<'_> {
        self.begin(extents, true)
    }

    fn begin(&self, extents: Vec<u64>, is_ahead: bool) -> Fetching<'_> {
        self.under_way.send_modify(|under_way| under_way.began(&extents, is_ahead));
        Fetching { demand: self, extents, is_ahead, began: Instant::now(), in_vain: false }
    }

    /// Whether somebody waits.
    pub(crate) fn is_some(&self) -> bool {
        !self.under_way.borrow().waited_for.is_empty()
    }

    /// Nothing is begun ahead from now on; what is under way comes.
    pub(crate) fn pause_ahead(&self) -> AheadPause<'_> {
        self.under_way.send_modify(|under_way| under_way.pauses += 1);
        AheadPause(self)
    }

    /// Whether somebody waits, or did in the last `time` for longer than a cache takes.
    pub(crate) fn was_within(&self, time: Duration) -> bool {
        self.is_some() || self.ended.lock().is_some_and(|ended| ended.elapsed() < time)
    }

    /// Whether somebody has waited for `time` without anything having come meanwhile.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        self.under_way.borrow().silent_since.is_some_and(|since| since.elapsed() >= time)
    }

    /// Waits until somebody has waited for `time` without anything having come meanwhile.
    pub(crate) async fn until_silent_for(&self, time: Duration) {
        let mut under_way = self.under_way.subscribe();
        loop {
            let since = under_way.borrow_and_update().silent_since;
            let silent = async {
                match since {
                    Some(since) => sleep_until(since + time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = silent => return,
                // The sender is here: it cannot have gone.
                _ = under_way.changed() => {}
            }
        }
    }

    /// Tells of the extents that are waited for; not of each that is so for a moment.
    pub(crate) fn listen(&self) -> DemandListener {
        DemandListener(self.under_way.subscribe())
    }

    /// Waits until all that somebody waits for is among what is fetched ahead, and that is not paused.
    pub(crate) async fn until_ahead(&self) {
        let is_ahead = |under_way: &UnderWay| {
            under_way.pauses == 0
                && under_way.waited_for.iter().all(|extent| under_way.ahead.contains(extent))
        };
        // The sender is here: it cannot have gone.
        let _ = self.under_way.subscribe().wait_for(is_ahead).await;
    }
}

/// Hears of extents that are waited for.
#[derive(Debug)]
pub(crate) struct DemandListener(watch::Receiver<UnderWay>);

impl DemandListener {
    /// Waits for the next change; the extents that are waited for then.
    pub(crate) async fn next(&mut self) -> Vec<u64> {
        match self.0.changed().await {
            Ok(()) => self.0.borrow_and_update().waited_for.clone(),
            // Nobody will wait any more.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Fetching<'_> {
    /// Ends it without anything having come.
    pub(crate) fn end_in_vain(mut self) {
        self.in_vain = true;
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        if !self.is_ahead && took > SOON {
            *self.demand.ended.lock() = Some(Instant::now());
        }
        let came_after = (!self.in_vain).then_some(took);
        self.demand
            .under_way
            .send_modify(|under_way| under_way.ended(&self.extents, self.is_ahead, came_after));
    }
}

impl Drop for AheadPause<'_> {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|under_way| under_way.pauses -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep, timeout};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_lasts_until_the_last_read_has_ended() {
        let demand = ExtentDemand::default();
        assert!(!demand.is_some() && !demand.was_within(SECOND));
        let (first, other) = (demand.wait_for(3..4), demand.wait_for(3..5));
        advance(SECOND).await;
        drop(first);
        assert!(demand.is_some());
        drop(other);
        assert!(!demand.is_some() && demand.was_within(SECOND));
        advance(SECOND).await;
        assert!(!demand.was_within(SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_the_cache_answers_is_none_that_waits() {
        let demand = ExtentDemand::default();
        let read = demand.wait_for(3..4);
        advance(SOON / 2).await;
        drop(read);
        assert!(!demand.was_within(SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_silent_when_nothing_comes_of_all_that_is_waited_for() {
        let demand = ExtentDemand::default();
        let until_silent = async || {
            let began = Instant::now();
            let silent = demand.until_silent_for(5 * SECOND);
            let took = timeout(10 * SECOND, silent).await.ok().map(|()| began.elapsed());
            assert_eq!(demand.is_silent_for(5 * SECOND), took.is_some());
            took
        };
        let (first, other) = (demand.ahead(vec![3]), demand.ahead(vec![4]));
        assert_eq!(until_silent().await, None, "nobody waits");
        drop((first, other));
        let (first, other) = (demand.wait_for(3..4), demand.wait_for(4..5));
        assert_eq!(until_silent().await, Some(5 * SECOND));
        assert_eq!(until_silent().await, Some(Duration::ZERO), "it has been for long");
        drop(demand.wait_for(5..6));
        assert_eq!(until_silent().await, Some(Duration::ZERO), "that was in the cache");
        drop(first);
        let something_comes = async {
            sleep(3 * SECOND).await;
            drop(demand.wait_for(5..6));
            drop(other);
        };
        let third = demand.wait_for(6..7);
        let (took, ()) = tokio::join!(until_silent(), something_comes);
        assert_eq!(took, Some(8 * SECOND));
        sleep(SECOND).await;
        let fourth = demand.wait_for(7..8);
        sleep(SECOND).await;
        fourth.end_in_vain();
        assert_eq!(
            until_silent().await,
            Some(Duration::ZERO),
            "a read that failed brought nothing"
        );
        drop(third);
        assert_eq!(until_silent().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_ahead_while_that_is_paused() {
        let demand = ExtentDemand::default();
        let may = async || timeout(SECOND, demand.until_ahead()).await.is_ok();
        let (first, other) = (demand.pause_ahead(), demand.pause_ahead());
        assert!(!may().await);
        drop(first);
        assert!(!may().await);
        drop(other);
        assert!(may().await);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_ahead_while_something_else_is_waited_for() {
        let demand = ExtentDemand::default();
        let may = async || timeout(SECOND, demand.until_ahead()).await.is_ok();
        assert!(may().await);
        let waits = demand.wait_for(7..8);
        let ahead = demand.ahead(vec![6]);
        assert!(!may().await);
        let joined = demand.ahead(vec![7]);
        assert!(may().await, "what is waited for is on its way");
        drop(joined);
        assert!(!may().await);
        drop((waits, ahead));
        assert!(may().await);
    }
}
