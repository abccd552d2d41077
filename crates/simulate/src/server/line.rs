//! Which chunk is loaded next, and which come with it, as the server decides it: what a client waits for
//! first, then what is read ahead, then boot lists; chunks that lie near each other in one request.

use super::load::PlacedChunk;
use cache::LoadDepth;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// The longest request for several chunks of which one is waited for, in bytes.
const LONGEST: u64 = 1 << 20;
/// The longest one for what nobody waits for.
const LONGEST_AHEAD: u64 = 512 << 10;
/// Chunks that lie further apart do not come together.
const GAP: u64 = 256 << 10;
/// The most chunks of a request.
const MOST_CHUNKS: usize = 64;
/// What a request is worth beside its bytes, for [`LoadDepth`].
const TRIP: u64 = 64 << 10;

/// Why a chunk is loaded; the smaller, the sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoadReason {
    /// A client waits for it.
    Demand,
    /// It comes next where a client reads in order.
    Ahead,
    /// A boot list has it.
    BootList,
}

/// A chunk that is about to come.
#[derive(Debug)]
struct WantedChunk {
    reason: LoadReason,
    under_way: bool,
    /// Clients that wait for it.
    waiters: Vec<u32>,
}

/// A request to the store.
#[derive(Debug, Clone)]
pub(super) struct ChunkLoad {
    pub(super) chunks: Vec<u32>,
    /// What of the packs it reads.
    pub(super) range: PlacedChunk,
    reason: LoadReason,
    began: u64,
}

/// The chunks that are wanted, and the loads under way.
#[derive(Debug)]
pub(super) struct LoadLine {
    wanted: HashMap<u32, WantedChunk>,
    /// Numbers of chunks by reason, some of which have come meanwhile, or for a better reason.
    lines: [VecDeque<u32>; 3],
    /// Where those lie whose turn has not come.
    positions: BTreeMap<(u64, u64), u32>,
    depth: Option<LoadDepth>,
    under_way: BTreeSet<u32>,
    /// Loads under way that nobody waited for when they began.
    unasked: usize,
}

impl LoadLine {
    /// At most so many loads at a time; 0 is no limit.
    pub(super) fn new(most: usize) -> Self {
        Self {
            wanted: HashMap::new(),
            lines: Default::default(),
            positions: BTreeMap::new(),
            depth: (most > 0).then(|| LoadDepth::new(most)),
            under_way: BTreeSet::new(),
            unasked: 0,
        }
    }

    /// A chunk that is not held is wanted; whether it was already.
    pub(super) fn want(
        &mut self,
        id: u32,
        at: PlacedChunk,
        reason: LoadReason,
        waiter: Option<u32>,
    ) -> bool {
        let known = self.wanted.contains_key(&id);
        let wanted = self.wanted.entry(id).or_insert_with(|| WantedChunk {
            reason,
            under_way: false,
            waiters: Vec::new(),
        });
        wanted.waiters.extend(waiter);
        if !known || (reason < wanted.reason && !wanted.under_way) {
            wanted.reason = reason;
            self.lines[reason as usize].push_back(id);
        }
        if !known {
            self.positions.insert((at.base, at.offset), id);
        }
        known
    }

    /// The next of a line whose turn has not come.
    fn pop(&mut self, reason: LoadReason) -> Option<u32> {
        loop {
            let id = self.lines[reason as usize].pop_front()?;
            if self.wanted.get(&id).is_some_and(|w| !w.under_way && w.reason == reason) {
                return Some(id);
            }
        }
    }

    /// The load that may begin at `now`, with the number `run`; `None` when none may.
    pub(super) fn next(&mut self, run: u32, now: u64, placed: &[PlacedChunk]) -> Option<ChunkLoad> {
        let (all, unasked) = self.room();
        if self.under_way.len() >= all {
            return None;
        }
        let (first, reason) = match self.pop(LoadReason::Demand) {
            Some(id) => (id, LoadReason::Demand),
            None if self.unasked >= unasked => return None,
            None => [LoadReason::Ahead, LoadReason::BootList]
                .into_iter()
                .find_map(|reason| self.pop(reason).map(|id| (id, reason)))?,
        };
        let load = self.gather(first, reason, now, placed);
        self.under_way.insert(run);
        self.unasked += usize::from(reason != LoadReason::Demand);
        Some(load)
    }

    /// How many loads may be under way, and how many of them that nobody waits for.
    fn room(&self) -> (usize, usize) {
        let all = self.depth.as_ref().map_or(usize::MAX, LoadDepth::get);
        (all, (all / 2).max(1))
    }

    /// A chunk with its neighbours that are wanted, too: those behind it, then those before it.
    fn gather(
        &mut self,
        first: u32,
        reason: LoadReason,
        now: u64,
        placed: &[PlacedChunk],
    ) -> ChunkLoad {
        let at = placed[first as usize];
        let (mut start, mut end) = (at.offset, at.end());
        let mut chunks = vec![first];
        self.begin(first, at);
        while chunks.len() < MOST_CHUNKS {
            let behind = (at.base, end)..=(at.base, end + GAP);
            let Some((_, &id)) = self.positions.range(behind).next() else { break };
            let next = placed[id as usize];
            if next.end() - start > self.limit(id) {
                break;
            }
            self.begin(id, next);
            chunks.push(id);
            end = next.end();
        }
        while chunks.len() < MOST_CHUNKS {
            let before = self.positions.range((at.base, 0)..(at.base, start)).next_back();
            let Some((_, &id)) = before else { break };
            let next = placed[id as usize];
            if next.end() + GAP < start || end - next.offset > self.limit(id) {
                break;
            }
            self.begin(id, next);
            chunks.push(id);
            start = next.offset;
        }
        let range = PlacedChunk { base: at.base, offset: start, bytes: end - start };
        ChunkLoad { chunks, range, reason, began: now }
    }

    fn begin(&mut self, id: u32, at: PlacedChunk) {
        self.positions.remove(&(at.base, at.offset));
        if let Some(wanted) = self.wanted.get_mut(&id) {
            wanted.under_way = true;
        }
    }

    /// How long a request may be to bring this one with it.
    fn limit(&self, id: u32) -> u64 {
        match self.wanted.get(&id).map(|wanted| wanted.reason) {
            Some(LoadReason::Demand) => LONGEST,
            _ => LONGEST_AHEAD,
        }
    }

    /// A load came: its chunks, each with the clients that waited for it.
    pub(super) fn landed(&mut self, run: u32, load: ChunkLoad, now: u64) -> Vec<(u32, Vec<u32>)> {
        let (all, unasked) = self.room();
        let is_full = self.under_way.len() >= all || self.unasked >= unasked;
        let waited_for = is_full && self.wanted.values().any(|wanted| !wanted.under_way);
        self.under_way.remove(&run);
        self.unasked -= usize::from(load.reason != LoadReason::Demand);
        if let Some(depth) = &mut self.depth {
            let took = Duration::from_nanos(now - load.began);
            depth.answered(Duration::from_nanos(now), took, TRIP + load.range.bytes, waited_for);
        }
        let of = |id: &u32| (*id, self.wanted.remove(id).map(|w| w.waiters).unwrap_or_default());
        load.chunks.iter().map(of).collect()
    }
}
