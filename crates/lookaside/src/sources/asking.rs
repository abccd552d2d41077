//! One request to a source or to the store, and what its answer says of it.

use super::{GIVE_UP, Instant, ReadOrigin, Sources, Tracked, UNSURE_HEDGE, Urgency};
use crate::ChunkBytes;
use crate::pace::DEAREST;
use crate::source_report::SourceTally;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use store::ChunkRef;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// An owner that reads for all has so many times as long as the store is expected to take before that is asked beside
/// it, as others wait for the store as well, and at least so long, where a guest waits; …
const OWNER_SHARE: u32 = 4;
const OWNER_LEAST: Duration = Duration::from_secs(1);
/// … and so long where nobody does: to read the same twice is dear.
const OWNER_BACKGROUND: Duration = Duration::from_secs(20);
/// The same for a peer that claims to have something.
const PEER_LEAST: Duration = Duration::from_millis(500);
const PEER_BACKGROUND: Duration = Duration::from_secs(5);

/// Turns of a source, while it is asked.
pub(super) type Turns = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// Why a source is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskReason {
    /// It is its turn: that it is away or takes too long speaks against it.
    ItsTurn,
    /// The store gives no answer: the source may help, and no more is expected of it.
    StoreSilent,
}

/// Bytes of a request that was answered.
pub(super) struct TransferredBytes {
    /// Bytes that were asked for: by these, times are learned.
    pub(super) asked: u64,
    /// Bytes that were moved.
    pub(super) bytes: u64,
    /// Decompressed.
    pub(super) plain: u64,
}

impl Sources {
    /// Turns of a source. `alone`: nobody else is asked meanwhile, so they are waited for, but by a guest
    /// no longer than for the answer.
    pub(super) async fn turns(
        &self,
        tracked: &Tracked,
        at: &ChunkRef,
        urgency: Urgency,
        alone: bool,
    ) -> Option<Turns> {
        if tracked.is_stuck() {
            return None;
        }
        let turn = || Arc::clone(&tracked.turns).acquire_owned();
        let turns = match (urgency, alone) {
            (_, false) => tracked.turns_now(urgency)?,
            (Urgency::Background, true) => {
                let background = Arc::clone(&tracked.background).acquire_owned().await.ok()?;
                // Reads that hang may have all of them.
                let turn = tokio::time::timeout(GIVE_UP, turn()).await;
                (Some(background), turn.ok()?.ok()?)
            }
            (Urgency::Demand, true) => {
                let (bytes, now) = (u64::from(at.stored), self.now());
                let patience = tracked.learned.lock().0.patience(bytes, now, Duration::ZERO);
                let turn = tokio::time::timeout(patience, turn()).await;
                (None, turn.ok()?.ok()?)
            }
        };
        // It may have been found out meanwhile.
        let is_asked = tracked.learned.lock().1.rests(self.now()).is_none();
        is_asked.then_some(turns)
    }

    /// After how long somebody else, who is expected to take `other`, is asked for a chunk as well as `asked`.
    pub(super) fn patience(
        &self,
        asked: &ReadOrigin,
        at: &ChunkRef,
        urgency: Urgency,
        other: Duration,
    ) -> Duration {
        let (bytes, now) = (u64::from(at.stored), self.now());
        match asked {
            ReadOrigin::Store => self.store.lock().patience(bytes, now, other),
            ReadOrigin::Source(tracked) => {
                let usual = tracked.learned.lock().0.patience(bytes, now, other);
                match urgency {
                    _ if !tracked.is_peer() => usual,
                    Urgency::Demand => usual.max(PEER_LEAST),
                    Urgency::Background => usual.max(PEER_BACKGROUND),
                }
            }
            ReadOrigin::Owner(_) => self.patience_with_owner(bytes, urgency),
        }
    }

    /// After how long the store is asked as well as the owner of something with so many bytes.
    pub(super) fn patience_with_owner(&self, bytes: u64, urgency: Urgency) -> Duration {
        match urgency {
            Urgency::Demand => (self.hedge_of(bytes) * OWNER_SHARE).clamp(OWNER_LEAST, DEAREST),
            Urgency::Background => OWNER_BACKGROUND,
        }
    }

    /// What it costs to ask the store for so many bytes beside a source.
    pub(super) fn hedge_of(&self, bytes: u64) -> Duration {
        self.store_expected(bytes, self.now(), UNSURE_HEDGE)
    }

    /// Has the store read a chunk, and counts what came of it.
    pub(super) async fn ask_store(
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
                if let Some(share) = self.share.get() {
                    share.kept.was_read(at);
                }
            }
            Err(e) => match e.kind() {
                ErrorKind::NotFound => SourceTally::add(&tally.missed, 1),
                ErrorKind::Corrupt => SourceTally::add(&tally.wrong, 1),
                _ => SourceTally::add(&tally.failed, 1),
            },
        }
        outcome
    }

    /// Asks a source for a chunk, and judges its answer: as it was given, and its plain bytes.
    pub(super) async fn ask(
        &self,
        tracked: &Tracked,
        at: &ChunkRef,
        turns: Turns,
        reason: AskReason,
    ) -> Result<(ChunkBytes, Bytes)> {
        SourceTally::add(&tracked.tally.asked, 1);
        let (source, began) = (Arc::clone(&tracked.source), Instant::now());
        let answer = if source.reads_to_the_end() {
            let (at, (_background, turn)) = (*at, turns);
            tracked.to_the_end(turn, async move { source.chunk(&at).await }).await
        } else {
            let answer = source.chunk(at).await;
            drop(turns);
            answer
        };
        let took = began.elapsed();
        self.take(tracked, at, answer, (took, reason))
    }

    /// Asks the owner of a chunk, who reads it for all, and judges its answer by its own time.
    pub(super) async fn ask_owner(
        &self,
        tracked: &Tracked,
        at: &ChunkRef,
        turns: Turns,
        urgency: Urgency,
    ) -> Result<(ChunkBytes, Bytes)> {
        SourceTally::add(&tracked.tally.asked, 1);
        let fetched = match tracked.source.sharer() {
            Some(sharer) => sharer.fetch(at, urgency == Urgency::Demand).await,
            None => Err(Error::not_found("it reads nothing for others")),
        };
        drop(turns);
        let took = fetched.as_ref().map_or(Duration::ZERO, |fetched| fetched.took);
        let answer = fetched.map(|fetched| fetched.bytes);
        self.take(tracked, at, answer, (took, AskReason::ItsTurn))
    }

    /// Verifies and judges what a source answered.
    fn take(
        &self,
        tracked: &Tracked,
        at: &ChunkRef,
        answer: Result<ChunkBytes>,
        judged_by: (Duration, AskReason),
    ) -> Result<(ChunkBytes, Bytes)> {
        let source = &tracked.source;
        let moved = answer.as_ref().map_or(0, |answer| answer.len() as u64);
        let outcome = answer.and_then(|answer| {
            let plain = answer.clone().verify(&self.settings, at)?;
            Ok((answer, plain))
        });
        let judged = outcome.as_ref().map(|(_, plain)| TransferredBytes {
            asked: at.stored.into(),
            bytes: moved,
            plain: plain.len() as u64,
        });
        self.judge(tracked, judged_by, judged, || source.disown(&at.id));
        if let Ok((given, _)) = &outcome {
            source.gave(at, given);
        }
        outcome
    }

    /// Counts what came of a request to a source; `disown` has it claim no more what it does not have.
    pub(super) fn judge(
        &self,
        tracked: &Tracked,
        (took, reason): (Duration, AskReason),
        outcome: Result<TransferredBytes, &Error>,
        disown: impl FnOnce(),
    ) {
        let tally = &tracked.tally;
        match outcome {
            Ok(moved) => {
                let mut learned = tracked.learned.lock();
                learned.0.answered(moved.asked, took, self.now());
                learned.1.answered();
                SourceTally::add(&tally.had, 1);
                SourceTally::add(&tally.bytes, moved.bytes);
                SourceTally::add(&tally.plain, moved.plain);
            }
            // A tree whose files were changed is no liar.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                SourceTally::add(&tally.missed, 1);
                disown();
            }
            Err(e) => {
                let counter = match e.kind() {
                    ErrorKind::Corrupt => {
                        disown();
                        &tally.wrong
                    }
                    _ => &tally.failed,
                };
                SourceTally::add(counter, 1);
                if reason == AskReason::ItsTurn || e.kind() == ErrorKind::Corrupt {
                    self.strike(tracked, e.message());
                }
            }
        }
    }

    /// Somebody else answered before these did.
    pub(super) fn outrun(&self, at: &ChunkRef, others: &[(ReadOrigin, Instant, AskReason)]) {
        let (bytes, now) = (u64::from(at.stored), self.now());
        for (asked, began, reason) in others {
            // What it would have taken is longer still, and no less than was expected.
            let took = began.elapsed();
            match asked {
                ReadOrigin::Store => {
                    self.store.lock().outrun(bytes, took, now);
                    SourceTally::add(&self.store_tally.late, 1);
                }
                ReadOrigin::Source(tracked) | ReadOrigin::Owner(tracked) => {
                    // An owner waited for the store, too.
                    if matches!(asked, ReadOrigin::Source(_)) {
                        tracked.learned.lock().0.outrun(bytes, took, now);
                    }
                    SourceTally::add(&tracked.tally.late, 1);
                    if *reason == AskReason::ItsTurn {
                        self.strike(tracked, "no answer in time");
                    }
                }
            }
        }
    }

    pub(super) fn strike(&self, tracked: &Tracked, why: &str) {
        let rest = tracked.learned.lock().1.struck(self.now());
        if let Some(rest) = rest {
            SourceTally::add(&tracked.tally.rests, 1);
            tracing::warn!(
                source = tracked.source.name(), kind = %tracked.source.kind(), reason = why,
                seconds = rest.as_secs(), "a source is not asked for a while"
            );
        }
    }
}

/// Somebody who waits for a read.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Tracked {
    /// The answer of a read that goes on when nobody waits for it any more, and has its turn so long: each has a
    /// thread, and there are to be no more of them than turns.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        turn: impl Send + 'static,
        read: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (answered, answer) = oneshot::channel();
        let _waiting = Waiting::begin(&self.waiting);
        {
            let mut reads = self.reads.lock();
            while reads.try_join_next().is_some() {}
            reads.spawn(async move {
                let read = read.await;
                drop(turn);
                let _ = answered.send(read);
            });
        }
        answer.await.unwrap_or_else(|_| Err(Error::internal("a read gave no answer")))
    }

    /// Whether all of its turns are had by reads that nobody waits for any more: there is no waiting for one.
    pub(super) fn is_stuck(&self) -> bool {
        self.source.reads_to_the_end()
            && self.turns.available_permits() == 0
            && self.waiting.load(Relaxed) == 0
    }

    /// What it costs to ask this one, too, when it is expected to take so long: little where it shares no link,
    /// however long it takes. One that hung is expected to take as long as it was waited for; another one that
    /// hangs before it would be waited for as long again, and the store would be asked late.
    pub(super) fn hedge_of(&self, expected: Duration) -> Duration {
        if self.source.is_distant() { expected } else { expected.min(UNSURE_HEDGE) }
    }

    /// Turns that are free now.
    pub(super) fn turns_now(&self, urgency: Urgency) -> Option<Turns> {
        let background = match urgency {
            Urgency::Background => Some(Arc::clone(&self.background).try_acquire_owned().ok()?),
            Urgency::Demand => None,
        };
        Some((background, Arc::clone(&self.turns).try_acquire_owned().ok()?))
    }
}
