//! Reads that come at nearly the same time and lie near each other become one request: on a
//! network a request costs a round trip, and money.

use super::batch::RangeBatches;
use super::layer::object_layer;
use crate::round_trip::RoundTrip;
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, Shared};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes between two ranges that are read and thrown away rather than asked around: half of what a
/// disk of 80 MB/s would read while it moves its arm, for 6 ms, and less than half of what a bucket
/// would send in the time of a round trip; a good SSD would read about as many.
pub const GAP: u64 = 256 << 10;

/// A read waits this long for others of the same object.
const WINDOW: Duration = Duration::from_millis(1);
/// The longest request that is made by joining.
const LONGEST: u64 = 4 << 20;
/// Requests of one reader at the same time.
const CONCURRENCY: usize = 8;
/// The least that reads may be apart and be joined, in bytes.
const NEAR: u64 = 16 << 10;
/// What is read only to be thrown away should take no longer: a network with little throughput is asked
/// once more instead.
const WASTE: Duration = Duration::from_millis(20);
/// A request of fewer bytes does not show how many come in some time.
const TELLING: u64 = 128 << 10;

/// A request, for all who want a part of it.
type SharedRead = Shared<BoxFuture<'static, Result<Bytes, Arc<Error>>>>;
/// What a batch asks for. Nobody waits for a request that has nothing of theirs.
type RequestPlan = Arc<Vec<(Range<u64>, SharedRead)>>;

/// Reads of one object that wait for each other.
struct PendingReads {
    ranges: Arc<Mutex<Vec<Range<u64>>>>,
    plan: Shared<BoxFuture<'static, RequestPlan>>,
}

/// A backend that joins reads.
#[derive(Clone)]
pub(crate) struct Gathered {
    inner: Arc<dyn ObjectStore>,
    batches: Arc<Mutex<HashMap<Path, PendingReads>>>,
    apart: Arc<Apart>,
    /// The most that reads may be apart and be joined, in bytes.
    most_apart: u64,
}

/// How far apart reads may be that are joined: what the backend sends in [`WASTE`] at the rate of its
/// latest requests, from [`NEAR`] to [`GAP`]. What a request takes before its first byte does not
/// count: one more would take that again.
struct Apart(Mutex<LinkRate>);

/// What requests have shown.
struct LinkRate {
    /// Bytes that come in [`WASTE`].
    meanwhile: u64,
    trip: RoundTrip,
}

impl Default for Apart {
    fn default() -> Self {
        Self(Mutex::new(LinkRate { meanwhile: GAP, trip: RoundTrip::default() }))
    }
}

impl Apart {
    fn get(&self) -> u64 {
        self.0.lock().meanwhile
    }

    /// A request of so many bytes took so long.
    fn note(&self, bytes: u64, took: Duration) {
        let mut pace = self.0.lock();
        if let Some(own) = pace.trip.own(bytes, took)
            && bytes >= TELLING
        {
            let own = own.as_secs_f64().max(1e-6);
            let meanwhile = bytes as f64 * WASTE.as_secs_f64() / own;
            let mean = (3 * pace.meanwhile + (meanwhile as u64).min(GAP)) / 4;
            pace.meanwhile = mean.max(NEAR);
        }
    }
}

impl Gathered {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, batches: Arc::default(), apart: Arc::default(), most_apart: GAP }
    }

    /// The same, which reads next to nothing that nobody asked for, however quick the backend may turn out to be.
    #[must_use]
    pub(crate) fn sparing(self) -> Self {
        Self { most_apart: NEAR, ..self }
    }

    /// Adds ranges to the batch of an object. Whoever waits for the batch drives it; it is planned
    /// once for all of them.
    fn join(&self, path: &Path, wanted: &[Range<u64>]) -> Shared<BoxFuture<'static, RequestPlan>> {
        let mut batches = self.batches.lock();
        if let Some(batch) = batches.get(path) {
            batch.ranges.lock().extend_from_slice(wanted);
            return batch.plan.clone();
        }
        let ranges = Arc::new(Mutex::new(wanted.to_vec()));
        let (this, mine, place) = (self.clone(), Arc::clone(&ranges), path.clone());
        let plan = async move {
            tokio::time::sleep(WINDOW).await;
            this.batches.lock().remove(&place);
            let apart = this.apart.get().min(this.most_apart);
            let ranges = joined(std::mem::take(&mut *mine.lock()), apart);
            let request = |range: Range<u64>| (range.clone(), this.request(&place, range));
            Arc::new(ranges.into_iter().map(request).collect())
        };
        let plan: Shared<BoxFuture<'static, RequestPlan>> = plan.boxed().shared();
        batches.insert(path.clone(), PendingReads { ranges, plan: plan.clone() });
        plan
    }

    /// One request, made when somebody waits for it.
    fn request(&self, path: &Path, range: Range<u64>) -> SharedRead {
        let (inner, apart) = (Arc::clone(&self.inner), Arc::clone(&self.apart));
        let path = path.clone();
        let request = async move {
            let (one, began) = (std::slice::from_ref(&range), Instant::now());
            let mut parts = inner.get_ranges(&path, one).await.map_err(Arc::new)?;
            apart.note(range.end.saturating_sub(range.start), began.elapsed());
            Ok(parts.pop().unwrap_or_default())
        };
        request.boxed().shared()
    }
}

/// Ranges in order, joined where they are no further `apart`.
fn joined(mut ranges: Vec<Range<u64>>, apart: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.end <= last.end => {}
            Some(last)
                if range.start.saturating_sub(last.end) <= apart
                    && range.end - last.start <= LONGEST =>
            {
                last.end = range.end;
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The part of a batch that was asked for; short when the object ends in it.
async fn pick(plan: RequestPlan, range: Range<u64>) -> Result<Bytes> {
    let holds = |whole: &Range<u64>| whole.start <= range.start && range.end <= whole.end;
    let Some((whole, request)) = plan.iter().find(|(whole, _)| holds(whole)) else {
        let source = "a batch of reads lost one".into();
        return Err(Error::Generic { store: "gathered", source });
    };
    let bytes = request.clone().await.map_err(|error| again(&error))?;
    let at = |end: u64| ((end - whole.start) as usize).min(bytes.len());
    Ok(bytes.slice(at(range.start)..at(range.end)))
}

/// An error that several callers get.
pub(crate) fn again(error: &Arc<Error>) -> Error {
    let source = Box::new(Common(Arc::clone(error)));
    match &**error {
        Error::NotFound { path, .. } => Error::NotFound { path: path.clone(), source },
        Error::PermissionDenied { path, .. } => {
            Error::PermissionDenied { path: path.clone(), source }
        }
        Error::Unauthenticated { path, .. } => {
            Error::Unauthenticated { path: path.clone(), source }
        }
        Error::NotSupported { .. } => Error::NotSupported { source },
        _ => Error::Generic { store: "network", source },
    }
}

/// One error for many.
#[derive(Debug)]
struct Common(Arc<Error>);

impl fmt::Display for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Common {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl fmt::Display for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl fmt::Debug for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gathered({:?})", self.inner)
    }
}

object_layer!(Gathered);

#[async_trait]
impl super::layer::ObjectLayer for Gathered {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let plan = self.join(location, ranges).await;
        let part = |range: &Range<u64>| pick(Arc::clone(&plan), range.clone());
        let parts: Vec<_> = ranges.iter().map(part).collect();
        stream::iter(parts).buffered(CONCURRENCY).try_collect().await
    }
}

/// All that were asked for at once come together.
impl RangeBatches for Gathered {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        let parts = ObjectStore::get_ranges(self, location, ranges);
        let each = |parts: Vec<Bytes>| stream::iter(parts.into_iter().map(Ok));
        stream::once(parts).map_ok(each).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)] // one range is asked for at a time

    use super::*;
    use crate::Patience;
    use crate::patient::Patient;
    use crate::testing::{FaultRates, Unreliable};
    use block::conformance::Sequence;
    use futures::future::join_all;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    async fn rig(len: usize) -> (Vec<u8>, Unreliable, Gathered) {
        let bytes = Sequence::new(1).bytes(len);
        let memory = InMemory::new();
        memory.put(&Path::from("a"), bytes.clone().into()).await.unwrap();
        let counted = Unreliable::new(Arc::new(memory), 1, FaultRates::default());
        let patient = Patient::new(Arc::new(counted.clone()), Patience::COMMAND);
        (bytes, counted, Gathered::new(Arc::new(patient)))
    }

    #[tokio::test(start_paused = true)]
    async fn reads_side_by_side_are_one_request_and_far_ones_are_not() {
        let (bytes, counted, gathered) = rig(8 << 20).await;
        let path = Path::from("a");
        let read = |start: u64| {
            let (gathered, path) = (gathered.clone(), path.clone());
            async move { gathered.get_ranges(&path, &[start..start + 5000]).await.unwrap().remove(0) }
        };
        let parts = join_all((0..10).map(|number| read(number * 8000))).await;
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(part, &bytes[number * 8000..number * 8000 + 5000]);
        }
        assert_eq!(counted.calls(), 1);
        join_all([read(0), read(1 << 20), read(7 << 20)]).await;
        assert_eq!(counted.calls(), 4);
    }

    #[test]
    fn what_is_thrown_away_is_little_where_bytes_come_slowly() {
        let settled = |rate: f64, trip: f64| {
            let apart = Apart::default();
            for bytes in [1 << 20, 4096, 1 << 19, 65536].repeat(20) {
                apart.note(bytes, Duration::from_secs_f64(trip + bytes as f64 / rate));
            }
            apart.get()
        };
        assert_eq!(settled(80e6, 0.006), GAP, "a disk");
        assert_eq!(settled(1e9, 0.05), GAP, "far away");
        assert!(settled(1.25e6, 0.02) < 32 << 10, "10 Mb/s");
        assert_eq!(settled(1e3, 0.02), NEAR);
        let at_once = Apart::default();
        at_once.note(1 << 20, Duration::ZERO);
        assert_eq!(at_once.get(), GAP);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_what_others_of_the_batch_asked_for() {
        let (bytes, counted, gathered) = rig(8 << 20).await;
        let path = Path::from("a");
        let slow =
            FaultRates { delayed: 1000, delay: Duration::from_secs(1), ..FaultRates::default() };
        counted.set(slow);
        let far: Vec<_> = (0..12u64).map(|n| n << 19..(n << 19) + 5000).collect();
        let began = Instant::now();
        let read = async |range: Range<u64>| {
            let parts = gathered.get_ranges(&path, std::slice::from_ref(&range)).await.unwrap();
            assert_eq!(parts[0], bytes[range.start as usize..range.end as usize]);
            began.elapsed()
        };
        let mut took = join_all(far.iter().cloned().map(read)).await;
        took.sort_unstable();
        took.dedup();
        assert!(took.len() > 6, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sparing_reader_reads_little_that_nobody_asked_for() {
        let (bytes, counted, gathered) = rig(1 << 20).await;
        let gathered = gathered.sparing();
        let path = Path::from("a");
        let asked = [0..100, 10_000..10_100, 200_000..200_100];
        let before = counted.calls();
        let parts = gathered.get_ranges(&path, &asked).await.unwrap();
        assert_eq!(counted.calls() - before, 2, "the first two lie near each other");
        for (part, range) in parts.iter().zip(asked) {
            assert_eq!(part[..], bytes[range.start as usize..range.end as usize]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_goes_away_takes_nobody_with_it() {
        let (bytes, _, gathered) = rig(1 << 20).await;
        let path = Path::from("a");
        tokio::select! {
            biased;
            _ = gathered.get_ranges(&path, &[0..100]) => panic!("it waits for others"),
            () = std::future::ready(()) => {}
        }
        let found = gathered.get_ranges(&path, &[100..200]).await;
        assert_eq!(found.unwrap()[0], bytes[100..200]);
        assert!(gathered.batches.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_keeps_its_kind_for_everybody() {
        let (_, _, gathered) = rig(10).await;
        let gone = Path::from("gone");
        let (a, b) =
            tokio::join!(gathered.get_ranges(&gone, &[0..1]), gathered.get_ranges(&gone, &[1..2]));
        for result in [a, b] {
            assert!(matches!(result, Err(Error::NotFound { .. })));
        }
    }

    proptest! {
        #[test]
        fn joined_ranges_hold_all_that_was_asked_for(
            asked in prop::collection::vec((0u64..10_000_000, 1u64..300_000), 1..30),
            apart in NEAR..=GAP,
        ) {
            let asked: Vec<_> = asked.into_iter().map(|(start, len)| start..start + len).collect();
            let joined = joined(asked.clone(), apart);
            for range in &asked {
                prop_assert!(joined.iter().any(|j| j.start <= range.start && range.end <= j.end));
            }
            for pair in joined.windows(2) {
                prop_assert!(pair[0].start <= pair[1].start);
            }
            prop_assert!(joined.iter().all(|j| j.end - j.start <= LONGEST));
        }
    }
}
