//! A disk that serves requests: a model with its head and its cache on board.

use super::Model;
use crate::{DiskRequest, Nanos, Op, Random, SegmentCache};

/// Where the head goes on the way to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Travel {
    /// Straight there.
    #[default]
    Direct,
    /// To this sector first.
    Via(u64),
    /// To the last sector, back to the first, then there.
    Around,
}

/// How a request was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// How long it takes.
    pub time: Nanos,
    /// How long the model expected it to take.
    pub expected: Nanos,
    /// It came out of the cache on board.
    pub hit: bool,
    /// How many sectors the head went from where it was; 0 for a hit.
    pub distance: u64,
}

/// A disk.
#[derive(Debug)]
pub struct ModelledDisk {
    model: Box<dyn Model>,
    cache: SegmentCache,
    head: u64,
}

impl ModelledDisk {
    /// A disk with its head at sector 0 and nothing in its cache.
    pub fn new(model: Box<dyn Model>) -> Self {
        let cache = SegmentCache::new(model.cache());
        Self { model, cache, head: 0 }
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Serves a request that begins at `at`. Calls come in order of `at`.
    pub fn serve(
        &mut self,
        at: Nanos,
        request: &DiskRequest,
        travel: Travel,
        random: &mut Random,
    ) -> Service {
        let hit = request.op == Op::Read && self.cache.holds(request.start, request.end());
        let service = if hit {
            let (time, expected) = (self.model.hit(random), self.model.expected_hit());
            Service { time, expected, hit, distance: 0 }
        } else {
            let (before, from) = self.way(travel);
            let begin = at + before;
            let expected = before + self.model.expected(begin, from, request);
            let time = before + self.model.access(begin, from, request, random);
            let distance = self.head.abs_diff(request.start);
            self.head = request.end();
            Service { time, expected, hit, distance }
        };
        match request.op {
            Op::Read => self.cache.read(request),
            Op::Write => self.cache.write(request),
        }
        service
    }

    /// How long the way before the seek to the request takes, and where that seek begins.
    fn way(&self, travel: Travel) -> (Nanos, u64) {
        let last = self.model.sectors().saturating_sub(1);
        match travel {
            Travel::Direct => (0, self.head),
            Travel::Via(sector) => (self.model.travel(self.head, sector), sector),
            Travel::Around => (self.model.travel(self.head, last) + self.model.travel(last, 0), 0),
        }
    }
}
