//! What one load came to.

use crate::commands::model::measure::ResourceUse;
use serde::Serialize;

/// One measured load.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FitRun {
    pub(super) block: u64,
    pub(super) clients: u32,
    /// The share of look-ups that the cache answered.
    pub(super) hit: f64,
    pub(super) throughput: f64,
    pub(super) response_ms: f64,
    /// What the profile says.
    pub(super) predicted_throughput: f64,
    pub(super) predicted_response_ms: f64,
    /// The difference in throughput, as a share.
    pub(super) error: f64,
    /// Whether the profile was made from it.
    pub(super) used: bool,
    #[serde(skip)]
    pub(super) work: ResourceUse,
    /// Processor time of the load generator.
    #[serde(skip)]
    pub(super) own: f64,
    #[serde(skip)]
    pub(super) answers: f64,
}
