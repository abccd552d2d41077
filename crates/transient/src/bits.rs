//! One bit for each block of a disk.

use block::{BLOCK, Span};
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: u64 = 64;

/// Bits that any number of tasks read and set.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Vec<AtomicU64>,
}

impl Bits {
    /// All clear, for a device of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let words = size.div_ceil(BLOCK).div_ceil(WORD);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The bit of the block at `offset`.
    #[inline]
    pub(crate) fn get(&self, offset: u64) -> bool {
        let block = offset / BLOCK;
        let word = self.words.get((block / WORD) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (block % WORD) & 1 == 1)
    }

    /// Sets or clears the bits of every block that `span` touches.
    #[inline]
    pub(crate) fn put(&self, span: Span, value: bool) {
        if span.is_empty() {
            return;
        }
        let mut block = span.offset() / BLOCK;
        let end = span.end().div_ceil(BLOCK);
        while block < end {
            let count = (end - block).min(WORD - block % WORD);
            let mask = (u64::MAX >> (WORD - count)) << (block % WORD);
            if let Some(word) = self.words.get((block / WORD) as usize) {
                // Most are as wanted already; looking is cheaper.
                let now = word.load(Ordering::Acquire);
                if value && now & mask != mask {
                    word.fetch_or(mask, Ordering::AcqRel);
                } else if !value && now & mask != 0 {
                    word.fetch_and(!mask, Ordering::AcqRel);
                }
            }
            block += count;
        }
    }

    /// The longest start of `span` (not empty) whose blocks all have the same bit, and the bit.
    #[inline]
    pub(crate) fn run(&self, span: Span) -> (Span, bool) {
        let value = self.get(span.offset());
        let mut end = (span.offset() / BLOCK + 1) * BLOCK;
        while end < span.end() && self.get(end) == value {
            end += BLOCK;
        }
        (Span::between(span.offset(), end.min(span.end())), value)
    }

    /// Whether every block that `span` touches is set.
    #[inline]
    pub(crate) fn all(&self, span: Span) -> bool {
        span.is_empty() || self.run(span) == (span, true)
    }

    /// Whether any block that `span` touches is set.
    pub(crate) fn any(&self, span: Span) -> bool {
        !span.is_empty() && self.run(span) != (span, false)
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::conformance::Sequence;

    #[test]
    fn bits_are_those_of_a_plain_vector() {
        const BLOCKS: u64 = 300;
        let bits = Bits::new(BLOCKS * BLOCK);
        let mut model = vec![false; BLOCKS as usize];
        let mut random = Sequence::new(1);
        for _ in 0..2000 {
            let span = random.span(BLOCKS * BLOCK);
            let value = random.below(2) == 1;
            bits.put(span, value);
            if !span.is_empty() {
                for block in span.offset() / BLOCK..span.end().div_ceil(BLOCK) {
                    model[block as usize] = value;
                }
            }
            let looked = random.span(BLOCKS * BLOCK);
            if !looked.is_empty() {
                let (run, value) = bits.run(looked);
                let blocks = looked.offset() / BLOCK..looked.end().div_ceil(BLOCK);
                let same =
                    blocks.clone().take_while(|b| model[*b as usize] == value).count() as u64;
                assert_eq!(value, model[blocks.start as usize]);
                assert_eq!(run.end(), looked.end().min((blocks.start + same) * BLOCK));
                assert_eq!(bits.all(looked), blocks.clone().all(|b| model[b as usize]));
                assert_eq!(bits.any(looked), blocks.clone().any(|b| model[b as usize]));
            }
        }
        for value in [true, false] {
            let count = bits.count();
            (0..BLOCKS)
                .map(|block| block * BLOCK + 5)
                .for_each(|at| bits.put(Span::between(at, at), value));
            assert_eq!(bits.count(), count, "an empty span touches no block");
        }
        assert_eq!(bits.count(), model.iter().filter(|set| **set).count() as u64);
    }
}
