//! What is said of times.

use serde::Serialize;
use trace::TimeHistogram;

/// What a histogram says, in microseconds; percentiles to 0.8 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The mean, exact.
    pub mean_us: f64,
    /// Half of all are at most this.
    pub p50_us: f64,
    /// 90 % are at most this.
    pub p90_us: f64,
    /// 99 % are at most this.
    pub p99_us: f64,
    /// 99.9 % are at most this.
    pub p999_us: f64,
    /// The longest, exact.
    pub max_us: f64,
}

impl Summary {
    /// The usual figures of `times`; zeroes when nothing was counted.
    pub fn of(times: &TimeHistogram) -> Self {
        let at = |part| times.quantile_ms(part) * 1e3;
        Self {
            mean_us: times.mean_ms() * 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: times.most_ms() * 1e3,
        }
    }
}
