//! FIFO and CLOCK at many sizes. What each size holds is in a ring of its own, in order of arrival: a miss
//! puts the new block where the hand finds the one that leaves. A hit changes no ring.

use super::{ManySizes, all, each};
use std::hint::black_box;

/// The blocks of one size.
struct ArrivalRing {
    /// The blocks, as many as there is room for.
    slots: Vec<u32>,
    hand: usize,
    is_full: bool,
}

impl ArrivalRing {
    fn new(room: u32) -> Self {
        Self { slots: vec![0; room as usize], hand: 0, is_full: false }
    }

    /// Fills the slot at the hand, which goes on.
    #[inline]
    fn put(&mut self, id: u32) {
        self.slots[self.hand] = id;
        self.turn();
    }

    #[inline]
    fn turn(&mut self) {
        self.hand += 1;
        if self.hand == self.slots.len() {
            (self.hand, self.is_full) = (0, true);
        }
    }

    /// What leaves next, unless it has another chance.
    #[inline]
    fn oldest(&self) -> Option<u32> {
        self.is_full.then(|| self.slots[self.hand])
    }
}

fn rings(rooms: &[u32]) -> Vec<ArrivalRing> {
    rooms.iter().map(|room| ArrivalRing::new(*room)).collect()
}

/// FIFO at many sizes.
pub(super) struct FifoSizes {
    /// Which sizes hold each block.
    held: Vec<u32>,
    rings: Vec<ArrivalRing>,
}

impl FifoSizes {
    /// With room for so many of `blocks` blocks.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        Self { held: vec![0; blocks as usize], rings: rings(rooms) }
    }
}

impl ManySizes for FifoSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        black_box(ids.fold(0, |all, id| all ^ self.held[id as usize]));
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let all = all(self.rings.len());
        let missing = all & !self.held[id as usize];
        self.held[id as usize] = all;
        for size in each(missing) {
            let ring = &mut self.rings[size];
            if let Some(oldest) = ring.oldest() {
                self.held[oldest as usize] &= !(1 << size);
            }
            ring.put(id);
        }
        missing
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Default)]
struct ClockNode {
    /// Which sizes hold it.
    held: u32,
    /// Where it was used since the hand last passed.
    used: u32,
}

/// CLOCK at many sizes.
pub(super) struct ClockSizes {
    nodes: Vec<ClockNode>,
    rings: Vec<ArrivalRing>,
}

impl ClockSizes {
    /// With room for so many of `blocks` blocks.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        Self { nodes: vec![ClockNode::default(); blocks as usize], rings: rings(rooms) }
    }
}

impl ManySizes for ClockSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        black_box(ids.fold(0, |all, id| all ^ self.nodes[id as usize].held));
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let all = all(self.rings.len());
        let node = &mut self.nodes[id as usize];
        let missing = all & !node.held;
        node.used |= node.held;
        node.held = all;
        for size in each(missing) {
            let (ring, bit) = (&mut self.rings[size], 1 << size);
            while let Some(oldest) = ring.oldest() {
                let node = &mut self.nodes[oldest as usize];
                if node.used & bit == 0 {
                    node.held &= !bit;
                    break;
                }
                node.used &= !bit;
                ring.turn();
            }
            ring.put(id);
        }
        missing
    }
}
