//! SIEVE at many sizes. What each size holds is in a log of its own, in order of arrival; the hand leaves
//! gaps, which are closed when the log has no room for more. A hit changes no log.

use super::{ManySizes, all, each};
use std::hint::black_box;

/// A place of a log whose block has left.
const GAP: u32 = u32::MAX;

/// What is known of a block.
#[derive(Clone, Copy, Default)]
struct SieveNode {
    /// Which sizes hold it.
    held: u32,
    /// Where it was used since the hand last passed.
    used: u32,
}

/// The blocks of one size.
struct Log {
    /// The blocks and gaps from the oldest on: twice as many as there is room for, at most.
    places: Vec<u32>,
    /// The place that is looked at next.
    hand: usize,
    held: usize,
    room: usize,
}

impl Log {
    fn new(room: u32) -> Self {
        let room = room as usize;
        Self { places: Vec::with_capacity(2 * room), hand: 0, held: 0, room }
    }

    /// Lets go of the first block from the hand on that was not used since it last passed.
    #[inline]
    fn evict(&mut self, nodes: &mut [SieveNode], bit: u32) {
        loop {
            let id = self.places[self.hand];
            let mut is_unused = false;
            if id != GAP {
                let node = &mut nodes[id as usize];
                is_unused = node.used & bit == 0;
                node.used &= !bit;
                if is_unused {
                    node.held &= !bit;
                    self.places[self.hand] = GAP;
                    self.held -= 1;
                }
            }
            self.hand += 1;
            // Behind the newest comes the oldest, not what will be newer still.
            if self.hand == self.places.len() {
                self.hand = 0;
            }
            if is_unused {
                return;
            }
        }
    }

    #[inline]
    fn push(&mut self, id: u32) {
        if self.places.len() == 2 * self.room {
            self.close_gaps();
        }
        self.places.push(id);
        self.held += 1;
    }

    #[cold]
    fn close_gaps(&mut self) {
        let passed = self.places[..self.hand].iter().filter(|id| **id != GAP).count();
        self.places.retain(|id| *id != GAP);
        self.hand = passed;
    }
}

/// SIEVE at many sizes.
pub(super) struct SieveSizes {
    nodes: Vec<SieveNode>,
    logs: Vec<Log>,
}

impl SieveSizes {
    /// With room for so many of `blocks` blocks.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        let logs = rooms.iter().map(|room| Log::new(*room)).collect();
        Self { nodes: vec![SieveNode::default(); blocks as usize], logs }
    }
}

impl ManySizes for SieveSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        black_box(ids.fold(0, |all, id| all ^ self.nodes[id as usize].held));
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let all = all(self.logs.len());
        let node = &mut self.nodes[id as usize];
        let missing = all & !node.held;
        node.used |= node.held;
        node.held = all;
        for size in each(missing) {
            let log = &mut self.logs[size];
            if log.held == log.room {
                log.evict(&mut self.nodes, 1 << size);
            }
            log.push(id);
        }
        missing
    }
}
