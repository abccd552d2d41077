//! Which blocks a layer holds: two bits a block, read without a lock.
//!
//! Blocks are kept in groups of 32, one 64-bit word each: the unit that the map log records. Words
//! live in pages that are made when their first block changes, in a directory that doubles, so the
//! map needs no size and a disk may grow under its readers. A page also remembers which of its
//! words changed since they were last collected for the log.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks in a group.
pub(crate) const GROUP: u64 = 32;
/// Words in a page: 64 MiB of disk.
const WORDS: usize = 512;
/// Doubling directory slots: pages up to 2^22, 256 TiB of disk.
const SLOTS: usize = 23;
/// The largest disk that a map can describe, in bytes.
pub(crate) const MAX_SIZE: u64 = 256 << 40;

/// What a layer knows of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockState {
    /// Nothing: look below.
    Below = 0,
    /// Its bytes are in the layer's data file.
    Private = 1,
    /// It reads as zeroes.
    Zero = 2,
}

impl BlockState {
    /// That of a block of a word, whose number within the group is below 32.
    pub(crate) const fn of_word(word: u64, block: u64) -> Self {
        Self::from_bits(word >> (block * 2))
    }

    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Below,
            1 => Self::Private,
            _ => Self::Zero,
        }
    }

    /// A word whose 32 blocks are all in this state.
    const fn pattern(self) -> u64 {
        (self as u64) * 0x5555_5555_5555_5555
    }
}

/// Whether no block of the word has the state bits that are not in use.
pub(crate) const fn is_valid(word: u64) -> bool {
    word & (word >> 1) & 0x5555_5555_5555_5555 == 0
}

struct Page {
    words: Box<[AtomicU64]>,
    /// One bit a word: changed since it was collected.
    changed: [AtomicU64; WORDS / 64],
    /// The page is in the list of changed pages.
    listed: AtomicBool,
}

impl Page {
    fn new() -> Self {
        Self {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            changed: [const { AtomicU64::new(0) }; WORDS / 64],
            listed: AtomicBool::new(false),
        }
    }
}

type PageSlot = OnceLock<Box<[OnceLock<Page>]>>;

/// The states of a layer's blocks.
pub(crate) struct BlockMap {
    slots: [PageSlot; SLOTS],
    /// Pages with changed words.
    changed: Mutex<Vec<u64>>,
    /// How many blocks are private.
    private: AtomicU64,
}

impl BlockMap {
    pub(crate) fn new() -> Self {
        Self {
            slots: [const { OnceLock::new() }; SLOTS],
            changed: Mutex::default(),
            private: AtomicU64::new(0),
        }
    }

    /// How many blocks are private.
    pub(crate) fn private(&self) -> u64 {
        self.private.load(Ordering::Relaxed)
    }

    fn recount(&self, old: u64, new: u64) {
        let private = |word: u64| u64::from((word & BlockState::Private.pattern()).count_ones());
        let (before, after) = (private(old), private(new));
        if after > before {
            self.private.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.private.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Where page `number` is kept: slot `k` holds 2^k pages.
    fn place(number: u64) -> (usize, usize) {
        let slot = (number + 1).ilog2();
        (slot as usize, (number + 1 - (1 << slot)) as usize)
    }

    fn page(&self, number: u64) -> Option<&Page> {
        let (slot, index) = Self::place(number);
        self.slots.get(slot)?.get()?.get(index)?.get()
    }

    fn page_or_new(&self, number: u64) -> &Page {
        let (slot, index) = Self::place(number);
        let pages =
            self.slots[slot].get_or_init(|| (0..1 << slot).map(|_| OnceLock::new()).collect());
        pages[index].get_or_init(Page::new)
    }

    /// The word of a group.
    pub(crate) fn word(&self, group: u64) -> u64 {
        self.page(group / WORDS as u64)
            .map_or(0, |page| page.words[(group % WORDS as u64) as usize].load(Ordering::Acquire))
    }

    /// The state of a block.
    pub(crate) fn get(&self, block: u64) -> BlockState {
        BlockState::from_bits(self.word(block / GROUP) >> (block % GROUP * 2))
    }

    /// The state of the block at the start of `blocks`, and where the run of blocks in this state
    /// ends. `blocks` is not empty.
    pub(crate) fn run(&self, blocks: Range<u64>) -> (BlockState, u64) {
        let state = self.get(blocks.start);
        let mut at = blocks.start + 1;
        while at < blocks.end {
            if at.is_multiple_of(GROUP) {
                let group = at / GROUP;
                // Untouched pages are passed in one step.
                if state == BlockState::Below && self.page(group / WORDS as u64).is_none() {
                    at = (group / WORDS as u64 + 1) * WORDS as u64 * GROUP;
                    continue;
                }
                if self.word(group) == state.pattern() {
                    at += GROUP;
                    continue;
                }
            }
            if self.get(at) != state {
                return (state, at);
            }
            at += 1;
        }
        (state, blocks.end)
    }

    /// How many of `blocks` are not private.
    pub(crate) fn fresh(&self, blocks: Range<u64>) -> u64 {
        let (mut at, mut private) = (blocks.start, 0);
        while at < blocks.end {
            let group = at / GROUP;
            let end = blocks.end.min((group + 1) * GROUP);
            let mask = mask(at % GROUP, end - group * GROUP) & BlockState::Private.pattern();
            private += u64::from((self.word(group) & mask).count_ones());
            at = end;
        }
        blocks.end - blocks.start - private
    }

    /// The word of a group as it would be with these of all blocks in a state.
    pub(crate) fn word_with(&self, group: u64, blocks: &Range<u64>, state: BlockState) -> u64 {
        let start = blocks.start.max(group * GROUP);
        let end = blocks.end.min((group + 1) * GROUP);
        let mask = mask(start - group * GROUP, end - group * GROUP);
        self.word(group) & !mask | state.pattern() & mask
    }

    /// Puts blocks into a state. The caller holds the lock of their region, so that a collection
    /// which waits for that lock sees state and mark together.
    pub(crate) fn set(&self, blocks: Range<u64>, state: BlockState) {
        let mut at = blocks.start;
        while at < blocks.end {
            let group = at / GROUP;
            let end = blocks.end.min((group + 1) * GROUP);
            let mask = mask(at % GROUP, end - group * GROUP);
            let page = self.page_or_new(group / WORDS as u64);
            let index = (group % WORDS as u64) as usize;
            let new = state.pattern() & mask;
            let word = &page.words[index];
            let mut old = word.load(Ordering::Acquire);
            while old & mask != new {
                match word.compare_exchange_weak(
                    old,
                    old & !mask | new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        self.recount(old, old & !mask | new);
                        self.mark(group);
                        break;
                    }
                    Err(now) => old = now,
                }
            }
            at = end;
        }
    }

    /// Puts a group into the states of `word`, as read from the log.
    pub(crate) fn restore(&self, group: u64, word: u64) {
        let page = self.page_or_new(group / WORDS as u64);
        let old = page.words[(group % WORDS as u64) as usize].swap(word, Ordering::AcqRel);
        self.recount(old, word);
    }

    /// Notes that a group is to be collected.
    pub(crate) fn mark(&self, group: u64) {
        let number = group / WORDS as u64;
        let page = self.page_or_new(number);
        let index = (group % WORDS as u64) as usize;
        page.changed[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        if !page.listed.swap(true, Ordering::AcqRel) {
            self.changed.lock().push(number);
        }
    }

    /// Whether there may be something to collect.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changed.lock().is_empty()
    }

    /// Takes the groups that changed since the last call, with their words, in order.
    ///
    /// Collections do not overlap. The caller has waited for every writer that was inside a region's lock.
    /// A writer that comes in meanwhile is seen by this collection or the next.
    pub(crate) fn collect(&self) -> BTreeMap<u64, u64> {
        let mut groups = BTreeMap::new();
        let pages = std::mem::take(&mut *self.changed.lock());
        for number in pages {
            let Some(page) = self.page(number) else { continue };
            page.listed.store(false, Ordering::Release);
            for (i, changed) in page.changed.iter().enumerate() {
                let mut bits = changed.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    let index = i * 64 + bits.trailing_zeros() as usize;
                    let word = page.words[index].load(Ordering::Acquire);
                    groups.insert(number * WORDS as u64 + index as u64, word);
                    bits &= bits - 1;
                }
            }
        }
        groups
    }

    /// The last private block.
    pub(crate) fn last_private(&self) -> Option<u64> {
        let last =
            self.groups().filter(|(_, word)| word & BlockState::Private.pattern() != 0).last();
        last.map(|(group, word)| {
            let bits = word & BlockState::Private.pattern();
            group * GROUP + u64::from(63 - bits.leading_zeros()) / 2
        })
    }

    /// The groups among `groups` with a block that is not `Below`, in order. Pages that no block changed cost
    /// one step each.
    pub(crate) fn words(&self, groups: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let pages = groups.start / WORDS as u64..groups.end.div_ceil(WORDS as u64);
        let held = pages.filter_map(|number| Some((number, self.page(number)?)));
        held.flat_map(move |(number, page)| {
            let first = number * WORDS as u64;
            let words = page.words.iter().zip(first..);
            let words = words.map(|(word, group)| (group, word.load(Ordering::Acquire)));
            let (start, end) = (groups.start, groups.end);
            words.filter(move |(group, word)| *word != 0 && (start..end).contains(group))
        })
    }

    /// Every group with a block that is not `Below`, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.slots.iter().enumerate().filter_map(|(k, slot)| Some((k, slot.get()?))).flat_map(
            |(k, pages)| {
                let first = (1u64 << k) - 1;
                pages.iter().enumerate().filter_map(|(i, page)| Some((i, page.get()?))).flat_map(
                    move |(i, page)| {
                        let base = (first + i as u64) * WORDS as u64;
                        page.words.iter().enumerate().filter_map(move |(w, word)| {
                            let word = word.load(Ordering::Acquire);
                            (word != 0).then_some((base + w as u64, word))
                        })
                    },
                )
            },
        )
    }
}

/// The bits of blocks `start..end` of a group.
const fn mask(start: u64, end: u64) -> u64 {
    let high = if end == GROUP { u64::MAX } else { (1 << (end * 2)) - 1 };
    high & !((1 << (start * 2)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = BlockState> {
        prop_oneof![Just(BlockState::Private), Just(BlockState::Zero), Just(BlockState::Below)]
    }

    const BLOCKS: u64 = 5 * WORDS as u64 * GROUP;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_map_is_a_vector_of_states(
            changes in prop::collection::vec((0..BLOCKS, 1u64..3000, state()), 1..20),
        ) {
            let map = BlockMap::new();
            let mut model = vec![BlockState::Below; BLOCKS as usize];
            for (start, len, state) in changes {
                let end = (start + len).min(BLOCKS);
                map.set(start..end, state);
                model[start as usize..end as usize].fill(state);
            }
            let private = model.iter().filter(|state| **state == BlockState::Private).count() as u64;
            prop_assert_eq!(map.private(), private);
            for (from, to) in [(0, BLOCKS), (5, 6), (31, 97), (BLOCKS / 3, BLOCKS - 7)] {
                let states = &model[from as usize..to as usize];
                let fresh = states.iter().filter(|state| **state != BlockState::Private).count() as u64;
                prop_assert_eq!(map.fresh(from..to), fresh);
            }
            let mut at = 0;
            while at < BLOCKS {
                let (state, end) = map.run(at..BLOCKS);
                prop_assert!(end > at && end <= BLOCKS);
                prop_assert!(model[at as usize..end as usize].iter().all(|s| *s == state));
                prop_assert!(end == BLOCKS || model[end as usize] != state);
                at = end;
            }
            // What was collected is all that a second map needs.
            let copy = BlockMap::new();
            for (group, word) in map.collect() {
                prop_assert!(is_valid(word));
                copy.restore(group, word);
            }
            prop_assert!(copy.groups().eq(map.groups()));
            let all = BLOCKS / GROUP;
            for part in [0..all, 7..WORDS as u64 + 3, all / 2..all / 2 + 1] {
                let within = map.groups().filter(|(group, _)| part.contains(group));
                prop_assert!(map.words(part.clone()).eq(within));
            }
            prop_assert_eq!(copy.private(), private);
            prop_assert!(map.collect().is_empty());
        }
    }

    #[test]
    fn setting_a_block_to_its_own_state_leaves_nothing_to_log() {
        let map = BlockMap::new();
        map.set(3..70, BlockState::Private);
        assert_eq!(map.collect().len(), 3);
        map.set(5..60, BlockState::Private);
        assert!(map.collect().is_empty());
    }

    #[test]
    fn a_change_is_collected_once() {
        let map = BlockMap::new();
        map.set(3..70, BlockState::Private);
        assert!(map.has_changes());
        assert_eq!(map.collect().len(), 3);
        assert!(!map.has_changes() && map.collect().is_empty());
        map.mark(1);
        assert_eq!(map.collect().keys().collect::<Vec<_>>(), [&1]);
    }

    #[test]
    fn a_word_is_told_before_it_is_set() {
        let map = BlockMap::new();
        map.set(3..70, BlockState::Private);
        let blocks = 20..40;
        let words: Vec<u64> = (0..2).map(|g| map.word_with(g, &blocks, BlockState::Zero)).collect();
        map.set(blocks, BlockState::Zero);
        assert_eq!(words, [map.word(0), map.word(1)]);
    }

    #[test]
    fn the_last_block_of_the_largest_disk_has_a_place() {
        let map = BlockMap::new();
        let last = MAX_SIZE / block::BLOCK - 1;
        map.set(last..last + 1, BlockState::Zero);
        assert_eq!(map.get(last), BlockState::Zero);
        assert_eq!(map.groups().count(), 1);
        assert!(!is_valid(3) && !is_valid(3 << 62) && is_valid(BlockState::Zero.pattern()));
    }
}
