//! Centres of service with their queues: first come, first served, each time as long as the profile says.

use block::Result;
use model::{Demand, Profile, ProfileCentre};

/// A centre in the simulation.
#[derive(Debug)]
pub(super) struct ServiceStation {
    /// When each server is free, in nanoseconds; none for a delay.
    free: Vec<u64>,
    busy: u64,
    request: Demand,
    /// By the bytes that are loaded.
    load: Demand,
    /// It takes time for loads alone: it is the store, or on the way to it.
    is_store: bool,
    /// Nanoseconds for each piece that comes into the piece cache.
    piece: u64,
}

impl ServiceStation {
    /// The centres of a profile. What a miss takes by the size of the request is what a load takes by its
    /// bytes: a miss loads a chunk, of `chunk` bytes where the request is short, and what else the request
    /// is long for.
    pub(super) fn all(profile: &Profile, chunk: u64) -> Result<Vec<Self>> {
        profile.centres.iter().map(|centre| Self::new(centre, chunk)).collect()
    }

    fn new(centre: &ProfileCentre, chunk: u64) -> Result<Self> {
        let loads = centre.miss.as_points().iter();
        let loads = loads.map(|(block, seconds)| (block + chunk, *seconds)).collect();
        Ok(Self {
            free: vec![0; centre.kind.servers().unwrap_or(0) as usize],
            busy: 0,
            request: centre.request.clone(),
            load: Demand::points(loads)?,
            is_store: centre.is_store(),
            piece: nanoseconds(centre.piece),
        })
    }

    /// Whether nobody waits for others here.
    pub(super) fn is_delay(&self) -> bool {
        self.free.is_empty()
    }

    /// Nanoseconds that a request of so many bytes takes.
    pub(super) fn of_request(&self, bytes: u64) -> u64 {
        nanoseconds(self.request.at(bytes))
    }

    /// Nanoseconds that a load takes beside what the store does: of so many chunks and bytes, which brings so
    /// many pieces.
    pub(super) fn of_load(&self, chunks: u64, bytes: u64, pieces: u64) -> u64 {
        let kept = self.piece.saturating_mul(pieces);
        if self.is_store {
            return kept;
        }
        // What is done with each chunk.
        kept + nanoseconds(self.load.at(bytes / chunks.max(1))).saturating_mul(chunks)
    }

    /// Nanoseconds that a request for so many bytes takes of the store; none for anything else.
    pub(super) fn of_fetch(&self, bytes: u64) -> u64 {
        if self.is_store && bytes > 0 { nanoseconds(self.load.at(bytes)) } else { 0 }
    }

    /// Serves somebody who comes at `now`; when it is done.
    pub(super) fn serve(&mut self, now: u64, service: u64) -> u64 {
        self.busy = self.busy.saturating_add(service);
        match self.free.iter_mut().min() {
            None => now + service,
            Some(free) => {
                *free = (*free).max(now) + service;
                *free
            }
        }
    }

    /// How busy each server was in so many seconds; how many were in a delay.
    pub(super) fn utilisation(&self, seconds: f64) -> f64 {
        let servers = self.free.len().max(1) as f64;
        if seconds > 0.0 { self.busy as f64 / 1e9 / seconds / servers } else { 0.0 }
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
