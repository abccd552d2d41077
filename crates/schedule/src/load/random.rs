//! Accesses of one size, uniform over the disk or one behind the other: by clients that think, or at
//! a rate.

use super::{Load, wakes::Wakes};
use crate::{DiskRequest, Nanos, Op, Random, request::from_ms};
use block::Result;

/// Where accesses go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessPattern {
    /// Anywhere.
    Uniform,
    /// Each client behind its last one, from a place of its own.
    Sequential,
}

/// Accesses of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Accesses {
    /// Where.
    pub places: AccessPattern,
    /// Sectors of each.
    pub sectors: u32,
    /// The part of them that are reads, 0 to 1.
    pub reads: f64,
    /// Sectors of the disk.
    pub disk: u64,
}

impl Accesses {
    fn request(&self, client: u32, at: &mut u64, random: &mut Random) -> DiskRequest {
        let size = u64::from(self.sectors);
        let slots = (self.disk / size).max(1);
        let start = match self.places {
            AccessPattern::Uniform => random.below(slots) * size,
            AccessPattern::Sequential => *at % slots * size,
        };
        *at += 1;
        let op = if random.unit() < self.reads { Op::Read } else { Op::Write };
        let sectors = self.sectors;
        DiskRequest { client, op, awaited: true, start, sectors, ..DiskRequest::default() }
    }
}

/// Clients that ask again a while after each answer.
#[derive(Debug)]
pub struct Closed {
    accesses: Accesses,
    think_ms: f64,
    places: Vec<u64>,
    random: Random,
    wakes: Wakes,
}

impl Closed {
    /// So many clients, with exponential times to think of this mean.
    pub fn new(accesses: Accesses, clients: u32, think_ms: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut wakes = Wakes::default();
        for client in 0..clients {
            wakes.add(from_ms(random.exponential(think_ms)), client);
        }
        let slots = accesses.disk / u64::from(accesses.sectors.max(1));
        let places = (0..clients).map(|_| random.below(slots)).collect();
        Self { accesses, think_ms, places, random, wakes }
    }
}

impl Load for Closed {
    fn next(&self) -> Option<Nanos> {
        self.wakes.next()
    }

    fn arrive(&mut self, now: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()> {
        while let Some(client) = self.wakes.take(now) {
            let place = &mut self.places[client as usize];
            requests.push(self.accesses.request(client, place, &mut self.random));
        }
        Ok(())
    }

    fn done(&mut self, now: Nanos, request: &DiskRequest) {
        let think = from_ms(self.random.exponential(self.think_ms));
        self.wakes.add(now + think, request.client);
    }
}

/// Arrivals by a Poisson process, whatever the disk does.
#[derive(Debug)]
pub struct OpenLoad {
    accesses: Accesses,
    gap_ms: f64,
    next: Nanos,
    place: u64,
    random: Random,
}

impl OpenLoad {
    /// So many requests per second.
    pub fn new(accesses: Accesses, per_second: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let gap_ms = 1e3 / per_second;
        let next = from_ms(random.exponential(gap_ms));
        let place = random.below(accesses.disk / u64::from(accesses.sectors.max(1)));
        Self { accesses, gap_ms, next, place, random }
    }
}

impl Load for OpenLoad {
    fn next(&self) -> Option<Nanos> {
        Some(self.next)
    }

    fn arrive(&mut self, _: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()> {
        requests.push(self.accesses.request(0, &mut self.place, &mut self.random));
        self.next += from_ms(self.random.exponential(self.gap_ms)).max(1);
        Ok(())
    }

    fn done(&mut self, _: Nanos, _: &DiskRequest) {}
}
