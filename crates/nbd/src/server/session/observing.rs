//! What a session's observer is told: the requests of a batch in one call, with the times that were
//! taken for the histograms anyway.

use super::checked::CheckedRequest;
use block::{Answered, Observer};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Requests of one connection that were answered, on their way to the observer.
#[derive(Debug)]
pub(super) struct Observing {
    observer: Option<Arc<dyn Observer>>,
    batch: Vec<Answered>,
}

impl Observing {
    pub(super) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self { observer, batch: Vec::new() }
    }

    /// A request was answered on the spot.
    #[inline]
    pub(super) fn note(&mut self, work: CheckedRequest, failed: bool) {
        if self.observer.is_some()
            && let Some(answered) = work.answered(failed)
        {
            self.batch.push(answered);
        }
    }

    /// The batch that began at `began` was answered after `took`, when that was measured.
    #[inline]
    pub(super) fn answered(&mut self, began: Instant, took: Option<Duration>) {
        if !self.batch.is_empty()
            && let Some(observer) = &self.observer
        {
            // It is not measured when all of them failed.
            observer.answered(began, took.unwrap_or_else(|| began.elapsed()), &self.batch);
            self.batch.clear();
        }
    }

    /// A request that was put in flight at `since` was answered after `took`, when that was
    /// measured.
    pub(super) fn waited(
        &self,
        since: Instant,
        took: Option<Duration>,
        work: CheckedRequest,
        failed: bool,
    ) {
        if let Some(observer) = &self.observer
            && let Some(answered) = work.answered(failed)
        {
            observer.answered(since, took.unwrap_or_else(|| since.elapsed()), &[answered]);
        }
    }
}
