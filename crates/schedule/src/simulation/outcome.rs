//! What a run counted.

use super::laws::Balance;
use crate::model::disk::Service;
use crate::{DiskRequest, Nanos};
use trace::TimeHistogram;

/// A point of a run, for plots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunSample {
    /// When, in milliseconds since the window began.
    pub at_ms: f64,
    /// How many requests were in the system.
    pub in_system: u64,
    /// Where the request that was just done began, in sectors.
    pub sector: u64,
    /// It came out of the cache on board.
    pub hit: bool,
}

/// Samples kept of a run at most; then every second one is dropped, and so on.
const SAMPLES: usize = 4096;

/// Accesses of the head that are kept.
const PATH: usize = 300;

/// What a run counted after its warm-up.
#[derive(Clone, Debug, Default)]
pub struct SimulationOutcome {
    /// From dispatch to done: the seed's *service*, with what waits in the driver.
    pub service: TimeHistogram,
    /// From the disk's begin to done.
    pub device: TimeHistogram,
    /// From arrival to done.
    pub response: TimeHistogram,
    /// How long the window was.
    pub window: Nanos,
    /// Sectors moved.
    pub sectors: u64,
    /// Requests that the cache on board answered.
    pub hits: u64,
    /// Requests that the shadow cache held when they were dispatched.
    pub predicted: u64,
    /// Requests that were both.
    pub predicted_hits: u64,
    /// The mean number of requests in the system.
    pub in_system: f64,
    /// The mean number of requests that the disk worked on.
    pub busy: f64,
    /// How many it can work on.
    pub servers: usize,
    /// What the scheduler counted.
    pub counters: Vec<(&'static str, u64)>,
    /// Points for plots, if asked for: some of the whole window.
    pub samples: Vec<RunSample>,
    /// Where the head went first: milliseconds and sectors, if points were asked for.
    pub path: Vec<(f64, u64)>,
    pub(super) every: u64,
}

/// A request between dispatch and done.
#[derive(Clone, Copy, Debug)]
pub(super) struct DispatchedRequest {
    pub(super) request: DiskRequest,
    pub(super) arrived: Nanos,
    pub(super) dispatched: Nanos,
    pub(super) begun: Nanos,
    pub(super) predicted: bool,
    pub(super) service: Service,
}

impl SimulationOutcome {
    /// A request is done.
    pub(super) fn count(&mut self, flight: &DispatchedRequest, now: Nanos) {
        self.service.add(now - flight.dispatched);
        self.device.add(now - flight.begun);
        self.response.add(now - flight.arrived);
        self.sectors += u64::from(flight.request.sectors);
        self.hits += u64::from(flight.service.hit);
        self.predicted += u64::from(flight.predicted);
        self.predicted_hits += u64::from(flight.predicted && flight.service.hit);
    }

    /// Keeps a point of the run, or not.
    pub(super) fn sample(&mut self, flight: &DispatchedRequest, at: Nanos, in_system: u64) {
        if !flight.service.hit && self.path.len() < PATH {
            self.path.push((at as f64 * 1e-6, flight.request.start));
        }
        let every = self.every.max(1);
        if !self.response.count().is_multiple_of(every) {
            return;
        }
        let (sector, hit) = (flight.request.start, flight.service.hit);
        self.samples.push(RunSample { at_ms: at as f64 * 1e-6, in_system, sector, hit });
        if self.samples.len() == SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.every = every * 2;
        }
    }

    /// The window ends; fails when a law does not hold.
    pub(super) fn finish(
        &mut self,
        began: Nanos,
        now: Nanos,
        system: &Balance,
        device: &Balance,
    ) -> block::Result<()> {
        system.check("Little's law", now)?;
        device.check("the utilisation law", now)?;
        self.window = now - began;
        self.in_system = system.mean(self.window);
        self.busy = device.mean(self.window);
        Ok(())
    }

    /// Requests done per millisecond.
    pub fn rate_per_ms(&self) -> f64 {
        self.response.count() as f64 / (self.window.max(1) as f64 * 1e-6)
    }

    /// Sectors moved per millisecond: the seed's throughput.
    pub fn sectors_per_ms(&self) -> f64 {
        self.sectors as f64 / (self.window.max(1) as f64 * 1e-6)
    }

    /// The part of the disk's capacity that was used, 0 to 1.
    pub fn utilisation(&self) -> f64 {
        self.busy / self.servers.max(1) as f64
    }

    /// The part of requests that the cache on board answered.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.response.count().max(1) as f64
    }

    /// The part of hits that the shadow cache foresaw; 1 without hits.
    pub fn foreseen(&self) -> f64 {
        if self.hits == 0 { 1.0 } else { self.predicted_hits as f64 / self.hits as f64 }
    }
}
