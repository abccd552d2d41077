//! Segments in memory, shared by all manifests of a store: hundreds of disks of one image hold its
//! map once, and so do its snapshots and versions where they are alike.

use crate::SegmentId;
use crate::segment::Segment;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Which segment, and how many blocks it may describe: an image that was grown may end behind
/// where another one's last segment ends.
pub(crate) type Key = (SegmentId, u32);

/// The segments that any manifest holds.
#[derive(Default)]
pub(crate) struct Segments {
    held: Mutex<Held>,
    /// Those that are being loaded; each is loaded once, whoever waits for it.
    loading: Mutex<HashMap<Key, Weak<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct Held {
    segments: HashMap<Key, Weak<Segment>>,
    /// Entries after the last sweep.
    swept: usize,
}

impl Segments {
    /// A segment that a manifest holds already.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Segment>> {
        self.held.lock().segments.get(key)?.upgrade()
    }

    /// The turn to load a segment: whoever gets it looks first whether another one did.
    pub(crate) fn turn(&self, key: Key) -> Arc<tokio::sync::Mutex<()>> {
        let mut loading = self.loading.lock();
        if let Some(turn) = loading.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        loading.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        loading.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Shares a segment that was loaded; gives the one that is held already, if another manifest
    /// was quicker.
    pub(crate) fn share(&self, key: Key, loaded: Segment) -> Arc<Segment> {
        let mut held = self.held.lock();
        if let Some(present) = held.segments.get(&key).and_then(Weak::upgrade) {
            return present;
        }
        let segment = Arc::new(loaded);
        held.segments.insert(key, Arc::downgrade(&segment));
        if held.segments.len() > 2 * held.swept + 64 {
            held.segments.retain(|_, segment| segment.strong_count() > 0);
            held.swept = held.segments.len();
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Placed;
    use crate::{ChunkId, ChunkRef, Encoding, PackId};

    fn segment() -> Segment {
        let at = ChunkRef {
            id: ChunkId([3; 32]),
            len: 4096,
            pack: PackId([1; 32]),
            offset: 64,
            stored: 4096,
            encoding: Encoding::Plain,
        };
        let body = Segment::encode(&[Placed { start: 0, blocks: 1, skip: 0, at }], 0);
        Segment::decode("segment", body.into(), 1).unwrap()
    }

    #[test]
    fn one_copy_is_held_while_somebody_holds_it() {
        let segments = Segments::default();
        let key = (SegmentId([7; 32]), 1);
        assert!(segments.get(&key).is_none());
        let first = segments.share(key, segment());
        assert!(Arc::ptr_eq(&first, &segments.share(key, segment())));
        assert!(Arc::ptr_eq(&first, &segments.get(&key).unwrap()));
        assert!(segments.get(&(key.0, 2)).is_none(), "of another length");
        drop(first);
        assert!(segments.get(&key).is_none());
    }

    #[test]
    fn segments_that_nobody_holds_do_not_pile_up() {
        let segments = Segments::default();
        for number in 0..1000u32 {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_le_bytes());
            segments.share((SegmentId(id), 1), segment());
        }
        assert!(segments.held.lock().segments.len() <= 65);
    }
}
