//! What is answered of traces: of what a command prints, what is worth a page. `openapi.json` describes every field.

use serde::{Deserialize, Serialize};

/// What a trace is like.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TraceFacts {
    requests: u64,
    /// Nanoseconds from the first request to the last.
    duration: u64,
    /// Whether its requests have times.
    times: bool,
    /// Whether it ends as it should.
    complete: bool,
    /// Requests and bytes of each kind.
    operations: Vec<(String, LabTraffic)>,
    read_sizes: LabSizes,
    write_sizes: LabSizes,
    order: LabOrder,
    working_set: LabWorkingSet,
    clients: Vec<LabParty>,
    disks: Vec<LabParty>,
}

/// Requests, and their bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabTraffic {
    requests: u64,
    bytes: u64,
}

/// How long requests are, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabSizes {
    mean: Option<f64>,
    median: Option<u64>,
    p90: Option<u64>,
    largest: Option<u64>,
}

/// How requests follow each other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabOrder {
    sequential: u64,
    near: u64,
    random: u64,
}

/// The blocks that are asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabWorkingSet {
    block: u64,
    blocks: u64,
    only_read: u64,
    only_written: u64,
    both: u64,
}

/// A client or a disk of a trace.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabParty {
    name: String,
    reads: LabTraffic,
    writes: LabTraffic,
}

/// Hits by policy and size.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HitCurves {
    references: u64,
    distinct_blocks: u64,
    /// Bytes of a block.
    block: u64,
    rows: Vec<HitPoint>,
}

/// One policy at one size.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HitPoint {
    policy: String,
    bytes: u64,
    hit_ratio: f64,
}

/// What is advised for one size.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TunedCache {
    bytes: u64,
    /// What to configure; null where nothing is gained by it.
    policy: Option<String>,
    saved: f64,
    saved_error: f64,
    config: String,
    candidates: Vec<TunedPolicy>,
    lru: TunedPolicy,
    usual: TunedPolicy,
}

/// A policy, and the hits that are expected of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TunedPolicy {
    policy: String,
    hit_ratio: f64,
    error: f64,
}

/// How many clients a server holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prediction {
    profile: String,
    block: u64,
    think_ms: f64,
    target_ms: f64,
    /// The most clients that were looked for.
    most: u32,
    cases: Vec<PredictionCase>,
    notes: Vec<String>,
}

/// The same with one size of the cache.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PredictionCase {
    memory: u64,
    hit: f64,
    clients: u32,
    at_least: bool,
    knee: Option<f64>,
    throughput: f64,
    response_ms: f64,
    bottleneck: Option<String>,
    next: Vec<PredictionUpgrade>,
    curve: Vec<PredictionPoint>,
}

/// What twice as much of something brings.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PredictionUpgrade {
    twice: String,
    clients: u32,
    at_least: bool,
}

/// The response with so many clients.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PredictionPoint {
    clients: u32,
    throughput: f64,
    response_ms: f64,
}

/// Traces that the server recorded.
#[derive(Debug, Serialize)]
pub(super) struct RecordedTraces {
    /// The newest first.
    pub(super) recordings: Vec<RecordedTrace>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(super) struct RecordedTrace {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// It is being written.
    pub(super) open: bool,
}
