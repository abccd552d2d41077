//! Flash: time is affine in the size and does not depend on the distance; several requests are
//! worked on at once; writes go to a buffer until that is full.

use super::{Model, spread::Spread};
use crate::{DiskRequest, Nanos, Op, Random};
use serde::{Deserialize, Serialize};

/// How long one kind of operation takes: base + slope * size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affine {
    /// Microseconds of any request.
    pub base_us: f64,
    /// Microseconds more for each KiB.
    pub kib_us: f64,
}

impl Affine {
    /// Nanoseconds for so many sectors.
    fn time(&self, sectors: u32) -> f64 {
        (self.base_us + self.kib_us * f64::from(sectors) / 2.0) * 1e3
    }
}

/// The buffer that writes go to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBuffer {
    /// MiB that it takes before writes are slow.
    pub mib: f64,
    /// MiB per second at which it empties.
    pub drain_mib_s: f64,
    /// How long writes take while it is full.
    pub full: Affine,
}

/// The parameters of a profile's section `ssd`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ssd {
    /// Requests worked on at the same time.
    pub servers: u32,
    /// Reads.
    pub read: Affine,
    /// Writes.
    pub write: Affine,
    /// What times are multiplied with.
    #[serde(default = "one")]
    pub spread: Spread,
    /// The buffer that writes go to; without one they always take the same.
    pub write_buffer: Option<WriteBuffer>,
}

fn one() -> Spread {
    Spread::Fixed(1.0)
}

/// The model.
#[derive(Clone, Debug)]
pub struct SsdModel {
    parameters: Ssd,
    mean: f64,
    sectors: u64,
    /// Bytes in the write buffer at `filled_at`.
    buffered: f64,
    filled_at: Nanos,
}

impl SsdModel {
    pub(crate) fn new(parameters: Ssd, sectors: u64) -> Self {
        let mean = parameters.spread.mean();
        Self { parameters, mean, sectors, buffered: 0.0, filled_at: 0 }
    }

    /// Bytes in the write buffer at a moment.
    fn buffered(&self, buffer: &WriteBuffer, at: Nanos) -> f64 {
        let seconds = at.saturating_sub(self.filled_at) as f64 / 1e9;
        (self.buffered - buffer.drain_mib_s * f64::from(1 << 20) * seconds).max(0.0)
    }

    /// Nanoseconds of a request without the spread.
    fn time(&self, at: Nanos, request: &DiskRequest) -> f64 {
        let p = &self.parameters;
        let affine = match (request.op, &p.write_buffer) {
            (Op::Read, _) => p.read,
            (Op::Write, Some(buffer))
                if self.buffered(buffer, at) >= buffer.mib * f64::from(1 << 20) =>
            {
                buffer.full
            }
            (Op::Write, _) => p.write,
        };
        affine.time(request.sectors)
    }
}

impl Model for SsdModel {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn servers(&self) -> usize {
        self.parameters.servers as usize
    }

    fn expected(&self, at: Nanos, _: u64, request: &DiskRequest) -> Nanos {
        (self.time(at, request) * self.mean) as Nanos
    }

    fn access(&mut self, at: Nanos, _: u64, request: &DiskRequest, random: &mut Random) -> Nanos {
        let time = self.time(at, request) * self.parameters.spread.sample(random);
        if let (Op::Write, Some(buffer)) = (request.op, &self.parameters.write_buffer) {
            let bytes = f64::from(request.sectors) * 512.0;
            self.buffered = self.buffered(buffer, at) + bytes;
            self.filled_at = at;
        }
        time as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_slow_while_the_buffer_is_full_and_fast_again_once_it_drained() {
        let fast = Affine { base_us: 10.0, kib_us: 0.0 };
        let full = Affine { base_us: 500.0, kib_us: 0.0 };
        let buffer = WriteBuffer { mib: 1.0, drain_mib_s: 1.0, full };
        let parameters =
            Ssd { servers: 1, read: fast, write: fast, spread: one(), write_buffer: Some(buffer) };
        let mut model = SsdModel::new(parameters, 1 << 20);
        let write = DiskRequest { op: Op::Write, sectors: 1024, ..DiskRequest::default() };
        let mut random = Random::new(1);
        let mut at = |t| model.access(t, 0, &write, &mut random);
        assert_eq!([at(0), at(0), at(0)], [10_000, 10_000, 500_000]);
        assert_eq!(at(600_000_000), 10_000);
    }
}
