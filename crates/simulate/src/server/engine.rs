//! The events: clients ask, centres serve, loads come.

use super::gather::{JoinedFetch, StoreGather};
use super::line::{ChunkLoad, LoadLine, LoadReason};
use super::load::{ClientRequest, PlacedChunk, ServerLoad};
use super::pieces::{SimulatedPieces, StoreFetch};
use super::stations::ServiceStation;
use super::{ClientPace, Crowd, MOST_ANSWERS, ServerOutcome, ServerSetup};
use block::{Error, Result, Span};
use cache::ReadAhead;
use cache::policy::Algorithm;
use model::Profile;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A disk asks for no more ahead than this part of the cache, and a boot list fills no more than half.
const SHARE_AHEAD: u64 = 64;
/// A boot list is not loaded again so soon, in nanoseconds.
const LIST_RESTS: u64 = 30_000_000_000;
/// The base of boot copies: beyond all of the trace.
const COPIES: u64 = 1 << 40;

/// Something that happens: the number of the client or load, and the centre that it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ServerEvent {
    Send(u32),
    Request(u32, usize),
    Load(u32, usize),
}

/// A client that asks.
struct SimulatedClient {
    script: usize,
    /// Its chunks are the trace's, this many copies on.
    copy: u32,
    next: usize,
    sent: u64,
    /// Chunks that its request still waits for.
    waiting: u32,
    ahead: HashMap<u32, ReadAhead>,
}

/// A load under way.
struct RunningLoad {
    load: ChunkLoad,
    fetch: StoreFetch,
    /// The request that the read became a part of, if it did.
    joined: Option<JoinedFetch>,
    /// Loads whose reads became parts of this one's request and that did not come yet.
    followers: u32,
    /// It came, but for its followers: a request is answered as a whole.
    came: bool,
}

pub(super) struct ServerSimulation<'a, A> {
    load: ServerLoad,
    setup: &'a ServerSetup,
    crowd: &'a Crowd,
    stations: Vec<ServiceStation>,
    cache: A,
    held: u64,
    line: LoadLine,
    pieces: SimulatedPieces,
    clients: Vec<SimulatedClient>,
    /// Chunks of one copy of the data.
    copy_size: u32,
    running: HashMap<u32, RunningLoad>,
    gather: StoreGather,
    /// Loads that wait for a piece that another one brings.
    parked: Vec<u32>,
    events: BinaryHeap<Reverse<(u64, u64, ServerEvent)>>,
    number: u64,
    runs: u32,
    now: u64,
    list: Vec<u32>,
    list_loaded: Option<u64>,
    answered: u64,
    last_answer: u64,
    waited: u128,
    outcome: ServerOutcome,
}

impl<'a, A: Algorithm> ServerSimulation<'a, A> {
    pub(super) fn new(
        profile: &Profile,
        load: &ServerLoad,
        setup: &'a ServerSetup,
        crowd: &'a Crowd,
        cache: A,
    ) -> Result<Self> {
        let mut load = load.clone();
        let copy_size = load.distinct();
        let scripts = load.clients();
        if crowd.private {
            for copy in 1..crowd.clients.div_ceil(scripts) {
                let same =
                    |chunk: &PlacedChunk| PlacedChunk { base: private(chunk.base, copy), ..*chunk };
                let copied: Vec<_> = load.placed[..copy_size as usize].iter().map(same).collect();
                load.placed.extend(copied);
            }
        }
        let client = |number: u32| SimulatedClient {
            script: (number % scripts) as usize,
            copy: if crowd.private { number / scripts } else { 0 },
            next: 0,
            sent: 0,
            waiting: 0,
            ahead: HashMap::new(),
        };
        let mut engine = Self {
            // A request of a block loads the chunk that has it.
            stations: ServiceStation::all(profile, load.grain().saturating_sub(block::BLOCK))?,
            setup,
            crowd,
            cache,
            held: 0,
            line: LoadLine::new(setup.loads),
            pieces: SimulatedPieces::new(setup.pieces),
            clients: (0..crowd.clients).map(client).collect(),
            copy_size,
            running: HashMap::new(),
            gather: StoreGather::default(),
            parked: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            runs: 0,
            now: 0,
            list: Vec::new(),
            list_loaded: None,
            answered: 0,
            last_answer: 0,
            waited: 0,
            outcome: ServerOutcome::default(),
            load,
        };
        if setup.boot_list {
            engine.make_list();
        }
        for client in 0..crowd.clients {
            engine.at(crowd.stagger.saturating_mul(client.into()), ServerEvent::Send(client));
        }
        Ok(engine)
    }

    /// The boot list, and its copy: what the first client reads, side by side in that order.
    fn make_list(&mut self) {
        let mut known = vec![false; self.load.placed.len()];
        let (mut offset, mut budget) = (0, self.setup.memory / 2);
        let first = self.load.scripts[0].steps.iter();
        let chunks =
            first.flat_map(|step| step.touched.clone()).map(|at| self.load.touched[at as usize]);
        for id in chunks.collect::<Vec<_>>() {
            let chunk = self.load.placed[id as usize];
            if std::mem::replace(&mut known[id as usize], true) || chunk.bytes > budget {
                continue;
            }
            budget -= chunk.bytes;
            self.load.placed[id as usize] = PlacedChunk { base: COPIES, offset, ..chunk };
            offset += chunk.bytes;
            self.list.push(id);
        }
    }

    fn at(&mut self, time: u64, event: ServerEvent) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    pub(super) fn run(mut self) -> Result<ServerOutcome> {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                ServerEvent::Send(client) => self.send(client),
                ServerEvent::Request(client, station) => self.request(client, station),
                ServerEvent::Load(run, station) => self.advance(run, station),
            }
            if self.answered > MOST_ANSWERS {
                return Err(Error::invalid(format!(
                    "more than {MOST_ANSWERS} requests would be answered: give fewer clients or a \
                     shorter --for"
                )));
            }
        }
        // What was read ahead may come later than the last answer.
        let seconds = self.now as f64 / 1e9;
        let counted = self.last_answer.saturating_sub(self.crowd.warm_up) as f64 / 1e9;
        let answers = self.outcome.answers as f64;
        self.outcome.seconds = counted;
        self.outcome.throughput = if counted > 0.0 { answers / counted } else { 0.0 };
        self.outcome.response = self.waited as f64 / 1e9 / answers.max(1.0);
        self.outcome.utilisation = self.stations.iter().map(|s| s.utilisation(seconds)).collect();
        Ok(self.outcome)
    }

    fn step(&self, client: u32) -> &ClientRequest {
        let client = &self.clients[client as usize];
        &self.load.scripts[client.script].steps[client.next]
    }

    fn send(&mut self, client: u32) {
        if self.crowd.until.is_some_and(|until| self.now >= until) {
            return;
        }
        let new = &mut self.clients[client as usize];
        let begins = new.next == 0 && new.sent == 0;
        new.sent = self.now;
        if begins && !self.list.is_empty() {
            self.bring_list();
        }
        self.request(client, 0);
    }

    /// The request of a client comes to the centre at `station`, or past the last one.
    fn request(&mut self, client: u32, station: usize) {
        let length = self.step(client).length.into();
        for at in station..self.stations.len() {
            let service = self.stations[at].of_request(length);
            if service > 0 {
                let done = self.stations[at].serve(self.now, service);
                return self.at(done, ServerEvent::Request(client, at + 1));
            }
        }
        self.look_up(client);
    }

    /// The chunks of a client's request, in the cache or not.
    fn look_up(&mut self, number: u32) {
        let step = self.step(number);
        let span = Span::between(step.offset, step.offset + u64::from(step.length));
        let (disk, copy) = (step.disk, self.clients[number as usize].copy);
        let touched = step.touched.clone();
        if touched.is_empty() {
            return self.answer(number);
        }
        let mut missing = 0;
        let range = touched.start as usize..touched.end as usize;
        let ids: Vec<u32> =
            self.load.touched[range].iter().map(|id| id + copy * self.copy_size).collect();
        for id in &ids {
            if self.cache.holds(*id) {
                self.cache.hit(*id);
                self.outcome.hits += 1;
            } else {
                missing += 1;
                self.outcome.misses += 1;
                let at = self.load.placed[*id as usize];
                let known = self.line.want(*id, at, LoadReason::Demand, Some(number));
                self.outcome.shared += u64::from(known);
            }
        }
        self.clients[number as usize].waiting = missing;
        self.go_on();
        self.read_ahead(number, disk, span, missing > 0, ids[0] - copy * self.copy_size);
        if missing == 0 {
            self.answer(number);
        }
    }

    /// Loads what comes next where a client reads in order. `waits`: not all of it was held; `id` is a chunk of
    /// the trace that it reads.
    fn read_ahead(&mut self, number: u32, disk: u32, span: Span, waits: bool, id: u32) {
        let most = self.setup.read_ahead.min(self.setup.memory / SHARE_AHEAD);
        if most == 0 {
            return;
        }
        let client = &mut self.clients[number as usize];
        let copy = client.copy;
        let ahead = client.ahead.entry(disk).or_insert_with(|| ReadAhead::new(most));
        if !waits && !ahead.is_due(span) {
            return;
        }
        let base = self.load.bases[id as usize];
        let size = self.load.ends.get(&base).copied().unwrap_or(0).max(span.end());
        let Some(next) = ahead.note(span, size) else { return };
        for id in self.load.range(base, next.offset(), next.end()) {
            // A copy has the chunks that the trace asks for.
            if copy == 0 || id < self.copy_size {
                self.want_unasked(id + copy * self.copy_size, LoadReason::Ahead);
            }
        }
        self.go_on();
    }

    fn bring_list(&mut self) {
        if self.list_loaded.is_some_and(|at| self.now - at < LIST_RESTS) {
            return;
        }
        self.list_loaded = Some(self.now);
        for at in 0..self.list.len() {
            self.want_unasked(self.list[at], LoadReason::BootList);
        }
        self.go_on();
    }

    fn want_unasked(&mut self, id: u32, reason: LoadReason) {
        if !self.cache.holds(id) {
            self.outcome.misses += 1;
            self.line.want(id, self.load.placed[id as usize], reason, None);
        }
    }

    /// Begins the loads that may begin.
    fn go_on(&mut self) {
        while let Some(load) = self.line.next(self.runs, self.now, &self.load.placed) {
            let fetch = self.pieces.load(load.range);
            self.outcome.loads += 1;
            let joined = self.ask_store(&load, &fetch);
            let new = RunningLoad { load, fetch, joined, followers: 0, came: false };
            self.running.insert(self.runs, new);
            self.at(self.now, ServerEvent::Load(self.runs, 0));
            self.runs += 1;
        }
    }

    /// A load reads the store, if it does: the request that this becomes a part of.
    fn ask_store(&mut self, load: &ChunkLoad, fetch: &StoreFetch) -> Option<JoinedFetch> {
        if fetch.bytes == 0 {
            return None;
        }
        let read = (fetch.offset, fetch.bytes);
        let joined = self.gather.read(self.runs, load.range.base, read, self.now);
        // One that is answered already takes nobody with it.
        let leader = joined.and_then(|joined| self.running.get_mut(&joined.leader));
        let joined = leader.filter(|leader| !leader.came).and_then(|leader| {
            leader.followers += 1;
            joined
        });
        self.outcome.store_loads += u64::from(joined.is_none());
        self.outcome.store_bytes += joined.map_or(fetch.bytes, |j| j.total - j.before);
        joined
    }

    /// A load comes to the centre at `station`, or past the last one.
    fn advance(&mut self, run: u32, station: usize) {
        let Some(running) = self.running.get(&run) else { return };
        let (chunks, bytes) = (running.load.chunks.len() as u64, running.load.range.bytes);
        let (pieces, fetched) = (running.fetch.coming.len() as u64, running.fetch.bytes);
        let joined = running.joined;
        for at in station..self.stations.len() {
            let here = &self.stations[at];
            let fetch = match joined {
                None => here.of_fetch(fetched),
                Some(joined) if here.is_delay() => here.of_fetch(joined.total),
                // The request is there already, and becomes longer.
                Some(joined) => {
                    here.of_fetch(joined.total).saturating_sub(here.of_fetch(joined.before))
                }
            };
            let service = here.of_load(chunks, bytes, pieces) + fetch;
            if service > 0 {
                let done = self.stations[at].serve(self.now, service);
                return self.at(done, ServerEvent::Load(run, at + 1));
            }
        }
        if self.pieces.any_coming(&running.fetch.awaited) {
            return self.parked.push(run);
        }
        self.arrive(run);
    }

    /// All of a load's own is there; with it those whose request it was the last part of.
    fn arrive(&mut self, run: u32) {
        let Some(running) = self.running.get_mut(&run) else { return };
        if !std::mem::replace(&mut running.came, true) && !running.fetch.coming.is_empty() {
            self.pieces.came(&running.fetch.coming);
            let parked = std::mem::take(&mut self.parked);
            parked.into_iter().for_each(|run| self.advance(run, self.stations.len()));
        }
        let Some(running) = self.running.get(&run).filter(|running| running.followers == 0) else {
            return;
        };
        let leader = running.joined.map(|joined| joined.leader);
        self.land(run);
        let Some(leader) = leader else { return };
        let Some(waiting) = self.running.get_mut(&leader) else { return };
        waiting.followers -= 1;
        if waiting.came {
            self.arrive(leader);
        }
    }

    fn land(&mut self, run: u32) {
        let Some(RunningLoad { load, .. }) = self.running.remove(&run) else { return };
        for (id, waiters) in self.line.landed(run, load, self.now) {
            self.keep(id);
            for client in waiters {
                let waiting = &mut self.clients[client as usize].waiting;
                *waiting -= 1;
                if *waiting == 0 {
                    self.answer(client);
                }
            }
        }
        self.go_on();
    }

    /// A chunk comes into the cache.
    fn keep(&mut self, id: u32) {
        if self.cache.holds(id) {
            return;
        }
        self.cache.miss(id);
        let bytes = self.load.placed[id as usize].bytes;
        while self.held + bytes > self.setup.memory {
            let Some(out) = self.cache.evict() else { break };
            self.held -= self.load.placed[out as usize].bytes;
        }
        self.held += bytes;
        self.cache.insert(id, u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }

    fn answer(&mut self, number: u32) {
        let sent = self.clients[number as usize].sent;
        self.answered += 1;
        self.last_answer = self.now;
        if self.now >= self.crowd.warm_up {
            self.outcome.answers += 1;
            self.waited += u128::from(self.now - sent);
        }
        let client = &mut self.clients[number as usize];
        let steps = &self.load.scripts[client.script].steps;
        client.next += 1;
        let mut pause = 0;
        if client.next == steps.len() {
            if self.crowd.until.is_none() {
                return;
            }
            client.next = 0;
        } else {
            pause = steps[client.next].pause;
        }
        if let ClientPace::Pause(fixed) = self.crowd.pace {
            pause = fixed;
        }
        // Time goes on even where nothing takes any.
        let next = self.now.saturating_add(pause).max(sent + 1);
        self.at(next, ServerEvent::Send(number));
    }
}

/// The base of a copy's own data.
fn private(base: u64, copy: u32) -> u64 {
    base | u64::from(copy) << 20
}
