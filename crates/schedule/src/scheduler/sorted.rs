//! Waiting requests in order of their position, for everything that sweeps.

use crate::DiskRequest;
use std::collections::BTreeMap;

/// Waiting requests by first sector; at one sector, in order of age.
#[derive(Debug, Default)]
pub(super) struct Sorted(BTreeMap<(u64, u64), DiskRequest>);

impl Sorted {
    pub(super) fn add(&mut self, request: DiskRequest) {
        self.0.insert((request.start, request.id), request);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether this request, and no later one with its id, waits.
    pub(super) fn has(&self, request: &DiskRequest) -> bool {
        self.0.get(&(request.start, request.id)) == Some(request)
    }

    /// The nearest request at a sector or above it.
    pub(super) fn above(&self, sector: u64) -> Option<DiskRequest> {
        self.0.range((sector, 0)..).next().map(|(_, r)| *r)
    }

    /// The nearest request below a sector.
    pub(super) fn below(&self, sector: u64) -> Option<DiskRequest> {
        self.0.range(..(sector, 0)).next_back().map(|(_, r)| *r)
    }

    /// The lowest request.
    pub(super) fn lowest(&self) -> Option<DiskRequest> {
        self.0.first_key_value().map(|(_, r)| *r)
    }

    /// The nearest request at a sector or above it, else the lowest: one direction only.
    pub(super) fn circular(&self, sector: u64) -> Option<DiskRequest> {
        self.above(sector).or_else(|| self.lowest())
    }

    pub(super) fn remove(&mut self, request: &DiskRequest) {
        self.0.remove(&(request.start, request.id));
    }
}
