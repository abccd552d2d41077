//! A bit per cluster: in use or not, and claimed by its owner or not yet.

use crate::refusal::refuse;
use crate::{FreeList, Refusal};

/// The map of a volume's clusters, numbered from 0. One bit each: "in use and not yet claimed".
///
/// First the bits are set from what the file system says is in use, then [`push_free`]
/// (Self::push_free) lists what is free, and only then every file [`claim`](Self::claim)s its
/// clusters: a cluster that is free, or that somebody claimed before, cannot be claimed.
#[derive(Debug)]
pub(crate) struct Clusters {
    words: Vec<u64>,
    count: u64,
}

impl Clusters {
    /// `count` clusters, none of them in use. Takes a bit of memory for each, so the caller has
    /// checked that so many fit into its window.
    pub(crate) fn new(count: u64) -> Self {
        Self { words: vec![0; count.div_ceil(64) as usize], count }
    }

    /// `count` clusters, all in use and unclaimed.
    pub(crate) fn full(count: u64) -> Self {
        let mut map = Self::new(count);
        map.words.fill(u64::MAX);
        map.trim();
        map
    }

    /// Clears the bits behind the last cluster.
    fn trim(&mut self) {
        if let Some(last) = self.words.last_mut().filter(|_| !self.count.is_multiple_of(64)) {
            *last &= (1 << (self.count % 64)) - 1;
        }
    }

    /// Whether cluster `at` is in use and unclaimed. One that does not exist is not.
    pub(crate) fn is_set(&self, at: u64) -> bool {
        at < self.count && self.words[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    /// Sets the bit of cluster `at`, and says whether it was set before. One that does not exist
    /// counts as set.
    pub(crate) fn set(&mut self, at: u64) -> bool {
        let before = at >= self.count || self.is_set(at);
        if !before {
            self.words[(at / 64) as usize] |= 1 << (at % 64);
        }
        before
    }

    /// Takes bits as they lie on disk (least significant first) for the clusters from `first` on,
    /// a multiple of 64. Bits beyond the last cluster are ignored.
    pub(crate) fn load(&mut self, first: u64, bits: &[u8]) {
        let start = (first / 64) as usize;
        let words = self.words.get_mut(start..).unwrap_or_default();
        for (word, bytes) in words.iter_mut().zip(bits.chunks(8)) {
            let mut raw = [0; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(raw);
        }
        self.trim();
    }

    /// How many are in use and unclaimed.
    #[cfg(test)]
    fn count_set(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether none from `first` on is in use and unclaimed.
    pub(crate) fn none_from(&self, first: u64) -> bool {
        self.next(first, true) == self.count
    }

    /// Adds every run of clear bits to `list`; cluster 0 begins at byte `base`.
    pub(crate) fn push_free(
        &self,
        list: &mut FreeList,
        base: u64,
        unit: u64,
    ) -> Result<(), Refusal> {
        let mut at = 0;
        while at < self.count {
            let start = self.next(at, false);
            let end = self.next(start, true);
            list.push(base + start * unit, base + end * unit)?;
            at = end;
        }
        Ok(())
    }

    /// The first cluster at or behind `at` whose bit is `wanted`, or the count.
    fn next(&self, at: u64, wanted: bool) -> u64 {
        let flip = if wanted { 0 } else { u64::MAX };
        let mut index = (at / 64) as usize;
        let mut mask = u64::MAX << (at % 64);
        while let Some(word) = self.words.get(index) {
            let hits = (word ^ flip) & mask;
            if hits != 0 {
                let hit = index as u64 * 64 + u64::from(hits.trailing_zeros());
                return hit.min(self.count);
            }
            index += 1;
            mask = u64::MAX;
        }
        self.count
    }

    /// Claims `len` clusters from `first` on for `owner`.
    ///
    /// # Errors
    /// [`Code::Conflict`](crate::Code::Conflict) when one is free or was claimed before,
    /// [`Code::OutsideFileSystem`](crate::Code::OutsideFileSystem) when one does not exist.
    pub(crate) fn claim(&mut self, first: u64, len: u64, owner: &str) -> Result<(), Refusal> {
        let Some(end) = first.checked_add(len).filter(|end| *end <= self.count) else {
            refuse!(
                OutsideFileSystem,
                "{owner} lies at cluster {first} (+{len}), and there are only {}; check it with its own tool",
                self.count
            );
        };
        let mut at = first;
        while at < end {
            let bit = at % 64;
            let here = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - here)) << bit;
            let word = &mut self.words[(at / 64) as usize];
            if *word & mask != mask {
                let cluster = at - bit + u64::from((!*word & mask).trailing_zeros());
                refuse!(
                    Conflict,
                    "cluster {cluster} belongs to {owner}, but is marked free or belongs to another file too; check it with its own tool"
                );
            }
            *word &= !mask;
            at += here;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Span;
    use proptest::prelude::*;

    fn free_of(map: &Clusters) -> Vec<Span> {
        let mut list = FreeList::new();
        map.push_free(&mut list, 1000, 10).unwrap();
        list.finish().0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_map_agrees_with_a_vector_of_bools(
            bits in proptest::collection::vec(any::<bool>(), 1..400),
            claims in proptest::collection::vec((0u64..420, 0u64..90), 0..8),
        ) {
            let mut model = bits.clone();
            let mut raw = vec![0u8; bits.len().div_ceil(8) + 3];
            raw[bits.len().div_ceil(8)..].fill(0xFF);
            for (i, bit) in bits.iter().enumerate() {
                raw[i / 8] |= u8::from(*bit) << (i % 8);
            }
            let mut map = Clusters::new(bits.len() as u64);
            map.load(0, &raw);
            let expected: Vec<Span> = (0..bits.len())
                .filter(|i| !bits[*i])
                .map(|i| Span::between(1000 + i as u64 * 10, 1010 + i as u64 * 10))
                .fold(Vec::new(), |mut list: Vec<Span>, span| {
                    match list.last_mut() {
                        Some(last) if last.end() == span.offset() => {
                            *last = Span::between(last.offset(), span.end());
                        }
                        _ => list.push(span),
                    }
                    list
                });
            prop_assert_eq!(free_of(&map), expected);
            for (first, len) in claims {
                let range = first as usize..(first + len) as usize;
                let allowed = model.get(range.clone()).is_some_and(|bits| bits.iter().all(|b| *b));
                prop_assert_eq!(map.claim(first, len, "a file").is_ok(), allowed);
                if !allowed {
                    break;
                }
                model[range].fill(false);
                prop_assert_eq!(map.count_set(), model.iter().filter(|b| **b).count() as u64);
            }
        }
    }

    #[test]
    fn a_cluster_is_claimed_once() {
        let mut map = Clusters::new(100);
        assert!(!map.set(70));
        assert!(map.set(70));
        assert!(map.set(100), "one that does not exist is never free");
        assert!(map.claim(70, 1, "a").is_ok());
        assert_eq!(map.claim(70, 1, "b").unwrap_err().code, crate::Code::Conflict);
        assert!(map.claim(u64::MAX, 2, "c").is_err());
    }
}
