//! Measured distributions by distance: what a calibration makes of a rotating disk. A line through
//! random reads over-predicts short seeks, and good schedulers make seeks short; a distribution for
//! each quarter of an octave of distance does not.

use super::{Model, spread::Spread};
use crate::{CacheShape, DiskRequest, Nanos, Random, request::from_ms};
use serde::{Deserialize, Serialize};

/// Distances below this, in sectors, share the first bin.
const NEAR: f64 = 1000.0;

/// Bins of an octave of distance.
const PER_OCTAVE: f64 = 4.0;

/// The bins of a disk at most: 2^63 sectors.
pub const MOST: usize = 256;

/// Which bin a distance in sectors falls into.
pub fn bin(distance: u64) -> usize {
    let distance = distance as f64;
    if distance < NEAR { 0 } else { ((distance / NEAR).log2() * PER_OCTAVE) as usize + 1 }
}

/// The distances of a bin: from the first to before the second.
pub fn distances(bin: usize) -> (u64, u64) {
    let edge = |bin: usize| (NEAR * (bin as f64 / PER_OCTAVE).exp2()).ceil() as u64;
    match bin {
        0 => (0, NEAR as u64),
        _ => (edge(bin - 1), edge(bin)),
    }
}

/// The parameters of a profile's section `bins`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bins {
    /// Milliseconds of a read of `measured_sectors` by distance: one distribution for distances
    /// below 1,000 sectors, then one for each quarter of an octave. The last one holds for what is
    /// farther.
    pub access_ms: Vec<Spread>,
    /// The sectors of the reads that were measured.
    pub measured_sectors: u32,
    /// Microseconds for each sector more than that.
    #[serde(default)]
    pub sector_us: f64,
    /// Milliseconds of a read out of the cache on board.
    pub hit_ms: Spread,
}

/// The model.
#[derive(Clone, Debug)]
pub struct BinsModel {
    parameters: Bins,
    means: Vec<f64>,
    sectors: u64,
    cache: CacheShape,
}

impl BinsModel {
    pub(crate) fn new(parameters: Bins, sectors: u64, cache: CacheShape) -> Self {
        let means = parameters.access_ms.iter().map(Spread::mean).collect();
        Self { parameters, means, sectors, cache }
    }

    fn bin(&self, distance: u64) -> usize {
        bin(distance).min(self.means.len() - 1)
    }

    /// Milliseconds for the sectors beyond the measured reads.
    fn transfer(&self, request: &DiskRequest) -> f64 {
        let more = f64::from(request.sectors) - f64::from(self.parameters.measured_sectors);
        self.parameters.sector_us * 1e-3 * more
    }
}

impl Model for BinsModel {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn cache(&self) -> CacheShape {
        self.cache
    }

    fn hit(&self, random: &mut Random) -> Nanos {
        from_ms(self.parameters.hit_ms.sample(random))
    }

    fn expected_hit(&self) -> Nanos {
        from_ms(self.parameters.hit_ms.mean())
    }

    fn expected(&self, _: Nanos, head: u64, request: &DiskRequest) -> Nanos {
        let mean = self.means[self.bin(head.abs_diff(request.start))];
        from_ms(mean + self.transfer(request))
    }

    fn access(&mut self, _: Nanos, head: u64, request: &DiskRequest, random: &mut Random) -> Nanos {
        let spread = &self.parameters.access_ms[self.bin(head.abs_diff(request.start))];
        from_ms(spread.sample(random) + self.transfer(request))
    }

    fn travel(&self, from: u64, to: u64) -> Nanos {
        from_ms((self.means[self.bin(from.abs_diff(to))] - self.means[0]).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distance_falls_into_the_bin_whose_distances_hold_it() {
        for distance in (0..5000).chain((0..62).map(|shift| 1 << shift)) {
            let (from, to) = distances(bin(distance));
            assert!((from..to).contains(&distance), "{distance}: {from} to {to}");
        }
        assert!(bin(u64::MAX) < MOST);
    }
}
