//! What a server is doing, as `sojourn status` and `/v1/status` tell it. Field names are documented
//! in docs/cli.md and do not change.

use super::gateway::GatewayView;
use super::head_room::HeadRoomView;
use super::iscsi::IscsiView;
use super::latency::{self, LatencyView};
use super::record::{Recording, RecordingView};
use super::running::RunningServer;
use super::throttle::ThrottleView;
use super::trouble::TroubleView;
use super::vhost_user::VhostUserView;
use block::Result;
use cache::{Cache, Forecast};
use engine::disk_io::DiskIo;
use objects::{PieceCounters, RetryCounters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A running server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusView {
    /// Always true.
    pub running: bool,
    /// The version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The directory of its home.
    pub home: String,
    /// Seconds since it was ready.
    pub uptime_seconds: u64,
    /// Where it listens for NBD.
    pub listeners: Vec<String>,
    /// iSCSI; null when it is not served.
    #[serde(default)]
    pub iscsi: Option<IscsiView>,
    /// vhost-user; null when it is not served.
    #[serde(default)]
    pub vhost_user: Option<VhostUserView>,
    /// Where it listens for HTTP, if it does.
    pub http: Option<String>,
    /// The gateway; null when there is none.
    #[serde(default)]
    pub gateway: Option<GatewayView>,
    /// Connections now.
    pub connections: u64,
    /// Connections since the start.
    pub connections_accepted: u64,
    /// Connections that were turned away since the start.
    pub connections_refused: u64,
    /// Negotiations that failed, and connections closed because the client broke the protocol.
    pub connection_faults: u64,
    /// Connections lost by a fault of the program.
    pub panics: u64,
    /// The block cache.
    pub cache: CacheView,
    /// What was read from the store.
    pub store: StoreView,
    /// What else is asked for chunks, the store last; empty when the store is the only one.
    #[serde(default)]
    pub sources: Vec<lookaside::SourceReport>,
    /// What was tried again of requests to a store over a network.
    pub link: RetryCounters,
    /// The piece cache; null for a store in a directory.
    pub pieces: Option<PieceCounters>,
    /// What clients did, on all exports.
    pub total: TrafficView,
    /// The recording of what clients ask; null when there is none.
    pub trace: Option<RecordingView>,
    /// Counters of exports that behave like a modelled disk.
    #[serde(default)]
    pub throttles: Vec<ThrottleView>,
    /// Verbs on virtual machines and media that are carried out for clients of HTTP.
    #[serde(default)]
    pub errands: u64,
    /// Disks open now.
    pub open_disks: u64,
    /// How reads of files wait for the disk: `ring` or `portable`.
    #[serde(default)]
    pub io: String,
    /// Exports that a client has used since the start, and all disks.
    pub exports: Vec<ExportView>,
    /// How many more clients it holds; null before it has been up for a moment.
    #[serde(default)]
    pub head_room: Option<HeadRoomView>,
    /// Clients that are there now.
    #[serde(default)]
    pub clients: Vec<ClientView>,
}

/// The block cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheView {
    /// How it chooses what to evict.
    pub policy: String,
    /// The most bytes that it holds.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Chunks that it holds.
    pub entries: u64,
    /// Look-ups that found a chunk.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Chunks that were evicted.
    pub evictions: u64,
    /// Hits of all look-ups; null before the first.
    pub hit_percent: Option<f64>,
    /// What other sizes and policies would give; null before there was enough to tell.
    #[serde(default)]
    pub forecast: Option<Forecast>,
}

impl CacheView {
    pub(crate) fn of(cache: &Cache) -> Self {
        let stats = cache.stats();
        let looked = stats.hits + stats.misses;
        Self {
            policy: cache.policy().to_string(),
            capacity_bytes: stats.capacity,
            bytes: stats.bytes,
            entries: stats.entries,
            hits: stats.hits,
            misses: stats.misses,
            evictions: stats.evictions,
            hit_percent: (looked > 0).then(|| stats.hits as f64 * 100.0 / looked as f64),
            forecast: cache.forecast(),
        }
    }
}

/// Reads from the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoreView {
    /// Chunks read.
    pub reads: u64,
    /// Their bytes as stored.
    pub read_bytes: u64,
    /// Their bytes after decompression.
    pub plain_bytes: u64,
    /// Chunks that could not be had.
    pub failures: u64,
    /// Chunks that were found where their pack was rewritten to.
    pub moved: u64,
    /// Chunks and maps that were missing or damaged, and came from another store.
    pub healed: u64,
    /// Whether it is slow; null when not.
    #[serde(default)]
    pub slow: Option<TroubleView>,
}

/// Requests and bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TrafficView {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub trims: u64,
    /// Requests to write zeroes.
    pub zeroes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Times that a client's limits held a connection back.
    #[serde(default)]
    pub paced: u64,
    /// Requests that were looked for and found before their connection slept.
    #[serde(default)]
    pub busy_polled: u64,
    /// How long was looked.
    #[serde(default)]
    pub busy_poll_seconds: f64,
}

/// One client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientView {
    /// Who it is: a process, an address, or the name of a certificate.
    pub client: String,
    /// Connections now.
    pub connections: u64,
    /// The exports that it uses.
    pub exports: Vec<String>,
    /// What it did since it came.
    #[serde(flatten)]
    pub traffic: TrafficView,
}

/// One export.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExportView {
    /// Its name.
    pub name: String,
    /// Connections now.
    pub connections: u64,
    /// The client that holds the disk.
    pub client: Option<String>,
    /// Whether the disk is open; false for an image.
    pub open: bool,
    /// Bytes of the disk's private blocks; null for an image.
    pub private_bytes: Option<u64>,
    /// Whether writes fail for want of room; null when not.
    #[serde(default)]
    pub full: Option<TroubleView>,
    /// Whether it is slow; null when not.
    #[serde(default)]
    pub slow: Option<TroubleView>,
    /// What clients did on it.
    #[serde(flatten)]
    pub traffic: TrafficView,
    /// How long requests took, by kind.
    #[serde(default)]
    pub latency: BTreeMap<String, LatencyView>,
}

impl From<&nbd::Traffic> for TrafficView {
    fn from(traffic: &nbd::Traffic) -> Self {
        Self {
            reads: traffic.reads,
            read_bytes: traffic.read_bytes,
            writes: traffic.writes,
            written_bytes: traffic.written_bytes,
            flushes: traffic.flushes,
            trims: traffic.trims,
            zeroes: traffic.zeroes,
            errors: traffic.errors,
            paced: traffic.paced,
            busy_polled: traffic.busy_polled,
            busy_poll_seconds: traffic.busy_poll_nanos as f64 / 1e9,
        }
    }
}

/// The state of a running server now. Nothing is asked of the store, which may be away.
///
/// # Errors
/// When the disks cannot be listed.
pub(crate) async fn collect(running: &Arc<RunningServer>) -> Result<StatusView> {
    let engine = &running.engine;
    let counters = Arc::new(running.nbd.counters());
    let open = engine.open.look(|disk| (disk.holder(), disk.info().private_bytes));
    let mut exports: BTreeMap<String, ExportView> = BTreeMap::new();
    for (name, export) in &counters.exports {
        let view = ExportView {
            connections: export.connections,
            traffic: TrafficView::from(&export.traffic),
            latency: latency::by_kind(&export.latencies),
            ..ExportView::unused(name)
        };
        exports.insert(name.clone(), view);
    }
    for disk in engine.disks.list().await? {
        let name = &disk.name;
        let view = exports.entry(name.clone()).or_insert_with(|| ExportView::unused(name));
        view.private_bytes = Some(disk.private_bytes);
        (view.full, view.slow) = running.troubles.of(name);
        if let Some((holder, private_bytes)) = open.get(name) {
            view.open = true;
            view.client.clone_from(holder);
            view.private_bytes = Some(*private_bytes);
        }
    }
    let head_room = head_room(Arc::clone(running), Arc::clone(&counters)).await?;
    let places = running.places.lock().clone();
    let store = engine.store.counters();
    Ok(StatusView {
        running: true,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        home: running.home.dir().display().to_string(),
        uptime_seconds: running.started.elapsed().as_secs(),
        listeners: places.nbd,
        iscsi: running.iscsi.as_ref().map(|server| IscsiView::of(places.iscsi, server)),
        vhost_user: places
            .vhost_user
            .zip(running.vhost_user.as_ref())
            .map(|(dir, server)| VhostUserView::of(&dir, &server.counters())),
        http: places.http.map(|address| address.to_string()),
        gateway: places.gateway.zip(running.gateway.as_ref()).map(|(address, gateway)| {
            GatewayView { address: address.to_string(), counters: gateway.counters() }
        }),
        errands: running.errands(),
        connections: counters.connections,
        connections_accepted: counters.accepted,
        connections_refused: counters.refused,
        connection_faults: counters.failed_handshakes + counters.protocol_errors,
        panics: counters.panics,
        cache: CacheView::of(&engine.cache),
        store: StoreView {
            reads: store.chunk_reads,
            read_bytes: store.stored_bytes_read,
            plain_bytes: store.plain_bytes_read,
            failures: store.chunk_failures,
            moved: store.chunks_moved,
            healed: store.healed,
            slow: running.troubles.of_store(),
        },
        sources: engine.sources(),
        link: engine.link.retries(),
        pieces: engine.link.pieces(),
        total: TrafficView::from(&counters.total),
        trace: running.recording.as_ref().map(Recording::view),
        throttles: running.throttles.as_ref().map(|all| all.view()).unwrap_or_default(),
        open_disks: open.len() as u64,
        io: DiskIo::now().to_owned(),
        exports: exports.into_values().collect(),
        head_room,
        clients: clients(&counters),
    })
}

/// How many more clients it holds. That takes milliseconds when there are thousands: not on a thread that serves.
async fn head_room(
    running: Arc<RunningServer>,
    counters: Arc<nbd::Counters>,
) -> Result<Option<HeadRoomView>> {
    let view = move || {
        let (untimed, bearable) = (running.untimed_requests(), running.bearable());
        Ok(running.head_room.view(&running.engine, &counters, untimed, bearable))
    };
    block::offload(view).await
}

impl ExportView {
    /// One that no client has used.
    fn unused(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            connections: 0,
            client: None,
            open: false,
            private_bytes: None,
            full: None,
            slow: None,
            traffic: TrafficView::default(),
            latency: BTreeMap::new(),
        }
    }
}

impl StatusView {
    /// What is full or slow now, a line each.
    pub fn troubles(&self) -> Vec<String> {
        let line = |name: &str, what: &str, trouble: &TroubleView| {
            format!("{name} is {what} for {} s: {}", trouble.seconds, trouble.why)
        };
        let mut lines = Vec::new();
        lines.extend(self.store.slow.as_ref().map(|slow| line("the store", "slow", slow)));
        for export in &self.exports {
            let name = format!("disk {}", export.name);
            lines.extend(export.full.as_ref().map(|full| line(&name, "full", full)));
            lines.extend(export.slow.as_ref().map(|slow| line(&name, "slow", slow)));
        }
        lines
    }
}

fn clients(counters: &nbd::Counters) -> Vec<ClientView> {
    let view = |(client, seen): (&String, &nbd::server::ClientCounters)| ClientView {
        client: client.clone(),
        connections: seen.connections,
        exports: seen.exports.keys().cloned().collect(),
        traffic: TrafficView::from(&seen.traffic),
    };
    counters.clients.iter().map(view).collect()
}
