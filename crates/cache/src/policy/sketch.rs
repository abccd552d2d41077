//! How often keys were used lately, approximately: a count-min sketch of 4-bit counters that are
//! halved now and then (G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache
//! Admission Policy", ACM Transactions on Storage 2017, section 3).

/// The words of a block; a key's counters are all in one block, which is one line of the
/// processor's cache.
const WORDS: usize = 8;

/// The counters of a key: one in each pair of words.
const ROWS: usize = 4;

/// Clears the bits that a shift of a word moved from one counter into the next.
const HALF: u64 = 0x7777_7777_7777_7777;

/// A key as the sketch sees it: two hashes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SketchKey {
    /// Chooses the block.
    block: u32,
    /// Chooses the counters, by a byte for each: six bits for the shift of a word, a multiple of four, and one for
    /// the word of the pair.
    places: u32,
}

/// The counters of some keys. Aligned, as it else would be parts of two lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct SketchBlock([u64; WORDS]);

/// Counters up to 15.
#[derive(Debug)]
pub(super) struct Sketch {
    blocks: Vec<SketchBlock>,
    /// Uses counted, of which halvings take half.
    additions: usize,
    /// How many there are when counters are halved: eight for each entry of the cache.
    most: usize,
}

impl Sketch {
    /// A sketch for a cache of `entries` entries: 16 counters for each.
    pub(super) fn new(entries: usize) -> Self {
        let blocks = entries.max(64).next_power_of_two() / WORDS;
        Self { blocks: vec![SketchBlock([0; WORDS]); blocks], additions: 0, most: most(entries) }
    }

    /// Follows a cache that grew. What was counted is lost, as the counters move.
    pub(super) fn resize(&mut self, entries: usize) {
        if entries.next_power_of_two() > self.blocks.len() * WORDS {
            *self = Self::new(entries);
        }
        self.most = most(entries);
    }

    /// What a key of this fingerprint is counted under.
    #[inline]
    pub(super) const fn key(fingerprint: u64) -> SketchKey {
        let spread = fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let places = (spread ^ (spread >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        // Of each byte the lowest bit is the word's, and the four above it are the counter's.
        let places = places as u32;
        let places = ((places & 0x0101_0101) << 6) | ((places & 0x1e1e_1e1e) << 1);
        SketchKey { block: (spread >> 32) as u32, places }
    }

    /// The index of a key's block.
    #[inline]
    fn block(&self, key: SketchKey) -> usize {
        key.block as usize & (self.blocks.len() - 1)
    }

    /// Brings the counters of a key near.
    #[inline(always)]
    pub(super) fn touch(&self, key: SketchKey) -> bool {
        self.blocks[self.block(key)].0[0] & 1 != 0
    }

    /// How often a key was used lately, 15 at most; too much rather than too little.
    #[inline]
    pub(super) fn estimate(&self, key: SketchKey) -> u32 {
        let SketchBlock(block) = &self.blocks[self.block(key)];
        let mut least = 15;
        for row in 0..ROWS {
            let (word, bit) = place(row, key.places);
            least = least.min((block[word] >> bit) as u32 & 15);
        }
        least
    }

    /// Counts a use. All counters are halved after eight uses per entry of the cache: says whether they were now.
    #[inline]
    pub(super) fn add(&mut self, key: SketchKey) -> bool {
        let block = self.block(key);
        let SketchBlock(block) = &mut self.blocks[block];
        for row in 0..ROWS {
            let (word, bit) = place(row, key.places);
            block[word] += u64::from((block[word] >> bit) & 15 < 15) << bit;
        }
        self.additions += 1;
        let halve = self.additions >= self.most;
        if halve {
            self.halve();
        }
        halve
    }

    #[cold]
    fn halve(&mut self) {
        self.additions /= 2;
        for word in self.blocks.iter_mut().flat_map(|SketchBlock(words)| words) {
            *word = (*word >> 1) & HALF;
        }
    }
}

/// The uses that are counted for a cache of so many entries.
fn most(entries: usize) -> usize {
    entries.max(1).saturating_mul(8)
}

/// The place of a key's counter of a row: word and bit.
#[inline]
const fn place(row: usize, places: u32) -> (usize, u32) {
    let place = places >> (8 * row);
    // In bounds for the compiler to see: less than two words for each row.
    (2 * row + (place as usize >> 6) % 2, place % u64::BITS)
}
