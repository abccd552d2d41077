//! LRU at many sizes: a reference hits where there is room for all that was referenced since.

use super::{ManySizes, all};
use crate::stack::Stack;

/// LRU at many sizes.
pub(super) struct LruSizes {
    stack: Stack,
    rooms: Vec<u32>,
}

impl LruSizes {
    /// For so many blocks of a stream of `blocks`.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        Self { stack: Stack::new(blocks), rooms: rooms.to_vec() }
    }
}

impl ManySizes for LruSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        self.stack.announce(ids);
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let Some(distance) = self.stack.reference(id) else { return all(self.rooms.len()) };
        let rooms = self.rooms.iter().enumerate();
        rooms.fold(0, |missing, (size, room)| missing | u32::from(*room <= distance) << size)
    }
}
