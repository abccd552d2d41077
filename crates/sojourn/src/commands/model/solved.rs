//! What `sojourn model solve` computes, and the words that it is told in.

use block::ByteSize;
use serde::Serialize;
use std::collections::BTreeMap;

/// One block size and hit ratio.
#[derive(Serialize)]
pub(super) struct SolvedCase {
    pub(super) block: u64,
    pub(super) hit: f64,
    /// Whether the block size lies outside of those that the profile has demands for.
    pub(super) extrapolated: bool,
    /// Where more clients begin to wait for each other; null without a queue.
    pub(super) knee: Option<f64>,
    /// Requests a second that no number of clients exceeds; null without a queue.
    pub(super) limit: Option<f64>,
    pub(super) bottleneck: Option<String>,
    pub(super) rows: Vec<ClientsRow>,
}

/// One number of clients.
#[derive(Serialize)]
pub(super) struct ClientsRow {
    pub(super) clients: u32,
    /// Requests a second.
    pub(super) throughput: f64,
    pub(super) bytes_per_second: f64,
    pub(super) response_ms: f64,
    /// Utilisation of queueing centres, by name.
    pub(super) utilisation: BTreeMap<String, f64>,
    pub(super) bottleneck: Option<String>,
}

/// A hit ratio where another centre becomes the bottleneck.
#[derive(Serialize)]
pub(super) struct SwitchView {
    pub(super) block: u64,
    pub(super) hit: f64,
    pub(super) below: String,
    pub(super) above: String,
}

/// Everything that was computed.
#[derive(Serialize)]
pub(super) struct SolveView {
    pub(super) profile: String,
    pub(super) think_ms: f64,
    pub(super) cases: Vec<SolvedCase>,
    pub(super) switches: Vec<SwitchView>,
}

/// A line that names the sizes of blocks that the profile was not measured for; empty without any.
pub(super) fn not_measured(blocks: impl Iterator<Item = u64>) -> String {
    let mut sizes: Vec<u64> = blocks.collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sizes: Vec<String> = sizes.into_iter().map(|size| ByteSize(size).to_string()).collect();
    match sizes.is_empty() {
        true => String::new(),
        false => format!(
            "blocks of {} lie outside of the sizes that the profile was measured for\n",
            sizes.join(", ")
        ),
    }
}

/// A share in percent, without idle zeroes.
pub(super) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_without_idle_zeroes() {
        assert_eq!(percent(0.975), "97.5 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(0.0), "0 %");
    }
}
