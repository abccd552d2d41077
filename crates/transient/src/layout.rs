//! Where the bytes of a stitched disk are: the one function that maps logical to physical.

use block::{BLOCK, Error, Result, Span};

/// A range that a member lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// The number of the member.
    pub member: usize,
    /// Its bytes there; both ends are multiples of 4 KiB.
    pub span: Span,
}

/// The lent ranges in the order in which they make up the disk.
///
/// The map is a bijection between the bytes of the disk and the lent bytes: ranges are whole blocks
/// and no byte is lent twice.
#[derive(Debug)]
pub struct Layout {
    lent: Vec<Lent>,
    /// Where each starts on the disk.
    starts: Vec<u64>,
    /// The disk cut into equal parts of `1 << shift` bytes, about as many as there are ranges: the
    /// range that each begins in. It leaves little to be searched; what it says is checked.
    parts: Vec<u32>,
    shift: u32,
    capacity: u64,
}

/// Where the start of a logical range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PhysicalSpan {
    pub(crate) member: usize,
    pub(crate) physical: Span,
}

impl Layout {
    /// Stitches ranges in the order given, on members of the given sizes.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when there is none, one is empty, not in whole
    /// blocks, outside its member, or overlaps another.
    pub fn new(lent: &[Lent], sizes: &[u64]) -> Result<Self> {
        let mut starts = Vec::with_capacity(lent.len());
        let mut capacity = 0u64;
        for lent in lent {
            let span = lent.span;
            let wrong = match sizes.get(lent.member) {
                None => "belongs to no member",
                Some(size) if span.end() > *size => "lies beyond the end of its member",
                Some(_) if span.is_empty() => "is empty",
                Some(_) if !span.is_aligned(BLOCK) => "is not in whole blocks of 4 KiB",
                Some(_) => "",
            };
            if !wrong.is_empty() {
                return Err(Error::invalid(format!(
                    "the lent range of {} bytes at {} of member {} {wrong}",
                    span.len(),
                    span.offset(),
                    lent.member
                )));
            }
            starts.push(capacity);
            capacity = capacity
                .checked_add(span.len())
                .ok_or_else(|| Error::invalid("the lent ranges are larger than any disk"))?;
        }
        let mut sorted: Vec<Lent> = lent.to_vec();
        sorted.sort_unstable_by_key(|lent| (lent.member, lent.span));
        for pair in sorted.windows(2) {
            if pair[0].member == pair[1].member && pair[0].span.end() > pair[1].span.offset() {
                return Err(Error::invalid(format!(
                    "two lent ranges of member {} overlap at {}",
                    pair[0].member,
                    pair[1].span.offset()
                )));
            }
        }
        if lent.is_empty() {
            return Err(Error::invalid("nothing is lent; there is no disk to make of it"));
        }
        let shift = (capacity / lent.len() as u64).ilog2();
        let mut number = 0;
        let parts = (0..=(capacity >> shift) + 1).map(|part| {
            while starts.get(number + 1).is_some_and(|start| start >> shift < part) {
                number += 1;
            }
            number as u32
        });
        let parts = parts.collect();
        Ok(Self { lent: lent.to_vec(), starts, parts, shift, capacity })
    }

    /// Bytes lent in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The lent ranges, in the order of the disk.
    pub fn lent(&self) -> impl Iterator<Item = Lent> + '_ {
        self.lent.iter().copied()
    }

    /// Where `logical` starts, and how much of it is there in one range.
    ///
    /// Every access of a borrowed disk goes through here: what comes out lies inside one lent range,
    /// or nothing comes out.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) for what is not on the disk.
    #[inline]
    pub(crate) fn map(&self, logical: Span) -> Result<PhysicalSpan> {
        let offset = logical.offset();
        let part = (offset >> self.shift) as usize;
        let number = |part| self.parts.get(part).map_or(0, |number| *number as usize);
        let (first, last) = (number(part), number(part + 1));
        // The range that starts last, but not behind the offset.
        let more = self.starts.get(first + 1..=last).unwrap_or_default();
        let number = first + more.partition_point(|start| *start <= offset);
        if let (Some(start), Some(lent)) = (self.starts.get(number), self.lent.get(number)) {
            let skip = offset.checked_sub(*start).unwrap_or(u64::MAX);
            if skip < lent.span.len() {
                let from = lent.span.offset() + skip;
                let physical =
                    Span::between(from, from + logical.len().min(lent.span.len() - skip));
                if lent.span.intersect(physical) == Some(physical) {
                    return Ok(PhysicalSpan { member: lent.member, physical });
                }
            }
        }
        Err(Error::internal(format!(
            "{} bytes at {} are not on the borrowed disk of {}; nothing was read or written",
            logical.len(),
            logical.offset(),
            self.capacity
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::conformance::Sequence;
    use proptest::prelude::*;

    fn lent(member: usize, start: u64, blocks: u64) -> Lent {
        Lent { member, span: Span::between(start * BLOCK, (start + blocks) * BLOCK) }
    }

    #[test]
    fn what_cannot_be_stitched_is_refused() {
        let sizes = [100 * BLOCK, 50 * BLOCK];
        let odd = Lent { member: 0, span: Span::between(512, 512 + BLOCK) };
        let empty = Lent { member: 0, span: Span::between(BLOCK, BLOCK) };
        for (ranges, why) in [
            (vec![], "nothing"),
            (vec![lent(2, 0, 1)], "no member"),
            (vec![lent(1, 49, 2)], "beyond"),
            (vec![odd], "whole blocks"),
            (vec![empty], "empty"),
            (vec![lent(0, 10, 5), lent(1, 10, 5), lent(0, 14, 1)], "overlap"),
        ] {
            let error = Layout::new(&ranges, &sizes).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Invalid);
            assert!(error.message().contains(why), "{error}");
        }
        assert!(Layout::new(&[lent(0, 10, 5), lent(1, 10, 5), lent(0, 15, 1)], &sizes).is_ok());
    }

    #[test]
    fn what_is_not_on_the_disk_maps_nowhere() {
        let layout = Layout::new(&[lent(0, 3, 2)], &[100 * BLOCK]).unwrap();
        assert!(layout.map(Span::between(2 * BLOCK - 1, 2 * BLOCK)).is_ok());
        let error = layout.map(Span::between(2 * BLOCK, 2 * BLOCK + 1)).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Internal);
    }

    proptest! {
        #[test]
        fn the_map_is_a_bijection_between_the_disk_and_the_lent_blocks(seed: u64, count in 1usize..60) {
            let mut random = Sequence::new(seed);
            let mut ranges = Vec::new();
            let mut sizes = [0; 3];
            for _ in 0..count {
                let member = random.below(3) as usize;
                let (gap, blocks) = (random.below(5), 1 + random.below(9));
                ranges.push(lent(member, sizes[member] + gap, blocks));
                sizes[member] += gap + blocks;
            }
            // Any order will do.
            for i in (1..ranges.len()).rev() {
                ranges.swap(i, random.below(i as u64 + 1) as usize);
            }
            let sizes: Vec<u64> = sizes.iter().map(|blocks| blocks * BLOCK).collect();
            let layout = Layout::new(&ranges, &sizes).unwrap();
            let mut reached = std::collections::BTreeSet::new();
            for block in Span::whole(layout.capacity()).pieces(BLOCK) {
                let place = layout.map(block).unwrap();
                prop_assert_eq!(place.physical.len(), BLOCK);
                prop_assert!(reached.insert((place.member, place.physical.offset())));
            }
            let mut expected = std::collections::BTreeSet::new();
            for range in &ranges {
                expected.extend(range.span.pieces(BLOCK).map(|block| (range.member, block.offset())));
            }
            prop_assert_eq!(reached, expected);
        }
    }
}
