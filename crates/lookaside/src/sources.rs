//! Whom to ask for a chunk, in which order, and for how long.
//!
//! Of those that claim to have it, whoever is expected to be quickest is asked; the store itself is one of
//! them, and the last resort. When an answer takes longer than its source's 95th percentile, the next one
//! is asked as well, and the first right answer wins. A wrong, failing or missing answer is a miss, is
//! counted, and lets the next one be asked at once. So no source can fail a read that another can answer.

use crate::health::SourceHealth;
use crate::pace::LearnedPace;
use crate::tally::{SourceReport, SourceState, SourceTally};
use crate::{ChunkSource, CostEstimate, SourceKind};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkRef, Settings};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Requests that a source is given at a time …
const TURNS: usize = 8;
/// … and how many of them may be for what nobody waits for.
const BACKGROUND_TURNS: usize = 4;
/// So long a source may still take when the store has failed.
const GIVE_UP: Duration = Duration::from_secs(10);
/// What reports take as the size of a request, in bytes.
const TYPICAL: u64 = 64 << 10;

/// Whether somebody waits for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A guest does.
    Demand,
    /// It is read ahead.
    Background,
}

/// Who is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOrder {
    /// Whoever is expected to be quickest.
    Cheapest,
    /// The store: it has a turn there already.
    StoreFirst,
}

/// Some sources, and the store behind them.
#[derive(Debug)]
pub struct Sources {
    settings: Settings,
    sources: Vec<Tracked>,
    store_name: String,
    store: Mutex<LearnedPace>,
    store_tally: SourceTally,
    /// What times are counted from.
    began: Instant,
}

/// A source and what is known of it.
#[derive(Debug)]
struct Tracked {
    source: Arc<dyn ChunkSource>,
    learned: Mutex<(LearnedPace, SourceHealth)>,
    tally: SourceTally,
    turns: Semaphore,
    background: Semaphore,
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Source(usize),
    Store,
}

/// Turns of a source, while it is asked.
type Turns<'a> = (Option<SemaphorePermit<'a>>, SemaphorePermit<'a>);
type Attempt<'a> = Pin<Box<dyn Future<Output = (Asked, Result<Bytes>)> + Send + 'a>>;

impl Sources {
    /// Sources of chunks of a store with these settings, which people call `store_name`; `store` is what
    /// a request to the store is expected to take before any was measured.
    pub fn new(
        settings: Settings,
        store_name: impl Into<String>,
        store: CostEstimate,
        sources: Vec<Arc<dyn ChunkSource>>,
    ) -> Self {
        let track = |source: Arc<dyn ChunkSource>| Tracked {
            learned: Mutex::new((LearnedPace::new(source.estimate()), SourceHealth::default())),
            source,
            tally: SourceTally::default(),
            turns: Semaphore::new(TURNS),
            background: Semaphore::new(BACKGROUND_TURNS),
        };
        Self {
            settings,
            sources: sources.into_iter().map(track).collect(),
            store_name: store_name.into(),
            store: Mutex::new(LearnedPace::new(store)),
            store_tally: SourceTally::default(),
            began: Instant::now(),
        }
    }

    /// Whether there is any source beside the store.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether a source that is expected to be quicker than the store claims to have the chunk.
    pub fn prefers(&self, at: &ChunkRef) -> bool {
        let now = self.now();
        let store = self.store.lock().expected(at.stored.into(), now);
        self.sources.iter().any(|tracked| tracked.would_take(at, now).is_some_and(|t| t < store))
    }

    /// The chunk's plain bytes, verified. `store` reads it from the store; it is not called where a source
    /// answers before.
    ///
    /// # Errors
    /// Those of `store`, when nobody else gives the chunk, nor within 10 s after the store failed.
    pub async fn read<F>(
        &self,
        at: &ChunkRef,
        order: ReadOrder,
        urgency: Urgency,
        store: impl FnOnce() -> F + Send,
    ) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>> + Send,
    {
        let plan = self.plan(at, order);
        if plan.len() == 1 {
            return self.ask_store(at, store()).await;
        }
        let mut store = Some(store);
        let mut next = plan.iter().copied().peekable();
        let mut running: FuturesUnordered<Attempt<'_>> = FuturesUnordered::new();
        let mut began: Vec<(Asked, Instant)> = Vec::new();
        let mut hedge_at = Instant::now();
        let mut failure = None;
        loop {
            // The next one, when nobody is asked or whoever is takes too long.
            let due = running.is_empty() || hedge_at <= Instant::now();
            if due && let Some((asked, _)) = next.next() {
                let attempt: Option<Attempt<'_>> = match asked {
                    Asked::Store => store.take().map(|store| {
                        let read = self.ask_store(at, store());
                        Box::pin(async move { (Asked::Store, read.await) }) as Attempt<'_>
                    }),
                    Asked::Source(index) => {
                        let alone = running.is_empty();
                        self.turns(index, at, urgency, alone)
                            .await
                            .map(|turns| Box::pin(self.ask(index, at, turns)) as Attempt<'_>)
                    }
                };
                let Some(attempt) = attempt else { continue };
                running.push(attempt);
                let now = Instant::now();
                began.push((asked, now));
                let other = next.peek().map(|(_, expected)| *expected).unwrap_or_default();
                hedge_at = now + self.patience(asked, at, other);
                continue;
            }
            let more = next.peek().is_some();
            let done = tokio::select! {
                biased;
                done = running.next() => done,
                () = tokio::time::sleep_until(hedge_at), if more => continue,
                () = tokio::time::sleep_until(hedge_at + GIVE_UP), if !more && failure.is_some() => {
                    self.outrun(at, &began);
                    break;
                }
            };
            match done {
                Some((asked, Ok(plain))) => {
                    began.retain(|(other, _)| *other != asked);
                    self.outrun(at, &began);
                    return Ok(plain);
                }
                Some((asked, Err(error))) => {
                    began.retain(|(other, _)| *other != asked);
                    if asked == Asked::Store {
                        failure = Some(error);
                    }
                    hedge_at = Instant::now();
                }
                // Nobody is asked any more.
                None if !more => break,
                None => {}
            }
        }
        Err(failure.unwrap_or_else(|| Error::internal("a read ended without asking the store")))
    }

    /// Whom to ask, in order, and what each is expected to take; always with the store.
    fn plan(&self, at: &ChunkRef, order: ReadOrder) -> Vec<(Asked, Duration)> {
        let now = self.now();
        let store = self.store.lock().expected(at.stored.into(), now);
        let mut plan: Vec<_> = (self.sources.iter().enumerate())
            .filter_map(|(i, tracked)| Some((Asked::Source(i), tracked.would_take(at, now)?)))
            .collect();
        plan.sort_by_key(|(_, expected)| *expected);
        let place = match order {
            ReadOrder::StoreFirst => 0,
            ReadOrder::Cheapest => plan.partition_point(|(_, expected)| *expected < store),
        };
        plan.insert(place, (Asked::Store, store));
        plan
    }

    /// Turns of a source. `alone`: nobody else is asked meanwhile, so they are waited for, but by a guest
    /// no longer than for the answer.
    async fn turns(
        &self,
        index: usize,
        at: &ChunkRef,
        urgency: Urgency,
        alone: bool,
    ) -> Option<Turns<'_>> {
        let tracked = &self.sources[index];
        let turns = match (urgency, alone) {
            (Urgency::Background, true) => {
                let background = tracked.background.acquire().await.ok()?;
                (Some(background), tracked.turns.acquire().await.ok()?)
            }
            (Urgency::Background, false) => {
                (Some(tracked.background.try_acquire().ok()?), tracked.turns.try_acquire().ok()?)
            }
            (Urgency::Demand, true) => {
                let patience = self.patience(Asked::Source(index), at, Duration::ZERO);
                let turn = tokio::time::timeout(patience, tracked.turns.acquire()).await;
                (None, turn.ok()?.ok()?)
            }
            (Urgency::Demand, false) => (None, tracked.turns.try_acquire().ok()?),
        };
        // It may have been found out meanwhile.
        let is_asked = tracked.learned.lock().1.rests(self.now()).is_none();
        is_asked.then_some(turns)
    }

    fn patience(&self, asked: Asked, at: &ChunkRef, other: Duration) -> Duration {
        let (bytes, now) = (u64::from(at.stored), self.now());
        match asked {
            Asked::Store => self.store.lock().patience(bytes, now, other),
            Asked::Source(index) => {
                self.sources[index].learned.lock().0.patience(bytes, now, other)
            }
        }
    }

    async fn ask_store(
        &self,
        at: &ChunkRef,
        read: impl Future<Output = Result<Bytes>> + Send,
    ) -> Result<Bytes> {
        let (tally, began) = (&self.store_tally, Instant::now());
        SourceTally::add(&tally.asked, 1);
        let outcome = read.await;
        match &outcome {
            Ok(plain) => {
                let bytes = u64::from(at.stored);
                self.store.lock().answered(bytes, began.elapsed(), self.now());
                SourceTally::add(&tally.had, 1);
                SourceTally::add(&tally.bytes, bytes);
                SourceTally::add(&tally.plain, plain.len() as u64);
            }
            Err(e) => match e.kind() {
                ErrorKind::NotFound => SourceTally::add(&tally.missed, 1),
                ErrorKind::Corrupt => SourceTally::add(&tally.wrong, 1),
                _ => SourceTally::add(&tally.failed, 1),
            },
        }
        outcome
    }

    /// Asks a source, and judges its answer.
    async fn ask(&self, index: usize, at: &ChunkRef, turns: Turns<'_>) -> (Asked, Result<Bytes>) {
        let tracked = &self.sources[index];
        let (tally, source) = (&tracked.tally, &tracked.source);
        SourceTally::add(&tally.asked, 1);
        let began = Instant::now();
        let answer = source.chunk(at).await;
        drop(turns);
        let moved = answer.as_ref().map_or(0, |answer| answer.len() as u64);
        let outcome = answer.and_then(|answer| answer.verify(&self.settings, at));
        match &outcome {
            Ok(plain) => {
                let mut learned = tracked.learned.lock();
                learned.0.answered(at.stored.into(), began.elapsed(), self.now());
                learned.1.answered();
                SourceTally::add(&tally.had, 1);
                SourceTally::add(&tally.bytes, moved);
                SourceTally::add(&tally.plain, plain.len() as u64);
            }
            // A tree whose files were changed is no liar.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                SourceTally::add(&tally.missed, 1);
                source.disown(&at.id);
            }
            Err(e) => {
                let counter = match e.kind() {
                    ErrorKind::Corrupt => {
                        source.disown(&at.id);
                        &tally.wrong
                    }
                    _ => &tally.failed,
                };
                SourceTally::add(counter, 1);
                self.strike(tracked, e.message());
            }
        }
        (Asked::Source(index), outcome)
    }

    /// Somebody else answered before these did.
    fn outrun(&self, at: &ChunkRef, others: &[(Asked, Instant)]) {
        for (asked, began) in others {
            // What it would have taken is longer still.
            let (bytes, took) = (u64::from(at.stored), began.elapsed());
            match asked {
                Asked::Store => {
                    self.store.lock().answered(bytes, took, self.now());
                    SourceTally::add(&self.store_tally.late, 1);
                }
                Asked::Source(index) => {
                    let tracked = &self.sources[*index];
                    tracked.learned.lock().0.answered(bytes, took, self.now());
                    SourceTally::add(&tracked.tally.late, 1);
                    self.strike(tracked, "no answer in time");
                }
            }
        }
    }

    fn strike(&self, tracked: &Tracked, why: &str) {
        let rest = tracked.learned.lock().1.struck(self.now());
        if let Some(rest) = rest {
            SourceTally::add(&tracked.tally.rests, 1);
            tracing::warn!(
                source = tracked.source.name(), kind = %tracked.source.kind(), reason = why,
                seconds = rest.as_secs(), "a source is not asked for a while"
            );
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What each source did, the store last.
    pub fn report(&self) -> Vec<SourceReport> {
        let now = self.now();
        let mut reports: Vec<_> = (self.sources.iter())
            .map(|tracked| {
                let learned = tracked.learned.lock();
                let (expected, rests) = (learned.0.expected(TYPICAL, now), learned.1.rests(now));
                let source = &tracked.source;
                let mut report = blank(source.name(), source.kind(), expected, rests);
                report.claims = Some(source.chunks());
                report.count(&tracked.tally);
                report
            })
            .collect();
        let expected = self.store.lock().expected(TYPICAL, now);
        let mut store = blank(&self.store_name, SourceKind::Store, expected, None);
        store.count(&self.store_tally);
        reports.push(store);
        reports
    }
}

impl Tracked {
    /// What it is expected to take for a chunk, if it claims to have it and is asked at all.
    fn would_take(&self, at: &ChunkRef, now: Duration) -> Option<Duration> {
        if !self.source.claims(&at.id) {
            return None;
        }
        let learned = self.learned.lock();
        let is_asked = learned.1.rests(now).is_none();
        is_asked.then(|| learned.0.expected(at.stored.into(), now))
    }
}

fn blank(
    name: &str,
    kind: SourceKind,
    expected: Duration,
    rests: Option<Duration>,
) -> SourceReport {
    SourceReport {
        name: name.to_owned(),
        kind,
        state: if rests.is_some() { SourceState::Resting } else { SourceState::Ready },
        resting_ms: rests.unwrap_or_default().as_millis() as u64,
        claims: None,
        expected_us: expected.as_micros() as u64,
        asked: 0,
        had: 0,
        missed: 0,
        wrong: 0,
        late: 0,
        failed: 0,
        rests: 0,
        bytes: 0,
        plain_bytes: 0,
    }
}

#[cfg(test)]
mod tests;
