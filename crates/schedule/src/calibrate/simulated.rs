//! A modelled disk as a probe: for calibrations of which the truth is known.

use super::Probe;
use crate::model::disk::Travel;
use crate::{DiskRequest, Model, ModelledDisk, Nanos, Random};
use block::Result;

/// A modelled disk that is read by one who takes a moment between two reads.
#[derive(Debug)]
pub struct SimulatedDisk {
    disk: ModelledDisk,
    now: Nanos,
    random: Random,
}

/// The moment between two reads, at most, in nanoseconds: without it a rotating disk would be read in
/// step with its rotation.
const MOMENT: f64 = 150_000.0;

impl SimulatedDisk {
    /// A probe of this model.
    pub fn new(model: Box<dyn Model>, seed: u64) -> Self {
        Self { disk: ModelledDisk::new(model), now: 0, random: Random::new(seed) }
    }
}

impl Probe for SimulatedDisk {
    fn sectors(&self) -> u64 {
        self.disk.model().sectors()
    }

    fn read(&mut self, start: u64, sectors: u32) -> Result<f64> {
        self.now += (self.random.unit() * MOMENT) as Nanos;
        let request = DiskRequest { start, sectors, ..DiskRequest::default() };
        let time = self.disk.serve(self.now, &request, Travel::Direct, &mut self.random).time;
        self.now += time;
        Ok(time as f64 * 1e-6)
    }

    fn read_many(&mut self, starts: &[u64], sectors: u32, depth: usize) -> Result<f64> {
        let servers = self.disk.model().servers().min(depth).max(1);
        let begin = self.now;
        let mut free = vec![begin; servers];
        for start in starts {
            let request = DiskRequest { start: *start, sectors, ..DiskRequest::default() };
            let Some(server) = free.iter_mut().min() else { break };
            let service = self.disk.serve(*server, &request, Travel::Direct, &mut self.random);
            *server += service.time;
        }
        self.now = free.into_iter().max().unwrap_or(begin);
        Ok((self.now - begin) as f64 * 1e-6)
    }
}
