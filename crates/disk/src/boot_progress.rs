//! How much a guest has read of its image since it began to boot, and of the image's boot list.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use store::ChunkId;

/// So many chunks are told apart that no list names: more are not counted.
const MOST_OTHERS: usize = 8192;

/// A boot list, to look chunks up in: shared by all guests of an image.
#[derive(Debug)]
pub struct ListedChunks(HashMap<u64, u32>);

impl ListedChunks {
    /// Those of `list`.
    pub fn new(list: &[ChunkId]) -> Self {
        let mut chunks = HashMap::with_capacity(list.len());
        for id in list {
            let next = chunks.len() as u32;
            chunks.entry(key(id)).or_insert(next);
        }
        Self(chunks)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The first bytes of an id tell chunks apart well enough to count them.
fn key(id: &ChunkId) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&id.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// What a guest has read so far.
#[derive(Debug, Default)]
pub struct BootProgress(Mutex<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    list: Option<(Arc<ListedChunks>, Box<[u64]>)>,
    others: HashSet<u64>,
    count: ReadSoFar,
}

/// Chunks of its image that a guest has read, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadSoFar {
    /// Those that the boot list names; 0 as long as no list is known.
    pub listed: u32,
    /// Those that it does not name.
    pub others: u32,
    /// The bytes of all of them.
    pub bytes: u64,
}

impl ProgressState {
    /// Counts a chunk on the list; `None` when it is not on it, else whether it is new.
    fn note_listed(&mut self, key: u64) -> Option<bool> {
        let (list, read) = self.list.as_mut()?;
        let at = *list.0.get(&key)?;
        let word = read.get_mut((at / 64) as usize)?;
        let fresh = *word & (1 << (at % 64)) == 0;
        *word |= 1 << (at % 64);
        self.count.listed += u32::from(fresh);
        Some(fresh)
    }
}

impl BootProgress {
    /// From now on, it is known what the boot list names; what was read before counts.
    pub fn follow(&self, list: Arc<ListedChunks>) {
        let mut state = self.0.lock();
        let read = vec![0; list.count().div_ceil(64)];
        state.list = Some((list, read.into()));
        let before = std::mem::take(&mut state.others);
        for key in before {
            if state.note_listed(key).is_none() {
                state.others.insert(key);
            }
        }
        state.count.others = state.others.len() as u32;
    }

    /// How many chunks the boot list names, if it is known.
    pub fn all_listed(&self) -> Option<usize> {
        self.0.lock().list.as_ref().map(|(list, _)| list.count())
    }

    /// What was read so far.
    pub fn read_so_far(&self) -> ReadSoFar {
        self.0.lock().count
    }

    /// Notes that a chunk of `len` bytes is read.
    pub(crate) fn note(&self, id: &ChunkId, len: u32) {
        let mut state = self.0.lock();
        let key = key(id);
        let is_new = match state.note_listed(key) {
            Some(is_new) => is_new,
            None => {
                let is_new = state.others.len() < MOST_OTHERS && state.others.insert(key);
                state.count.others += u32::from(is_new);
                is_new
            }
        };
        if is_new {
            state.count.bytes += u64::from(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_counts_once_also_when_the_list_is_known_later() {
        let id = |n: u8| ChunkId([n; 32]);
        let progress = BootProgress::default();
        for n in [1, 2, 1, 9] {
            progress.note(&id(n), 4096);
        }
        let read = |listed, others, bytes| ReadSoFar { listed, others, bytes };
        assert_eq!(progress.read_so_far(), read(0, 3, 12288));
        assert_eq!(progress.all_listed(), None);
        progress.follow(Arc::new(ListedChunks::new(&[id(1), id(2), id(1), id(3)])));
        assert_eq!(progress.all_listed(), Some(3), "one is named twice");
        assert_eq!(progress.read_so_far(), read(2, 1, 12288));
        for n in [3, 2, 9, 8] {
            progress.note(&id(n), 100);
        }
        assert_eq!(progress.read_so_far(), read(3, 2, 12488));
    }

    #[test]
    fn a_guest_that_reads_everything_takes_little_memory() {
        let progress = BootProgress::default();
        for n in 0..2 * MOST_OTHERS as u64 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_le_bytes());
            progress.note(&ChunkId(id), 1);
        }
        assert_eq!(progress.read_so_far().others as usize, MOST_OTHERS);
    }
}
