//! What was found to be all there: a name that leads to what was collected would keep everybody's garbage from being
//! collected, for good.

use std::collections::HashSet;
use store::SegmentId;

/// Segments that are remembered of a client: they take 2 MB.
const MOST: usize = 64 << 10;

/// Segments of which everything was there by one record of collections. While that is the newest, they need not be
/// looked through again, as when a long publication is sent once more.
#[derive(Debug, Default)]
pub(crate) struct WholeSegments {
    basis: Basis,
    segments: HashSet<SegmentId>,
}

/// What [`KeptObjects::basis`](store::offered::KeptObjects::basis) gives.
type Basis = (u64, Option<u64>);

impl WholeSegments {
    /// Whether a segment was, by what is kept now.
    pub(crate) fn has(&self, basis: Basis, id: &SegmentId) -> bool {
        self.basis == basis && self.segments.contains(id)
    }

    /// Notes one.
    pub(crate) fn add(&mut self, basis: Basis, id: SegmentId) {
        if self.basis != basis || self.segments.len() >= MOST {
            self.segments.clear();
        }
        self.basis = basis;
        self.segments.insert(id);
    }
}
