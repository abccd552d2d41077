//! The keys of items: what sorts a tree, and what an item is.

use crate::bytes::le64;

/// Kinds of items.
pub(super) mod kind {
    pub(in super::super) const ROOT: u8 = 132;
    pub(in super::super) const EXTENT: u8 = 168;
    pub(in super::super) const METADATA: u8 = 169;
    pub(in super::super) const BLOCK_GROUP: u8 = 192;
    pub(in super::super) const FREE_SPACE_INFO: u8 = 198;
    pub(in super::super) const FREE_SPACE_EXTENT: u8 = 199;
    pub(in super::super) const FREE_SPACE_BITMAP: u8 = 200;
    pub(in super::super) const DEVICE_EXTENT: u8 = 204;
    pub(in super::super) const CHUNK: u8 = 228;
}

/// The key of an item. Keys are ordered by their fields, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TreeKey {
    pub(super) object: u64,
    pub(super) kind: u8,
    pub(super) offset: u64,
}

impl TreeKey {
    pub(super) const SIZE: usize = 17;

    pub(super) fn new(bytes: &[u8]) -> Self {
        Self { object: le64(bytes, 0), kind: bytes[8], offset: le64(bytes, 9) }
    }

    /// All keys of the objects from `first` to `last`.
    pub(super) fn objects(first: u64, last: u64) -> (Self, Self) {
        let from = Self { object: first, kind: 0, offset: 0 };
        (from, Self { object: last, kind: u8::MAX, offset: u64::MAX })
    }
}
