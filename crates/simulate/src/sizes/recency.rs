//! A log of the last uses, in which every size has its lists of the least recently used.
//!
//! Such lists have the same order at all sizes, that of the log; only what is in them differs. A block is in
//! one of two kinds of lists of a size: it came there with its last use, or it was there before. A bit for each
//! size says which. A list of either kind is what lies between two places of the log, the one behind the
//! other: what is held, then the names of what left, then what is forgotten. So a hit that only moves
//! a block to an end costs nothing at any size, and a block that leaves is only passed by where a list begins.

use super::{BITS, MOST};
use std::hint::black_box;

/// Where a block stands that is not in the log.
const NOWHERE: u32 = u32::MAX;

/// Places whose bits are in one word.
const GROUP: usize = u32::BITS as usize;

/// What is known of a block.
#[derive(Clone, Copy)]
struct LogNode {
    /// Where it stands, or [`NOWHERE`].
    place: u32,
    /// To which sizes it came with its last use.
    came: u32,
}

/// A log in which [`MOST`] sizes at most have `K` lists. Those of even number have blocks that came with
/// their last use.
pub(super) struct RecencyLog<const K: usize> {
    nodes: Vec<LogNode>,
    /// The block at each place.
    blocks: Vec<u32>,
    /// To which sizes blocks came, with a bit for each place of a group.
    groups: Vec<[u32; MOST]>,
    /// The places of a group that are no gaps: their blocks were not used again.
    live: Vec<u32>,
    next: usize,
    /// Where each list begins.
    heads: [[u32; MOST]; K],
    lens: [[u32; MOST]; K],
}

impl<const K: usize> RecencyLog<K> {
    /// For references to `blocks` blocks, 2^29 at most.
    pub(super) fn new(blocks: u32) -> Self {
        let places = (blocks as usize * 2).next_multiple_of(GROUP).max(GROUP);
        Self {
            nodes: vec![LogNode { place: NOWHERE, came: 0 }; blocks as usize],
            blocks: vec![0; places],
            groups: vec![[0; MOST]; places / GROUP],
            live: vec![0; places / GROUP],
            next: 0,
            heads: [[0; MOST]; K],
            lens: [[0; MOST]; K],
        }
    }

    /// What will be referenced next.
    pub(super) fn announce(&self, ids: impl Iterator<Item = u32>) {
        black_box(ids.fold(0, |all, id| all ^ self.nodes[id as usize].place));
    }

    /// The place of a block and the sizes that it came to with its last use; `None` when it was never used.
    #[inline]
    pub(super) fn last_use(&self, id: u32) -> Option<(u32, u32)> {
        let LogNode { place, came } = self.nodes[id as usize];
        (place != NOWHERE).then_some((place, came))
    }

    /// The sizes whose list begins at a place or before.
    #[inline]
    pub(super) fn reaching(&self, list: usize, place: u32) -> u32 {
        // Compared as numbers with a sign, which processors do several at a time.
        let sizes = self.heads[list].iter().zip(BITS);
        sizes.fold(0, |all, (head, bit)| all | if *head as i32 > place as i32 { 0 } else { bit })
    }

    /// How many blocks a size has in a list.
    #[inline]
    pub(super) fn len(&self, list: usize, size: usize) -> u32 {
        self.lens[list][size]
    }

    /// Notes that the block that is being referenced comes to a list of a size.
    #[inline]
    pub(super) fn enter(&mut self, list: usize, size: usize) {
        self.lens[list][size] += 1;
    }

    /// Notes that the block that is being referenced leaves a list of a size.
    #[inline]
    pub(super) fn leave(&mut self, list: usize, size: usize) {
        self.lens[list][size] -= 1;
    }

    /// A reference to a block, which comes to some sizes.
    #[inline]
    pub(super) fn refer(&mut self, id: u32, came: u32) {
        let old = self.nodes[id as usize].place as usize;
        if let Some(live) = self.live.get_mut(old / GROUP) {
            *live &= !BITS[old % GROUP];
        }
        if self.next == self.blocks.len() {
            self.push_together();
        }
        self.push(id, came);
    }

    #[inline]
    fn push(&mut self, id: u32, came: u32) {
        let place = self.next;
        self.next += 1;
        self.nodes[id as usize] = LogNode { place: place as u32, came };
        self.blocks[place] = id;
        let here = BITS[place % GROUP];
        self.live[place / GROUP] |= here;
        for (group, bit) in self.groups[place / GROUP].iter_mut().zip(BITS) {
            *group |= if came & bit != 0 { here } else { 0 };
        }
    }

    /// Takes the first of a list of a size out of it; `false` when the list is empty.
    #[inline]
    pub(super) fn pop(&mut self, list: usize, size: usize) -> bool {
        if self.lens[list][size] == 0 {
            return false;
        }
        self.lens[list][size] -= 1;
        let head = self.heads[list][size] as usize;
        let (mut group, mut from) = (head / GROUP, u32::MAX << (head % GROUP));
        // Lists of odd number have what did not come.
        let flip = if list.is_multiple_of(2) { 0 } else { u32::MAX };
        let place = loop {
            let found = (self.groups[group][size] ^ flip) & self.live[group] & from;
            if found != 0 {
                break group * GROUP + found.trailing_zeros() as usize;
            }
            (group, from) = (group + 1, u32::MAX);
        };
        self.heads[list][size] = place as u32 + 1;
        true
    }

    /// Lets a list of a size begin where another one does.
    #[inline]
    pub(super) fn begin(&mut self, list: usize, with: usize, size: usize) {
        self.heads[list][size] = self.heads[with][size];
    }

    /// Closes the gaps. At least half of the places are, so that this costs a constant time per reference.
    #[cold]
    fn push_together(&mut self) {
        let live = std::mem::take(&mut self.live);
        self.live = vec![0; live.len()];
        self.groups.fill([0; MOST]);
        let (used, mut moved) = (std::mem::take(&mut self.next), Vec::new());
        for place in 0..used {
            moved.push(self.next as u32);
            if live[place / GROUP] & BITS[place % GROUP] != 0 {
                let id = self.blocks[place];
                self.push(id, self.nodes[id as usize].came);
            }
        }
        moved.push(self.next as u32);
        for head in self.heads.as_flattened_mut() {
            *head = moved[*head as usize];
        }
    }
}
