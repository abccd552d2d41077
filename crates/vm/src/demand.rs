//! What somebody waits for: reads of guest memory that the store has not answered yet, and what is fetched ahead
//! beside them. Extents of memory are told by their numbers.

use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

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
}

impl UnderWay {
    fn list(&mut self, is_ahead: bool) -> &mut Vec<u64> {
        if is_ahead { &mut self.ahead } else { &mut self.waited_for }
    }
}

/// A read that waits, or extents that are fetched ahead, until it is dropped.
#[derive(Debug)]
pub(crate) struct Fetching<'a> {
    demand: &'a ExtentDemand,
    extents: Vec<u64>,
    is_ahead: bool,
    began: Instant,
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
        self.under_way.send_modify(|under_way| under_way.list(is_ahead).extend(&extents));
        Fetching { demand: self, extents, is_ahead, began: Instant::now() }
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

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        if !self.is_ahead && self.began.elapsed() > SOON {
            *self.demand.ended.lock() = Some(Instant::now());
        }
        self.demand.under_way.send_modify(|under_way| {
            let list = under_way.list(self.is_ahead);
            for extent in &self.extents {
                if let Some(at) = list.iter().position(|other| other == extent) {
                    list.swap_remove(at);
                }
            }
        });
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
    use tokio::time::{advance, timeout};

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
