//! Maps out of sources: asked before the store by what is expected, and after it whatever is expected.
//!
//! A store that is behind a network is taken for as slow as it is at first, however quick it was: what came so
//! soon lay in a cache of this machine.

use super::asking::{AskReason, Moved};
use super::{Instant, Sources, Tracked, UNSURE};
use crate::pace::DEAREST;
use crate::tally::SourceTally;
use async_trait::async_trait;
use block::Error;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use store::{MapId, MapLookup, MapTurn};
use tokio::sync::oneshot;

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
        let ask = |(_, len, tracked): (Duration, u64, Arc<Tracked>)| async move {
            self.ask_for_map(&tracked, id, len, turn).await
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

impl Sources {
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
    ) -> Option<Bytes> {
        let (tally, source) = (&tracked.tally, &tracked.source);
        let (patience, reason) = match turn {
            MapTurn::AfterStore => (LAST_PATIENCE, AskReason::StoreSilent),
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
        // A read of a medium that hangs goes on when nobody waits for it any more, and has its turn so long.
        let (answered, answer) = oneshot::channel();
        {
            let (source, id) = (Arc::clone(source), *id);
            let mut reads = tracked.reads.lock();
            while reads.try_join_next().is_some() {}
            reads.spawn(async move {
                let object = source.map(&id).await;
                drop(turn);
                let _ = answered.send(object);
            });
        }
        let Ok(answer) = tokio::time::timeout(patience, answer).await else {
            tracked.learned.lock().0.outrun(len, began.elapsed(), self.now());
            SourceTally::add(&tally.late, 1);
            if reason == AskReason::ItsTurn {
                self.strike(tracked, "no answer in time");
            }
            return None;
        };
        let answer = answer.unwrap_or_else(|_| Err(Error::internal("a read gave no answer")));
        let outcome = answer.and_then(|object| {
            let body = id.verify(&self.settings, object.clone())?;
            Ok((object, body.len() as u64))
        });
        let judged = outcome.as_ref().map(|(object, plain)| Moved {
            asked: len,
            bytes: object.len() as u64,
            plain: *plain,
        });
        self.judge(tracked, (began, reason), judged, || source.disown_map(id));
        outcome.ok().map(|(object, _)| object)
    }
}
