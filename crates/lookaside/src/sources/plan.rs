//! Whom to ask for a chunk, in order.

use super::{NearbySource, ReadOrder, ReadOrigin, Sources, Tracked, UNSURE};
use crate::share::{self, ShareBy};
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkRef, MapId};

/// What sources have to be quicker than to be asked before the store.
struct Bars {
    now: Duration,
    store: Duration,
    /// The peers' time: what the store would take if all who share the link read from there.
    peers: Duration,
}

impl Bars {
    fn of(&self, tracked: &Tracked) -> Duration {
        if tracked.is_peer() { self.peers } else { self.store }
    }
}

impl Sources {
    /// Whether somebody else than the store is asked first: a source that is expected to be quicker claims to have the
    /// chunk, or a peer reads it for all.
    pub fn prefers(&self, at: &ChunkRef) -> bool {
        let bars = self.bars(at.stored.into());
        let is_kept = self.share.get().is_some_and(|share| share.kept.has(at));
        let sources = self.sources.load();
        let mut asked = sources.iter().filter(|tracked| !is_kept || !tracked.is_peer());
        asked.any(|tracked| {
            tracked.would_take(at, bars.now).is_some_and(|time| time < bars.of(tracked))
        }) || (!is_kept && self.owner_of(at, &bars).is_some())
    }

    /// Who has a chunk and is expected to give it sooner than the store, the quickest first: for what nobody waits for.
    pub fn nearby(&self, at: &ChunkRef) -> Vec<NearbySource> {
        let plan = self.plan(at, ReadOrder::Cheapest).into_iter();
        let before_store = plan.map_while(|(asked, _)| match asked {
            ReadOrigin::Source(tracked) => Some(NearbySource(tracked)),
            ReadOrigin::Owner(_) | ReadOrigin::Store => None,
        });
        before_store.collect()
    }

    /// Whom to ask, in order, and what each is expected to take; always with the store.
    pub(super) fn plan(&self, at: &ChunkRef, order: ReadOrder) -> Vec<(ReadOrigin, Duration)> {
        let bars = self.bars(at.stored.into());
        // What is kept on this machine is asked of no other.
        let is_kept = self.share.get().is_some_and(|share| share.kept.has(at));
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let sources = self.sources.load();
        for tracked in sources.iter().filter(|tracked| !is_kept || !tracked.is_peer()) {
            let Some(expected) = tracked.would_take(at, bars.now) else { continue };
            let is_quicker = expected < bars.of(tracked) && order == ReadOrder::Cheapest;
            let list = if is_quicker { &mut before } else { &mut after };
            list.push((ReadOrigin::Source(Arc::clone(tracked)), expected));
        }
        before.sort_by_key(|(_, expected)| *expected);
        after.sort_by_key(|(_, expected)| *expected);
        if !is_kept && order == ReadOrder::Cheapest {
            let owner =
                self.owner_of(at, &bars).map(|(tracked, time)| (ReadOrigin::Owner(tracked), time));
            let is_asked =
                |owner: &(ReadOrigin, Duration)| before.iter().any(|(one, _)| one.is(&owner.0));
            let owner = owner.filter(|owner| !is_asked(owner));
            before.extend(owner);
        }
        before.push((ReadOrigin::Store, bars.store));
        before.append(&mut after);
        before
    }

    /// What sources have to be quicker than for so many bytes.
    fn bars(&self, bytes: u64) -> Bars {
        let now = self.now();
        let store = self.store_expected(bytes, now, UNSURE);
        // What came sooner lay in a cache of this machine, or the link was idle because peers left it alone.
        let alone = self.store.lock().at_first(bytes).max(store);
        let sources = self.sources.load();
        let is_member = |tracked: &&Arc<Tracked>| {
            tracked.source.sharer().is_some_and(|sharer| sharer.member().is_some())
        };
        let members = sources.iter().filter(is_member).count() as u32 + 1;
        Bars { now, store, peers: alone * members }
    }

    /// The owner of a chunk, unless that is this machine or slower than the link, and its own time.
    fn owner_of(&self, at: &ChunkRef, bars: &Bars) -> Option<(Arc<Tracked>, Duration)> {
        let key = self.share.get()?.by.key(at);
        self.owner(key, at.stored.into(), bars.now).filter(|(_, expected)| *expected < bars.peers)
    }

    /// The owner of what has this key among those who share the way to the store, and what so many bytes of it are
    /// expected to take from there beside the read of the store; `None` when that is this machine. Who rests owns
    /// nothing.
    fn owner(&self, key: u64, bytes: u64, now: Duration) -> Option<(Arc<Tracked>, Duration)> {
        let own = share::weight(self.share.get()?.member, key);
        let sources = self.sources.load();
        let weighed = sources.iter().filter_map(|tracked| {
            let member = tracked.source.sharer()?.member()?;
            let is_asked = tracked.learned.lock().1.rests(now).is_none();
            is_asked.then(|| (share::weight(member, key), tracked))
        });
        let (_, tracked) =
            weighed.max_by_key(|(weight, _)| *weight).filter(|(weight, _)| *weight > own)?;
        let expected = tracked.learned.lock().0.expected(bytes, now);
        Some((Arc::clone(tracked), expected))
    }

    /// The owner of a map, unless that is this machine.
    pub(super) fn owner_of_map(&self, id: &MapId, len: u64) -> Option<Arc<Tracked>> {
        self.owner(ShareBy::key_of_map(id), len, self.now()).map(|(tracked, _)| tracked)
    }
}

impl Tracked {
    /// Whether it shares the way to the store with this machine.
    pub(super) fn is_peer(&self) -> bool {
        self.source.sharer().is_some()
    }

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
