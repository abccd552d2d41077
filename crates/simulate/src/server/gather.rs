//! Reads of the store that begin at nearly the same time and lie near each other are one request, as the
//! server's `objects` makes them: what a client waits for and what is read ahead of it, or two clients' chunks.

use std::collections::VecDeque;

/// A read waits so long for others of the same pack, in nanoseconds.
const WINDOW: u64 = 1_000_000;
/// The most bytes between two reads that become one request.
const GAP: u64 = 256 << 10;
/// The longest request that is made by joining, in bytes.
const LONGEST: u64 = 4 << 20;

/// A request to the store that others may still join.
#[derive(Debug)]
struct OpenRequest {
    /// The load that began it.
    run: u32,
    base: u64,
    began: u64,
    from: u64,
    to: u64,
}

/// The requests of the last moment.
#[derive(Debug, Default)]
pub(super) struct StoreGather(VecDeque<OpenRequest>);

/// A read that became a part of another load's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinedFetch {
    /// The load that began the request.
    pub(super) leader: u32,
    /// Bytes of the request without this read.
    pub(super) before: u64,
    /// Bytes with it.
    pub(super) total: u64,
}

impl StoreGather {
    /// Load `run` reads `bytes` from `offset` of what lies at `base`, at `now` (nanoseconds, not before the call
    /// before): the request that it is a part of, or none when it is one of its own.
    pub(super) fn read(
        &mut self,
        run: u32,
        base: u64,
        (offset, bytes): (u64, u64),
        now: u64,
    ) -> Option<JoinedFetch> {
        while self.0.front().is_some_and(|open| open.began + WINDOW < now) {
            self.0.pop_front();
        }
        let end = offset + bytes;
        let near = |open: &&mut OpenRequest| {
            open.base == base
                && offset <= open.to + GAP
                && open.from <= end + GAP
                && end.max(open.to) - offset.min(open.from) <= LONGEST
        };
        if let Some(open) = self.0.iter_mut().find(near) {
            let before = open.to - open.from;
            (open.from, open.to) = (open.from.min(offset), open.to.max(end));
            return Some(JoinedFetch { leader: open.run, before, total: open.to - open.from });
        }
        self.0.push_back(OpenRequest { run, base, began: now, from: offset, to: end });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_near_each_other_at_the_same_time_are_one_request() {
        let mut gather = StoreGather::default();
        assert_eq!(gather.read(1, 7, (0, 4096), 0), None);
        let joined = gather.read(2, 7, (8192, 4096), WINDOW);
        assert_eq!(joined, Some(JoinedFetch { leader: 1, before: 4096, total: 12288 }));
        // Elsewhere, too far away, too long together, and too late.
        assert_eq!(gather.read(3, 8, (0, 4096), WINDOW), None);
        assert_eq!(gather.read(4, 7, (12288 + GAP + 1, 4096), WINDOW), None);
        assert_eq!(gather.read(5, 8, (4096, LONGEST), WINDOW), None);
        assert_eq!(gather.read(6, 7, (0, 4096), 3 * WINDOW), None);
    }
}
