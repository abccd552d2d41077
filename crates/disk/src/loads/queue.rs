//! Which chunk is loaded next. No clock and no tasks: whoever uses it brings the time.
//!
//! What a guest waits for comes before what is read ahead, and that before boot lists; within each,
//! disks take turns ([`Fair`]). A bounded number of requests is under way ([`LoadDepth`]). A chunk that
//! several want has a place in the line of each, and is loaded when the first of these is reached.
//! Chunks that lie near one whose turn it is, and are wanted anyway, come with it in one request
//! ([`Together`]), whoever wants them: to a disk and to a network one long request is cheaper than
//! some short ones. So a boot list is read in runs, that of its first chunk first, and a guest that
//! comes to a later one brings all of its run forward. Where a boot list wants a chunk from a place of its
//! own, its boot copy, everybody's turn is for that place: its neighbours there are wanted as well.

use super::fair::{Fair, FlowId, Ticket};
use super::reach::{LONGEST, Reach};
use cache::LoadDepth;
use objects::GAP;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{ChunkId, ChunkRef, CoalescedRead, PackId};
use tokio::sync::Semaphore;

/// What a request costs beside its bytes, in bytes: a disk of 80 MB/s moves so many in 0.8 ms.
const TRIP: u64 = 64 << 10;
/// The most chunks of a request: they are to be in memory soon after their bytes.
const MOST: usize = 128;
/// A request that takes longer, while no other is answered either, does not count as under way any more: the store
/// tries again, or hangs, and others are not to wait for that. Over a thin link all take long, and more of them at a
/// time would only have all wait longer.
pub(super) const LATE: Duration = Duration::from_secs(3);

/// Why a chunk is loaded; the first goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// A guest waits for it.
    Demand,
    /// It comes next where a guest reads in order.
    Ahead,
    /// Other boots read it.
    Boot,
}

/// What is to be loaded. Two who do not share a load have keys of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LoadKey {
    chunk: ChunkId,
    own: u64,
}

impl LoadKey {
    fn position(&self, at: &ChunkRef) -> Position {
        (at.pack, u64::from(at.offset), self.own)
    }
}

/// Where a chunk begins and ends in its pack.
fn range(at: &ChunkRef) -> (u64, u64) {
    let start = u64::from(at.offset);
    (start, start + u64::from(at.stored))
}

/// A place in the line.
#[derive(Debug)]
pub(super) struct QueuePosition {
    key: LoadKey,
    ticket: Ticket,
    /// Closed when it is the chunk's turn.
    pub(super) gate: Arc<Semaphore>,
}

type RequestNumber = u64;

/// Where a chunk is: its pack, and its first byte there. Two that do not share differ in the last.
type Position = (PackId, u64, u64);

#[derive(Debug)]
struct RequestedChunk {
    at: ChunkRef,
    tickets: Vec<(Ticket, FlowId, Urgency)>,
    gate: Arc<Semaphore>,
    turn: LoadPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadPhase {
    Waiting,
    /// It is being loaded, in this request.
    Come(RequestNumber),
    /// It was loaded.
    Over,
}

/// The chunks of a request that has several.
#[derive(Debug)]
pub(super) struct Together {
    pub(super) chunks: Vec<ChunkRef>,
    /// What reads them, from when the first of those who wait for one begins.
    pub(super) stretch: OnceLock<CoalescedRead>,
}

/// One request to the store, of one chunk or of some that lie near each other.
#[derive(Debug)]
struct LoadRequest {
    together: Option<Arc<Together>>,
    left: usize,
    began: Duration,
    /// The same on the clock of [`LoadQueue::served`].
    turn: Duration,
    bytes: u64,
    /// None of its chunks was loaded yet.
    fresh: bool,
    urgency: Urgency,
    /// A part of it failed or was withdrawn: how long it took says nothing of the store.
    lost: bool,
}

/// Who waits for which chunk, and what is under way.
#[derive(Debug)]
pub(super) struct LoadQueue {
    lines: [Fair<LoadKey>; 3],
    wanted: HashMap<LoadKey, RequestedChunk>,
    /// Chunks that wait, by where they are.
    positions: BTreeMap<Position, LoadKey>,
    requests: HashMap<RequestNumber, LoadRequest>,
    /// Requests that count as under way, the oldest first, also requests of no guest.
    under_way: BTreeSet<RequestNumber>,
    unasked: usize,
    /// When the store answered last.
    answered: Duration,
    depth: Option<LoadDepth>,
    reach: Reach,
    /// What of the store's time each request under way had since the beginning, were it shared out
    /// evenly: so long one takes that has company, if that is served one after the other.
    served: Duration,
    /// When that was reckoned last.
    reckoned: Duration,
    next: u64,
}

impl LoadQueue {
    /// Whether a guest waits for a chunk that was not loaded yet.
    pub(super) fn has_demand(&self) -> bool {
        let demand = |(.., urgency): &(Ticket, FlowId, Urgency)| *urgency == Urgency::Demand;
        let mut wanted = self.wanted.values();
        wanted.any(|wanted| wanted.turn != LoadPhase::Over && wanted.tickets.iter().any(demand))
    }

    /// At most `most` requests are under way; 0 is any number, and then nothing ever waits. How many serve best up to
    /// `most` is found out.
    pub(super) fn new(most: usize) -> Self {
        Self::with((most > 0).then(|| LoadDepth::new(most)))
    }

    /// The same for a store that orders what it is given: it always gets `most`.
    pub(super) fn for_ordered(most: usize) -> Self {
        Self::with((most > 0).then(|| LoadDepth::fixed(most)))
    }

    fn with(depth: Option<LoadDepth>) -> Self {
        Self {
            lines: [Fair::new(), Fair::new(), Fair::new()],
            wanted: HashMap::new(),
            positions: BTreeMap::new(),
            requests: HashMap::new(),
            under_way: BTreeSet::new(),
            unasked: 0,
            answered: Duration::ZERO,
            depth,
            reach: Reach::new(),
            served: Duration::ZERO,
            reckoned: Duration::ZERO,
            next: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// `flow` wants a chunk. `share`: with everybody else who does, from where the first of them, or
    /// the last boot list, says that it is. Its turn comes at the next [`go_on`](Self::go_on) at the
    /// earliest, so that several may be wanted at once.
    pub(super) fn join(
        &mut self,
        flow: FlowId,
        at: &ChunkRef,
        urgency: Urgency,
        share: bool,
    ) -> QueuePosition {
        let ticket = self.number();
        let key = LoadKey { chunk: at.id, own: if share { 0 } else { ticket } };
        let wanted = self.wanted.entry(key).or_insert_with(|| RequestedChunk {
            at: *at,
            tickets: Vec::new(),
            gate: Arc::new(Semaphore::new(0)),
            turn: LoadPhase::Over,
        });
        if wanted.turn == LoadPhase::Over {
            wanted.turn = LoadPhase::Waiting;
            wanted.gate = Arc::new(Semaphore::new(0));
            wanted.at = *at;
            self.positions.insert(key.position(at), key);
        } else if wanted.turn == LoadPhase::Waiting && urgency == Urgency::Boot && wanted.at != *at
        {
            self.positions.remove(&key.position(&wanted.at));
            wanted.at = *at;
            self.positions.insert(key.position(at), key);
        }
        wanted.tickets.push((ticket, flow, urgency));
        let place = QueuePosition { key, ticket, gate: Arc::clone(&wanted.gate) };
        if wanted.turn == LoadPhase::Waiting {
            let cost = TRIP + u64::from(wanted.at.stored);
            self.lines[urgency as usize].push(flow, ticket, key, cost);
        }
        place
    }

    /// Where a chunk whose turn has come is read.
    pub(super) fn place(&self, place: &QueuePosition) -> Option<ChunkRef> {
        let wanted = self.wanted.get(&place.key)?;
        matches!(wanted.turn, LoadPhase::Come(_)).then_some(wanted.at)
    }

    /// What a chunk whose turn has come is loaded together with, if it is with any.
    pub(super) fn together(&self, place: &QueuePosition) -> Option<Arc<Together>> {
        let wanted = self.wanted.get(&place.key)?;
        let LoadPhase::Come(run) = wanted.turn else { return None };
        self.requests.get(&run)?.together.clone()
    }

    /// Whoever had this place wants the chunk no more, or has it.
    pub(super) fn leave(&mut self, place: &QueuePosition, now: Duration) {
        let Some(wanted) = self.wanted.get_mut(&place.key) else { return };
        let Some(at) = wanted.tickets.iter().position(|(ticket, ..)| *ticket == place.ticket)
        else {
            return;
        };
        let (ticket, flow, urgency) = wanted.tickets.swap_remove(at);
        if wanted.turn == LoadPhase::Waiting {
            self.lines[urgency as usize].remove(flow, ticket);
        }
        if wanted.tickets.is_empty() {
            self.over(place.key, false, now);
            if let Some(wanted) = self.wanted.remove(&place.key) {
                self.positions.remove(&place.key.position(&wanted.at));
            }
        }
        self.go_on(now);
    }

    /// The chunk was loaded, or failed to be: then it was not `answered`.
    pub(super) fn landed(&mut self, place: &QueuePosition, answered: bool, now: Duration) {
        // Who loads it once more after that, on the same turn, ends nobody else's turn.
        let same = |wanted: &RequestedChunk| Arc::ptr_eq(&wanted.gate, &place.gate);
        if self.wanted.get(&place.key).is_some_and(same) {
            self.over(place.key, answered, now);
            self.go_on(now);
        }
    }

    /// A flow asks nothing more.
    pub(super) fn forget(&mut self, flow: FlowId) {
        self.lines.iter_mut().for_each(|line| line.forget(flow));
    }

    fn over(&mut self, key: LoadKey, answered: bool, now: Duration) {
        let Some(wanted) = self.wanted.get_mut(&key) else { return };
        let LoadPhase::Come(run) = wanted.turn else { return };
        wanted.turn = LoadPhase::Over;
        if answered {
            self.answered = now;
        }
        self.reckon(now);
        let Some(request) = self.requests.get_mut(&run) else { return };
        // With the first of its chunks all of its bytes are there.
        if answered && std::mem::take(&mut request.fresh) {
            self.reach.answered(request.bytes, self.served.saturating_sub(request.turn));
        }
        request.left -= 1;
        request.lost |= !answered;
        if request.left > 0 {
            return;
        }
        let waited_for = self.lines.iter().any(|line| !line.is_empty()) && self.is_full();
        if let Some(request) = self.requests.remove(&run)
            && self.stop_counting(run, request.urgency)
        {
            // One that failed or was withdrawn says nothing of the store.
            if request.lost {
                return;
            }
            let took = now.saturating_sub(request.began);
            if let Some(depth) = &mut self.depth {
                depth.answered(now, took, TRIP + request.bytes, waited_for);
            }
        }
    }

    /// Shares out the store's time until `now`; before requests begin or end.
    fn reckon(&mut self, now: Duration) {
        if !self.under_way.is_empty() {
            self.served += now.saturating_sub(self.reckoned) / self.under_way.len() as u32;
        }
        self.reckoned = self.reckoned.max(now);
    }

    fn stop_counting(&mut self, run: RequestNumber, urgency: Urgency) -> bool {
        let counted = self.under_way.remove(&run);
        if counted && urgency != Urgency::Demand {
            self.unasked -= 1;
        }
        counted
    }

    /// How many requests may be under way, and how many of them that nobody waits for.
    fn room(&self) -> (usize, usize) {
        match &self.depth {
            Some(depth) => (depth.get(), (depth.get() / 2).max(1)),
            None => (usize::MAX, usize::MAX),
        }
    }

    fn is_full(&self) -> bool {
        let (all, unasked) = self.room();
        self.under_way.len() >= all || self.unasked >= unasked
    }

    /// Begins what may begin.
    pub(super) fn go_on(&mut self, now: Duration) {
        self.reckon(now);
        while let Some(oldest) = self.under_way.first().copied() {
            let Some(request) = self.requests.get(&oldest) else { break };
            if now.saturating_sub(request.began.max(self.answered)) < LATE {
                break;
            }
            let urgency = request.urgency;
            self.stop_counting(oldest, urgency);
        }
        let (all, unasked) = self.room();
        while self.under_way.len() < all {
            let first = match self.lines[Urgency::Demand as usize].pop() {
                Some(key) => Some((key, Urgency::Demand)),
                None if self.unasked >= unasked => None,
                None => [Urgency::Ahead, Urgency::Boot].into_iter().find_map(|urgency| {
                    self.lines[urgency as usize].pop().map(|key| (key, urgency))
                }),
            };
            let Some((key, urgency)) = first else { return };
            self.begin(key, urgency, now);
        }
    }

    fn begin(&mut self, first: LoadKey, urgency: Urgency, now: Duration) {
        let run = self.number();
        let Some(at) = self.wanted.get(&first).map(|wanted| wanted.at) else { return };
        let (mut start, mut end) = range(&at);
        let mut chunks = vec![at];
        self.give_turn(first, run);
        // Those behind it, then those before it.
        while chunks.len() < MOST {
            let behind = (at.pack, end, 0)..=(at.pack, end + GAP, u64::MAX);
            let Some((_, &key)) = self.positions.range(behind).next() else { break };
            let Some((next, limit)) = self.measure(key) else { break };
            let (_, to) = range(&next);
            if to - start > limit {
                break;
            }
            self.give_turn(key, run);
            chunks.push(next);
            end = to;
        }
        while chunks.len() < MOST {
            let before = self.positions.range(..(at.pack, start, 0)).next_back();
            let Some((&(pack, ..), &key)) = before else { break };
            let Some((next, limit)) = self.measure(key) else { break };
            let (from, to) = range(&next);
            let near = pack == at.pack && to + GAP >= start;
            if !near || end.max(to) - from > limit {
                break;
            }
            self.give_turn(key, run);
            chunks.push(next);
            (start, end) = (from, end.max(to));
        }
        let (left, bytes) = (chunks.len(), end - start);
        let together = Together { chunks, stretch: OnceLock::new() };
        let request = LoadRequest {
            together: (left > 1).then(|| Arc::new(together)),
            left,
            began: now,
            turn: self.served,
            bytes,
            fresh: true,
            urgency,
            lost: false,
        };
        self.requests.insert(run, request);
        self.under_way.insert(run);
        if urgency != Urgency::Demand {
            self.unasked += 1;
        }
    }

    /// Where a chunk is, and how long a request may be to have it come with it.
    fn measure(&self, key: LoadKey) -> Option<(ChunkRef, u64)> {
        let wanted = self.wanted.get(&key)?;
        let waited_for = wanted.tickets.iter().any(|(.., why)| *why == Urgency::Demand);
        Some((wanted.at, if waited_for { LONGEST } else { self.reach.get() }))
    }

    fn give_turn(&mut self, key: LoadKey, run: RequestNumber) {
        let Some(wanted) = self.wanted.get_mut(&key) else { return };
        for (ticket, flow, urgency) in &wanted.tickets {
            self.lines[*urgency as usize].remove(*flow, *ticket);
        }
        self.positions.remove(&key.position(&wanted.at));
        wanted.turn = LoadPhase::Come(run);
        wanted.gate.close();
    }
}

#[cfg(test)]
mod tests;
