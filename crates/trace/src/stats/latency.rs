//! How long answers took.

use crate::TimeHistogram;
use serde::Serialize;

/// Latencies in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latencies {
    /// Requests whose latency is known.
    pub requests: u64,
    /// On average.
    pub mean: f64,
    /// The middle one; this and the next two to 0.8 %.
    pub p50: u64,
    /// Ninety of a hundred were not slower.
    pub p90: u64,
    /// Ninety-nine of a hundred were not slower.
    pub p99: u64,
    /// The slowest; 4,294,967,295 stands for anything longer.
    pub largest: u32,
}

impl Latencies {
    /// What a histogram of latencies says.
    pub(crate) fn of(times: &TimeHistogram) -> Self {
        let quantile = |part| (times.quantile_ms(part) * 1e6).round() as u64;
        Self {
            requests: times.count(),
            mean: times.sum() as f64 / times.count().max(1) as f64,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            largest: (times.most_ms() * 1e6).round() as u32,
        }
    }
}
