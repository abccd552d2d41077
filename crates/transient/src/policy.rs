//! Which of the free ranges are taken: the largest first, until there is enough.

use block::Span;
use std::cmp::Reverse;

/// Ranges next to the edges of a partition are never taken: boot code, copies of boot sectors and
/// superblocks, and the marks of RAID sets lie there. In bytes.
pub const MARGIN: u64 = 1 << 20;

/// What is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BorrowPolicy {
    /// How many bytes; `None` takes all that the other rules allow.
    pub want: Option<u64>,
    /// The smallest range that is taken, in bytes; `None` is [`FLOOR`], or [`FLOOR_ROTATING`] on
    /// disks that turn.
    pub floor: Option<u64>,
    /// The most ranges; more make the borrowed disk slow to set up.
    pub most: usize,
    /// How much of each file system's free space stays untouched, in percent (0 to 100).
    pub reserve: u8,
}

/// The floor on disks where seeking costs nothing, in bytes.
pub const FLOOR: u64 = 256 << 10;
/// The floor on disks that turn, in bytes.
pub const FLOOR_ROTATING: u64 = 4 << 20;
/// The most ranges that are taken.
pub const MOST: usize = 100_000;
/// Lent ranges start and end at multiples of this, in bytes from the start of the disk.
const GRAIN: u64 = block::BLOCK;

impl Default for BorrowPolicy {
    fn default() -> Self {
        Self { want: None, floor: None, most: MOST, reserve: 0 }
    }
}

/// What one file system offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Free ranges in bytes of the disk: sorted, disjoint.
    pub spans: &'a [Span],
    /// Whether the disk turns.
    pub rotational: Option<bool>,
}

impl BorrowPolicy {
    /// The floor on this disk, in bytes.
    pub fn floor(&self, rotational: Option<bool>) -> u64 {
        let default = if rotational == Some(true) { FLOOR_ROTATING } else { FLOOR };
        self.floor.unwrap_or(default).max(GRAIN)
    }

    /// Takes from the offers: a list for each, rising, in whole blocks of 4 KiB. Of ranges equally
    /// long, earlier offers and lower offsets come first. The last one taken is cut, so
    /// that no more is taken than wanted.
    pub fn choose(&self, offers: &[Offer<'_>]) -> Vec<Vec<Span>> {
        let mut candidates: Vec<(Reverse<u64>, usize, Span)> = Vec::new();
        let mut budgets = Vec::with_capacity(offers.len());
        for (index, offer) in offers.iter().enumerate() {
            let free: u64 = offer.spans.iter().map(|span| span.len()).sum();
            let kept = u128::from(free) * u128::from(self.reserve.min(100));
            budgets.push(free - kept.div_ceil(100) as u64);
            let floor = self.floor(offer.rotational);
            let aligned = offer.spans.iter().filter_map(|span| span.align_inward(GRAIN));
            let large = aligned.filter(|span| span.len() >= floor);
            candidates.extend(large.map(|span| (Reverse(span.len()), index, span)));
        }
        candidates.sort_unstable();
        let mut taken: Vec<Vec<Span>> = vec![Vec::new(); offers.len()];
        let mut rest = self.want.map_or(u64::MAX / GRAIN * GRAIN, |want| {
            want.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX / GRAIN * GRAIN)
        });
        let mut count = 0;
        for (_, index, span) in candidates {
            if rest == 0 || count == self.most {
                break;
            }
            let len = span.len().min(rest).min(budgets[index] / GRAIN * GRAIN);
            // What a reserve leaves of the last range may be too small to be worth it.
            if len == 0 || (len < rest && len < self.floor(offers[index].rotational)) {
                continue;
            }
            rest -= len;
            budgets[index] -= len;
            count += 1;
            taken[index].push(Span::between(span.offset(), span.offset() + len));
        }
        for list in &mut taken {
            list.sort_unstable();
        }
        taken
    }
}

/// Free ranges of a partition without its margins and, on the disk, its first MiB; in bytes of the
/// disk. `base` is where the partition starts, `size` its length.
pub fn without_margins(free: &[Span], base: u64, size: u64, disk: u64) -> Vec<Span> {
    let start = (base + MARGIN.min(size)).max(MARGIN);
    let end = (base + size.saturating_sub(MARGIN)).min(disk.saturating_sub(MARGIN));
    if start >= end {
        return Vec::new();
    }
    let inner = Span::between(start, end);
    let on_disk = free.iter().map(|span| Span::between(base + span.offset(), base + span.end()));
    on_disk.filter_map(|span| span.intersect(inner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranges from pairs of gap and length, in units of 1 KiB.
    fn spans(pairs: &[(u64, u64)]) -> Vec<Span> {
        let mut at = 0;
        pairs
            .iter()
            .map(|(gap, len)| {
                let start = at + (gap << 10);
                at = start + (len << 10);
                Span::between(start, at)
            })
            .collect()
    }

    fn total(taken: &[Vec<Span>]) -> u64 {
        taken.iter().flatten().map(|span| span.len()).sum()
    }

    #[test]
    fn a_disk_that_turns_has_the_higher_floor() {
        let list = spans(&[(4, 1024), (4, 8192)]);
        let take = |rotational| {
            BorrowPolicy::default().choose(&[Offer { spans: &list, rotational }])[0].len()
        };
        assert_eq!((take(Some(true)), take(Some(false)), take(None)), (1, 2, 2));
    }

    #[test]
    fn the_margins_of_partition_and_disk_stay_out() {
        let mib = 1 << 20;
        let free = [Span::between(0, 10 * mib)];
        let whole = without_margins(&free, 0, 10 * mib, 10 * mib);
        assert_eq!(whole, [Span::between(mib, 9 * mib)]);
        let inside = without_margins(&free, 2 * mib, 10 * mib, 100 * mib);
        assert_eq!(inside, [Span::between(3 * mib, 11 * mib)]);
        assert_eq!(without_margins(&free, 0, 2 * mib, 100 * mib), []);
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_sorting_everything_and_taking(
            lists in proptest::collection::vec(
                proptest::collection::vec((1u64..40, 1u64..2000), 0..60), 1..4),
            want in proptest::option::of(1u64..40_000_000),
            most in 1usize..100,
            floor in 1u64..600_000,
        ) {
            let lists: Vec<Vec<Span>> = lists.iter().map(|pairs| spans(pairs)).collect();
            let offers: Vec<Offer<'_>> =
                lists.iter().map(|spans| Offer { spans, rotational: None }).collect();
            let policy = BorrowPolicy { want, floor: Some(floor), most, reserve: 0 };
            let taken = policy.choose(&offers);
            // The reference: all ranges that are long enough, in a stable sort by length.
            let mut all: Vec<(usize, Span)> = Vec::new();
            for (index, list) in lists.iter().enumerate() {
                let aligned = list.iter().filter_map(|span| span.align_inward(4096));
                all.extend(aligned.filter(|s| s.len() >= floor.max(4096)).map(|s| (index, s)));
            }
            all.sort_by_key(|(_, span)| Reverse(span.len()));
            let mut rest = want.map_or(u64::MAX, |want| want.next_multiple_of(4096));
            let mut expected: Vec<Vec<Span>> = vec![Vec::new(); lists.len()];
            for (index, span) in all.into_iter().take(most) {
                let len = span.len().min(rest);
                if len == 0 { break; }
                rest -= len;
                expected[index].push(Span::between(span.offset(), span.offset() + len));
            }
            for list in &mut expected { list.sort_unstable(); }
            prop_assert_eq!(taken, expected);
        }

        #[test]
        fn a_reserve_is_left_in_each_file_system(
            pairs in proptest::collection::vec((1u64..40, 1u64..2000), 1..60),
            reserve in 0u8..=100,
        ) {
            let list = spans(&pairs);
            let free: u64 = list.iter().map(|span| span.len()).sum();
            let policy = BorrowPolicy { reserve, floor: Some(4096), ..BorrowPolicy::default() };
            let taken = policy.choose(&[Offer { spans: &list, rotational: None }]);
            prop_assert!((free - total(&taken)) as f64 >= free as f64 * f64::from(reserve) / 100.0 - 0.5);
        }
    }
}
