//! From two states of a server to what happened between them.

use crate::order::natural;
use cache::Forecast;
use serde::Serialize;
use server::head_room::HeadRoomView;
use server::latency::LatencyView;
use server::status::{ExportView, StatusView, TrafficView};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SortKey {
    /// Requests in a second
    Iops,
    /// Bytes in a second
    Bytes,
    /// The time that 99 of 100 requests do not exceed
    Latency,
    /// Growth of private blocks
    Growth,
    /// The name
    Name,
}

/// What a server does now. Field names are documented in docs/cli.md and do not change.
#[derive(Debug, Serialize)]
pub(super) struct ServerRates {
    /// The length of the interval.
    pub(super) seconds: f64,
    pub(super) uptime_seconds: u64,
    pub(super) connections: u64,
    pub(super) open_disks: u64,
    pub(super) cache_bytes: u64,
    pub(super) cache_capacity_bytes: u64,
    /// Hits of the look-ups in the interval; null when there was none.
    pub(super) hit_percent: Option<f64>,
    /// What other sizes and policies of the cache would give; null before there was enough to tell.
    pub(super) forecast: Option<Forecast>,
    /// Stored bytes read from the store in a second.
    pub(super) store_read_bytes: f64,
    pub(super) total: Rates,
    /// Head-room of the last minute; null before the server has been up for a moment.
    pub(super) head_room: Option<HeadRoomView>,
    /// What is full or slow now, a line each.
    pub(super) troubles: Vec<String>,
    pub(super) disks: Vec<DiskNow>,
    pub(super) clients: Vec<ClientNow>,
}

/// Per second.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Rates {
    pub(super) reads: f64,
    pub(super) read_bytes: f64,
    pub(super) writes: f64,
    pub(super) written_bytes: f64,
    pub(super) flushes: f64,
    pub(super) errors: f64,
    /// Times that the client's limits held a connection back.
    pub(super) paced: f64,
}

/// One disk, or an image that is used.
#[derive(Debug, Serialize)]
pub(super) struct DiskNow {
    pub(super) name: String,
    /// The client that holds the disk.
    pub(super) client: Option<String>,
    pub(super) connections: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
    /// Median of reads and writes together, in µs; null when there was none.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Null for an image.
    pub(super) private_bytes: Option<u64>,
    /// Bytes in a second.
    pub(super) growth_bytes: Option<f64>,
    /// Writes fail for want of room.
    pub(super) full: bool,
    pub(super) slow: bool,
}

/// One client.
#[derive(Debug, Serialize)]
pub(super) struct ClientNow {
    pub(super) client: String,
    pub(super) connections: u64,
    pub(super) exports: Vec<String>,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

impl Rates {
    fn between(before: &TrafficView, after: &TrafficView, seconds: f64) -> Self {
        // A server that was restarted in between begins at zero again.
        let rate = |field: fn(&TrafficView) -> u64| per(field(before), field(after), seconds);
        Self {
            reads: rate(|t| t.reads),
            read_bytes: rate(|t| t.read_bytes),
            writes: rate(|t| t.writes),
            written_bytes: rate(|t| t.written_bytes),
            flushes: rate(|t| t.flushes),
            errors: rate(|t| t.errors),
            paced: rate(|t| t.paced),
        }
    }

    /// Reads and writes.
    pub(super) fn iops(&self) -> f64 {
        self.reads + self.writes
    }

    /// Read and written.
    pub(super) fn bytes(&self) -> f64 {
        self.read_bytes + self.written_bytes
    }
}

fn per(before: u64, after: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 { 0.0 } else { after.saturating_sub(before) as f64 / seconds }
}

impl ServerRates {
    /// What happened between two states that lie `time` apart.
    pub(super) fn between(before: &StatusView, after: &StatusView, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        let earlier: BTreeMap<&str, &ExportView> =
            before.exports.iter().map(|export| (export.name.as_str(), export)).collect();
        let hits = after.cache.hits.saturating_sub(before.cache.hits);
        let looked = hits + after.cache.misses.saturating_sub(before.cache.misses);
        let clients = after.clients.iter().map(|client| {
            let same = before.clients.iter().find(|earlier| earlier.client == client.client);
            let nothing = TrafficView::default();
            let then = same.map_or(&nothing, |same| &same.traffic);
            ClientNow {
                client: client.client.clone(),
                connections: client.connections,
                exports: client.exports.clone(),
                rates: Rates::between(then, &client.traffic, seconds),
            }
        });
        Self {
            seconds,
            uptime_seconds: after.uptime_seconds,
            connections: after.connections,
            open_disks: after.open_disks,
            cache_bytes: after.cache.bytes,
            cache_capacity_bytes: after.cache.capacity_bytes,
            hit_percent: (looked > 0).then(|| hits as f64 * 100.0 / looked as f64),
            forecast: after.cache.forecast.clone(),
            store_read_bytes: per(before.store.read_bytes, after.store.read_bytes, seconds),
            total: Rates::between(&before.total, &after.total, seconds),
            head_room: after.head_room.clone(),
            troubles: after.troubles(),
            disks: after
                .exports
                .iter()
                .map(|export| disk(earlier.get(export.name.as_str()).copied(), export, seconds))
                .collect(),
            clients: clients.collect(),
        }
    }

    /// Puts the busiest first.
    pub(super) fn sort(&mut self, key: SortKey) {
        self.disks.sort_by(|a, b| {
            let order = match key {
                SortKey::Iops => descending(a.rates.iops(), b.rates.iops()),
                SortKey::Bytes => descending(a.rates.bytes(), b.rates.bytes()),
                SortKey::Latency => descending(a.p99_us.unwrap_or(0.0), b.p99_us.unwrap_or(0.0)),
                SortKey::Growth => {
                    descending(a.growth_bytes.unwrap_or(0.0), b.growth_bytes.unwrap_or(0.0))
                }
                SortKey::Name => Ordering::Equal,
            };
            order.then_with(|| natural(&a.name, &b.name))
        });
        self.clients.sort_by(|a, b| {
            let order = match key {
                SortKey::Iops | SortKey::Latency => descending(a.rates.iops(), b.rates.iops()),
                SortKey::Bytes => descending(a.rates.bytes(), b.rates.bytes()),
                SortKey::Growth => descending(a.rates.written_bytes, b.rates.written_bytes),
                SortKey::Name => Ordering::Equal,
            };
            order.then_with(|| natural(&a.client, &b.client))
        });
    }
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

fn disk(before: Option<&ExportView>, after: &ExportView, seconds: f64) -> DiskNow {
    let nothing = TrafficView::default();
    let then = before.map_or(&nothing, |before| &before.traffic);
    let fresh = |kind: &str| {
        let now = after.latency.get(kind).cloned().unwrap_or_default();
        match before.and_then(|before| before.latency.get(kind)) {
            Some(before) => now.since(before),
            None => now,
        }
    };
    let times: LatencyView = fresh("read").with(&fresh("write"));
    let some = |value: f64| (times.count > 0).then_some(value);
    let grown = |now: u64| {
        let then = before.and_then(|before| before.private_bytes).unwrap_or(now);
        (now as f64 - then as f64) / seconds.max(1e-3)
    };
    DiskNow {
        name: after.name.clone(),
        client: after.client.clone(),
        connections: after.connections,
        rates: Rates::between(then, &after.traffic, seconds),
        p50_us: some(times.p50_us),
        p99_us: some(times.p99_us),
        private_bytes: after.private_bytes,
        growth_bytes: after.private_bytes.map(grown),
        full: after.full.is_some(),
        slow: after.slow.is_some(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A server with two disks, `n` steps after its start.
    pub(in crate::commands::top) fn state(n: u64) -> StatusView {
        let export = |name: &str, factor: u64| {
            serde_json::json!({
                "name": name, "connections": 1, "client": "pid:7", "open": true,
                "private_bytes": 4096 * factor * n, "reads": 100 * factor * n,
                "read_bytes": 409_600 * factor * n, "writes": 10 * factor * n,
                "written_bytes": 40_960 * factor * n, "flushes": n, "trims": 0, "zeroes": 0,
                "errors": 0, "paced": n,
                "latency": {"read": {
                    "count": 100 * n, "mean_us": 1.0, "p50_us": 1.0, "p90_us": 1.0, "p99_us": 1.0,
                    "p999_us": 1.0, "seconds": 0.0001 * n as f64,
                    "buckets": [[1000 * factor, 99 * n], [1_000_000, n]],
                }},
            })
        };
        let total = serde_json::json!({
            "reads": 300 * n, "read_bytes": 1_228_800 * n, "writes": 30 * n,
            "written_bytes": 122_880 * n, "flushes": 2 * n, "trims": 0, "zeroes": 0, "errors": 0,
        });
        serde_json::from_value(serde_json::json!({
            "running": true, "version": "0", "pid": 1, "home": "/h", "uptime_seconds": 61 + n,
            "listeners": [], "http": null, "connections": 2, "connections_accepted": 2,
            "connections_refused": 0, "connection_faults": 0, "panics": 0,
            "cache": {"policy": "fmpq", "capacity_bytes": 1 << 20, "bytes": 1 << 19, "entries": 1,
                "hits": 90 * n, "misses": 10 * n, "evictions": 0, "hit_percent": 90.0},
            "store": {"reads": n, "read_bytes": 1024 * n, "plain_bytes": 2048 * n, "failures": 0,
                "moved": 0, "healed": 0},
            "link": {"retries": 0, "given_up": 0}, "pieces": null, "total": total, "trace": null,
            "open_disks": 2, "exports": [export("alice", 1), export("bob", 2)],
            "clients": [{"client": "pid:7", "connections": 2, "exports": ["alice", "bob"],
                "reads": 300 * n, "read_bytes": 1_228_800 * n, "writes": 30 * n,
                "written_bytes": 122_880 * n, "flushes": 2 * n, "trims": 0, "zeroes": 0,
                "errors": 0, "paced": 0}],
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_differences_over_the_interval() {
        let mut now = ServerRates::between(&state(10), &state(14), Duration::from_secs(2));
        assert_eq!((now.total.reads, now.total.iops()), (600.0, 660.0));
        assert_eq!((now.hit_percent, now.store_read_bytes), (Some(90.0), 2048.0));
        assert_eq!(now.clients[0].rates.written_bytes, 245_760.0);
        now.sort(SortKey::Bytes);
        assert_eq!(now.disks[0].name, "bob");
        assert_eq!(now.disks[0].rates.bytes(), 2.0 * (819_200.0 + 81_920.0));
        assert_eq!(now.disks[0].growth_bytes, Some(16_384.0));
        assert_eq!((now.disks[0].p50_us, now.disks[0].p99_us), (Some(2.0), Some(2.0)));
        now.sort(SortKey::Name);
        assert_eq!(now.disks[0].name, "alice");
    }

    #[test]
    fn a_server_that_was_restarted_meanwhile_is_no_trouble() {
        let now = ServerRates::between(&state(10), &state(1), Duration::from_secs(1));
        assert_eq!((now.total.reads, now.hit_percent), (0.0, None));
        let idle = ServerRates::between(&state(1), &state(1), Duration::ZERO);
        assert_eq!((idle.disks[0].p99_us, idle.total.reads), (None, 0.0));
    }
}
