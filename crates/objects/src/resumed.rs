//! Ranges over a link that breaks: what has come is kept, and the rest is asked for in another request.

use super::batch::RangeBatches;
use super::patient::{Attempts, Patient, failure};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, Result};
use std::io::ErrorKind;
use std::ops::Range;
use tokio::time::{Instant, timeout};

impl RangeBatches for Patient {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        match self.batches() {
            Some(batches) if ranges.len() > 1 => {
                let (parts, attempts, began) = (None, Attempts::begin(), Instant::now());
                let (patient, rest, came) = (self, ranges, 0);
                let resumed =
                    Resumed { patient, batches, location, rest, parts, began, came, attempts };
                stream::try_unfold(resumed, async |mut resumed| {
                    Ok(resumed.next().await?.map(|part| (part, resumed)))
                })
                .boxed()
            }
            // Each by `get_opts`, which knows how long its body has to be.
            _ => stream::iter(ranges).then(|range| self.one_range(location, range)).boxed(),
        }
    }
}

impl Patient {
    async fn one_range(&self, location: &Path, range: &Range<u64>) -> Result<Bytes> {
        let options = GetOptions { range: Some(range.clone().into()), ..Default::default() };
        ObjectStore::get_opts(self, location, options).await?.bytes().await
    }

    /// All parts of a batch.
    pub(super) async fn all_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        self.ranges(location, ranges).try_collect().await
    }
}

/// A batch, some of which has come.
struct Resumed<'a> {
    patient: &'a Patient,
    batches: &'a dyn RangeBatches,
    location: &'a Path,
    /// What has not come yet.
    rest: &'a [Range<u64>],
    /// The request that is under way.
    parts: Option<BoxStream<'a, Result<Bytes>>>,
    /// When that began, and what it has brought, in bytes.
    began: Instant,
    came: u64,
    /// Since something came last.
    attempts: Attempts,
}

impl Resumed<'_> {
    /// The next part; `None` behind the last one.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(((_, others), rest)) = self.rest.split_first().zip(Some(self.rest)) else {
            return Ok(None);
        };
        loop {
            // Over a thin link they take as long together as one after the other.
            let limit = self.patient.patience().read.saturating_mul(rest.len() as u32);
            if self.parts.is_none() {
                (self.began, self.came) = (Instant::now(), 0);
            }
            let parts = self.parts.get_or_insert_with(|| self.batches.ranges(self.location, rest));
            let failed = match timeout(limit, parts.next()).await {
                Ok(Some(Ok(part))) => {
                    (self.rest, self.attempts) = (others, Attempts::begin());
                    self.came += part.len() as u64;
                    if others.is_empty() {
                        self.patient.came(self.came, self.began);
                    }
                    return Ok(Some(part));
                }
                Ok(Some(Err(e))) => e,
                Ok(None) => {
                    let why = "an answer ended before its last part".to_owned();
                    failure(ErrorKind::UnexpectedEof, why)
                }
                Err(_) => {
                    failure(ErrorKind::TimedOut, format!("no answer in {} s", limit.as_secs()))
                }
            };
            // What a link took that broke says nothing of what it takes.
            self.parts = None;
            self.patient.after(&mut self.attempts, self.location.as_ref(), failed).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{ObjectLayer, object_layer};
    use crate::testing::{FaultRates, Unreliable};
    use crate::{OpenStoreOptions, Patience, PieceOptions, exact};
    use async_trait::async_trait;
    use block::conformance::Sequence;
    use object_store::memory::InMemory;
    use object_store::{Error, ObjectStoreExt};
    use std::fmt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    const RANGE: u64 = 64 << 10;

    /// A link that breaks whenever a request has brought so many bytes.
    #[derive(Debug, Clone)]
    struct Breaking {
        inner: Arc<InMemory>,
        after: u64,
        requests: Arc<AtomicU64>,
        bytes: Arc<AtomicU64>,
    }

    impl fmt::Display for Breaking {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a link that breaks")
        }
    }

    object_layer!(Breaking);

    #[async_trait]
    impl ObjectLayer for Breaking {
        type Below = InMemory;

        fn below(&self) -> &InMemory {
            &self.inner
        }

        async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
            self.ranges(location, ranges).try_collect().await
        }
    }

    impl RangeBatches for Breaking {
        fn ranges<'a>(
            &'a self,
            location: &'a Path,
            ranges: &'a [Range<u64>],
        ) -> BoxStream<'a, Result<Bytes>> {
            self.requests.fetch_add(1, Relaxed);
            let parts = stream::iter(ranges).scan(0, move |sent, range| {
                *sent += range.end - range.start;
                let whole = *sent <= self.after;
                std::future::ready(Some((whole, range)))
            });
            let part = async |(whole, range): (bool, &Range<u64>)| match whole {
                true => {
                    self.bytes.fetch_add(range.end - range.start, Relaxed);
                    self.inner.get_range(location, range.clone()).await
                }
                false => Err(failure(ErrorKind::ConnectionReset, "the link broke".to_owned())),
            };
            parts.then(part).boxed()
        }
    }

    async fn breaking(after: u64) -> (Breaking, Path, Vec<Range<u64>>, Vec<u8>) {
        let (path, bytes) = (Path::from("packs/a"), Sequence::new(5).bytes(8 << 20));
        let inner = Arc::new(InMemory::new());
        inner.put(&path, bytes.clone().into()).await.unwrap();
        let ranges = (0..bytes.len() as u64).step_by(RANGE as usize).map(|at| at..at + RANGE);
        let (requests, read) = (Arc::default(), Arc::default());
        let link = Breaking { inner, after, requests, bytes: read };
        (link, path, ranges.collect(), bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn over_a_link_that_breaks_every_mebibyte_a_batch_comes_and_nothing_of_it_twice() {
        let (link, path, ranges, bytes) = breaking(1 << 20).await;
        let patient = Patient::batching(Arc::new(link.clone()), Patience::COMMAND);
        let parts = patient.all_ranges(&path, &ranges).await.unwrap();
        assert_eq!(parts.concat(), bytes);
        assert_eq!(link.bytes.load(Relaxed), bytes.len() as u64);
        assert_eq!(link.requests.load(Relaxed), 8);
        // One that holds takes one request.
        let (link, path, ranges, _) = breaking(u64::MAX).await;
        let patient = Patient::batching(Arc::new(link.clone()), Patience::COMMAND);
        patient.all_ranges(&path, &ranges).await.unwrap();
        assert_eq!(link.requests.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_before_the_link_went_away_for_good_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (link, path, mut ranges, bytes) = breaking(1 << 20).await;
        // Longer than what the link brings between two breaks.
        ranges[40] = 40 * RANGE..40 * RANGE + (2 << 20);
        let pieces = Some(PieceOptions { dir: dir.path().to_owned(), limit: 1 << 30 });
        let options = OpenStoreOptions { pieces, ..OpenStoreOptions::default() };
        let opened = exact(Arc::new(link.clone()), "gateway+https://test", &options);
        let error = opened.backend.get_ranges(&path, &ranges).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{error}");
        let kept = ranges.iter().filter(|range| opened.link.has_range(&path, range)).count();
        assert_eq!(kept, 40);
        let before = link.requests.load(Relaxed);
        let found = opened.backend.get_ranges(&path, &ranges[..40]).await.unwrap();
        assert_eq!(found.concat(), bytes[..40 * RANGE as usize]);
        assert_eq!(link.requests.load(Relaxed), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_of_an_object_that_is_gone_fails_at_once_and_one_of_a_store_that_is_away_later()
    {
        let store = Unreliable::new(Arc::new(InMemory::new()), 1, FaultRates::default());
        let patient = Patient::batching(Arc::new(store.clone()), Patience::COMMAND);
        let (gone, began) = (Path::from("gone"), tokio::time::Instant::now());
        let error = patient.all_ranges(&gone, &[0..1, 5..6]).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        assert_eq!(began.elapsed(), Duration::ZERO);
        store.set_down(true);
        patient.all_ranges(&gone, &[0..1, 5..6]).await.unwrap_err();
        assert!((20..=30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        assert_eq!(patient.tally().snapshot().given_up, 1);
    }
}
