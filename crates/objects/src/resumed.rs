//! Ranges over a link that breaks: what has come is kept, and the rest is asked for in another request.

use super::backend_reads::BackendRead;
use super::batch::RangeBatches;
use super::patient::{Attempts, Patient, failure};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, Result};
use std::io::ErrorKind;
use std::ops::Range;
use tokio::time::Instant;

impl RangeBatches for Patient {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        match self.batches() {
            Some(batches) if ranges.len() > 1 => {
                let resumed = Resumed {
                    patient: self,
                    batches,
                    location,
                    rest: ranges,
                    parts: None,
                    read: None,
                    began: Instant::now(),
                    came: 0,
                    attempts: Attempts::begin(),
                };
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
    read: Option<BackendRead<'a>>,
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
                self.read = None; // the one that broke off
                self.read = Some(self.patient.ask());
            }
            let parts = self.parts.get_or_insert_with(|| self.batches.ranges(self.location, rest));
            let failed = match self.patient.within(limit, parts.next()).await {
                Ok(Some(Ok(part))) => {
                    (self.rest, self.attempts) = (others, Attempts::begin());
                    self.patient.moves();
                    self.came += part.len() as u64;
                    if others.is_empty() {
                        self.patient.came(self.came, self.began);
                        if let Some(read) = self.read.take() {
                            read.succeeded();
                        }
                    }
                    return Ok(Some(part));
                }
                Ok(Some(Err(e))) => e,
                Ok(None) => {
                    let why = "an answer ended before its last part".to_owned();
                    failure(ErrorKind::UnexpectedEof, why)
                }
                Err(late) => late,
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
    use crate::testing::{FaultRates, ScriptedStore, StoreCall, StoreFault, Unreliable};
    use crate::{OpenStoreOptions, Patience, PieceOptions, exact};
    use block::conformance::Sequence;
    use object_store::memory::InMemory;
    use object_store::{Error, ObjectStoreExt};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    const RANGE: u64 = 64 << 10;

    /// An object and its ranges, behind a link that breaks whenever a request has brought so many bytes.
    struct Broken {
        link: ScriptedStore,
        /// What it has brought, in bytes.
        came: Arc<AtomicU64>,
        path: Path,
        ranges: Vec<Range<u64>>,
        bytes: Vec<u8>,
    }

    impl Broken {
        async fn after(most: u64) -> Self {
            let (path, bytes) = (Path::from("packs/a"), Sequence::new(5).bytes(8 << 20));
            let inner = Arc::new(InMemory::new());
            inner.put(&path, bytes.clone().into()).await.unwrap();
            let ranges = (0..bytes.len() as u64).step_by(RANGE as usize).map(|at| at..at + RANGE);
            let (came, sent) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
            let all = Arc::clone(&came);
            let plan = move |call: &StoreCall| {
                match call {
                    StoreCall::Ranges(..) => sent.store(0, Relaxed),
                    StoreCall::Part(_, range) => {
                        let len = range.end - range.start;
                        if sent.fetch_add(len, Relaxed) + len > most {
                            return StoreFault::Fail(ErrorKind::ConnectionReset);
                        }
                        all.fetch_add(len, Relaxed);
                    }
                    _ => {}
                }
                StoreFault::None
            };
            let (link, ranges) = (ScriptedStore::new(inner, plan), ranges.collect());
            Self { link, came, path, ranges, bytes }
        }

        fn requests(&self) -> usize {
            self.link.calls.log().count(|call| matches!(call, StoreCall::Ranges(..)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn over_a_link_that_breaks_every_mebibyte_a_batch_comes_and_nothing_of_it_twice() {
        let broken = Broken::after(1 << 20).await;
        let patient = Patient::batching(Arc::new(broken.link.clone()), Patience::COMMAND);
        let parts = patient.all_ranges(&broken.path, &broken.ranges).await.unwrap();
        assert_eq!(parts.concat(), broken.bytes);
        assert_eq!(broken.came.load(Relaxed), broken.bytes.len() as u64);
        assert_eq!(broken.requests(), 8);
        // One that holds takes one request.
        let whole = Broken::after(u64::MAX).await;
        let patient = Patient::batching(Arc::new(whole.link.clone()), Patience::COMMAND);
        patient.all_ranges(&whole.path, &whole.ranges).await.unwrap();
        assert_eq!(whole.requests(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_before_the_link_went_away_for_good_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut broken = Broken::after(1 << 20).await;
        // Longer than what the link brings between two breaks.
        broken.ranges[40] = 40 * RANGE..40 * RANGE + (2 << 20);
        let (path, ranges) = (&broken.path, &broken.ranges);
        let pieces = Some(PieceOptions { dir: dir.path().to_owned(), limit: 1 << 30 });
        let options = OpenStoreOptions { pieces, ..OpenStoreOptions::default() };
        let opened = exact(Arc::new(broken.link.clone()), "gateway+https://test", &options);
        let error = opened.backend.get_ranges(path, ranges).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{error}");
        let kept = ranges.iter().filter(|range| opened.link.has_range(path, range)).count();
        assert_eq!(kept, 40);
        let before = broken.requests();
        let found = opened.backend.get_ranges(path, &ranges[..40]).await.unwrap();
        assert_eq!(found.concat(), broken.bytes[..40 * RANGE as usize]);
        assert_eq!(broken.requests(), before);
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
