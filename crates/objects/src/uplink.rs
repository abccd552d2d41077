//! Writes over a network share the link: each has the time for what is written beside it, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The slowest link over which objects are still written in one attempt, in bytes in a second, where the backend itself
/// gives up one that stands still. An attempt that takes longer than it may is made again from its first byte, and
/// would never end.
pub const SLOWEST_LINK: u64 = 4 << 10;
/// The same of a bucket. A connection over which nothing goes is given up by the system; but a server that took all and
/// does not answer is waited for as long as the slowest link would have needed.
pub(super) const SLOWEST_TO_BUCKET: u64 = 32 << 10;

/// What is being written over a link.
#[derive(Debug)]
pub(super) struct Uplink {
    /// In bytes in a second.
    slowest: u64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

/// A write, until it ends.
struct Sending<'a> {
    uplink: &'a Uplink,
    bytes: u64,
}

impl Uplink {
    /// One over which so many bytes go in a second at least.
    pub(super) fn of(slowest: u64) -> Self {
        Self { slowest, writes: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// The answer to a request that sends so many bytes. It has `limit`, and the time that these take over the slowest
    /// link beside all that is being written.
    ///
    /// # Errors
    /// For how long it was waited in vain.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        bytes: u64,
        answer: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let began = Instant::now();
        let sending = self.send(bytes);
        let mut answer = std::pin::pin!(answer);
        let mut ahead = sending.ahead();
        loop {
            let until = began + limit + Duration::from_secs(ahead / self.slowest);
            if let Ok(answered) = timeout_at(until, &mut answer).await {
                return Ok(answered);
            }
            // Others may have begun since.
            match sending.ahead() {
                more if more > ahead => ahead = more,
                _ => return Err(began.elapsed()),
            }
        }
    }

    fn send(&self, bytes: u64) -> Sending<'_> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Sending { uplink: self, bytes }
    }
}

impl Sending<'_> {
    /// Bytes that the link carries until this write is through: its own, and at the most as many of each other one.
    fn ahead(&self) -> u64 {
        let writes = self.uplink.writes.load(Ordering::Relaxed);
        let bytes = self.uplink.bytes.load(Ordering::Relaxed);
        bytes.min(self.bytes.saturating_mul(writes))
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.uplink.writes.fetch_sub(1, Ordering::Relaxed);
        self.uplink.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{join, join_all, pending};

    const LIMIT: Duration = Duration::from_secs(120);
    const PACK: u64 = 8 << 20;

    /// For how many seconds something of so many bytes that never gets through is waited for.
    async fn seconds(uplink: &Uplink, bytes: u64) -> u64 {
        uplink.within(LIMIT, bytes, pending::<()>()).await.unwrap_err().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_has_the_time_that_all_need_which_share_the_link() {
        let (uplink, one) = (Uplink::of(SLOWEST_LINK), PACK / SLOWEST_LINK);
        assert_eq!(seconds(&uplink, PACK).await, 120 + one);
        let four = join_all((0..4).map(|_| seconds(&uplink, PACK))).await;
        assert_eq!(four, [120 + 4 * one; 4]);
        assert_eq!(seconds(&uplink, PACK).await, 120 + one, "they have ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_write_is_given_up_soon_whatever_is_written_beside_it() {
        let uplink = Uplink::of(SLOWEST_LINK);
        let packs = join_all((0..4).map(|_| seconds(&uplink, PACK)));
        let (_, short) = join(packs, seconds(&uplink, 512)).await;
        assert_eq!(short, 120);
        assert_eq!(seconds(&uplink, 0).await, 120);
    }
}
