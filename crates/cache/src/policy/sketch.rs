//! How often keys were used lately, approximately: a count-min sketch of 4-bit counters that are
//! halved now and then (G. Einziger, R. Friedman, B. Manes: "TinyLFU: A Highly Efficient Cache
//! Admission Policy", ACM Transactions on Storage 2017, section 3).

/// The bytes of a block; a key's counters are all in one block, which is one line of the
/// processor's cache.
const BYTES: usize = 64;

/// The counters of a key: one in each quarter of the block.
const ROWS: usize = 4;

/// The bytes of a row, of two counters each.
const ROW: usize = BYTES / ROWS;

/// Entries of the cache for each block.
const ENTRIES: usize = 8;

/// Clears the bit that a shift of a byte moved from one counter into the other.
const HALF: u8 = 0x77;

/// Each byte with a use more in its lower counter, then each with one in its upper counter: found sooner than
/// worked out.
const MORE: [u8; 512] = {
    let mut more = [0; 512];
    let mut at = 0;
    while at < more.len() {
        let (byte, one) = (at as u8, if at < 256 { 1 } else { 16 });
        more[at] = if byte / one % 16 < 15 { byte + one } else { byte };
        at += 1;
    }
    more
};

/// A key as the sketch sees it: two hashes.
#[derive(Debug, Clone, Copy, Default)]
pub struct SketchKey {
    /// Chooses the block.
    block: u32,
    /// Chooses the counters, by a byte for each: four bits for the byte of the row, and one for the counter in it.
    places: u32,
}

/// The counters of some keys. Aligned, as it else would be parts of two lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct SketchBlock([u8; BYTES]);

impl SketchBlock {
    /// A key's counter of a row.
    #[inline]
    fn counter(&self, row: usize, key: SketchKey) -> u32 {
        let (byte, upper) = place(row, key.places);
        u32::from(self.0[byte] >> (upper / 4) & 15)
    }
}

/// Counters up to 15.
#[derive(Debug)]
pub struct Sketch {
    blocks: Vec<SketchBlock>,
    /// Uses counted, of which halvings take half.
    additions: usize,
    /// How many there are when counters are halved: eight for each entry of the cache.
    most: usize,
}

impl Sketch {
    /// A sketch for a cache of `entries` entries: 16 counters for each.
    pub fn new(entries: usize) -> Self {
        let blocks = entries.max(64).next_power_of_two() / ENTRIES;
        Self { blocks: vec![SketchBlock([0; BYTES]); blocks], additions: 0, most: most(entries) }
    }

    /// Follows a cache that grew. What was counted is lost, as the counters move.
    pub fn resize(&mut self, entries: usize) {
        if entries.next_power_of_two() > self.blocks.len() * ENTRIES {
            *self = Self::new(entries);
        }
        self.most = most(entries);
    }

    /// What a key of this fingerprint is counted under.
    #[inline]
    pub const fn key(fingerprint: u64) -> SketchKey {
        let spread = fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let places = (spread ^ (spread >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        SketchKey { block: (spread >> 32) as u32, places: places as u32 & 0x1f1f_1f1f }
    }

    /// The index of a key's block.
    #[inline]
    fn block(&self, key: SketchKey) -> usize {
        key.block as usize & (self.blocks.len() - 1)
    }

    /// Brings the counters of a key near. What is returned says nothing.
    #[inline(always)]
    pub fn touch(&self, key: SketchKey) -> bool {
        self.blocks[self.block(key)].0[0] & 1 != 0
    }

    /// How often a key was used lately, 15 at most; too much rather than too little.
    #[inline]
    pub fn estimate(&self, key: SketchKey) -> u32 {
        let block = &self.blocks[self.block(key)];
        (0..ROWS).fold(15, |least, row| least.min(block.counter(row, key)))
    }

    /// Whether [`estimate`](Self::estimate) is more than `uses`: mostly not, which the first counter tells.
    #[inline]
    pub fn exceeds(&self, key: SketchKey, uses: u32) -> bool {
        let block = &self.blocks[self.block(key)];
        (0..ROWS).all(|row| block.counter(row, key) > uses)
    }

    /// Counts a use. All counters are halved after eight uses per entry of the cache: says whether they were now.
    #[inline]
    pub fn add(&mut self, key: SketchKey) -> bool {
        let block = self.block(key);
        let SketchBlock(block) = &mut self.blocks[block];
        for row in 0..ROWS {
            let (byte, upper) = place(row, key.places);
            block[byte] = MORE[usize::from(block[byte]) + (upper << 4)];
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
        for SketchBlock(bytes) in &mut self.blocks {
            for byte in bytes {
                *byte = (*byte >> 1) & HALF;
            }
        }
    }
}

/// The uses that are counted for a cache of so many entries.
fn most(entries: usize) -> usize {
    entries.max(1).saturating_mul(8)
}

/// The place of a key's counter of a row: the byte, and 16 when it is the upper counter there, else 0.
#[inline]
const fn place(row: usize, places: u32) -> (usize, usize) {
    let place = (places >> (8 * row)) as usize;
    (ROW * row + place % ROW, place & 16)
}
