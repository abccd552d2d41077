//! The cache on board of a disk: segments that each hold one span. The same code is the disk's own
//! cache in a model and the shadow that a scheduler keeps to predict hits ("Predicting Disk
//! Scheduling Performance with Virtual Machines", 2010, section 3).

use crate::DiskRequest;
use serde::{Deserialize, Serialize};

/// Segments looked at together: enough for a compiler to compare them without branches.
const GROUP: usize = 8;

/// How a cache is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheShape {
    /// How many spans are kept; 0: no cache.
    pub segments: u32,
    /// The longest span in sectors: of a longer one the end stays.
    pub segment_sectors: u32,
    /// Sectors read ahead behind each request.
    pub prefetch_sectors: u32,
}

/// Fully associative segments that are replaced in order of age.
#[derive(Clone, Debug)]
pub struct SegmentCache {
    shape: CacheShape,
    starts: Vec<u64>,
    ends: Vec<u64>,
    next: usize,
    inserted: u64,
    dropped: u64,
}

impl SegmentCache {
    /// An empty cache.
    pub fn new(shape: CacheShape) -> Self {
        // Whole groups; what is beyond the last segment stays empty.
        let slots = (shape.segments as usize).next_multiple_of(GROUP);
        Self {
            shape,
            starts: vec![u64::MAX; slots],
            ends: vec![0; slots],
            next: 0,
            inserted: 0,
            dropped: 0,
        }
    }

    /// The segment that holds all of these sectors.
    pub fn find(&self, start: u64, end: u64) -> Option<usize> {
        let groups = self.starts.chunks_exact(GROUP).zip(self.ends.chunks_exact(GROUP));
        for (group, (starts, ends)) in groups.enumerate() {
            let mut held = 0u32;
            for i in 0..GROUP {
                held |= u32::from((starts[i] <= start) & (ends[i] >= end)) << i;
            }
            if held != 0 {
                return Some(group * GROUP + held.trailing_zeros() as usize);
            }
        }
        None
    }

    /// Whether one segment holds all of these sectors.
    pub(crate) fn slot_holds(&self, slot: usize, start: u64, end: u64) -> bool {
        self.starts[slot] <= start && self.ends[slot] >= end
    }

    /// Whether reading these sectors would be a hit. A request across two segments is a miss.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.find(start, end).is_some()
    }

    /// What a read leaves behind: its span and the read-ahead, in the oldest segment. A hit, too,
    /// takes a new segment: this keeps a sequential stream alive.
    pub fn read(&mut self, request: &DiskRequest) {
        if self.shape.segments == 0 {
            return;
        }
        let end = request.end().saturating_add(u64::from(self.shape.prefetch_sectors));
        let longest = u64::from(self.shape.segment_sectors);
        self.starts[self.next] = request.start.max(end.saturating_sub(longest));
        self.ends[self.next] = end;
        self.next = (self.next + 1) % self.shape.segments as usize;
        self.inserted += 1;
    }

    /// Drops every span that a write touches.
    pub fn write(&mut self, request: &DiskRequest) {
        for (start, end) in self.starts.iter_mut().zip(&mut self.ends) {
            if *start < request.end() && request.start < *end {
                (*start, *end) = (u64::MAX, 0);
                self.dropped += 1;
            }
        }
    }

    /// How many spans were ever put in; number `n`, from 0, went into segment `n % segments`.
    pub(crate) fn inserted(&self) -> u64 {
        self.inserted
    }

    /// How many spans writes have dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How it is divided.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(start: u64, sectors: u32) -> DiskRequest {
        DiskRequest { start, sectors, ..DiskRequest::default() }
    }

    fn cache() -> SegmentCache {
        let shape = CacheShape { segments: 3, segment_sectors: 221, prefetch_sectors: 64 };
        SegmentCache::new(shape)
    }

    #[test]
    fn a_read_leaves_its_span_and_the_read_ahead() {
        let mut cache = cache();
        assert!(!cache.holds(0, 0));
        cache.read(&request(1000, 8));
        assert!(cache.holds(1000, 1072) && !cache.holds(999, 1000) && !cache.holds(1072, 1073));
    }

    #[test]
    fn of_a_span_longer_than_a_segment_the_end_stays() {
        let mut cache = cache();
        cache.read(&request(1000, 300));
        assert!(cache.holds(1364 - 221, 1364) && !cache.holds(1364 - 222, 1364));
    }

    #[test]
    fn the_oldest_segment_is_replaced_and_spans_do_not_join() {
        let mut cache = cache();
        for start in [1000, 1072, 5000] {
            cache.read(&request(start, 8));
        }
        assert!(cache.holds(1000, 1008) && !cache.holds(1068, 1080));
        cache.read(&request(9000, 8));
        assert!(!cache.holds(1000, 1008) && cache.holds(1072, 1080));
    }

    #[test]
    fn a_write_drops_what_it_touches() {
        let mut cache = cache();
        cache.read(&request(1000, 8));
        cache.write(&request(992, 8));
        assert!(cache.holds(1000, 1008));
        cache.write(&request(1071, 1));
        assert!(!cache.holds(1000, 1008));
    }
}
