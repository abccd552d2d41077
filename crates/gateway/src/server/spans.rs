//! Sets of byte ranges of a pack. Pure.

/// Ranges in order that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ByteRanges(Vec<(u32, u32)>);

impl ByteRanges {
    /// Adds the bytes from `start` to `end`.
    pub(crate) fn add(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let list = &mut self.0;
        // The ranges that touch the new one are those from `first` to `last`.
        let first = list.partition_point(|range| range.1 < start);
        let last = list.partition_point(|range| range.0 <= end);
        if first == last {
            list.insert(first, (start, end));
            return;
        }
        let joined = (start.min(list[first].0), end.max(list[last - 1].1));
        list[first] = joined;
        list.drain(first + 1..last);
    }

    /// Whether all bytes from `start` to `end` are in it.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|range| u64::from(range.1) < end);
        start < end
            && self
                .0
                .get(next)
                .is_some_and(|(from, to)| u64::from(*from) <= start && end <= u64::from(*to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_is_what_a_row_of_bits_says(
            adds in prop::collection::vec((0u32..60, 0u32..12), 0..12),
            start in 0u64..70,
            len in 0u64..14,
        ) {
            let (mut set, mut bits) = (ByteRanges::default(), [false; 100]);
            for (start, len) in adds {
                set.add(start, start + len);
                bits[start as usize..(start + len) as usize].fill(true);
            }
            let expected = len > 0 && bits[start as usize..(start + len) as usize].iter().all(|b| *b);
            prop_assert_eq!(set.covers(start, start + len), expected);
            prop_assert!(set.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
