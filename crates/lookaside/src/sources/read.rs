//! A chunk from the first who gives it: of those that are expected to, one after the other, and of whoever has
//! it while the store gives no answer.

use super::asking::{AskReason, Turns};
use super::{GIVE_UP, Instant, ReadOrder, ReadOrigin, Sources, Urgency};
use block::{Error, Result};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::ChunkRef;

/// So long the store is waited for before whoever has the chunk is asked again, and at the longest between two
/// times.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

type ChunkAttempt<'a> = Pin<Box<dyn Future<Output = (ReadOrigin, Result<Bytes>)> + Send + 'a>>;

impl Sources {
    /// The chunk's plain bytes, verified. `store` reads it from the store; it is not called where a source
    /// answers before. While it gives no answer, every source that claims the chunk is asked again now and then.
    ///
    /// # Errors
    /// Any error from `store`, when nobody else gives the chunk, nor within 10 s after the store failed.
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
        let (mut store, mut failure) = (Some(store), None);
        let mut next = self.plan(at, order).into_iter().peekable();
        let mut attempts = ChunkAttempts::new(self, at, urgency);
        let mut hedge_at = Instant::now();
        // When whoever has it is asked again, and the pause after that.
        let (mut again_at, mut pause) = (None, FIRST_PAUSE);
        loop {
            // The next one, when nobody is asked or whoever is takes too long.
            let due = attempts.running.is_empty() || hedge_at <= Instant::now();
            if due && let Some((asked, _)) = next.next() {
                let began = match &asked {
                    ReadOrigin::Store => store.take().map(|store| {
                        again_at = Some(Instant::now() + pause);
                        let read = self.ask_store(at, store());
                        attempts.push(asked.clone(), AskReason::ItsTurn, async move {
                            (ReadOrigin::Store, read.await)
                        });
                    }),
                    // All were asked when the store failed.
                    ReadOrigin::Source(_) | ReadOrigin::Owner(_) if attempts.is_asking(&asked) => {
                        None
                    }
                    ReadOrigin::Source(_) | ReadOrigin::Owner(_) => attempts.ask(&asked).await,
                };
                if began.is_some() {
                    let other = match next.peek() {
                        Some((ReadOrigin::Store, _)) => self.hedge_of(at.stored.into()),
                        Some((ReadOrigin::Source(next) | ReadOrigin::Owner(next), expected)) => {
                            next.hedge_of(*expected)
                        }
                        None => Duration::ZERO,
                    };
                    hedge_at = Instant::now() + self.patience(&asked, at, urgency, other);
                }
                continue;
            }
            let more = next.peek().is_some();
            let again = again_at.filter(|_| !more && failure.is_none());
            let done = tokio::select! {
                biased;
                done = attempts.running.next() => done,
                () = tokio::time::sleep_until(hedge_at), if more => continue,
                () = tokio::time::sleep_until(hedge_at + GIVE_UP), if !more && failure.is_some() => {
                    self.outrun(at, &attempts.began);
                    break;
                }
                () = tokio::time::sleep_until(again.unwrap_or(hedge_at)), if again.is_some() => {
                    attempts.ask_all();
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    again_at = Some(Instant::now() + pause);
                    continue;
                }
            };
            match done {
                Some((asked, Ok(plain))) => {
                    attempts.ended(&asked);
                    self.outrun(at, &attempts.began);
                    return Ok(plain);
                }
                Some((asked, Err(error))) => {
                    attempts.ended(&asked);
                    hedge_at = Instant::now();
                    if matches!(asked, ReadOrigin::Store) {
                        failure = Some(error);
                        // Those that rest, or had no turn.
                        attempts.ask_all();
                    }
                }
                // Nobody is asked any more.
                None if !more => break,
                None => {}
            }
        }
        Err(failure.unwrap_or_else(|| Error::internal("a read ended without asking the store")))
    }
}

/// Requests for one chunk that are under way.
struct ChunkAttempts<'a> {
    sources: &'a Sources,
    at: &'a ChunkRef,
    urgency: Urgency,
    running: FuturesUnordered<ChunkAttempt<'a>>,
    began: Vec<(ReadOrigin, Instant, AskReason)>,
}

impl<'a> ChunkAttempts<'a> {
    fn new(sources: &'a Sources, at: &'a ChunkRef, urgency: Urgency) -> Self {
        Self { sources, at, urgency, running: FuturesUnordered::new(), began: Vec::new() }
    }

    fn push(
        &mut self,
        asked: ReadOrigin,
        reason: AskReason,
        attempt: impl Future<Output = (ReadOrigin, Result<Bytes>)> + Send + 'a,
    ) {
        self.running.push(Box::pin(attempt));
        self.began.push((asked, Instant::now(), reason));
    }

    fn is_asking(&self, asked: &ReadOrigin) -> bool {
        self.began.iter().any(|(other, ..)| other.is(asked))
    }

    fn ended(&mut self, asked: &ReadOrigin) {
        self.began.retain(|(other, ..)| !other.is(asked));
    }

    /// Asks a source; `None` when it has no turn.
    async fn ask(&mut self, asked: &ReadOrigin) -> Option<()> {
        let (tracked, alone) = (asked.tracked()?, self.running.is_empty());
        let turns = self.sources.turns(tracked, self.at, self.urgency, alone).await?;
        self.begin(asked.clone(), turns, AskReason::ItsTurn);
        Some(())
    }

    /// Asks all who claim the chunk, and are not asked now, whatever was the matter with them; those without a
    /// free turn are passed over.
    fn ask_all(&mut self) {
        for tracked in self.sources.sources.load().iter() {
            let asked = ReadOrigin::Source(Arc::clone(tracked));
            if !self.is_asking(&asked)
                && tracked.source.claims(&self.at.id)
                && let Some(turns) = tracked.turns_now(self.urgency)
            {
                self.begin(ReadOrigin::Source(Arc::clone(tracked)), turns, AskReason::StoreSilent);
            }
        }
    }

    fn begin(&mut self, asked: ReadOrigin, turns: Turns, reason: AskReason) {
        let (sources, at, urgency) = (self.sources, self.at, self.urgency);
        self.push(asked.clone(), reason, async move {
            let answer = match &asked {
                ReadOrigin::Owner(tracked) => sources.ask_owner(tracked, at, turns, urgency).await,
                ReadOrigin::Source(tracked) => sources.ask(tracked, at, turns, reason).await,
                ReadOrigin::Store => Err(Error::internal("the store is asked by whoever reads")),
            };
            (asked, answer.map(|(_, plain)| plain))
        });
    }
}
