//! The JSON of the API. `openapi.json` describes every field; a test holds the answers to it.

use crate::head_room::HeadRoomView;
use crate::latency::LatencyView;
use crate::trouble::TroubleView;
use cache::Forecast;
use engine::api::{ImageView, SnapshotView};
use engine::lineage::LineageNode;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the server does now: the answer of `status`, and the event `now`. Rates are per second, over the
/// interval of `point.seconds` that has just ended.
#[derive(Debug, Serialize)]
pub(super) struct LiveView {
    pub(super) server: ServerLine,
    /// What the charts show of it.
    pub(super) point: LivePoint,
    pub(super) connections: u64,
    /// Since the start: turned away for want of room.
    pub(super) connections_refused: u64,
    /// Since the start: negotiations that failed and broken protocol.
    pub(super) connection_faults: u64,
    /// Since the start: connections lost by a fault of the program.
    pub(super) panics: u64,
    pub(super) open_disks: u64,
    /// The clients that asked for most, at most twelve.
    pub(super) busiest: Vec<BusyClient>,
    /// Reads, writes and flushes of the interval; a kind of which there was none is left out.
    pub(super) latency: BTreeMap<&'static str, KindTimes>,
    pub(super) cache: LiveCache,
    pub(super) store: LiveStore,
    /// Null before the server has been up for a moment.
    pub(super) head_room: Option<HeadRoomView>,
    /// The same as a sentence.
    pub(super) head_room_text: Option<String>,
    /// What is full or slow, at most fifty.
    pub(super) troubles: Vec<LiveTrouble>,
    /// All of it, also what is not told.
    pub(super) troubles_total: u64,
    /// Counts changes to disks that commands make: the list is worth reading again.
    pub(super) changes: u64,
}

/// Which server it is.
#[derive(Debug, Serialize)]
pub(super) struct ServerLine {
    pub(super) version: &'static str,
    pub(super) pid: u32,
    pub(super) host: String,
    pub(super) home: String,
    pub(super) uptime_seconds: u64,
    /// Where it listens for NBD.
    pub(super) nbd: Vec<String>,
    /// For iSCSI; empty when it does not.
    pub(super) iscsi: Vec<String>,
    /// The address as a gateway, or null.
    pub(super) gateway: Option<String>,
}

/// One moment of the charts: an interval.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LivePoint {
    /// Its end, in seconds since the server was ready.
    pub(super) at: f64,
    /// The length of its interval.
    pub(super) seconds: f64,
    pub(super) clients: u64,
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) flushes: f64,
    pub(super) errors: f64,
    /// Times that a client's limits held a connection back.
    pub(super) held_back: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    /// Hits in percent of the look-ups of the interval; null when there was none.
    pub(super) hit_percent: Option<f64>,
    /// Latency of reads and writes together; null when there was none.
    pub(super) latency: Option<PointTimes>,
}

/// How long reads and writes took, coarsely enough to be kept for every second.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PointTimes {
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// Half a power of two wide: the longest time of each in nanoseconds, and how many took so long.
    pub(super) cells: Vec<(u64, u64)>,
}

/// How long requests of one kind took.
#[derive(Debug, Serialize)]
pub(super) struct KindTimes {
    /// In the interval.
    pub(super) requests: u64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

/// One client.
#[derive(Debug, Serialize)]
pub(super) struct BusyClient {
    pub(super) client: String,
    pub(super) connections: u64,
    /// The first of those that it uses.
    pub(super) export: Option<String>,
    /// How many it uses.
    pub(super) exports: u64,
    pub(super) requests: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    pub(super) held_back: f64,
}

/// The block cache.
#[derive(Debug, Serialize)]
pub(super) struct LiveCache {
    pub(super) policy: String,
    pub(super) capacity_bytes: u64,
    pub(super) bytes: u64,
    pub(super) entries: u64,
    /// Since the start; null before the first look-up.
    pub(super) hit_percent: Option<f64>,
    /// What other sizes and policies would give; null before there was enough to tell.
    pub(super) forecast: Option<Forecast>,
}

/// The store.
#[derive(Debug, Serialize)]
pub(super) struct LiveStore {
    /// Chunks read.
    pub(super) reads: f64,
    /// Their bytes as stored.
    pub(super) read_bytes: f64,
    /// Since the start: chunks that could not be had.
    pub(super) failures: u64,
    /// Since the start: what was missing or damaged and came from another store.
    pub(super) healed: u64,
}

/// Something that is full or slow.
#[derive(Debug, Serialize)]
pub(super) struct LiveTrouble {
    /// The disk; null for the store.
    pub(super) disk: Option<String>,
    /// `full` or `slow`.
    pub(super) state: &'static str,
    #[serde(flatten)]
    pub(super) trouble: TroubleView,
}

/// The first event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Hello<'a> {
    pub(super) version: &'static str,
    /// Which page this server has: another one than that which listens is out of date.
    pub(super) page: &'a str,
    /// Seconds since the server was ready, now.
    pub(super) at: f64,
    /// The moments that are known, the earliest first.
    pub(super) history: Vec<&'a LivePoint>,
}

/// What changed of the exports in use.
#[derive(Debug, Serialize)]
pub(super) struct RowChanges<'a> {
    /// These are all: what is not among them is not in use.
    pub(super) all: bool,
    pub(super) rows: Vec<&'a LiveRow>,
    /// No longer in use.
    pub(super) gone: Vec<&'a str>,
}

/// An export in use: a disk that is open, or anything with a connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LiveRow {
    pub(super) name: String,
    /// The disk is open; false for an image.
    pub(super) open: bool,
    /// Who holds the disk.
    pub(super) client: Option<String>,
    pub(super) connections: u64,
    /// Null for an image, and for a disk that is being opened or closed.
    pub(super) private_bytes: Option<u64>,
    pub(super) full: bool,
    pub(super) slow: bool,
    /// Reads, writes and flushes.
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

/// All disks of the home.
#[derive(Debug, Serialize)]
pub(super) struct DiskList {
    /// The number that `status` gave when the list was read.
    pub(super) changes: u64,
    pub(super) disks: Vec<DiskRow>,
}

/// One disk.
#[derive(Debug, Serialize)]
pub(super) struct DiskRow {
    pub(super) name: String,
    /// The image version it stands on, as `name:tag`.
    pub(super) image: String,
    /// `persistent` or `ephemeral`.
    pub(super) mode: String,
    pub(super) size: u64,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) private_bytes: u64,
    /// It holds what its image version does.
    pub(super) unchanged: bool,
    /// Its private blocks, if it has any, lie over what its image version holds.
    pub(super) over_image: bool,
    pub(super) snapshots: Vec<NamedMoment>,
    /// Why it cannot be used, or null.
    pub(super) error: Option<String>,
}

/// A snapshot.
#[derive(Debug, Serialize)]
pub(super) struct NamedMoment {
    pub(super) name: String,
    pub(super) size: u64,
    /// Unix seconds.
    pub(super) created: u64,
    /// Why nothing but the name is known, or null.
    pub(super) error: Option<String>,
}

/// All image versions of the store.
#[derive(Debug, Serialize)]
pub(super) struct ImageList {
    pub(super) images: Vec<VersionRow>,
}

/// One image version.
#[derive(Debug, Serialize)]
pub(super) struct VersionRow {
    /// `name:tag`.
    pub(super) image: String,
    pub(super) size: u64,
    /// Unix seconds.
    pub(super) created: u64,
    /// The id of its manifest, in hex.
    pub(super) manifest: String,
    /// Where it came from, or null.
    pub(super) source: Option<String>,
    /// What stands on it: `disk alice`, `snapshot alice@s`; of any home on the store.
    pub(super) used_by: Vec<String>,
    /// Why nothing but the name is known, or null.
    pub(super) error: Option<String>,
}

/// What came of what.
#[derive(Debug, Serialize)]
pub(super) struct LineageList {
    /// Versions first, then snapshots, then disks, of any home on the store.
    pub(super) nodes: Vec<LineageNode>,
}

impl From<&LatencyView> for KindTimes {
    fn from(times: &LatencyView) -> Self {
        Self {
            requests: times.count,
            mean_us: times.mean_us,
            p50_us: times.p50_us,
            p90_us: times.p90_us,
            p99_us: times.p99_us,
            p999_us: times.p999_us,
        }
    }
}

impl PointTimes {
    /// `None` when there was no request.
    pub(super) fn of(times: &LatencyView) -> Option<Self> {
        let mut cells: Vec<(u64, u64)> = Vec::new();
        for (most, count) in &times.buckets {
            let bound = half_octave(*most);
            match cells.last_mut() {
                Some(last) if last.0 == bound => last.1 += count,
                _ => cells.push((bound, *count)),
            }
        }
        (times.count > 0).then_some(Self {
            p50_us: times.p50_us,
            p90_us: times.p90_us,
            p99_us: times.p99_us,
            p999_us: times.p999_us,
            cells,
        })
    }
}

/// The longest time of the half of a power of two that a time belongs to.
fn half_octave(nanos: u64) -> u64 {
    let power = 1 << nanos.max(2).ilog2().min(62);
    let middle = power + power / 2;
    if nanos < middle { middle - 1 } else { 2 * power - 1 }
}

impl From<SnapshotView> for NamedMoment {
    fn from(SnapshotView { name, size, created, error }: SnapshotView) -> Self {
        Self { name, size, created, error }
    }
}

impl VersionRow {
    /// A version and what stands on it.
    pub(super) fn new(version: ImageView, used_by: Vec<String>) -> Self {
        let ImageView { image, size, created, manifest, source, error } = version;
        Self { image, size, created, manifest, source, used_by, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cells_hold_every_request_in_the_half_of_its_power_of_two() {
        let buckets = vec![(1023, 1), (1151, 2), (1535, 3), (1663, 4), (2047, 5), (2303, 6)];
        let times = LatencyView::of(buckets, 1e-3);
        let cells = PointTimes::of(&times).unwrap().cells;
        assert_eq!(cells, [(1023, 1), (1535, 5), (2047, 9), (3071, 6)]);
        assert!(PointTimes::of(&LatencyView::default()).is_none());
        for extreme in [0, 1, u64::MAX] {
            half_octave(extreme);
        }
    }
}
