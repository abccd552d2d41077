//! What exports imitate which disk, as the configuration and the command line say it.

use serde::Deserialize;

/// One entry of `[[throttle]]`: the disk that exports imitate, and its faults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleRule {
    /// The exports; all when there are none.
    #[serde(default)]
    pub exports: Vec<String>,
    /// The disk: a shipped profile, or a file. Without one nothing takes longer than it does.
    #[serde(default)]
    pub profile: Option<String>,
    /// Everything takes so many times as long.
    #[serde(default = "once")]
    pub times: f64,
    /// The part of reads and writes that fail.
    #[serde(default)]
    pub fail: f64,
    /// Ranges that cannot be read or written, as FROM-TO.
    #[serde(default)]
    pub bad: Vec<String>,
    /// Pauses.
    #[serde(default)]
    pub stall: Option<StallRule>,
}

/// Pauses of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StallRule {
    /// The part of requests that begin one.
    pub part: f64,
    /// How long it is, in milliseconds.
    pub ms: f64,
}

fn once() -> f64 {
    1.0
}

impl ThrottleRule {
    /// Whether it is for this export.
    pub fn is_for(&self, export: &str) -> bool {
        self.exports.is_empty() || self.exports.iter().any(|name| name == export)
    }

    /// A rule for all exports.
    pub fn for_all(profile: Option<String>, times: Option<f64>, fail: Option<f64>) -> Self {
        let (exports, bad, stall) = (Vec::new(), Vec::new(), None);
        let (times, fail) = (times.unwrap_or(1.0), fail.unwrap_or(0.0));
        Self { exports, profile, times, fail, bad, stall }
    }
}
