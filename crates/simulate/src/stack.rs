//! LRU at every size in one pass: the stack algorithm (R. L. Mattson, J. Gecsei, D. R. Slutz,
//! I. L. Traiger: "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970).
//!
//! The stack is a bitmap over time: a bit is set where a block was last referenced. The distance of
//! a reference is the number of bits behind the block's own. Counts of lines and of groups of lines
//! make that a few dozen additions; when the bitmap is full, the bits are pushed together.
//!
//! From a sample of one in `n` blocks the same pass gives an estimate for all (SHARDS: C. A.
//! Waldspurger, N. Park, A. Garthwaite, I. Ahmad: "Efficient MRC Construction with SHARDS", FAST
//! 2015, with the correction of section 4.2): distances are multiplied by `n`, and what the sample
//! has too few or too many references counts at the smallest distance.

use crate::stream::Stream;
use serde::Serialize;

/// Words of a line: one line of the processor's cache.
const LINE: usize = 8;
const LINE_BITS: usize = LINE * 64;
/// Lines of a group.
const GROUP: usize = 64;

/// The hit ratio of LRU by size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Curve {
    /// References by stack distance: `references[d]` hit in a cache of more than `d` blocks of the
    /// sample.
    #[serde(skip)]
    distances: Vec<u64>,
    /// All references.
    pub references: u64,
    /// Distinct blocks of the sample.
    pub blocks: u32,
    /// One of so many blocks was looked at.
    pub one_in: u32,
    /// References that the sample has too few (or too many), as if they hit in the smallest cache.
    adjustment: i64,
}

impl Curve {
    /// The curve of a stream; an estimate when the stream is a sample.
    pub fn of(stream: &Stream) -> Self {
        let mut stack = Stack::new(stream.blocks());
        let mut distances = vec![0u64; stream.blocks() as usize];
        for (id, _) in stream.references() {
            if let Some(distance) = stack.reference(id) {
                distances[distance as usize] += 1;
            }
        }
        let references = stream.len() as u64;
        let expected = match stream.one_in {
            0 | 1 => references,
            one_in => stream.sampled_from().map_or(references, |all| all / u64::from(one_in)),
        };
        let adjustment = expected as i64 - references as i64;
        let one_in = stream.one_in.max(1);
        Self { distances, references: expected, blocks: stream.blocks(), one_in, adjustment }
    }

    /// The hit ratio with each of these numbers of blocks.
    pub fn hit_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(self.distances.len() + 1);
        let mut sum = self.adjustment;
        sums.push(0);
        for count in &self.distances {
            sum += *count as i64;
            sums.push(sum);
        }
        let ratio = |size: &u64| {
            // Between two distances of the sample, in proportion.
            let at = *size as f64 / f64::from(self.one_in);
            let (low, part) = ((at as usize).min(sums.len() - 1), at.fract());
            let high = (low + 1).min(sums.len() - 1);
            let hits = sums[low] as f64 * (1.0 - part) + sums[high] as f64 * part;
            (hits / self.references.max(1) as f64).clamp(0.0, 1.0)
        };
        sizes.iter().map(ratio).collect()
    }

    /// Hits in a cache of `size` blocks, exactly; for a curve that is no estimate.
    pub fn hits(&self, size: u32) -> u64 {
        self.distances.iter().take(size as usize).sum()
    }
}

/// The stack of LRU over dense ids.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The place of each block's bit; `u32::MAX` when it has none.
    place: Vec<u32>,
    /// The block whose bit is at each place, for pushing together.
    block: Vec<u32>,
    bits: Vec<u64>,
    lines: Vec<u16>,
    groups: Vec<u32>,
    next: usize,
}

impl Stack {
    pub(crate) fn new(blocks: u32) -> Self {
        let unit = LINE_BITS * GROUP;
        let places = (blocks as usize * 2).next_multiple_of(unit).max(unit);
        Self {
            place: vec![u32::MAX; blocks as usize],
            block: vec![0; places],
            bits: vec![0; places / 64],
            lines: vec![0; places / LINE_BITS],
            groups: vec![0; places / unit],
            next: 0,
        }
    }

    /// A reference to a block: how many others were referenced since the last; `None` at the first.
    #[inline]
    pub(crate) fn reference(&mut self, id: u32) -> Option<u32> {
        if self.next == self.block.len() {
            self.push_together();
        }
        let place = self.place[id as usize] as usize;
        let distance = (place != u32::MAX as usize).then(|| {
            let distance = self.above(place);
            self.flip(place);
            self.lines[place / LINE_BITS] -= 1;
            self.groups[place / (LINE_BITS * GROUP)] -= 1;
            distance
        });
        self.set(id);
        distance
    }

    fn set(&mut self, id: u32) {
        let place = self.next;
        self.next += 1;
        self.place[id as usize] = place as u32;
        self.block[place] = id;
        self.flip(place);
        self.lines[place / LINE_BITS] += 1;
        self.groups[place / (LINE_BITS * GROUP)] += 1;
    }

    fn flip(&mut self, place: usize) {
        self.bits[place / 64] ^= 1 << (place % 64);
    }

    /// The number of bits above a place.
    #[inline]
    fn above(&self, place: usize) -> u32 {
        let (word, line, group) = (place / 64, place / LINE_BITS, place / (LINE_BITS * GROUP));
        // Shifting twice, as a shift by 64 is none.
        let mut sum = (self.bits[word] >> (place % 64) >> 1).count_ones();
        for word in &self.bits[word + 1..(line + 1) * LINE] {
            sum += word.count_ones();
        }
        for count in &self.lines[line + 1..(group + 1) * GROUP] {
            sum += u32::from(*count);
        }
        let last = self.next.saturating_sub(1) / (LINE_BITS * GROUP);
        for count in &self.groups[group + 1..(last + 1).max(group + 1)] {
            sum += count;
        }
        sum
    }

    /// Closes the gaps. At least half of the places are gaps, so that this costs a constant time per
    /// reference.
    fn push_together(&mut self) {
        let old = std::mem::take(&mut self.bits);
        self.bits = vec![0; old.len()];
        self.lines.fill(0);
        self.groups.fill(0);
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
