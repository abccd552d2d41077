//! Counters read at two moments, and what lies between them.

use super::views::{BusyClient, KindTimes, LivePoint, LiveRow, PointTimes};
use crate::latency::LatencyView;
use crate::running::RunningServer;
use crate::trouble::Ongoing;
use nbd::server::TimedOperation;
use nbd::{Counters, Traffic};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How many clients are told.
const BUSIEST: usize = 12;

/// What was counted up to a moment.
pub(super) struct CounterReading {
    at: Instant,
    pub(super) counters: Counters,
    /// Latency of reads and writes together, and of each kind.
    all: LatencyView,
    kinds: BTreeMap<&'static str, LatencyView>,
    /// Hits, and look-ups.
    pub(super) cache: (u64, u64),
    /// Chunks, and their bytes as stored.
    pub(super) store: (u64, u64),
}

impl CounterReading {
    /// Reads them now.
    pub(super) fn at(running: &RunningServer) -> Self {
        let counters = running.nbd.totals();
        let mut kinds = BTreeMap::new();
        for operation in [TimedOperation::Read, TimedOperation::Write, TimedOperation::Flush] {
            let times = LatencyView::from(counters.latencies.of(operation));
            kinds.insert(operation.name(), times);
        }
        let mut both = counters.latencies.of(TimedOperation::Read).clone();
        both.add(counters.latencies.of(TimedOperation::Write));
        let (cache, store) = (running.engine.cache.stats(), running.engine.store.counters());
        Self {
            at: Instant::now(),
            all: LatencyView::from(&both),
            counters,
            kinds,
            cache: (cache.hits, cache.hits + cache.misses),
            store: (store.chunk_reads, store.stored_bytes_read),
        }
    }

    /// The interval that ends with this, in seconds.
    pub(super) fn seconds_since(&self, before: &Self) -> f64 {
        (self.at - before.at).as_secs_f64()
    }

    /// How long requests of each kind took since `before`.
    pub(super) fn latency(&self, before: &Self) -> BTreeMap<&'static str, KindTimes> {
        let fresh = |(kind, times): (&&'static str, &LatencyView)| {
            let times = before.kinds.get(kind).map_or_else(|| times.clone(), |b| times.since(b));
            (times.count > 0).then(|| (*kind, KindTimes::from(&times)))
        };
        self.kinds.iter().filter_map(fresh).collect()
    }
}

/// What the charts show of the interval, of a server that has been `up` for so long.
pub(super) fn point(before: &CounterReading, now: &CounterReading, up: Duration) -> LivePoint {
    let seconds = now.seconds_since(before);
    let (then, total) = (&before.counters.total, &now.counters.total);
    let rate = |field: fn(&Traffic) -> u64| per(field(then), field(total), seconds);
    let (hits, looked) =
        (now.cache.0.saturating_sub(before.cache.0), now.cache.1.saturating_sub(before.cache.1));
    LivePoint {
        at: round(up.as_secs_f64(), 1e3),
        seconds: round(seconds, 1e3),
        clients: now.counters.clients.len() as u64,
        reads: rate(|traffic| traffic.reads),
        writes: rate(|traffic| traffic.writes),
        flushes: rate(|traffic| traffic.flushes),
        errors: rate(|traffic| traffic.errors),
        held_back: rate(|traffic| traffic.paced),
        read_bytes: rate(|traffic| traffic.read_bytes),
        written_bytes: rate(|traffic| traffic.written_bytes),
        hit_percent: percent(hits, looked),
        latency: PointTimes::of(&now.all.since(&before.all)),
    }
}

/// The clients that asked for most, those first.
pub(super) fn busiest(before: &CounterReading, now: &CounterReading) -> Vec<BusyClient> {
    let seconds = now.seconds_since(before);
    let asked = |name: &String, traffic: &Traffic| {
        let then = before.counters.clients.get(name).map_or(0, |then| requests(&then.traffic));
        requests(traffic).saturating_sub(then)
    };
    let mut clients: Vec<_> = now.counters.clients.iter().collect();
    clients.sort_by_cached_key(|(name, seen)| Reverse(asked(name, &seen.traffic)));
    let view = |(name, seen): (&String, &nbd::server::ClientCounters)| {
        let then = before.counters.clients.get(name).map(|then| then.traffic).unwrap_or_default();
        let rate = |field: fn(&Traffic) -> u64| per(field(&then), field(&seen.traffic), seconds);
        BusyClient {
            client: name.clone(),
            connections: seen.connections,
            export: seen.exports.keys().next().cloned(),
            exports: seen.exports.len() as u64,
            requests: rate(requests),
            read_bytes: rate(|traffic| traffic.read_bytes),
            written_bytes: rate(|traffic| traffic.written_bytes),
            held_back: rate(|traffic| traffic.paced),
        }
    };
    clients.into_iter().take(BUSIEST).map(view).collect()
}

/// The exports that are in use now.
pub(super) fn rows(
    running: &RunningServer,
    before: &CounterReading,
    now: &CounterReading,
) -> BTreeMap<String, LiveRow> {
    let seconds = now.seconds_since(before);
    let open = running.engine.open.try_look(|disk| {
        (disk.holder(), disk.counters().private) //
    });
    let mut rows: BTreeMap<String, LiveRow> = BTreeMap::new();
    for (name, seen) in open {
        let mut row = LiveRow { open: true, ..LiveRow::unused(name.clone()) };
        if let Some((holder, private)) = seen {
            (row.client, row.private_bytes) = (holder, Some(private));
        }
        rows.insert(name, row);
    }
    for (name, export) in &now.counters.exports {
        let then = before.counters.exports.get(name).map(|export| export.traffic);
        let then = then.unwrap_or_default();
        let rate = |field: fn(&Traffic) -> u64| {
            per(field(&then), field(&export.traffic), seconds).round() as u64
        };
        let used = export.connections > 0 || then != export.traffic;
        if !used && !rows.contains_key(name) {
            continue;
        }
        let row = rows.entry(name.clone()).or_insert_with(|| LiveRow::unused(name.clone()));
        row.connections = export.connections;
        row.requests = rate(requests);
        row.read_bytes = rate(|traffic| traffic.read_bytes);
        row.written_bytes = rate(|traffic| traffic.written_bytes);
    }
    for Ongoing { disk, state, .. } in running.troubles.all() {
        let Some(row) = disk.and_then(|disk| rows.get_mut(&disk)) else { continue };
        match state {
            "full" => row.full = true,
            _ => row.slow = true,
        }
    }
    rows
}

impl LiveRow {
    fn unused(name: String) -> Self {
        Self {
            name,
            open: false,
            client: None,
            connections: 0,
            private_bytes: None,
            full: false,
            slow: false,
            requests: 0,
            read_bytes: 0,
            written_bytes: 0,
        }
    }
}

fn requests(traffic: &Traffic) -> u64 {
    traffic.reads + traffic.writes + traffic.flushes + traffic.trims + traffic.zeroes
}

/// What was added in so many seconds, for each of them. What began again at zero gives zero.
pub(super) fn per(before: u64, after: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 { 0.0 } else { round(after.saturating_sub(before) as f64 / seconds, 10.0) }
}

/// A part of all, if there is any.
pub(super) fn percent(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| round(part as f64 * 100.0 / all as f64, 100.0))
}

/// To so many parts of one: what is beyond them nobody sees.
pub(super) fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}
