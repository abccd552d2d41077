//! The resume set: which extents of memory a resume reads before its first seconds are over, in that order, and which
//! pages. The next resume has them fetched ahead, as a boot has its boot list.
//!
//! Of the pages a memory image has copies, one after the other: of an extent of 64 KiB a resume needs two or three
//! pages of 4 KiB, and what it would fetch of the others is most of what goes over the link.

use crate::{EXTENT, PAGE};
use block::{Error, Result};
use std::collections::HashSet;

/// The most extents that a set names: 1 GiB of memory.
pub const MAX_EXTENTS: usize = 16384;

/// The most pages of which a memory image has copies: 16 MiB.
pub const MAX_PAGES: usize = 4096;

/// What a resume read first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstReads {
    /// Extents, in the order in which they were read.
    pub extents: Vec<u32>,
    /// Pages, in that order; [`MAX_PAGES`] at the most.
    pub pages: Vec<u32>,
}

/// Pages as bytes: each one's number in four bytes, little-endian.
pub fn encode_pages(pages: &[u32]) -> Vec<u8> {
    pages.iter().take(MAX_PAGES).flat_map(|page| page.to_le_bytes()).collect()
}

/// Reads the pages of a machine with `memory` bytes.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when they are none, or one is named twice.
pub fn decode_pages(bytes: &[u8], memory: u64) -> Result<Vec<u32>> {
    let damaged = |why: &str| Err(Error::corrupt(format!("the first pages of a parcel {why}")));
    if !bytes.len().is_multiple_of(4) || bytes.len() / 4 > MAX_PAGES {
        return damaged("have a length that they cannot have");
    }
    let mut known = HashSet::new();
    let mut pages = Vec::with_capacity(bytes.len() / 4);
    for number in bytes.chunks_exact(4) {
        let page = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
        if u64::from(page) >= memory / PAGE || !known.insert(page) {
            return damaged("name a page beyond the end of the memory, or one twice");
        }
        pages.push(page);
    }
    Ok(pages)
}

/// The pages that the next parcel has copies of, when a resume read `new` first and there are copies of `known`
/// already. Most resumes read nearly the same: then the copies stay as they are, so that nothing is stored twice.
pub(crate) fn settle(new: Vec<u32>, known: &[u32]) -> Vec<u32> {
    let there: HashSet<u32> = known.iter().copied().collect();
    let missing: Vec<u32> = new.iter().copied().filter(|page| !there.contains(page)).collect();
    if known.is_empty() || missing.len() * 2 > new.len() {
        return new;
    }
    if missing.len() * 16 <= new.len() {
        return known.to_vec();
    }
    // What is there keeps its place.
    let mut all = known.to_vec();
    all.extend(missing);
    all.truncate(MAX_PAGES);
    all
}

/// A set as bytes: each extent's number in four bytes, little-endian.
pub fn encode(extents: &[u32]) -> Vec<u8> {
    extents.iter().take(MAX_EXTENTS).flat_map(|extent| extent.to_le_bytes()).collect()
}

/// Reads a set of a machine with `memory` bytes.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it is none.
pub fn decode(bytes: &[u8], memory: u64) -> Result<Vec<u32>> {
    let damaged = |why: &str| Err(Error::corrupt(format!("the resume set of a parcel {why}")));
    if !bytes.len().is_multiple_of(4) || bytes.len() / 4 > MAX_EXTENTS {
        return damaged("has a length that it cannot have");
    }
    let mut extents = Vec::with_capacity(bytes.len() / 4);
    for number in bytes.chunks_exact(4) {
        let extent = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
        if u64::from(extent) >= memory.div_ceil(EXTENT) {
            return damaged("names an extent beyond the end of the memory");
        }
        extents.push(extent);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lies_beyond_the_memory_is_refused() {
        assert_eq!(decode(&encode(&[1, 0]), 2 * EXTENT).unwrap(), [1, 0]);
        assert!(decode(&encode(&[2]), 2 * EXTENT).is_err());
        assert!(decode(&[1, 2, 3], 1 << 30).is_err());
    }

    #[test]
    fn pages_beyond_the_memory_and_pages_named_twice_are_refused() {
        assert_eq!(decode_pages(&encode_pages(&[1, 0]), 2 * PAGE).unwrap(), [1, 0]);
        assert!(decode_pages(&encode_pages(&[2]), 2 * PAGE).is_err());
        assert!(decode_pages(&encode_pages(&[1, 1]), 2 * PAGE).is_err());
        assert!(decode_pages(&[1, 2, 3], 1 << 30).is_err());
        assert!(decode_pages(&vec![0; MAX_PAGES * 4 + 4], 1 << 30).is_err());
    }

    #[test]
    fn copies_stay_while_most_resumes_read_the_same() {
        let known: Vec<u32> = (0..100).collect();
        assert_eq!(settle((0..50).collect(), &[]), (0..50).collect::<Vec<_>>());
        assert_eq!(settle((4..102).collect(), &known), known);
        assert_eq!(settle((40..120).collect(), &known), (0..120).collect::<Vec<_>>());
        assert_eq!(settle((90..200).collect(), &known), (90..200).collect::<Vec<_>>());
        let full: Vec<u32> = (0..MAX_PAGES as u32).collect();
        assert_eq!(settle((1000..5000).collect(), &full), full, "there is room for no more");
    }

    proptest! {
        #[test]
        fn a_set_is_read_back(extents in proptest::collection::vec(0u32..8192, 0..100)) {
            prop_assert_eq!(decode(&encode(&extents), 512 << 20).unwrap(), extents);
        }

        #[test]
        fn any_bytes_are_a_set_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, 1 << 24);
        }
    }
}
