//! What a server counts.
//!
//! A connection counts in plain integers and adds them to its export's atomics once per batch of
//! requests, so that counting costs nothing on the way of a request.

use super::latency::{Latencies, Meter};
use super::traffic::{Traffic, TrafficCells};
use crate::server::schedule::pace::{ClientBuckets, Rates};
use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Exports whose counters are kept; each takes up to 10 KiB. Where there are so many, a new one has that
/// forgotten which nobody has used for the longest time: names come and go for as long as a server runs.
const EXPORTS: usize = 4096;

/// What a server counted since it was made, read at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections now.
    pub connections: u64,
    /// Connections since the start, without the refused ones. One that may encrypt is counted when it is
    /// known which client it is, as it may be refused for that.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Negotiations that failed: by the deadline, a broken protocol, or a client that vanished in
    /// the middle of an option.
    pub failed_handshakes: u64,
    /// Connections closed because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections lost by a fault of the program.
    pub panics: u64,
    /// The sum over all exports that there were.
    pub total: Traffic,
    /// How long requests took on all of them.
    pub latencies: Latencies,
    /// By export name; of thousands, those that were used of late.
    pub exports: BTreeMap<String, ExportCounters>,
    /// The clients that are there now, by their identity.
    pub clients: BTreeMap<String, ClientCounters>,
}

/// What was counted for one export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportCounters {
    /// Connections now.
    pub connections: u64,
    /// Requests and bytes.
    pub traffic: Traffic,
    /// How long requests took.
    pub latencies: Latencies,
}

/// What was counted for one client since it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Connections now.
    pub connections: u64,
    /// The exports that it uses now, with the number of its connections.
    pub exports: BTreeMap<String, u64>,
    /// Requests and bytes.
    pub traffic: Traffic,
}

/// The live counters of a server.
#[derive(Debug)]
pub(crate) struct CounterRegistry {
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    exports: Mutex<ExportTable>,
    clients: Mutex<Clients>,
    /// Where the clients' buckets count their time from.
    epoch: Instant,
}

/// Exports that were used.
#[derive(Debug, Default)]
struct ExportTable {
    by_name: BTreeMap<String, Arc<ExportRecord>>,
    /// What was counted for those that were forgotten.
    forgotten: ExportCounters,
}

/// The live counters of one export.
#[derive(Debug, Default)]
pub(crate) struct ExportRecord {
    connections: AtomicU64,
    /// When the last connection left, in nanoseconds since the registry was made.
    left: AtomicU64,
    traffic: TrafficCells,
    latencies: Mutex<ExportLatencies>,
}

/// Times of an export's requests.
#[derive(Debug, Default)]
struct ExportLatencies {
    /// Latencies of connections that are gone.
    past: Latencies,
    /// Meters of connections that are there.
    present: Vec<Arc<Meter>>,
}

#[derive(Debug, Default)]
struct Clients {
    rates: Rates,
    /// Those with a connection, and those that left while they owed: who comes back owes still.
    by_identity: BTreeMap<String, Arc<ClientRecord>>,
}

/// One client.
#[derive(Debug, Default)]
struct ClientRecord {
    exports: Mutex<BTreeMap<String, u64>>,
    traffic: TrafficCells,
    pace: ClientBuckets,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection's share in the counters of its export and its client.
#[derive(Debug)]
pub(crate) struct Share {
    export: Arc<ExportRecord>,
    client: Arc<ClientRecord>,
    name: String,
    pub(crate) meter: Arc<Meter>,
    epoch: Instant,
}

impl Share {
    /// Adds what a batch counted, and clears it.
    pub(crate) fn settle(&self, tally: &mut Traffic) {
        if *tally != Traffic::default() {
            self.export.traffic.add(tally);
            self.client.traffic.add(tally);
            *tally = Traffic::default();
        }
    }

    /// The client's buckets, and the time as they count it.
    #[inline]
    pub(crate) fn pace(&self, now: Instant) -> (&ClientBuckets, u64) {
        (&self.client.pace, nanos(now - self.epoch))
    }
}

/// How fast a client may go, for another front end: what it takes there and here counts as one.
#[derive(Debug, Clone)]
pub struct ClientPace {
    client: Arc<ClientRecord>,
    epoch: Instant,
}

impl ClientPace {
    /// How long the client's next request has to wait; `None` when it may go now.
    pub fn wait(&self, now: Instant) -> Option<std::time::Duration> {
        self.client.pace.wait(nanos(now - self.epoch))
    }

    /// A request that moves so many bytes, in either direction, was let in.
    pub fn charge(&self, now: Instant, bytes: u64) {
        self.client.pace.charge(nanos(now - self.epoch), bytes);
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut times = lock(&self.export.latencies);
        times.present.retain(|meter| !Arc::ptr_eq(meter, &self.meter));
        times.past.add(&self.meter.snapshot());
        drop(times);
        self.export.left.store(nanos(Instant::now() - self.epoch), Relaxed);
        // The last: from here on the export may be forgotten.
        self.export.connections.fetch_sub(1, Release);
        let mut exports = lock(&self.client.exports);
        if let Some(connections) = exports.get_mut(&self.name) {
            *connections -= 1;
            if *connections == 0 {
                exports.remove(&self.name);
            }
        }
    }
}

impl CounterRegistry {
    /// Nothing was counted yet; clients go at these rates.
    pub(crate) fn new(rates: Rates) -> Self {
        let by_identity = BTreeMap::new();
        Self {
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            exports: Mutex::default(),
            clients: Mutex::new(Clients { rates, by_identity }),
            epoch: Instant::now(),
        }
    }

    /// Changes the rates of all clients.
    pub(crate) fn set_rates(&self, rates: Rates) {
        let mut clients = lock(&self.clients);
        clients.rates = rates;
        clients.by_identity.values().for_each(|client| client.pace.set(rates));
    }

    /// Counts one more connection of the client to the export.
    pub(crate) fn join(&self, name: &str, identity: &str) -> Share {
        let export = lock(&self.exports).join(name);
        let meter = Arc::<Meter>::default();
        lock(&export.latencies).present.push(Arc::clone(&meter));
        let client = self.client(identity, name);
        Share { export, client, name: name.to_owned(), meter, epoch: self.epoch }
    }

    /// The pace of the client of this identity.
    pub(crate) fn pace(&self, identity: &str) -> ClientPace {
        ClientPace { client: self.known(identity), epoch: self.epoch }
    }

    fn client(&self, identity: &str, export: &str) -> Arc<ClientRecord> {
        let client = self.known(identity);
        *lock(&client.exports).entry(export.to_owned()).or_default() += 1;
        client
    }

    fn known(&self, identity: &str) -> Arc<ClientRecord> {
        let now = nanos(Instant::now() - self.epoch);
        let mut clients = lock(&self.clients);
        // Who is in use by another front end has a second owner.
        clients
            .by_identity
            .retain(|_, client| Arc::strong_count(client) > 1 || !client.pace.is_even(now));
        let rates = clients.rates;
        let client = clients.by_identity.entry(identity.to_owned()).or_insert_with(|| {
            let client = ClientRecord::default();
            client.pace.set(rates);
            Arc::new(client)
        });
        Arc::clone(client)
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let known = lock(&self.exports);
        let exports: BTreeMap<_, _> =
            known.by_name.iter().map(|(name, live)| (name.clone(), live.snapshot())).collect();
        let mut latencies = known.forgotten.latencies.clone();
        let forgotten = known.forgotten.traffic;
        drop(known);
        exports.values().for_each(|export| latencies.add(&export.latencies));
        self.sum(exports, forgotten, latencies)
    }

    /// The same, but the exports without their latencies.
    pub(crate) fn totals(&self) -> Counters {
        let known = lock(&self.exports);
        let mut latencies = known.forgotten.latencies.clone();
        let exports: BTreeMap<_, _> = known
            .by_name
            .iter()
            .map(|(name, live)| {
                live.add_latencies(&mut latencies);
                (name.clone(), live.traffic())
            })
            .collect();
        let forgotten = known.forgotten.traffic;
        drop(known);
        self.sum(exports, forgotten, latencies)
    }

    /// What was counted, with the traffic of exports that were forgotten and the latencies of all.
    fn sum(
        &self,
        exports: BTreeMap<String, ExportCounters>,
        forgotten: Traffic,
        latencies: Latencies,
    ) -> Counters {
        let mut total = forgotten;
        exports.values().for_each(|export| total.add(&export.traffic));
        let clients = lock(&self.clients)
            .by_identity
            .iter()
            .filter(|(_, client)| client.is_present())
            .map(|(identity, client)| (identity.clone(), client.snapshot()))
            .collect();
        Counters {
            connections: self.connections.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed_handshakes: self.failed_handshakes.load(Relaxed),
            protocol_errors: self.protocol_errors.load(Relaxed),
            panics: self.panics.load(Relaxed),
            total,
            latencies,
            exports,
            clients,
        }
    }
}

impl ExportTable {
    /// Counts one more connection to the export.
    fn join(&mut self, name: &str) -> Arc<ExportRecord> {
        if !self.by_name.contains_key(name) && self.by_name.len() >= EXPORTS {
            self.forget_one();
        }
        let export = match self.by_name.get(name) {
            Some(found) => found,
            None => self.by_name.entry(name.to_owned()).or_default(),
        };
        export.connections.fetch_add(1, Relaxed);
        Arc::clone(export)
    }

    /// Forgets the export that was left first, unless all are in use.
    fn forget_one(&mut self) {
        let unused = |live: &Arc<ExportRecord>| live.connections.load(Acquire) == 0;
        let unused = self.by_name.iter().filter(|(_, live)| unused(live));
        let first = unused.min_by_key(|(_, live)| live.left.load(Relaxed));
        let Some(name) = first.map(|(name, _)| name.clone()) else { return };
        if let Some(live) = self.by_name.remove(&name) {
            let counted = live.snapshot();
            self.forgotten.traffic.add(&counted.traffic);
            self.forgotten.latencies.add(&counted.latencies);
        }
    }
}

impl ExportRecord {
    fn snapshot(&self) -> ExportCounters {
        let mut latencies = Latencies::default();
        self.add_latencies(&mut latencies);
        ExportCounters { latencies, ..self.traffic() }
    }

    /// What was counted, without latencies.
    fn traffic(&self) -> ExportCounters {
        let connections = self.connections.load(Relaxed);
        let latencies = Latencies::default();
        ExportCounters { connections, traffic: self.traffic.snapshot(), latencies }
    }

    fn add_latencies(&self, sum: &mut Latencies) {
        let times = lock(&self.latencies);
        sum.add(&times.past);
        times.present.iter().for_each(|meter| sum.add(&meter.snapshot()));
    }
}

impl ClientRecord {
    fn is_present(&self) -> bool {
        !lock(&self.exports).is_empty()
    }

    fn snapshot(&self) -> ClientCounters {
        let exports = lock(&self.exports).clone();
        let connections = exports.values().sum();
        ClientCounters { connections, exports, traffic: self.traffic.snapshot() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::counters::latency::{TimedOperation, Timer};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_owes_finds_its_debt_when_it_comes_back() {
        let registry = CounterRegistry::new(Rates { requests: 1, bytes: 0 });
        let wait = |share: &Share| {
            let (pace, now) = share.pace(Instant::now());
            pace.wait(now)
        };
        let share = registry.join("disk", "one");
        for _ in 0..10 {
            let (pace, now) = share.pace(Instant::now());
            pace.charge(now, 0);
        }
        drop(share);
        assert!(registry.snapshot().clients.is_empty());
        assert!(wait(&registry.join("disk", "two")).is_none());
        let share = registry.join("disk", "one");
        assert!(wait(&share).is_some());
        let counters = registry.snapshot();
        assert_eq!(counters.clients["one"].exports["disk"], 1);
        drop(share);
        tokio::time::advance(std::time::Duration::from_secs(11)).await;
        registry.join("disk", "two");
        assert!(!lock(&registry.clients).by_identity.contains_key("one"), "the debt is paid");
        assert_eq!(registry.snapshot().exports["disk"].connections, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_takes_by_another_front_end_is_paid_for_here() {
        let registry = CounterRegistry::new(Rates { requests: 1, bytes: 0 });
        let elsewhere = registry.pace("one");
        registry.join("disk", "two"); // nobody forgets who is in use elsewhere
        for _ in 0..10 {
            elsewhere.charge(Instant::now(), 4096);
        }
        let share = registry.join("disk", "one");
        let (pace, now) = share.pace(Instant::now());
        assert!(pace.wait(now).is_some());
        assert_eq!(pace.wait(now), elsewhere.wait(Instant::now()));
        registry.set_rates(Rates::default());
        assert!(elsewhere.wait(Instant::now()).is_none(), "a change holds there, too");
        drop(share);
        assert!(registry.snapshot().clients.is_empty(), "it has no connection here");
    }

    #[tokio::test(start_paused = true)]
    async fn exports_that_come_and_go_do_not_pile_up_and_stay_in_the_sum() {
        let registry = CounterRegistry::new(Rates::default());
        let used = registry.join("used", "one");
        let most = EXPORTS as u64;
        for number in 0..2 * most {
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            let share = registry.join(&format!("disk{number}"), "one");
            let mut tally = Traffic { reads: 1, ..Traffic::default() };
            Timer::new().answered(&share.meter, &tally);
            share.settle(&mut tally);
        }
        used.settle(&mut Traffic { writes: 1, ..Traffic::default() });
        let counters = registry.snapshot();
        assert_eq!(counters.exports.len(), EXPORTS);
        assert_eq!(counters.exports["used"].traffic.writes, 1, "nobody forgets what is in use");
        assert_eq!((counters.total.reads, counters.total.writes), (2 * most, 1));
        assert_eq!(counters.latencies.of(TimedOperation::Read).count(), 2 * most);
        let totals = registry.totals();
        assert_eq!((totals.total, &totals.latencies), (counters.total, &counters.latencies));
        assert!(totals.exports.iter().all(|(name, export)| {
            export.latencies == Latencies::default()
                && export.traffic == counters.exports[name].traffic
        }));
        let last = format!("disk{}", 2 * most - 1);
        assert_eq!(counters.exports[&last].traffic.reads, 1);
        assert!(!counters.exports.contains_key("disk0"));
    }
}
