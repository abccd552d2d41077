//! What the second stage of an import hands to the last one.

use crate::segment::Placed;
use crate::{ChunkId, ChunkRef, Encoding, SegmentId};
use bytes::Bytes;

/// A batch whose chunks were hashed, and compressed where they are new.
pub(crate) struct Worked {
    pub(crate) done: Vec<PreparedItem>,
    pub(crate) windows: Vec<Bytes>,
    pub(crate) scanned: u64,
    pub(crate) zero: u64,
}

/// An item of which all is known but where it will be stored.
pub(crate) enum PreparedItem {
    /// A chunk that starts at this block of the image.
    Chunk { start: u64, len: u32, id: ChunkId, source: ChunkOrigin },
    /// An unchanged piece of the base.
    Base { segment: u64, placed: Placed },
    /// A whole unchanged segment of the base.
    Shared { segment: u64, id: SegmentId },
}

/// Where the bytes of a chunk come from.
pub(crate) enum ChunkOrigin {
    /// The store has them.
    Known(ChunkRef),
    /// They are to be stored.
    New(Encoding, Bytes),
}
