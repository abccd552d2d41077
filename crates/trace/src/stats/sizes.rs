//! Request sizes.

use serde::Serialize;
use std::collections::BTreeMap;

/// Sizes that are told apart for the quantiles; further ones count there as their power of two.
const DISTINCT: usize = 64 << 10;

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
    /// Requests whose size counts for the quantiles as the power of two above it, because there are
    /// too many sizes to tell apart; everything else is exact.
    pub rounded: u64,
    /// (a power of two, requests that are longer than half of it and not longer than it).
    pub by_power: Vec<(u64, u64)>,
}

/// Counts sizes.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    exact: BTreeMap<u32, u64>,
    by_power: BTreeMap<u64, u64>,
    bytes: u64,
    largest: u32,
    of_4096: u64,
    up_to_4096: u64,
    rounded: u64,
}

impl Counter {
    pub(crate) fn add(&mut self, length: u32) {
        self.bytes += u64::from(length);
        self.largest = self.largest.max(length);
        self.of_4096 += u64::from(length == 4096);
        self.up_to_4096 += u64::from(length <= 4096);
        *self.by_power.entry(u64::from(length).next_power_of_two()).or_default() += 1;
        let known = self.exact.len() < DISTINCT || self.exact.contains_key(&length);
        let counted =
            if known { length } else { length.checked_next_power_of_two().unwrap_or(u32::MAX) };
        self.rounded += u64::from(!known);
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
        Sizes {
            requests,
            mean: if requests == 0 { 0.0 } else { self.bytes as f64 / requests as f64 },
            median: quantile(0.5),
            p90: quantile(0.9),
            largest: self.largest,
            of_4096: self.of_4096,
            up_to_4096: self.up_to_4096,
            rounded: self.rounded,
            by_power: self.by_power.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_quantiles_are_rounded_however_many_sizes_there_are() {
        let mut counter = Counter::default();
        let sizes = (1..=2 * DISTINCT as u32).map(|size| size * 3);
        sizes.clone().for_each(|size| counter.add(size));
        counter.add(4096);
        let found = counter.finish();
        assert_eq!((found.of_4096, found.largest), (1, 6 * DISTINCT as u32));
        assert_eq!(found.up_to_4096, u64::from(4096u32 / 3) + 1);
        assert_eq!(found.rounded, DISTINCT as u64 + 1);
        let between = sizes.filter(|size| (8193..=16384).contains(size)).count() as u64;
        assert!(found.by_power.contains(&(16384, between)));
        assert!((196_608..=262_144).contains(&found.median), "{}", found.median);
    }
}
