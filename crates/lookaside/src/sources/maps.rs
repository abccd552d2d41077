//! Maps out of sources: asked before the store by what is expected, and after it whatever is expected.
//!
//! A store that is behind a network is taken for as slow as it is at first, however quick it was: what came so
//! soon lay in a cache of this machine.

use super::asking::{AskReason, TransferredBytes};
use super::{Instant, Sources, TYPICAL, Tracked, UNSURE, Urgency};
use crate::pace::DEAREST;
use crate::source_report::SourceTally;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use store::{MapId, MapLookup, MapTurn};

/// A source has at least so long for a map before the store is asked instead, and as long as the store would take: a
/// map is needed once, and over a thin link it is long.
const PATIENCE: Duration = Duration::from_millis(500);
/// So long it has when the store has failed, or gives no answer.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

#[async_trait]
impl MapLookup for Sources {
    async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes> {
        let sources = self.sources.load_full();
        let now = self.now();
        let mut asked: Vec<_> = (sources.iter())
            .filter_map(|tracked| {
                let len = tracked.source.claims_map(id)?;
                let expected = self.expected_of_map(tracked, len, turn, now)?;
                Some((expected, len, Arc::clone(tracked)))
            })
            .collect();
        asked.sort_by_key(|(expected, ..)| *expected);
        let mut asked: Vec<_> =
            asked.into_iter().map(|(_, len, tracked)| (len, tracked, Answerer::Holder)).collect();
        if turn == MapTurn::BeforeStore {
            asked.extend(self.owner_to_ask(id, &asked));
        }
        let ask = |(len, tracked, answerer): (u64, Arc<Tracked>, Answerer)| async move {
            self.ask_for_map(&tracked, id, len, turn, answerer).await
        };
        // When the store is no help, nobody waits for one that hangs.
        let at_a_time = match turn {
            MapTurn::BeforeStore => 1,
            MapTurn::AfterStore => asked.len().max(1),
        };
        let answers = stream::iter(asked).map(ask).buffer_unordered(at_a_time);
        std::pin::pin!(answers.filter_map(std::future::ready)).next().await
    }
}

/// The role in which a source is asked for a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answerer {
    /// It claims to have it.
    Holder,
    /// It reads it from the store for all.
    Owner,
}

impl Sources {
    /// The owner of a map, unless that is this machine, or among those who are asked anyway.
    fn owner_to_ask(
        &self,
        id: &MapId,
        asked: &[(u64, Arc<Tracked>, Answerer)],
    ) -> Option<(u64, Arc<Tracked>, Answerer)> {
        let owner = self.owner_of_map(id, TYPICAL)?;
        let is_asked = asked.iter().any(|(_, other, _)| Arc::ptr_eq(other, &owner));
        let expected = self.expected_of_map(&owner, TYPICAL, MapTurn::BeforeStore, self.now());
        (!is_asked && expected.is_some()).then_some((TYPICAL, owner, Answerer::Owner))
    }

    /// What a source is expected to take for a map, if it is asked.
    fn expected_of_map(
        &self,
        tracked: &Tracked,
        len: u64,
        turn: MapTurn,
        now: Duration,
    ) -> Option<Duration> {
        let (expected, rests) = {
            let learned = tracked.learned.lock();
            (learned.0.expected(len, now), learned.1.rests(now).is_some())
        };
        let is_asked = match turn {
            MapTurn::AfterStore => true,
            MapTurn::BeforeStore => {
                let at_first = self.store.lock().at_first(len);
                !rests && expected < self.store_expected(len, now, UNSURE).max(at_first)
            }
        };
        is_asked.then_some(expected)
    }

    /// Asks a source for a map, and judges its answer.
    async fn ask_for_map(
        &self,
        tracked: &Arc<Tracked>,
        id: &MapId,
        len: u64,
        turn: MapTurn,
        answerer: Answerer,
    ) -> Option<Bytes> {
        let (tally, source) = (&tracked.tally, &tracked.source);
        if tracked.is_stuck() {
            return None;
        }
        let (patience, reason) = match turn {
            MapTurn::AfterStore => (LAST_PATIENCE, AskReason::StoreSilent),
            MapTurn::BeforeStore if answerer == Answerer::Owner => {
                (self.patience_with_owner(len, Urgency::Demand), AskReason::ItsTurn)
            }
            MapTurn::BeforeStore => {
                let usual = tracked.learned.lock().0.patience(len, self.now(), Duration::ZERO);
                (usual.max(PATIENCE).max(self.hedge_of(len).min(DEAREST)), AskReason::ItsTurn)
            }
        };
        // That others have its turns is not its fault.
        let turn = Arc::clone(&tracked.turns).acquire_owned();
        let turn = tokio::time::timeout(patience, turn).await.ok()?.ok()?;
        SourceTally::add(&tally.asked, 1);
        let began = Instant::now();
        let read = {
            let (source, id) = (Arc::clone(source), *id);
            tracked.to_the_end(turn, async move {
                match (answerer, source.sharer()) {
                    (Answerer::Owner, Some(sharer)) => sharer.fetch_map(&id).await,
                    _ => source.map(&id).await,
                }
            })
        };
        let Ok(answer) = tokio::time::timeout(patience, read).await else {
            if answerer == Answerer::Holder {
                tracked.learned.lock().0.outrun(len, began.elapsed(), self.now());
            }
            SourceTally::add(&tally.late, 1);
            if reason == AskReason::ItsTurn {
                self.strike(tracked, "no answer in time");
            }
            return None;
        };
        let outcome = answer.and_then(|object| {
            let body = id.verify(&self.settings, object.clone())?;
            Ok((object, body.len() as u64))
        });
        let judged = outcome.as_ref().map(|(object, plain)| TransferredBytes {
            asked: len,
            bytes: object.len() as u64,
            plain: *plain,
        });
        // What an owner took is the store's time for the most part.
        let took = match answerer {
            Answerer::Holder => began.elapsed(),
            Answerer::Owner => tracked.learned.lock().0.expected(len, self.now()),
        };
        self.judge(tracked, (took, reason), judged, || source.disown_map(id));
        outcome.ok().map(|(object, _)| object)
    }
}
