//! Waiting requests of which it is known all the time which the cache on board would answer.

use crate::{DiskRequest, Op, SegmentCache};

/// No segment holds it.
const NONE: u32 = u32::MAX;

/// Waiting requests, in no order. Which of them are predicted hits is brought up to date by what
/// changed in the shadow cache, not by comparing each with every segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    requests: Vec<DiskRequest>,
    /// The segment that holds each of them.
    held: Vec<u32>,
    hits: usize,
    inserted: u64,
    dropped: u64,
}

impl Pending {
    pub(crate) fn add(&mut self, request: DiskRequest, shadow: &SegmentCache) {
        let held = look(&request, shadow);
        self.hits += usize::from(held != NONE);
        self.requests.push(request);
        self.held.push(held);
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn all(&self) -> &[DiskRequest] {
        &self.requests
    }

    /// The index of the hit that has waited longest.
    pub(crate) fn oldest_hit(&mut self, shadow: &SegmentCache) -> Option<usize> {
        self.catch_up(shadow);
        if self.hits == 0 {
            return None;
        }
        let held = self.held.iter().enumerate().filter(|(_, held)| **held != NONE);
        held.map(|(i, _)| i).min_by_key(|i| (self.requests[*i].arrived, self.requests[*i].id))
    }

    /// The index of the request with the least key.
    pub(crate) fn least<K: PartialOrd>(&self, key: impl Fn(&DiskRequest) -> K) -> Option<usize> {
        let mut best: Option<(K, usize)> = None;
        for (i, request) in self.requests.iter().enumerate() {
            let key = key(request);
            if best.as_ref().is_none_or(|(least, _)| key < *least) {
                best = Some((key, i));
            }
        }
        best.map(|(_, i)| i)
    }

    /// The requests by index, with whether each was a hit when [`oldest_hit`](Self::oldest_hit) last looked.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&DiskRequest, bool)> {
        self.requests.iter().zip(&self.held).map(|(request, held)| (request, *held != NONE))
    }

    pub(crate) fn take(&mut self, index: usize) -> DiskRequest {
        self.hits -= usize::from(self.held.swap_remove(index) != NONE);
        self.requests.swap_remove(index)
    }

    /// Takes the changes of the shadow cache in.
    fn catch_up(&mut self, shadow: &SegmentCache) {
        let segments = u64::from(shadow.shape().segments);
        if segments == 0 {
            return;
        }
        let new = shadow.inserted() - self.inserted;
        let everything = shadow.dropped() != self.dropped || new >= segments;
        (self.dropped, self.inserted) = (shadow.dropped(), shadow.inserted());
        if everything {
            for (request, held) in self.requests.iter().zip(&mut self.held) {
                *held = look(request, shadow);
            }
        } else {
            for number in shadow.inserted() - new..shadow.inserted() {
                self.replaced((number % segments) as usize, shadow);
            }
        }
        self.hits = self.held.iter().filter(|held| **held != NONE).count();
    }

    /// One segment has a new span.
    fn replaced(&mut self, slot: usize, shadow: &SegmentCache) {
        for (request, held) in self.requests.iter().zip(&mut self.held) {
            if *held == NONE {
                let reads = request.op == Op::Read;
                if reads && shadow.slot_holds(slot, request.start, request.end()) {
                    *held = slot as u32;
                }
            } else if *held == slot as u32 {
                *held = look(request, shadow);
            }
        }
    }
}

/// The segment that would answer a request; none answers a write.
fn look(request: &DiskRequest, shadow: &SegmentCache) -> u32 {
    if request.op == Op::Write {
        return NONE;
    }
    shadow.find(request.start, request.end()).map_or(NONE, |slot| slot as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheShape, Random};

    #[test]
    fn predictions_kept_up_to_date_equal_a_look_at_every_segment() {
        let shape = CacheShape { segments: 5, segment_sectors: 40, prefetch_sectors: 16 };
        let mut shadow = SegmentCache::new(shape);
        let (mut pending, mut random) = (Pending::default(), Random::new(3));
        for id in 0..20_000 {
            let (start, sectors) = (random.below(300), random.below(30) as u32 + 1);
            let op = if random.below(4) == 0 { Op::Write } else { Op::Read };
            let request =
                DiskRequest { id, op, start, sectors, arrived: id, ..DiskRequest::default() };
            match random.below(10) {
                0..4 => pending.add(request, &shadow),
                4..7 => shadow.read(&request),
                7 => shadow.write(&DiskRequest { sectors: 1, ..request }),
                _ => {
                    let holds =
                        |r: &&DiskRequest| r.op == Op::Read && shadow.holds(r.start, r.end());
                    let oldest = pending.all().iter().filter(holds).map(|r| r.id).min();
                    let found = pending.oldest_hit(&shadow);
                    assert_eq!(found.map(|i| pending.all()[i].id), oldest);
                    if let Some(index) = found.or(pending.len().checked_sub(1)) {
                        pending.take(index);
                    }
                }
            }
        }
    }
}
