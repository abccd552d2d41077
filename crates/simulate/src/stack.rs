//! The stack of LRU: the distance of each reference, for all sizes in one pass (R. L. Mattson, J. Gecsei,
//! D. R. Slutz, I. L. Traiger: "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970).
//!
//! The stack is a bitmap over time: a bit is set where a block was last referenced. The distance of
//! a reference is the number of bits behind the block's own. Counts of words, lines of words and
//! groups of lines make that a few dozen additions, most of them several at a time; when the bitmap
//! is full, the bits are pushed together.

use std::hint::black_box;

/// Places of a line, of 8 words.
const LINE: usize = 8 * 64;
/// Lines of a group; what is set in them fits 16 bits.
const LINES: usize = 64;
/// Places of a group.
const GROUP: usize = LINES * LINE;
/// Groups of a region.
const GROUPS: usize = 16;
/// Places of a region.
const REGION: usize = GROUPS * GROUP;

/// The stack of LRU over dense ids.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The place of each block's bit; `u32::MAX` when it has none.
    place: Vec<u32>,
    /// The block whose bit is at each place, for pushing together.
    block: Vec<u32>,
    bits: Vec<u64>,
    /// Bits set in each word of a line, a byte for each.
    words: Vec<u64>,
    /// Bits set in each line, by group.
    lines: Vec<[u16; LINES]>,
    /// Bits set in each group, by region.
    groups: Vec<[u32; GROUPS]>,
    /// Bits set in each region.
    regions: Vec<u32>,
    next: usize,
}

impl Stack {
    pub(crate) fn new(blocks: u32) -> Self {
        let places = (blocks as usize * 2).next_multiple_of(LINE).max(LINE);
        Self {
            place: vec![u32::MAX; blocks as usize],
            block: vec![0; places],
            bits: vec![0; places / 64],
            words: vec![0; places / LINE],
            lines: vec![[0; LINES]; places.div_ceil(GROUP)],
            groups: vec![[0; GROUPS]; places.div_ceil(REGION)],
            regions: vec![0; places.div_ceil(REGION)],
            next: 0,
        }
    }

    /// What will be referenced next: looked up in vain, it is near when it comes.
    #[inline(always)]
    pub(crate) fn announce(&self, ids: impl Iterator<Item = u32>) {
        let places = ids.map(|id| self.place[id as usize]);
        black_box(places.fold(0, |all, place| all ^ place));
    }

    /// A reference to a block: how many others were referenced since the last; `None` at the first.
    // Several loops do this for every reference: called instead, it takes a sixth longer.
    #[inline(always)]
    pub(crate) fn reference(&mut self, id: u32) -> Option<u32> {
        if self.next == self.block.len() {
            self.push_together();
        }
        let place = self.place[id as usize] as usize;
        let distance = (place != u32::MAX as usize).then(|| {
            let distance = self.above(place);
            self.clear(place);
            distance
        });
        self.set(id);
        distance
    }

    /// Forgets a block, as if it had never been referenced.
    pub(crate) fn forget(&mut self, id: u32) {
        let place = std::mem::replace(&mut self.place[id as usize], u32::MAX);
        if place != u32::MAX {
            self.clear(place as usize);
        }
    }

    fn clear(&mut self, place: usize) {
        self.bits[place / 64] ^= 1 << (place % 64);
        self.words[place / LINE] -= 1 << (place / 64 % 8 * 8);
        self.lines[place / GROUP][place / LINE % LINES] -= 1;
        self.groups[place / REGION][place / GROUP % GROUPS] -= 1;
        self.regions[place / REGION] -= 1;
    }

    fn set(&mut self, id: u32) {
        let place = self.next;
        self.next += 1;
        self.place[id as usize] = place as u32;
        self.block[place] = id;
        self.bits[place / 64] ^= 1 << (place % 64);
        self.words[place / LINE] += 1 << (place / 64 % 8 * 8);
        self.lines[place / GROUP][place / LINE % LINES] += 1;
        self.groups[place / REGION][place / GROUP % GROUPS] += 1;
        self.regions[place / REGION] += 1;
    }

    /// The number of bits above a place.
    #[inline]
    fn above(&self, place: usize) -> u32 {
        // Shifting twice, as a shift by 64 is none.
        let in_word = (self.bits[place / 64] >> (place % 64) >> 1).count_ones();
        let words = self.words[place / LINE] >> (place / 64 % 8 * 8) >> 8;
        // Pairs of bytes, then all of them, by a product.
        let pairs = (words & 0x00ff_00ff_00ff_00ff) + (words >> 8 & 0x00ff_00ff_00ff_00ff);
        let in_line = (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32;
        // All counts are added, those before as 0: a loop of another length each time is slower.
        let line = (place / LINE % LINES) as i16;
        let lines = (0i16..).zip(&self.lines[place / GROUP]);
        let in_group =
            lines.fold(0u16, |sum, (at, count)| sum + if at > line { *count } else { 0 });
        let group = (place / GROUP % GROUPS) as i32;
        let groups = (0i32..).zip(&self.groups[place / REGION]);
        let in_region =
            groups.fold(0, |sum, (at, count)| sum + if at > group { *count } else { 0 });
        let beyond: u32 = self.regions[place / REGION + 1..].iter().sum();
        in_word + in_line + u32::from(in_group) + in_region + beyond
    }

    /// Closes the gaps. At least half of the places are gaps, so that this costs a constant time per
    /// reference.
    fn push_together(&mut self) {
        let old = std::mem::take(&mut self.bits);
        self.bits = vec![0; old.len()];
        self.words.fill(0);
        self.lines.fill([0; LINES]);
        self.groups.fill([0; GROUPS]);
        self.regions.fill(0);
        self.next = 0;
        for (at, mut word) in old.into_iter().enumerate() {
            while word != 0 {
                let place = at * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                self.set(self.block[place]);
            }
        }
    }
}
