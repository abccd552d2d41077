//! Models fitted to measured accesses. Whoever calls gives a [`Probe`] that reads and says how long
//! that took: a real device, or a simulated one.
//!
//! | module | concept |
//! |---|---|
//! | [`rotating`] | reads stratified by distance, the cache on board: a profile of `bins` |
//! | [`flash`] | a grid of sizes and depths: a profile of `ssd` |
//! | [`line`](mod@line) | the seed's line through the accesses, for comparison (Figure 1) |
//! | [`simulated`] | a modelled disk as a probe |

pub mod flash;
pub mod line;
pub mod rotating;
pub mod simulated;

use block::Result;
use serde::Serialize;

/// Reads, and says how long it took.
pub trait Probe {
    /// How many sectors there are.
    fn sectors(&self) -> u64;

    /// Milliseconds of one read.
    ///
    /// # Errors
    /// Any error from the device.
    fn read(&mut self, start: u64, sectors: u32) -> Result<f64>;

    /// Milliseconds that all of these reads took together, so many at a time.
    ///
    /// # Errors
    /// Any error from the device.
    fn read_many(&mut self, starts: &[u64], sectors: u32, depth: usize) -> Result<f64>;

    /// Is told how much of the work is done, 0 to 1.
    fn progress(&mut self, part: f64) {
        let _ = part;
    }
}

/// One access: how far the head went, and how long it took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MeasuredAccess {
    /// Sectors.
    pub distance: u64,
    /// Milliseconds.
    pub ms: f64,
}

/// How well a model fits at one percentile of accesses that it was not fitted to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct FitError {
    /// The percentile, 0 to 100.
    pub percentile: f64,
    /// What was measured, in milliseconds.
    pub measured_ms: f64,
    /// What the model says.
    pub model_ms: f64,
}

/// Compares two sets of times at their percentiles.
pub(crate) fn compare(measured: &mut [f64], modelled: &mut [f64]) -> Vec<FitError> {
    measured.sort_by(f64::total_cmp);
    modelled.sort_by(f64::total_cmp);
    let at = |all: &[f64], part: f64| {
        all.get(((all.len().saturating_sub(1)) as f64 * part) as usize).copied().unwrap_or(0.0)
    };
    [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0]
        .iter()
        .map(|percentile| FitError {
            percentile: *percentile,
            measured_ms: at(measured, percentile / 100.0),
            model_ms: at(modelled, percentile / 100.0),
        })
        .collect()
}

/// The mean of some times; 0 without any.
pub(crate) fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}
