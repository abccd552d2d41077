//! Whom to ask for a chunk, in which order, and for how long.
//!
//! Of those that claim to have it, whoever is expected to be quickest is asked; the store itself is one of
//! them, and the last resort. When an answer takes longer than its source's 95th percentile, the next one
//! is asked as well, and the first right answer wins. A wrong, failing or missing answer is a miss, is
//! counted, and lets the next one be asked at once. So no source can fail a read that another can answer.
//! While the store gives no answer, whoever has the chunk is asked again: a medium may be there by then.
//!
//! Peers that share the way to the store read each chunk once for all of them ([`share`](crate::share)): before the
//! store its owner is asked, unless that is this machine. It may take as long as a read of the store takes, and is judged
//! by the time that it takes beside that. A peer is asked as long as it is quicker than the store would be if all of
//! them read from there.
//!
//! | module | concept |
//! |---|---|
//! | `read` | a chunk from the first who gives it |
//! | `maps` | the same for maps |
//! | `plan` | whom to ask, in order |
//! | `asking` | one request to a source or to the store, and what its answer says of it |

mod asking;
mod maps;
mod plan;
mod read;

use crate::health::SourceHealth;
use crate::pace::LearnedPace;
use crate::share::LinkShare;
use crate::source_report::{SourceReport, SourceState, SourceTally};
use crate::{ChunkBytes, ChunkSource, CostEstimate, SourceKind, StoreLink};
use arc_swap::ArcSwap;
use asking::AskReason;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{ChunkRef, Settings};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// So long a source may still take when the store has failed.
const GIVE_UP: Duration = Duration::from_secs(10);
/// What a store is taken for at most that nobody knows to be slower: a source that takes longer is not preferred, and
/// the store is found out about.
const UNSURE: Duration = Duration::from_millis(250);
/// The same when it is to be asked beside a source: it costs the link as much as it takes.
const UNSURE_HEDGE: Duration = Duration::from_secs(2);
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
    /// Replaced as a whole by one that has more.
    sources: ArcSwap<Vec<Arc<Tracked>>>,
    store_name: String,
    store: Mutex<LearnedPace>,
    /// What else is known of the way to the store.
    link: OnceLock<Arc<dyn StoreLink>>,
    /// When the way to the store is shared.
    share: OnceLock<LinkShare>,
    store_tally: SourceTally,
    /// What times are counted from.
    began: Instant,
}

/// A source and what is known of it.
#[derive(Debug)]
struct Tracked {
    source: Arc<dyn ChunkSource>,
    learned: Mutex<(LearnedPace, SourceHealth)>,
    tally: Arc<SourceTally>,
    turns: Arc<Semaphore>,
    /// Reads that go on to their end, whoever waits for them, each with its turn.
    reads: Mutex<JoinSet<()>>,
    /// How many of these somebody waits for.
    waiting: AtomicUsize,
    background: Arc<Semaphore>,
}

/// A source that is expected to give a chunk sooner than the store.
#[derive(Debug)]
pub struct NearbySource(Arc<Tracked>);

impl NearbySource {
    /// Whether what it gives comes over a network.
    pub fn is_distant(&self) -> bool {
        self.0.source.is_distant()
    }
}

/// Who is asked.
#[derive(Debug, Clone)]
enum ReadOrigin {
    Source(Arc<Tracked>),
    /// The same, to read from the store for all.
    Owner(Arc<Tracked>),
    Store,
}

impl ReadOrigin {
    fn is(&self, other: &Self) -> bool {
        match (self.tracked(), other.tracked()) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }

    fn tracked(&self) -> Option<&Arc<Tracked>> {
        match self {
            Self::Source(tracked) | Self::Owner(tracked) => Some(tracked),
            Self::Store => None,
        }
    }
}

impl Sources {
    /// Sources of chunks of a store with these settings, which people call `store_name`; `store` is what
    /// a request to the store is expected to take before any was measured.
    pub fn new(
        settings: Settings,
        store_name: impl Into<String>,
        store: CostEstimate,
        sources: Vec<Arc<dyn ChunkSource>>,
    ) -> Self {
        let sources: Vec<_> = sources.into_iter().map(Tracked::new).collect();
        Self {
            settings,
            sources: ArcSwap::from_pointee(sources),
            store_name: store_name.into(),
            store: Mutex::new(LearnedPace::new(store)),
            link: OnceLock::new(),
            share: OnceLock::new(),
            store_tally: SourceTally::default(),
            began: Instant::now(),
        }
    }

    /// Has the store judged by what is read of it otherwise, too: all that comes from sources says nothing of the
    /// way there. The first one counts.
    pub fn judge_store_by(&self, link: Arc<dyn StoreLink>) {
        let _ = self.link.set(link);
    }

    /// Shares the way to the store with those sources that are [sharers](crate::LinkSharer), from now on. The
    /// first one counts.
    pub fn share_link(&self, share: LinkShare) {
        let _ = self.share.set(share);
    }

    /// What the store is expected to take for so many bytes; at most `unsure`, as far as that is a guess.
    fn store_expected(&self, bytes: u64, now: Duration, unsure: Duration) -> Duration {
        let learned = self.store.lock().expected(bytes, now);
        match self.link.get().and_then(|link| link.expected(bytes)) {
            Some((time, true)) => learned.max(time),
            Some((time, false)) => learned.max(time.min(unsure)),
            None => learned,
        }
    }

    /// Whether there is any source beside the store.
    pub fn is_empty(&self) -> bool {
        self.sources.load().is_empty()
    }

    /// Asks a source, too, from now on: in place of one that has its name, whose counters go on.
    pub fn add(&self, source: Arc<dyn ChunkSource>) {
        let name = source.name().to_owned();
        let same = |tracked: &Tracked| tracked.source.name() == name;
        let before = self.sources.load().iter().find(|tracked| same(tracked)).cloned();
        let tally = before.map(|tracked| Arc::clone(&tracked.tally)).unwrap_or_default();
        let added = Tracked::with_tally(source, tally);
        self.sources.rcu(|sources| {
            let mut more: Vec<_> = sources.iter().filter(|old| !same(old)).cloned().collect();
            more.push(Arc::clone(&added));
            more
        });
    }

    /// Asks a source no more; what it gave is forgotten.
    pub fn remove(&self, name: &str) {
        self.sources.rcu(|sources| {
            let others = sources.iter().filter(|tracked| tracked.source.name() != name);
            others.cloned().collect::<Vec<_>>()
        });
    }

    /// Asks a source at once that rests: whoever knows says that it is well again.
    pub fn wake(&self, name: &str) {
        for tracked in self.sources.load().iter().filter(|tracked| tracked.source.name() == name) {
            tracked.learned.lock().1 = SourceHealth::default();
        }
    }

    /// The chunk as one of those has it, with its plain bytes, which are verified; `None` when it does not
    /// give it.
    pub async fn bring(&self, source: &NearbySource, at: &ChunkRef) -> Option<(ChunkBytes, Bytes)> {
        let tracked = &*source.0;
        let turns = self.turns(tracked, at, Urgency::Background, true).await?;
        let asked = self.ask(tracked, at, turns, AskReason::ItsTurn);
        match tokio::time::timeout(GIVE_UP, asked).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                SourceTally::add(&tracked.tally.late, 1);
                self.strike(tracked, "no answer in time");
                None
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What each source did, the store last.
    pub fn report(&self) -> Vec<SourceReport> {
        let now = self.now();
        let sources = self.sources.load();
        let mut reports: Vec<_> = (sources.iter())
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
        let expected = self.store_expected(TYPICAL, now, UNSURE);
        let mut store = blank(&self.store_name, SourceKind::Store, expected, None);
        store.count(&self.store_tally);
        reports.push(store);
        reports
    }
}

impl Tracked {
    fn new(source: Arc<dyn ChunkSource>) -> Arc<Self> {
        Self::with_tally(source, Arc::default())
    }

    fn with_tally(source: Arc<dyn ChunkSource>, tally: Arc<SourceTally>) -> Arc<Self> {
        Arc::new(Self {
            learned: Mutex::new((LearnedPace::new(source.estimate()), SourceHealth::default())),
            turns: Arc::new(Semaphore::new(source.turns().max(2))),
            background: Arc::new(Semaphore::new((source.turns() / 2).max(1))),
            reads: Mutex::default(),
            waiting: AtomicUsize::new(0),
            source,
            tally,
        })
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
