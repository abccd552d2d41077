//! A backend that behaves as networks do: slow, busy, silent, sometimes after the work was done.

use crate::RangeBatches;
use crate::layer::{object_layer, ranges_by_get};
use async_trait::async_trait;
use block::conformance::Sequence;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often each fault happens, of 1000 operations that it can happen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultRates {
    /// The answer comes late.
    pub delayed: u32,
    /// The longest delay.
    pub delay: Duration,
    /// A 503, or a connection that is refused: nothing was done.
    pub failed_before: u32,
    /// A 500, or silence: but the write or the removal was done.
    pub failed_after: u32,
    /// A creation is answered with a 409 although there is no such object: nothing was done.
    pub conflict: u32,
    /// A listing that breaks off with an error.
    pub torn_list: u32,
    /// A body that ends too early, without an error.
    pub truncated: u32,
}

impl FaultRates {
    /// All of them, `often` of 1000 times, with delays of up to a second.
    pub fn all(often: u32) -> Self {
        Self {
            delayed: often,
            delay: Duration::from_secs(1),
            failed_before: often,
            failed_after: often,
            conflict: often,
            torn_list: often,
            truncated: often,
        }
    }
}

/// Puts faults in front of a backend. The same seed and the same order of calls give the same
/// faults; time passes on tokio's clock, which a test may pause.
#[derive(Clone)]
pub struct Unreliable {
    inner: Arc<dyn ObjectStore>,
    shared: Arc<UnreliableState>,
}

struct UnreliableState {
    dice: Mutex<(Sequence, FaultRates)>,
    down: AtomicBool,
    injected: AtomicU64,
    calls: AtomicU64,
}

impl Unreliable {
    /// Puts itself in front of `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>, seed: u64, faults: FaultRates) -> Self {
        let shared = UnreliableState {
            dice: Mutex::new((Sequence::new(seed), faults)),
            down: AtomicBool::new(false),
            injected: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        };
        Self { inner, shared: Arc::new(shared) }
    }

    /// From now on faults happen this often.
    pub fn set(&self, faults: FaultRates) {
        self.shared.dice.lock().1 = faults;
    }

    /// While `down`, nothing is reached at all.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::Relaxed);
    }

    /// Faults so far, delays not counted.
    pub fn injected(&self) -> u64 {
        self.shared.injected.load(Ordering::Relaxed)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }
}

impl UnreliableState {
    /// Whether a fault happens now.
    fn happens(&self, rate: impl Fn(&FaultRates) -> u32) -> bool {
        let mut dice = self.dice.lock();
        let rate = u64::from(rate(&dice.1));
        let hit = dice.0.below(1000) < rate;
        drop(dice);
        if hit {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        hit
    }

    /// A number below `limit`.
    fn below(&self, limit: u64) -> u64 {
        self.dice.lock().0.below(limit.max(1))
    }

    /// What may happen before any operation.
    async fn enter(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let wait = {
            let mut dice = self.dice.lock();
            let (delayed, longest) = (u64::from(dice.1.delayed), dice.1.delay.as_micros() as u64);
            let late = dice.0.below(1000) < delayed;
            if late { dice.0.below(longest + 1) } else { 0 }
        };
        if wait > 0 {
            tokio::time::sleep(Duration::from_micros(wait)).await;
        }
        if self.down.load(Ordering::Relaxed) {
            return Err(failure(ErrorKind::ConnectionRefused, "the store is down"));
        }
        if self.happens(|faults| faults.failed_before) {
            return Err(failure(ErrorKind::Other, "503 Slow Down, nothing was done"));
        }
        Ok(())
    }

    /// What may happen after a change was made.
    fn leave(&self) -> Result<()> {
        if self.happens(|faults| faults.failed_after) {
            return Err(failure(ErrorKind::TimedOut, "time-out, but the change was made"));
        }
        Ok(())
    }
}

fn failure(kind: ErrorKind, what: &'static str) -> Error {
    Error::Generic { store: "unreliable", source: std::io::Error::new(kind, what).into() }
}

impl fmt::Display for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unreliable({})", self.inner)
    }
}

impl fmt::Debug for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

object_layer!(Unreliable);

#[async_trait]
impl crate::layer::ObjectLayer for Unreliable {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.shared.enter().await?;
        if opts.mode == PutMode::Create && self.shared.happens(|faults| faults.conflict) {
            let source = std::io::Error::other("409 ConditionalRequestConflict");
            return Err(Error::AlreadyExists { path: location.to_string(), source: source.into() });
        }
        let result = self.inner.put_opts(location, payload, opts).await?;
        self.shared.leave().map(|()| result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.shared.enter().await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.shared.enter().await?;
        let answer = self.inner.get_opts(location, options).await?;
        if !self.shared.happens(|faults| faults.truncated) {
            return Ok(answer);
        }
        let (meta, range, attributes) =
            (answer.meta.clone(), answer.range.clone(), answer.attributes.clone());
        let extensions = answer.extensions.clone();
        let whole = answer.bytes().await?;
        let part = whole.slice(..self.shared.below(whole.len() as u64) as usize);
        let payload = GetResultPayload::Stream(stream::iter([Ok(part)]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .and_then(move |location| {
                let this = this.clone();
                async move {
                    this.shared.enter().await?;
                    this.inner.delete(&location).await?;
                    this.shared.leave().map(|()| location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            this.shared.enter().await?;
            let mut found: Vec<_> = this.inner.list(prefix.as_ref()).collect().await;
            if this.shared.happens(|faults| faults.torn_list) {
                found.truncate(this.shared.below(found.len() as u64 + 1) as usize);
                found.push(Err(failure(ErrorKind::UnexpectedEof, "the listing broke off")));
            }
            Ok::<_, Error>(stream::iter(found))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.enter().await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.enter().await?;
        self.inner.copy_opts(from, to, options).await?;
        self.shared.leave()
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        ranges_by_get(self, location, ranges).await
    }
}

impl RangeBatches for Unreliable {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        let parts = async {
            let parts = self.get_ranges(location, ranges).await?;
            Ok::<_, Error>(stream::iter(parts.into_iter().map(Ok)))
        };
        stream::once(parts).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_faults() {
        let run = async |seed| {
            let backend = Unreliable::new(Arc::new(InMemory::new()), seed, FaultRates::all(300));
            let mut outcomes = Vec::new();
            for number in 0..200 {
                let path = Path::from(format!("a/{}", number % 50));
                outcomes.push(backend.put(&path, "twelve bytes".into()).await.is_ok());
                let read = async { backend.get(&path).await?.bytes().await };
                outcomes.push(read.await.is_ok_and(|bytes| bytes.len() == 12));
                let listed: Result<Vec<_>> = backend.list(None).try_collect().await;
                outcomes.push(listed.is_ok());
            }
            outcomes
        };
        let (first, again, other) = (run(1).await, run(1).await, run(2).await);
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert!(first.contains(&true) && first.contains(&false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_may_come_after_the_work() {
        let memory = Arc::new(InMemory::new());
        let faults = FaultRates { failed_after: 1000, ..FaultRates::default() };
        let backend = Unreliable::new(memory.clone(), 1, faults);
        let path = Path::from("a");
        backend.put(&path, "x".into()).await.unwrap_err();
        memory.head(&path).await.unwrap();
        backend.delete(&path).await.unwrap_err();
        memory.head(&path).await.unwrap_err();
        backend.set(FaultRates::default());
        backend.put(&path, "x".into()).await.unwrap();
        backend.set_down(true);
        backend.get(&path).await.unwrap_err();
    }
}
