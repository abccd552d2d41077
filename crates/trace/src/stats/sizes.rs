//! Request sizes.

use serde::Serialize;
use std::collections::BTreeMap;

/// Sizes that are told apart; further ones are counted by their power of two alone.
const DISTINCT: usize = 4096;

/// Sizes of requests, in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Sizes {
    /// How many requests.
    pub requests: u64,
    /// All bytes by all requests.
    pub mean: f64,
    /// Half of the requests are not longer.
    pub median: u32,
    /// Nine of ten requests are not longer.
    pub p90: u32,
    /// The longest.
    pub largest: u32,
    /// Requests of exactly one page of 4,096 bytes.
    pub of_4096: u64,
    /// Requests of at most 4,096 bytes.
    pub up_to_4096: u64,
    /// (a power of two, requests that are longer than half of it and not longer than it).
    pub by_power: Vec<(u64, u64)>,
}

/// Counts sizes.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    exact: BTreeMap<u32, u64>,
    bytes: u64,
}

impl Counter {
    pub(crate) fn add(&mut self, length: u32) {
        self.bytes += u64::from(length);
        let known = self.exact.len() < DISTINCT || self.exact.contains_key(&length);
        let counted =
            if known { length } else { length.checked_next_power_of_two().unwrap_or(u32::MAX) };
        *self.exact.entry(counted).or_default() += 1;
    }

    pub(crate) fn finish(self) -> Sizes {
        let requests: u64 = self.exact.values().sum();
        let quantile = |part: f64| {
            let mut rest = (requests as f64 * part).ceil() as u64;
            for (size, count) in &self.exact {
                if *count >= rest {
                    return *size;
                }
                rest -= count;
            }
            0
        };
        let mut by_power: BTreeMap<u64, u64> = BTreeMap::new();
        for (size, count) in &self.exact {
            *by_power.entry(u64::from(*size).next_power_of_two()).or_default() += count;
        }
        Sizes {
            requests,
            mean: if requests == 0 { 0.0 } else { self.bytes as f64 / requests as f64 },
            median: quantile(0.5),
            p90: quantile(0.9),
            largest: self.exact.keys().next_back().copied().unwrap_or(0),
            of_4096: self.exact.get(&4096).copied().unwrap_or(0),
            up_to_4096: self.exact.range(..=4096).map(|(_, count)| count).sum(),
            by_power: by_power.into_iter().collect(),
        }
    }
}
