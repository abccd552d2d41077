//! What one client may hold of the server, over all its connections.

use block::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What a gateway's clients may use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Connections of one client; one more ends the oldest.
    pub connections: usize,
    /// Connections of all clients, with those in their handshake.
    pub all_connections: usize,
    /// Requests of one client at the same time; one more waits.
    pub requests: usize,
    /// Bytes of requests and answers that are in memory for one client; who wants more waits.
    pub bytes: u64,
    /// Requests of one client in a second, over ten seconds; what is above is refused.
    pub rate: u32,
    /// How long a handshake may take; how long a request that waits for its turn, a body that is on its
    /// way or an answer that is taken may stand still.
    pub patience: Duration,
    /// How long a connection without requests is kept.
    pub idle: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            connections: 8,
            all_connections: 1024,
            requests: 128,
            bytes: 96 << 20,
            rate: 2000,
            patience: Duration::from_secs(60),
            idle: Duration::from_secs(600),
        }
    }
}

/// What one client uses.
pub struct ClientUsage {
    limits: GatewayLimits,
    requests: Arc<Semaphore>,
    /// In KiB.
    memory: Arc<Semaphore>,
    /// One: others have their turn between two of its checks.
    checks: Arc<Semaphore>,
    /// One: the same for segments that are packed.
    packings: Arc<Semaphore>,
    bucket: Mutex<TokenBucket>,
}

struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

/// A request's turn. While it is held, the request counts.
pub struct RequestPermit {
    _request: OwnedSemaphorePermit,
    memory: Option<OwnedSemaphorePermit>,
}

impl ClientUsage {
    /// Nothing yet, of what these limits allow.
    pub fn new(limits: GatewayLimits) -> Self {
        Self {
            limits,
            requests: Arc::new(Semaphore::new(limits.requests)),
            memory: Arc::new(Semaphore::new((limits.bytes >> 10) as usize)),
            checks: Arc::new(Semaphore::new(1)),
            packings: Arc::new(Semaphore::new(1)),
            bucket: Mutex::new(TokenBucket { tokens: burst(&limits), filled: Instant::now() }),
        }
    }

    /// Waits for the turn of a request.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the client asks too often, or too much at a
    /// time.
    pub async fn turn(&self) -> Result<RequestPermit> {
        if !self.take_token() {
            return Err(Error::unavailable("too many requests; ask again in a second"));
        }
        let waited = Arc::clone(&self.requests).acquire_owned();
        let permit = self.within(waited).await?;
        Ok(RequestPermit { _request: permit, memory: None })
    }

    /// Waits until a request may have so many bytes in memory.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when others of this client do not end.
    pub async fn memory(&self, turn: &mut RequestPermit, bytes: u64) -> Result<()> {
        let most = self.limits.bytes >> 10;
        let kib = bytes.div_ceil(1024).clamp(1, most) as u32;
        let waited = Arc::clone(&self.memory).acquire_many_owned(kib);
        turn.memory = Some(self.within(waited).await?);
        Ok(())
    }

    /// Waits until a request may have so many bytes more in memory, as long as there are as many for one client.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when others of this client do not end.
    pub(crate) async fn more_memory(&self, turn: &mut RequestPermit, bytes: u64) -> Result<()> {
        let most = (self.limits.bytes >> 10) as usize;
        let held = turn.memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let kib = (bytes.div_ceil(1024) as usize).min(most.saturating_sub(held));
        let waited = Arc::clone(&self.memory).acquire_many_owned(kib as u32);
        let more = self.within(waited).await?;
        match &mut turn.memory {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Waits for two places to check something: the only one of this client, and one of those that `all` clients share.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when others do not end.
    pub(crate) async fn checking(&self, all: &Arc<Semaphore>) -> Result<[OwnedSemaphorePermit; 2]> {
        self.places(&self.checks, all).await
    }

    /// The same to pack something that is sent: a client that brings packs can read meanwhile.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when others do not end.
    pub(crate) async fn packing(&self, all: &Arc<Semaphore>) -> Result<[OwnedSemaphorePermit; 2]> {
        self.places(&self.packings, all).await
    }

    async fn places(
        &self,
        own: &Arc<Semaphore>,
        all: &Arc<Semaphore>,
    ) -> Result<[OwnedSemaphorePermit; 2]> {
        let own = self.within(Arc::clone(own).acquire_owned()).await?;
        Ok([own, self.within(Arc::clone(all).acquire_owned()).await?])
    }

    async fn within(
        &self,
        waited: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
    ) -> Result<OwnedSemaphorePermit> {
        match tokio::time::timeout(self.limits.patience, waited).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::unavailable("too much is under way for this client; ask again later")),
        }
    }

    fn take_token(&self) -> bool {
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let gained = now.duration_since(bucket.filled).as_secs_f64() * f64::from(self.limits.rate);
        bucket.tokens = (bucket.tokens + gained).min(burst(&self.limits));
        bucket.filled = now;
        let has = bucket.tokens >= 1.0;
        if has {
            bucket.tokens -= 1.0;
        }
        has
    }
}

fn burst(limits: &GatewayLimits) -> f64 {
    f64::from(limits.rate) * 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_grows_counts_and_never_waits_for_itself() {
        let usage = ClientUsage::new(GatewayLimits { bytes: 64 << 10, ..GatewayLimits::default() });
        let (mut first, mut second) = (usage.turn().await.unwrap(), usage.turn().await.unwrap());
        for _ in 0..3 {
            usage.more_memory(&mut first, 20 << 10).await.unwrap();
        }
        usage.more_memory(&mut second, 4 << 10).await.unwrap();
        assert!(usage.more_memory(&mut second, 1 << 10).await.is_err(), "64 KiB together");
        drop(second);
        for _ in 0..3 {
            usage.more_memory(&mut first, 20 << 10).await.expect("it has all there is");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_too_often_or_too_much_at_a_time_is_refused_and_then_not_any_more() {
        let limits =
            GatewayLimits { rate: 1, requests: 2, bytes: 64 << 10, ..GatewayLimits::default() };
        let usage = ClientUsage::new(limits);
        let mut first = usage.turn().await.unwrap();
        let mut second = usage.turn().await.unwrap();
        assert!(usage.turn().await.is_err(), "two at a time");
        usage.memory(&mut first, 60 << 10).await.unwrap();
        assert!(usage.memory(&mut second, 5 << 10).await.is_err(), "64 KiB at a time");
        drop(first);
        usage.memory(&mut second, 5 << 10).await.unwrap();
        drop(second);
        let mut most = usage.turn().await.unwrap();
        usage.memory(&mut most, 1 << 40).await.expect("what is too large has all there is");
        drop(most);
        while usage.turn().await.is_ok() {}
        tokio::time::sleep(Duration::from_secs(2)).await;
        usage.turn().await.unwrap();
    }
}
