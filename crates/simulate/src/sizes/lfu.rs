//! LFU at many sizes. What was used once only since it came leaves first, and is nearly always there: it is in
//! order of the last use, a list of the log. All else is ordered when that list is empty. How often a block was
//! used since it came to a size is a difference of two counts of its uses. See the
//! [cache's form](cache::policy::lfu) for the rules.

use super::recency::RecencyLog;
use super::{BITS, ManySizes, all, each};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// The list of what was used once since it came.
const ONCE: usize = 0;

/// The largest count: all above are equal to it, as in the cache.
const MAX_COUNT: u32 = (1 << 24) - 1;

/// What is known of a block.
#[derive(Clone, Copy, Default)]
struct LfuNode {
    uses: u32,
    /// The number of the last use among all references.
    last: u32,
    /// Which sizes have used it more than once since it came.
    often: u32,
}

impl LfuNode {
    /// What decides where a block stands of which there were so many uses before it came.
    fn rank(self, before: u32) -> Rank {
        Rank { count: (self.uses - before).min(MAX_COUNT), last: self.last }
    }
}

/// Who leaves first: the least often used, then the least recently used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    count: u32,
    last: u32,
}

/// A block that a size used more than once, and its uses before it came there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OftenUsed {
    id: u32,
    before: u32,
}

/// What a size used more than once. Each is in one of the two.
#[derive(Default)]
struct OftenUsedHeap {
    /// In no order: nothing of them had to leave since they came here.
    fresh: Vec<OftenUsed>,
    /// By the rank that each had when it was put here; ranks only grow.
    ordered: BinaryHeap<Reverse<(Rank, OftenUsed)>>,
}

impl OftenUsedHeap {
    fn len(&self) -> usize {
        self.fresh.len() + self.ordered.len()
    }

    /// Takes what leaves first.
    fn pop(&mut self, nodes: &[LfuNode]) -> Option<u32> {
        let rank = |block: OftenUsed| nodes[block.id as usize].rank(block.before);
        self.ordered.extend(self.fresh.drain(..).map(|block| Reverse((rank(block), block))));
        while let Some(mut first) = self.ordered.peek_mut() {
            let Reverse((was, block)) = *first;
            if rank(block) == was {
                PeekMut::pop(first);
                return Some(block.id);
            }
            // It was used since, and finds its new place when it is let go of here.
            *first = Reverse((rank(block), block));
        }
        None
    }
}

/// LFU at many sizes.
pub(super) struct LfuSizes {
    log: RecencyLog<1>,
    nodes: Vec<LfuNode>,
    often: Vec<OftenUsedHeap>,
    rooms: Vec<u32>,
    now: u32,
}

impl LfuSizes {
    /// With room for so many of `blocks` blocks.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        Self {
            log: RecencyLog::new(blocks),
            nodes: vec![LfuNode::default(); blocks as usize],
            often: rooms.iter().map(|_| OftenUsedHeap::default()).collect(),
            rooms: rooms.to_vec(),
            now: 0,
        }
    }

    /// Makes room for a block where there is none.
    #[inline]
    fn make_room(&mut self, size: usize) {
        let held = self.log.len(ONCE, size) as usize + self.often[size].len();
        if held == self.rooms[size] as usize
            && !self.log.pop(ONCE, size)
            && let Some(id) = self.often[size].pop(&self.nodes)
        {
            self.nodes[id as usize].often &= !BITS[size];
        }
    }
}

impl ManySizes for LfuSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        self.log.announce(ids);
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let last = self.log.last_use(id);
        let once = last.map_or(0, |(place, came)| came & self.log.reaching(ONCE, place));
        let missing = all(self.rooms.len()) & !(once | self.nodes[id as usize].often);
        for size in each(missing) {
            self.make_room(size);
            self.log.enter(ONCE, size);
        }
        let node = &mut self.nodes[id as usize];
        for size in each(once) {
            self.log.leave(ONCE, size);
            // Of its uses one was since it came.
            self.often[size].fresh.push(OftenUsed { id, before: node.uses - 1 });
        }
        *node = LfuNode { uses: node.uses + 1, last: self.now, often: node.often | once };
        self.now = self.now.wrapping_add(1);
        self.log.refer(id, missing);
        missing
    }
}
