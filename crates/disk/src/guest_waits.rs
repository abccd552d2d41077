//! What a guest waits for, and for how long.
//!
//! The time in which at least one of its requests waits is shared out: among the places where its chunks are, by how
//! many of them are at each; when no chunk is on its way, a request waits for the disk of this machine. So the parts
//! never add up to more than the time that passed, however many requests a guest has in flight. What is answered at
//! once is not seen here.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// What a request of a guest waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCause {
    /// Its turn: others are before it at the store.
    Queue,
    /// An answer of the store.
    Store,
    /// An answer of somebody nearby who may have the chunk.
    Nearby,
    /// The disk of this machine, with the guest's private blocks.
    Disk,
}

impl WaitCause {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Store, Self::Nearby, Self::Disk];
    /// Those of chunks.
    const OF_CHUNKS: usize = 3;
}

/// How long a guest has waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitReading {
    /// Requests that had to wait.
    pub requests: u64,
    /// For each of [`WaitCause::ALL`].
    pub times: [Duration; 4],
}

impl WaitReading {
    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut times = self.times;
        for (time, before) in times.iter_mut().zip(before.times) {
            *time = time.saturating_sub(before);
        }
        Self { requests: self.requests.saturating_sub(before.requests), times }
    }

    /// How long it waited for one thing.
    pub fn of(&self, cause: WaitCause) -> Duration {
        self.times.get(cause as usize).copied().unwrap_or_default()
    }
}

/// The waits of one guest.
#[derive(Debug, Default)]
pub struct GuestWaits(Mutex<WaitState>);

#[derive(Debug, Default)]
struct WaitState {
    /// Requests that wait now.
    asked: u32,
    /// Chunks that are waited for now, by what for.
    chunks: [u32; WaitCause::OF_CHUNKS],
    /// Up to when the time is shared out.
    settled: Option<Instant>,
    reading: WaitReading,
}

impl WaitState {
    /// Shares out the time until now; before anything changes.
    fn settle(&mut self) {
        let now = Instant::now();
        let passed = self.settled.replace(now).map_or(Duration::ZERO, |then| now - then);
        let chunks: u32 = self.chunks.iter().sum();
        if chunks > 0 {
            for (time, count) in self.reading.times.iter_mut().zip(self.chunks) {
                *time += passed * count / chunks;
            }
        } else if self.asked > 0 {
            self.reading.times[WaitCause::Disk as usize] += passed;
        }
    }
}

impl GuestWaits {
    /// How long its guest has waited until now.
    pub fn reading(&self) -> WaitReading {
        let mut state = self.0.lock();
        state.settle();
        state.reading
    }

    /// A request begins to wait.
    pub(crate) fn request(&self) -> WaitingRequest<'_> {
        let mut state = self.0.lock();
        state.settle();
        state.asked += 1;
        state.reading.requests += 1;
        WaitingRequest(self)
    }

    /// A request begins to wait for a chunk.
    pub(crate) fn chunk(&self, cause: WaitCause) -> WaitingChunk<'_> {
        let waiting = WaitingChunk { waits: self, cause: Mutex::new(cause) };
        self.count(cause, 1);
        waiting
    }

    fn count(&self, cause: WaitCause, change: i32) {
        let mut state = self.0.lock();
        state.settle();
        if let Some(count) = state.chunks.get_mut(cause as usize) {
            *count = count.saturating_add_signed(change);
        }
    }
}

/// A request that waits, until it is dropped.
pub(crate) struct WaitingRequest<'a>(&'a GuestWaits);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.settle();
        state.asked -= 1;
    }
}

/// A chunk that is waited for, until it is dropped.
pub(crate) struct WaitingChunk<'a> {
    waits: &'a GuestWaits,
    cause: Mutex<WaitCause>,
}

impl WaitingChunk<'_> {
    /// From now on it is waited for this.
    pub(crate) fn now(&self, cause: WaitCause) {
        let mut before = self.cause.lock();
        if *before != cause {
            self.waits.count(*before, -1);
            self.waits.count(cause, 1);
            *before = cause;
        }
    }
}

impl Drop for WaitingChunk<'_> {
    fn drop(&mut self) {
        self.waits.count(*self.cause.get_mut(), -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pass(millis: u64) {
        tokio::time::advance(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_a_guest_waits_is_shared_out_once() {
        let waits = GuestWaits::default();
        let times = || waits.reading().times.map(|time| time.as_millis());
        pass(100).await;
        assert_eq!(times(), [0; 4], "it computes");
        let request = waits.request();
        pass(10).await;
        let (first, second) = (waits.chunk(WaitCause::Queue), waits.chunk(WaitCause::Queue));
        pass(20).await;
        first.now(WaitCause::Store);
        first.now(WaitCause::Store);
        pass(40).await;
        second.now(WaitCause::Nearby);
        drop(first);
        pass(5).await;
        drop(second);
        assert_eq!(times(), [40, 20, 5, 10]);
        pass(7).await;
        assert_eq!(times(), [40, 20, 5, 17], "private blocks");
        drop(request);
        pass(50).await;
        let all = waits.reading();
        assert_eq!(all.since(&WaitReading::default()), all);
        assert_eq!((all.requests, all.of(WaitCause::Disk).as_millis()), (1, 17));
        assert_eq!(all.since(&all), WaitReading::default());
    }
}
