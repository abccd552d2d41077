//! Where an image may be cut into chunks, when only its requests are known.
//!
//! Cuts are drawn by the law of a content-defined chunker for content in which no file ends. Pieces of one
//! length would be too good a cache: chunks differ, and requests meet the long ones more often.

use block::{BLOCK, Error, Result};

/// Bits of a reference's key that number the block; which client and disk it is stands above.
pub(crate) const BLOCK_BITS: u32 = 44;
/// Pages of the chunks that a cache holds, on average: more than the mean of all, as long ones are
/// asked for more often, and less than the mean of what is asked for, as they take more room.
const HELD_PAGES: u64 = 30;
/// Pages after which cuts are drawn anew, so that any chunk is found by a few steps.
const GROUP: u64 = 2048;
/// Lengths that one random byte chooses from.
const CHOICES: usize = 256;

/// How a chunker cuts, in pages of 4 KiB: at once a page at which a cut is as likely as at any other,
/// but no chunk is shorter or longer than so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Law {
    /// The fewest pages of a chunk.
    pub least: u32,
    /// The mean.
    pub mean: u32,
    /// The most, 255 or fewer.
    pub most: u32,
}

/// Chunks of a disk of any length, the same ones each time that they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// Bytes of a page, times [`HELD_PAGES`].
    grain: u64,
    /// Lengths in pages, each as likely as the others.
    lengths: [u8; CHOICES],
}

impl Chunks {
    /// Chunks of which a cache holds one in `grain` bytes on average, 4 KiB to 1 GiB; 30 pages for what
    /// the law itself makes.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for another grain.
    pub fn new(grain: u64, law: Law) -> Result<Self> {
        if !(BLOCK..=1 << 30).contains(&grain) {
            return Err(Error::invalid(format!(
                "a cache of pieces of {grain} bytes: give a grain from 4K to 1G"
            )));
        }
        let go_on = 1.0 - 1.0 / f64::from(law.mean.saturating_sub(law.least) + 1);
        let length = |choice: usize| {
            // The quantile of the geometric distribution, in the middle of the choice.
            let left = 1.0 - (choice as f64 + 0.5) / CHOICES as f64;
            (law.least + (left.ln() / go_on.ln()) as u32).clamp(1, law.most.min(255)) as u8
        };
        Ok(Self { grain, lengths: std::array::from_fn(length) })
    }

    /// Bytes that a chunk in a cache has on average.
    pub fn grain(&self) -> u64 {
        self.grain
    }

    /// The chunk that holds the byte at `offset`: its number, and where the next one begins.
    pub fn at(&self, offset: u64) -> (u64, u64) {
        let page = (u128::from(offset) * u128::from(HELD_PAGES) / u128::from(self.grain)) as u64;
        let group = page - page % GROUP;
        let (mut first, mut draw) = (group, 0);
        loop {
            let next = first + u64::from(self.lengths[usize::from(random_byte(group, draw))]);
            if page < next || next >= group + GROUP {
                return (first, self.offset(next.min(group + GROUP)));
            }
            (first, draw) = (next, draw + 1);
        }
    }

    /// Where the chunk of this number, one that [`at`](Self::at) named, begins, and its bytes.
    pub(crate) fn extent(&self, number: u64) -> (u64, u64) {
        let begin = self.offset(number);
        (begin, self.at(begin).1 - begin)
    }

    /// The chunks of the bytes from `first` to `last`, block by block: its offset, and its chunk's number.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for chunks too far from the beginning to be numbered.
    pub(crate) fn blocks(
        &self,
        first: u64,
        last: u64,
    ) -> Result<impl Iterator<Item = (u64, u64)> + '_> {
        if self.at(last).0 >> BLOCK_BITS != 0 {
            return Err(Error::invalid(format!("offset {last} is too far for chunks; use blocks")));
        }
        let (mut chunk, mut next) = (0, 0);
        Ok((first / BLOCK..=last / BLOCK).map(move |block| {
            if block * BLOCK >= next {
                (chunk, next) = self.at(block * BLOCK);
            }
            (block, chunk)
        }))
    }

    /// The first byte of a page.
    fn offset(&self, page: u64) -> u64 {
        let byte = (u128::from(page) * u128::from(self.grain)).div_ceil(HELD_PAGES.into());
        u64::try_from(byte).unwrap_or(u64::MAX)
    }
}

/// Byte `draw` of the random numbers of a group (SplitMix64; Steele, Lea, Flood: Fast splittable
/// pseudorandom number generators, OOPSLA 2014).
fn random_byte(group: u64, draw: u64) -> u8 {
    let mut word = (group / GROUP)
        .wrapping_mul(GROUP)
        .wrapping_add(draw / 8 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)).to_le_bytes()[(draw % 8) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lengths that the store's chunker makes.
    const LAW: Law = Law { least: 8, mean: 24, most: 64 };

    fn chunks(grain: u64) -> Chunks {
        Chunks::new(grain, LAW).unwrap()
    }

    /// The lengths of the chunks of the first so many bytes.
    fn lengths(chunks: &Chunks, bytes: u64) -> Vec<u64> {
        let mut at = 0;
        std::iter::from_fn(|| {
            let begin = at;
            at = chunks.at(at).1;
            (begin < bytes).then_some(at - begin)
        })
        .collect()
    }

    #[test]
    fn lengths_are_those_of_the_stores_chunks() {
        let lengths = lengths(&chunks(HELD_PAGES * 4096), 1 << 32);
        let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        // A page or two less than 24: by the upper bound, and by where cuts are drawn anew.
        assert!((22.5..24.0).contains(&(mean / 4096.0)), "{mean}");
        assert!(lengths.iter().all(|length| length % 4096 == 0));
        assert!(lengths.iter().any(|length| *length == u64::from(LAW.most) * 4096));
        let short = lengths.iter().filter(|length| **length < u64::from(LAW.least) * 4096).count();
        assert!(short * 50 < lengths.len(), "{short} of {}", lengths.len());
        let met = lengths.iter().map(|length| length * length).sum::<u64>() as f64;
        let met = met / lengths.iter().sum::<u64>() as f64 / 4096.0;
        assert!((29.0..33.0).contains(&met), "{met}: HELD_PAGES would be far off");
    }

    proptest! {
        #[test]
        fn every_byte_is_in_the_one_chunk_that_begins_where_the_one_before_ends(
            grain in 4096u64..(1 << 30),
            offset in prop_oneof![0u64..(1 << 40), 0..=u64::MAX],
        ) {
            let chunks = chunks(grain);
            let (number, next) = chunks.at(offset);
            let begin = chunks.offset(number);
            prop_assert!(begin <= offset && (offset < next || next == u64::MAX));
            prop_assert_eq!(chunks.at(begin), (number, next));
            if next < u64::MAX {
                prop_assert_eq!(chunks.at(next - 1), (number, next));
                prop_assert_ne!(chunks.at(next).0, number);
            }
            if begin > 0 {
                prop_assert_eq!(chunks.at(begin - 1).1, begin);
            }
        }
    }
}
