//! The chunks of an image in the order in which they are first read: what a boot list is made of.

use block::{BLOCK, Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::ChunkId;

/// The largest image that is watched, in bytes: a bit for each of its blocks makes 32 MiB.
const MAX_IMAGE: u64 = 1 << 40;

/// What was read of an image so far.
#[derive(Debug)]
pub struct BootTrace {
    /// A bit for each block at which a chunk starts.
    seen: Box<[AtomicU64]>,
    list: Mutex<Vec<ChunkId>>,
    bytes: AtomicU64,
    /// The most chunks that are noted.
    limit: usize,
    over: AtomicBool,
}

impl BootTrace {
    /// Nothing of an image of `size` bytes was read yet. The list holds at most `limit` chunks.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for an image above 1 TiB.
    pub(crate) fn new(size: u64, limit: usize) -> Result<Self> {
        if size > MAX_IMAGE {
            return Err(Error::unsupported("boots of images above 1 TiB are not recorded"));
        }
        let words = size.div_ceil(BLOCK).div_ceil(64);
        Ok(Self {
            seen: (0..words).map(|_| AtomicU64::new(0)).collect(),
            list: Mutex::default(),
            bytes: AtomicU64::new(0),
            limit,
            over: AtomicBool::new(false),
        })
    }

    /// Notes that a chunk of `len` bytes, which starts at byte `start` of the image, is read.
    pub(crate) fn note(&self, start: u64, id: &ChunkId, len: u32) {
        let block = start / BLOCK;
        let Some(word) = self.seen.get((block / 64) as usize) else { return };
        let bit = 1 << (block % 64);
        if word.load(Ordering::Relaxed) & bit != 0
            || word.fetch_or(bit, Ordering::Relaxed) & bit != 0
        {
            return;
        }
        let mut list = self.list.lock();
        if list.len() < self.limit {
            list.push(*id);
            self.bytes.fetch_add(len.into(), Ordering::Relaxed);
        } else {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// How many chunks were noted.
    pub fn count(&self) -> usize {
        self.list.lock().len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether there were more chunks than the limit.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The chunks, in the order of their first use.
    pub fn chunks(&self) -> Vec<ChunkId> {
        self.list.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_noted_once_in_order_and_up_to_the_limit() {
        let touches = BootTrace::new(64 * BLOCK + 512, 3).unwrap();
        let id = |n: u8| ChunkId([n; 32]);
        for (start, n) in [(64 * BLOCK, 1), (0, 2), (64 * BLOCK, 1), (BLOCK, 3), (0, 2)] {
            touches.note(start, &id(n), 4096);
        }
        assert_eq!(touches.chunks(), [id(1), id(2), id(3)]);
        assert_eq!((touches.count(), touches.bytes(), touches.is_over()), (3, 12288, false));
        touches.note(2 * BLOCK, &id(4), 4096);
        assert!(touches.is_over() && touches.count() == 3);
        touches.note(1 << 50, &id(5), 4096);
        assert!(BootTrace::new(MAX_IMAGE + 512, 3).is_err());
    }
}
