//! Trying again: a backend over a network fails for moments, and sometimes for minutes.
//!
//! All of it is done here, and none by the backends themselves, so that one deadline holds. A
//! creation may be tried again too: whoever asked for it reads back and compares when the name is
//! taken ([`put_new`](super::put_new), [`put_content`](super::put_content)), so a first attempt
//! that was carried out after all is not mistaken for another writer's.

use super::backend_reads::{BackendRead, BackendReadMeter};
use super::batch::RangeBatches;
use super::fault::{self, Retryability};
use super::layer::object_layer;
use super::link_pace::LinkPace;
use super::uplink::{SLOWEST_LINK, SLOWEST_TO_BUCKET, Uplink};
use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutOptions,
    PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The first pause between two attempts; each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many times as long as usual an answer may wait for others.
const BEHIND: u32 = 6;
/// Removals at the same time.
const REMOVALS: usize = 10;

/// How long a backend is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// No attempt begins later than this after the first one.
    pub give_up: Duration,
    /// The longest that a read may stand still, and that one listing may take.
    pub read: Duration,
    /// The longest that one writing attempt may take; over a network, beside what its bytes and those that are written
    /// at the same time take over the [slowest link](crate::SLOWEST_LINK).
    pub write: Duration,
}

impl Patience {
    /// That of a command somebody waits for: half a minute.
    pub const COMMAND: Self = Self::lasting(Duration::from_secs(30));

    /// Gives up after `give_up`.
    pub const fn lasting(give_up: Duration) -> Self {
        Self { give_up, read: Duration::from_secs(20), write: Duration::from_secs(120) }
    }
}

/// What was tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RetryCounters {
    /// Attempts that failed and were repeated.
    pub retries: u64,
    /// Operations that failed for good because the backend did not come back in time.
    pub given_up: u64,
}

/// A backend that tries again.
#[derive(Clone)]
pub(crate) struct Patient {
    inner: Arc<dyn ObjectStore>,
    patience: Patience,
    tally: Arc<LiveRetryCounters>,
    reads: Arc<BackendReadMeter>,
    /// The same backend, if it answers several ranges in one request.
    batches: Option<Arc<dyn RangeBatches>>,
    /// When something came last of any read.
    moved: Arc<Mutex<Option<Instant>>>,
    /// What is being written to it; `None` for a directory.
    uplink: Option<Arc<Uplink>>,
}

/// Attempts at something, since the first one.
pub(super) struct Attempts {
    start: Instant,
    pause: Duration,
    said: bool,
}

impl Attempts {
    /// The first one begins now.
    pub(super) fn begin() -> Self {
        Self { start: Instant::now(), pause: FIRST_PAUSE, said: false }
    }
}

#[derive(Default)]
pub(crate) struct LiveRetryCounters {
    retries: AtomicU64,
    given_up: AtomicU64,
    /// What reads take.
    pub(super) pace: LinkPace,
}

impl LiveRetryCounters {
    pub(crate) fn snapshot(&self) -> RetryCounters {
        RetryCounters {
            retries: self.retries.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
        }
    }
}

impl Patient {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, patience: Patience) -> Self {
        let (tally, reads, moved) = (Arc::default(), Arc::default(), Arc::default());
        let uplink = Some(Arc::new(Uplink::of(SLOWEST_TO_BUCKET)));
        Self { inner, patience, tally, reads, batches: None, moved, uplink }
    }

    /// The same for a directory: one that hangs is to be noticed, however much is written there.
    pub(crate) fn of_directory(inner: Arc<dyn ObjectStore>, patience: Patience) -> Self {
        Self { uplink: None, ..Self::new(inner, patience) }
    }

    /// The same for a backend that answers several ranges of an object in one request. One request for each would
    /// cost a round trip for each. What of them has come when the link breaks is not asked for again, and as long
    /// as something comes each time, nobody gives up.
    pub(crate) fn batching(inner: Arc<dyn RangeBatches>, patience: Patience) -> Self {
        let batches = Some(Arc::clone(&inner));
        // It gives up what stands still.
        let uplink = Some(Arc::new(Uplink::of(SLOWEST_LINK)));
        Self { batches, uplink, ..Self::new(inner, patience) }
    }

    pub(super) fn batches(&self) -> Option<&dyn RangeBatches> {
        self.batches.as_deref()
    }

    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// One attempt to write so many bytes.
    async fn write<T>(&self, bytes: usize, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.patience.write;
        match &self.uplink {
            Some(uplink) => uplink
                .within(limit, bytes as u64, attempt)
                .await
                .unwrap_or_else(|waited| Err(silence(waited))),
            None => limited(limit, attempt).await,
        }
    }

    /// A request for something to read is made.
    pub(super) fn ask(&self) -> BackendRead<'_> {
        self.reads.begin()
    }

    /// Something came of a read.
    pub(super) fn moves(&self) {
        *self.moved.lock() = Some(Instant::now());
    }

    /// The answer of a backend that has so long to go on. One that sends all its answers over one connection has them
    /// wait for each other: as long as others come, one that does not has [`BEHIND`] times as long. To ask again would
    /// only make what waits longer.
    ///
    /// # Errors
    /// A failure that may pass when it stands still for longer.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = T>,
    ) -> Result<T> {
        let began = Instant::now();
        let mut answer = std::pin::pin!(answer);
        loop {
            if let Ok(answered) = timeout(limit, &mut answer).await {
                return Ok(answered);
            }
            let others_come = self.moved.lock().is_some_and(|moved| moved.elapsed() < limit);
            let waits = self.batches.is_some() && others_come && began.elapsed() < limit * BEHIND;
            if !waits {
                return Err(silence(began.elapsed()));
            }
        }
    }

    /// So many bytes came in one request, since it `began`.
    pub(super) fn came(&self, bytes: u64, began: Instant) {
        self.tally.pace.note(bytes, began.elapsed());
    }

    /// What it reads from the backend.
    pub(crate) fn reads(&self) -> Arc<BackendReadMeter> {
        Arc::clone(&self.reads)
    }

    /// What was tried again so far, and from now on.
    pub(crate) fn tally(&self) -> Arc<LiveRetryCounters> {
        Arc::clone(&self.tally)
    }

    /// What is asked.
    pub(super) fn backend(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    /// One removal: what is to be gone is gone.
    async fn remove(&self, location: &Path) -> Result<()> {
        match self.inner.delete(location).await {
            Err(e @ Error::NotFound { .. }) if fault::meaning(&e).is_none() => Ok(()),
            other => other,
        }
    }

    /// Makes attempts until one succeeds, fails for good, or time is up.
    async fn persist<T, F: Future<Output = Result<T>> + Send>(
        &self,
        what: &str,
        attempt: impl Fn() -> F + Send,
    ) -> Result<T> {
        let mut attempts = Attempts::begin();
        loop {
            let failed = match attempt().await {
                Ok(done) => return Ok(done),
                Err(e) => e,
            };
            self.after(&mut attempts, what, failed).await?;
        }
    }

    /// Waits until it is time for the next attempt.
    ///
    /// # Errors
    /// The failure of the last one, when trying again cannot help, or time is up.
    pub(super) async fn after(
        &self,
        attempts: &mut Attempts,
        what: &str,
        failure: Error,
    ) -> Result<()> {
        if fault::verdict(&failure) == Retryability::Final {
            return Err(failure);
        }
        if attempts.start.elapsed() + attempts.pause >= self.patience.give_up {
            self.tally.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(failure);
        }
        let turn = self.tally.retries.fetch_add(1, Ordering::Relaxed);
        if !attempts.said && attempts.start.elapsed() > Duration::from_secs(1) {
            attempts.said = true;
            tracing::warn!(
                object = what,
                error = %failure,
                "the store does not answer; trying again for {} s",
                self.patience.give_up.as_secs()
            );
        }
        // Many readers that failed together come back apart.
        let spread = (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u32;
        tokio::time::sleep(attempts.pause * (96 + spread) / 128).await;
        attempts.pause = (attempts.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// The outcome of an attempt that may take so long.
async fn limited<T>(limit: Duration, attempt: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, attempt).await.unwrap_or_else(|_| Err(silence(limit)))
}

/// The failure of an attempt that was waited for so long.
fn silence(waited: Duration) -> Error {
    failure(ErrorKind::TimedOut, format!("no answer in {} s", waited.as_secs()))
}

pub(super) fn failure(kind: ErrorKind, why: String) -> Error {
    Error::Generic { store: "network", source: std::io::Error::new(kind, why).into() }
}

impl fmt::Display for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl fmt::Debug for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patient({:?})", self.inner)
    }
}

object_layer!(Patient);

#[async_trait]
impl super::layer::ObjectLayer for Patient {
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
        let bytes = payload.content_length();
        self.persist(location.as_ref(), || {
            self.write(bytes, self.inner.put_opts(location, payload.clone(), opts.clone()))
        })
        .await
    }

    /// The body is read here, so that one which breaks off is asked for again.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            let limit = self.patience.read;
            let head = || limited(limit, self.inner.get_opts(location, options.clone()));
            return self.persist(location.as_ref(), head).await;
        }
        self.body(location, &options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.all_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .map(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    let limit = this.patience.write;
                    let removal = || limited(limit, this.remove(&location));
                    this.persist(location.as_ref(), removal).await?;
                    Ok(location)
                }
            })
            .buffered(REMOVALS)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            let what = prefix.as_ref().map_or("", |prefix| prefix.as_ref());
            // A long listing is many requests: the limit of one is not that of all.
            let limit = this.patience.read * 30;
            let all = || limited(limit, this.inner.list(prefix.as_ref()).try_collect());
            let found: Vec<ObjectMeta> = this.persist(what, all).await?;
            Ok::<_, Error>(stream::iter(found.into_iter().map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let what = prefix.map_or("", |prefix| prefix.as_ref());
        let limit = self.patience.read;
        self.persist(what, || limited(limit, self.inner.list_with_delimiter(prefix))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FaultRates, ScriptedStore, StoreCall, StoreFault, Unreliable};
    use crate::{OpenStoreOptions, layered};
    use futures::future::join_all;
    use object_store::PutMode;
    use object_store::memory::InMemory;

    /// Bytes of a full pack.
    const PACK: usize = 8 << 20;

    fn rig(faults: FaultRates, patience: Patience) -> (Unreliable, Patient) {
        let unreliable = Unreliable::new(Arc::new(InMemory::new()), 7, faults);
        (unreliable.clone(), Patient::new(Arc::new(unreliable), patience))
    }

    /// A link that takes so long for each object that is written.
    fn thin(takes: Duration) -> ScriptedStore {
        ScriptedStore::new(Arc::new(InMemory::new()), move |call| match call {
            StoreCall::Put(_) => StoreFault::Delay(takes),
            _ => StoreFault::None,
        })
    }

    /// A bucket as it is opened.
    fn bucket(link: &ScriptedStore) -> Arc<dyn ObjectStore> {
        let options = OpenStoreOptions::default();
        layered(Arc::new(link.clone()), "s3://test", &options, |patient| patient).backend
    }

    #[tokio::test(start_paused = true)]
    async fn faults_of_a_moment_are_not_seen() {
        let faults = FaultRates { conflict: 0, ..FaultRates::all(200) };
        let (unreliable, patient) = rig(faults, Patience::lasting(Duration::from_secs(600)));
        for number in 0..100 {
            let path = Path::from(format!("a/{number}"));
            patient.put(&path, format!("content {number}").into()).await.unwrap();
            let found = patient.get(&path).await.unwrap().bytes().await.unwrap();
            assert_eq!(found, format!("content {number}"));
            assert_eq!(patient.get_range(&path, 2..5).await.unwrap(), "nte");
        }
        let listed: Vec<_> = patient.list(None).try_collect().await.unwrap();
        assert_eq!(listed.len(), 100);
        for number in 0..100 {
            patient.delete(&Path::from(format!("a/{number}"))).await.unwrap();
        }
        assert_eq!(patient.list(None).count().await, 0);
        assert!(unreliable.injected() > 50);
    }

    #[tokio::test(start_paused = true)]
    async fn ranges_are_one_request_where_the_backend_takes_several() {
        let (unreliable, patient) = rig(FaultRates::default(), Patience::COMMAND);
        let path = Path::from("a");
        patient.put(&path, "content".into()).await.unwrap();
        let reads = async |patient: Patient| {
            let before = unreliable.calls();
            let found = patient.get_ranges(&path, &[0..2, 3..5, 6..7]).await.unwrap();
            assert_eq!(found, ["co", "te", "t"]);
            unreliable.calls() - before
        };
        assert_eq!(reads(patient.clone()).await, 3);
        let batching = Patient::batching(Arc::new(unreliable.clone()), Patience::COMMAND);
        assert_eq!(reads(batching).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_for_a_minute_delays_and_then_answers() {
        let patience = Patience::lasting(Duration::from_secs(600));
        let (unreliable, patient) = rig(FaultRates::default(), patience);
        let path = Path::from("a");
        patient.put(&path, "x".into()).await.unwrap();
        unreliable.set_down(true);
        let start = Instant::now();
        let (found, ()) = tokio::join!(patient.get(&path), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            unreliable.set_down(false);
        });
        assert_eq!(found.unwrap().bytes().await.unwrap(), "x");
        assert!(start.elapsed() < Duration::from_secs(66), "it came back soon after the store");
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_gives_up_after_half_a_minute() {
        let (unreliable, patient) = rig(FaultRates::default(), Patience::COMMAND);
        unreliable.set_down(true);
        let start = Instant::now();
        patient.get(&Path::from("a")).await.unwrap_err();
        assert!((20..=30).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        assert_eq!(patient.tally().snapshot().given_up, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_may_take_as_long_as_a_thin_link_needs_for_it() {
        let path = Path::from("packs/one");
        // 260 and 100 kb/s.
        for (is_bucket, speed) in [(true, 33_000), (false, 12_500)] {
            let link = thin(Duration::from_secs(PACK as u64 / speed));
            let backend: Arc<dyn ObjectStore> = match is_bucket {
                true => bucket(&link),
                false => Arc::new(Patient::batching(Arc::new(link.clone()), Patience::COMMAND)),
            };
            backend.put(&path, vec![7; PACK].into()).await.unwrap();
            assert_eq!(link.calls.log().asked, [StoreCall::Put(path.clone())], "it is sent once");
            // What is short is soon found not to get through.
            backend.put(&path, "x".into()).await.unwrap_err();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_share_a_thin_link_may_take_as_long_as_it_needs_for_all_of_them() {
        let link = thin(Duration::from_secs(4 * PACK as u64 / SLOWEST_TO_BUCKET));
        let bucket = bucket(&link);
        let put = |name: &'static str| {
            let (bucket, path) = (&bucket, Path::from(name));
            async move { bucket.put(&path, vec![7; PACK].into()).await }
        };
        for sent in join_all(["packs/a", "packs/b", "packs/c", "packs/d"].map(put)).await {
            sent.unwrap();
        }
        assert_eq!(link.calls.log().asked.len(), 4, "each is sent once");
        put("packs/alone").await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_hangs_is_given_up_soon_however_much_is_written() {
        let hangs = Arc::new(thin(Duration::from_secs(3600)));
        let patient = Patient::of_directory(hangs, Patience::COMMAND);
        let start = Instant::now();
        patient.put(&Path::from("packs/one"), vec![7; PACK].into()).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(125), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_get_better_fails_at_once() {
        let (_, patient) = rig(FaultRates::default(), Patience::COMMAND);
        let path = Path::from("a");
        let start = Instant::now();
        assert!(matches!(patient.get(&path).await, Err(Error::NotFound { .. })));
        patient.put(&path, "x".into()).await.unwrap();
        let again = patient.put_opts(&path, "y".into(), PutMode::Create.into()).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
