//! A store behind a network: a round trip that requests share, and a link that they take in turn.

use super::Model;
use crate::{DiskRequest, Nanos, Random, SECTOR};
use serde::{Deserialize, Serialize};

/// The parameters of a profile's section `network`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Microseconds of a round trip, with what the server does.
    pub rtt_us: f64,
    /// MiB per second of the link.
    pub mib_s: f64,
    /// KiB that go at once after a pause (a token bucket's depth).
    #[serde(default)]
    pub burst_kib: f64,
    /// Requests under way at the same time.
    pub window: u32,
}

/// The model.
#[derive(Clone, Debug)]
pub struct NetworkModel {
    parameters: Network,
    sectors: u64,
    /// When the link has moved all that was asked for, if it never went faster than its rate.
    link: f64,
}

impl NetworkModel {
    pub(crate) fn new(parameters: Network, sectors: u64) -> Self {
        Self { parameters, sectors, link: 0.0 }
    }

    /// When the link will have moved a request that begins at `at`, and how long that is from then.
    fn moved(&self, at: Nanos, request: &DiskRequest) -> (f64, Nanos) {
        let p = &self.parameters;
        let per_byte = 1e9 / (p.mib_s * f64::from(1 << 20));
        let saved = p.burst_kib * 1024.0 * per_byte;
        let bytes = u64::from(request.sectors) * SECTOR;
        let until = self.link.max(at as f64 - saved) + bytes as f64 * per_byte;
        (until, (p.rtt_us * 1e3 + (until - at as f64).max(0.0)) as Nanos)
    }
}

impl Model for NetworkModel {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn servers(&self) -> usize {
        self.parameters.window as usize
    }

    fn expected(&self, at: Nanos, _: u64, request: &DiskRequest) -> Nanos {
        self.moved(at, request).1
    }

    fn access(&mut self, at: Nanos, _: u64, request: &DiskRequest, _: &mut Random) -> Nanos {
        let (until, time) = self.moved(at, request);
        self.link = until;
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_round_trip_and_take_turns_on_the_link() {
        let parameters = Network { rtt_us: 1000.0, mib_s: 1.0, burst_kib: 0.0, window: 8 };
        let mut model = NetworkModel::new(parameters, 1 << 20);
        let mut random = Random::new(1);
        let read = DiskRequest { sectors: 2048, ..DiskRequest::default() };
        let mut at = |t| model.access(t, 0, &read, &mut random);
        assert_eq!([at(0), at(0)], [1_001_000_000, 2_001_000_000]);
        assert_eq!(at(9_000_000_000), 1_001_000_000);
    }

    #[test]
    fn a_burst_goes_at_once_after_a_pause() {
        let parameters = Network { rtt_us: 0.0, mib_s: 1.0, burst_kib: 1024.0, window: 8 };
        let mut model = NetworkModel::new(parameters, 1 << 20);
        let mut random = Random::new(1);
        let read = DiskRequest { sectors: 2048, ..DiskRequest::default() };
        let mut at = |t| model.access(t, 0, &read, &mut random);
        assert_eq!([at(5_000_000_000), at(5_000_000_000)], [0, 1_000_000_000]);
    }
}
