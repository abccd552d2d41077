//! The status as Prometheus metrics, in the OpenMetrics text format.

use super::latency::LatencyView;
use super::status::{ExportView, StatusView, TrafficView};
use crate::names::metric::*;
use block::{Error, Result};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of `status`.
///
/// # Errors
/// None that matter: writing into a string does not fail.
pub(crate) fn text(status: StatusView) -> Result<String> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Snapshot(status)));
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|e| Error::internal("cannot write the metrics").with_source(e))?;
    Ok(text)
}

/// A counter that every export has: name, help, value.
type PerExport = (&'static str, &'static str, fn(&TrafficView) -> u64);

/// A state that every disk has: name, help, whether it is so.
type PerDisk = (&'static str, &'static str, fn(&ExportView) -> bool);

/// One moment's numbers.
#[derive(Debug)]
struct Snapshot(StatusView);

impl prometheus_client::collector::Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let s = &self.0;
        let out = &mut encoder;
        gauge(out, CONNECTIONS, "Client connections now", s.connections)?;
        gauge(out, CLIENTS, "Clients that use an export now", s.clients.len() as u64)?;
        counter(out, CONNECTIONS_ACCEPTED, "Client connections accepted", s.connections_accepted)?;
        counter(
            out,
            CONNECTIONS_REFUSED,
            "Client connections over the limit",
            s.connections_refused,
        )?;
        counter(
            out,
            CONNECTION_FAULTS,
            "Connections that ended in a failed negotiation or a broken protocol",
            s.connection_faults,
        )?;
        counter(out, PANICS, "Connections lost by a fault of the program", s.panics)?;
        counter(out, CACHE_HITS, "Look-ups that the block cache answered", s.cache.hits)?;
        counter(
            out,
            CACHE_MISSES,
            "Look-ups that the block cache could not answer",
            s.cache.misses,
        )?;
        counter(out, CACHE_EVICTIONS, "Chunks that left the block cache", s.cache.evictions)?;
        gauge(out, CACHE_BYTES, "Bytes in the block cache", s.cache.bytes)?;
        gauge(out, CACHE_CAPACITY, "Capacity of the block cache", s.cache.capacity_bytes)?;
        self.forecast(out)?;
        counter(out, STORE_READS, "Chunks read from the store", s.store.reads)?;
        counter(out, STORE_READ_BYTES, "Stored bytes read from the store", s.store.read_bytes)?;
        counter(out, STORE_FAILURES, "Chunks that the store could not give", s.store.failures)?;
        counter(out, STORE_MOVED, "Chunks read from where their pack was moved", s.store.moved)?;
        let slow = "1 while the store is slow, else 0";
        gauge(out, STORE_SLOW, slow, s.store.slow.is_some().into())?;
        counter(out, STORE_HEALED, "Chunks and maps read from another store", s.store.healed)?;
        self.sources(out)?;
        let retries = "Requests to the store that failed and were tried again";
        counter(out, STORE_RETRIES, retries, s.link.retries)?;
        let given_up = "Requests to the store that were given up";
        counter(out, STORE_GIVEN_UP, given_up, s.link.given_up)?;
        if let Some(pieces) = &s.pieces {
            counter(out, PIECE_HITS, "Parts read from the piece cache", pieces.hits)?;
            counter(out, PIECE_HIT_BYTES, "Their bytes", pieces.hit_bytes)?;
            let misses = "Parts that the piece cache did not have";
            counter(out, PIECE_MISSES, misses, pieces.misses)?;
            let fetched = "Bytes fetched because the piece cache did not have them";
            counter(out, PIECE_MISS_BYTES, fetched, pieces.miss_bytes)?;
            counter(out, PIECES_DAMAGED, "Damaged files of the piece cache", pieces.damaged)?;
            let not_kept = "Parts that could not be kept on the local disk";
            counter(out, PIECES_NOT_KEPT, not_kept, pieces.not_kept)?;
            let evicted = "Bytes that left the piece cache";
            counter(out, PIECE_EVICTED_BYTES, evicted, pieces.evicted_bytes)?;
        }
        if let Some(more) = s.head_room.as_ref().and_then(|room| room.more) {
            gauge(
                out,
                HEAD_ROOM,
                "Clients like the present ones that there may be in addition",
                more,
            )?;
        }
        self.throttles(out)?;
        self.iscsi(out)?;
        self.vhost_user(out)?;
        self.gateway(out)?;
        gauge(out, OPEN_DISKS, "Disks open now", s.open_disks)?;
        self.per_export(out)
    }
}

impl Snapshot {
    fn sources(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = &self.0.sources;
        if all.is_empty() {
            return Ok(());
        }
        let help = "Chunks that a source was asked for, by what came of it";
        let mut family = out.encode_descriptor(SOURCE_CHUNKS, help, None, MetricType::Counter)?;
        for one in all {
            let outcomes = [
                ("had", one.had),
                ("missed", one.missed),
                ("wrong", one.wrong),
                ("late", one.late),
                ("failed", one.failed),
            ];
            for (outcome, count) in outcomes {
                let labels =
                    [(SOURCE, one.name.as_str()), (KIND, one.kind.as_str()), (OUTCOME, outcome)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Bytes of the chunks that a source gave, as they were moved";
        let mut family =
            out.encode_descriptor(SOURCE_READ_BYTES, help, None, MetricType::Counter)?;
        for one in all {
            let labels = [(SOURCE, one.name.as_str()), (KIND, one.kind.as_str())];
            ConstCounter::new(one.bytes).encode(family.encode_family(&labels)?)?;
        }
        let help = "1 while a source is not asked, as it lied, failed or hung; else 0";
        let mut family = out.encode_descriptor(SOURCE_RESTING, help, None, MetricType::Gauge)?;
        for one in all {
            let labels = [(SOURCE, one.name.as_str()), (KIND, one.kind.as_str())];
            let rests = one.state == lookaside::SourceState::Resting;
            ConstGauge::new(i64::from(rests)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn forecast(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(forecast) = &self.0.cache.forecast else { return Ok(()) };
        let help = "Hits of all look-ups of late that a policy would have had with so much memory";
        let mut family = out.encode_descriptor(CACHE_FORECAST, help, None, MetricType::Gauge)?;
        for row in &forecast.policies {
            let policy = row.policy.to_string();
            for (memory, ratio) in [("half", row.half), ("same", row.same), ("double", row.double)]
            {
                let labels = [(POLICY, policy.as_str()), (MEMORY, memory)];
                ConstGauge::new(ratio).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn throttles(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = &self.0.throttles;
        if all.is_empty() {
            return Ok(());
        }
        let help = "Answers of a throttled export that came more than a millisecond late";
        let mut family = out.encode_descriptor(THROTTLE_LATE, help, None, MetricType::Counter)?;
        for one in all {
            let labels = [(EXPORT, one.export.as_str())];
            ConstCounter::new(one.counters.late).encode(family.encode_family(&labels)?)?;
        }
        let help = "How late all answers of a throttled export were together";
        let mut family =
            out.encode_descriptor(THROTTLE_LATE_SECONDS, help, None, MetricType::Counter)?;
        for one in all {
            let labels = [(EXPORT, one.export.as_str())];
            let seconds = one.counters.late_mean_us * one.counters.requests as f64 * 1e-6;
            ConstCounter::new(seconds).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gateway(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(gateway) = &self.0.gateway else { return Ok(()) };
        let did = &gateway.counters;
        gauge(out, GATEWAY_CONNECTIONS, "Connections of the gateway now", did.connections)?;
        counter(out, GATEWAY_REQUESTS, "Requests that the gateway answered", did.requests)?;
        let help = "Requests for what is not there, or not for the client";
        counter(out, GATEWAY_REFUSED, help, did.refused)?;
        counter(out, GATEWAY_FAILED, "Requests that failed for another reason", did.failed)?;
        counter(out, GATEWAY_SENT_BYTES, "Bytes that the gateway sent", did.sent_bytes)?;
        counter(out, GATEWAY_RECEIVED_BYTES, "Bytes that clients wrote", did.received_bytes)?;
        counter(out, GATEWAY_WRITTEN, "Objects that clients wrote", did.written)
    }

    fn iscsi(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(iscsi) = &self.0.iscsi else { return Ok(()) };
        gauge(out, ISCSI_CONNECTIONS, "iSCSI connections now", iscsi.connections)?;
        gauge(out, ISCSI_SESSIONS, "iSCSI sessions now that use a target", iscsi.sessions)?;
        counter(out, ISCSI_REFUSED, "iSCSI logins refused", iscsi.logins_refused)?;
        counter(out, ISCSI_COMMANDS, "iSCSI commands answered", iscsi.commands)?;
        counter(out, ISCSI_READ_BYTES, "Bytes that iSCSI initiators read", iscsi.read_bytes)?;
        let help = "Bytes that iSCSI initiators sent to be written";
        counter(out, ISCSI_WRITTEN_BYTES, help, iscsi.written_bytes)?;
        let help = "iSCSI commands found by busy polling, before the connection slept";
        counter(out, ISCSI_BUSY_POLLED, help, iscsi.busy_polled)
    }

    fn vhost_user(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(served) = &self.0.vhost_user else { return Ok(()) };
        gauge(out, VHOST_USER_CONNECTIONS, "vhost-user connections now", served.connections)?;
        gauge(out, VHOST_USER_VIRTQUEUES, "Virtqueues that are served now", served.virtqueues)?;
        let help = "vhost-user connections refused";
        counter(out, VHOST_USER_REFUSED, help, served.connections_refused)?;
        let help = "Requests of virtqueues answered";
        counter(out, VHOST_USER_REQUESTS, help, served.requests)?;
        let help = "Times that a request of a virtqueue was found by busy polling";
        counter(out, VHOST_USER_BUSY_POLLED, help, served.busy_polled)?;
        let help = "Bytes that guests read by vhost-user";
        counter(out, VHOST_USER_READ_BYTES, help, served.read_bytes)?;
        let help = "Bytes that guests wrote by vhost-user";
        counter(out, VHOST_USER_WRITTEN_BYTES, help, served.written_bytes)
    }

    fn per_export(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let exports = &self.0.exports;
        let help = "Requests done, by export and kind";
        let mut family = out.encode_descriptor(REQUESTS, help, None, MetricType::Counter)?;
        for export in exports {
            for (kind, count) in kinds(&export.traffic) {
                let labels = [(EXPORT, export.name.as_str()), (KIND, kind)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "How long requests took that succeeded, by export and kind";
        let histogram = MetricType::Histogram;
        let mut family = out.encode_descriptor(REQUEST_SECONDS, help, None, histogram)?;
        for export in exports {
            for (kind, latency) in &export.latency {
                let labels = [(EXPORT, export.name.as_str()), (KIND, kind.as_str())];
                let mut metric = family.encode_family(&labels)?;
                let buckets = buckets(latency);
                metric.encode_histogram::<NoLabelSet>(
                    latency.seconds,
                    latency.count,
                    &buckets,
                    None,
                )?;
            }
        }
        let polled = "Requests that were found by busy polling";
        let counters: [PerExport; 5] = [
            (REQUEST_ERRORS, "Requests answered with an error", |t| t.errors),
            (PACED, "Times that a client's limits held a connection back", |t| t.paced),
            (BUSY_POLLED, polled, |t| t.busy_polled),
            (READ_BYTES, "Bytes read by clients", |t| t.read_bytes),
            (WRITTEN_BYTES, "Bytes written by clients", |t| t.written_bytes),
        ];
        for (name, help, value) in counters {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for export in exports {
                let labels = [(EXPORT, export.name.as_str())];
                ConstCounter::new(value(&export.traffic)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Time that connections spent busy polling for requests";
        let mut family =
            out.encode_descriptor(BUSY_POLL_SECONDS, help, None, MetricType::Counter)?;
        for export in exports {
            let labels = [(EXPORT, export.name.as_str())];
            ConstCounter::new(export.traffic.busy_poll_seconds)
                .encode(family.encode_family(&labels)?)?;
        }
        let help = "Bytes of a disk's private blocks";
        let mut family = out.encode_descriptor(PRIVATE_BYTES, help, None, MetricType::Gauge)?;
        for export in exports {
            if let Some(bytes) = export.private_bytes {
                let labels = [(EXPORT, export.name.as_str())];
                ConstGauge::new(signed(bytes)).encode(family.encode_family(&labels)?)?;
            }
        }
        let states: [PerDisk; 2] = [
            (DISK_FULL, "1 while writes of a disk fail for want of room, else 0", |disk| {
                disk.full.is_some()
            }),
            (DISK_SLOW, "1 while a disk is slow, else 0", |disk| disk.slow.is_some()),
        ];
        for (name, help, state) in states {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for export in exports.iter().filter(|export| export.private_bytes.is_some()) {
                let labels = [(EXPORT, export.name.as_str())];
                let value = i64::from(state(export));
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The buckets of a histogram, each with its bound in seconds and what it has alone: powers of two
/// from 4 us to 8.6 s, which are bounds of the finer buckets too.
fn buckets(latency: &LatencyView) -> Vec<(f64, u64)> {
    let mut list: Vec<(f64, u64)> =
        (12..=33).map(|power| ((1u64 << power) as f64 / 1e9, 0)).collect();
    list.push((f64::INFINITY, 0));
    for (most, count) in &latency.buckets {
        let seconds = *most as f64 / 1e9;
        if let Some(bucket) = list.iter_mut().find(|(bound, _)| seconds <= *bound) {
            bucket.1 += count;
        }
    }
    list
}

fn kinds(traffic: &TrafficView) -> [(&'static str, u64); 5] {
    [
        ("read", traffic.reads),
        ("write", traffic.writes),
        ("flush", traffic.flushes),
        ("trim", traffic.trims),
        ("zero", traffic.zeroes),
    ]
}

fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(out.encode_descriptor(name, help, None::<&Unit>, MetricType::Counter)?)
}

fn gauge(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstGauge::new(signed(value));
    metric.encode(out.encode_descriptor(name, help, None::<&Unit>, MetricType::Gauge)?)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
