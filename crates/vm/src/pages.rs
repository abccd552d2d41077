//! A set of pages of guest memory.

use block::{Error, Result};
use std::ops::Range;

/// Pages by number, below a number that is fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pages {
    words: Vec<u64>,
}

impl Pages {
    /// No page below `pages`.
    pub(crate) fn none(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize] }
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] >> (page % 64) & 1 == 1
    }

    pub(crate) fn insert(&mut self, page: u64) {
        self.words[(page / 64) as usize] |= 1 << (page % 64);
    }

    pub(crate) fn remove(&mut self, page: u64) {
        self.words[(page / 64) as usize] &= !(1 << (page % 64));
    }

    /// The set as bytes: a bit for each page, and their CRC-32C.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Bytes that a set below `pages` takes.
    pub(crate) fn encoded_len(pages: u64) -> u64 {
        pages.div_ceil(64) * 8 + 4
    }

    /// Reads a set of pages below `pages`.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when the bytes are none, or are damaged.
    pub(crate) fn decode(bytes: &[u8], pages: u64) -> Result<Self> {
        let damaged = |why| Err(Error::corrupt(format!("a set of pages of guest memory {why}")));
        if bytes.len() as u64 != Self::encoded_len(pages) {
            return damaged("has a length that it cannot have");
        }
        let (bits, checksum) = bytes.split_at(bytes.len() - 4);
        if crc32c::crc32c(bits).to_le_bytes() != checksum {
            return damaged("is damaged");
        }
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let words: Vec<u64> = bits.chunks_exact(8).map(word).collect();
        let beyond = pages % 64;
        if beyond > 0 && words.last().is_some_and(|last| last >> beyond != 0) {
            return damaged("names pages beyond the end of the memory");
        }
        Ok(Self { words })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Adds all pages of another set.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Whether any page of a range is in it.
    pub(crate) fn any(&self, mut pages: Range<u64>) -> bool {
        pages.any(|page| self.contains(page))
    }

    /// The first part of a range whose pages are all in the set, or all not: where it ends, and which.
    pub(crate) fn run(&self, pages: Range<u64>) -> (u64, bool) {
        let inside = self.contains(pages.start);
        let end = (pages.start + 1..pages.end).find(|page| self.contains(*page) != inside);
        (end.unwrap_or(pages.end), inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_read_back_and_other_bytes_are_refused(
            inserted in proptest::collection::vec(0u64..200, 0..100),
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            flip in any::<prop::sample::Index>(),
        ) {
            let mut pages = Pages::none(200);
            inserted.iter().for_each(|page| pages.insert(*page));
            let mut encoded = pages.encode();
            prop_assert_eq!(Pages::decode(&encoded, 200).unwrap(), pages);
            prop_assert!(Pages::decode(&encoded, 300).is_err());
            let at = flip.index(encoded.len());
            encoded[at] ^= 1;
            prop_assert!(Pages::decode(&encoded, 200).is_err());
            let _ = Pages::decode(&bytes, 400);
        }

        #[test]
        fn it_is_a_set(
            inserted in proptest::collection::vec(0u64..200, 0..100),
            removed in proptest::collection::vec(0u64..200, 0..30),
            from in 0u64..199,
        ) {
            let (mut pages, mut model) = (Pages::none(200), BTreeSet::new());
            for page in inserted {
                pages.insert(page);
                model.insert(page);
            }
            for page in removed {
                pages.remove(page);
                model.remove(&page);
            }
            prop_assert_eq!(pages.len(), model.len() as u64);
            prop_assert_eq!(pages.any(from..200), model.range(from..).next().is_some());
            let (end, inside) = pages.run(from..200);
            prop_assert!((from..end).all(|page| model.contains(&page) == inside));
            prop_assert!(end == 200 || model.contains(&end) != inside);
        }
    }
}
