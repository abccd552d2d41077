//! Where on a disk of the owner room is borrowed: the disk in cells of equal size.

use block::{BLOCK, Span};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The most cells of a map.
const CELLS: u64 = 512;
/// What the kernel counts the size of a device in, in bytes.
const SECTOR: u64 = 512;

/// How many bytes of each cell of a disk are lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentMap {
    /// The size of the disk in bytes.
    pub size: u64,
    /// The size of a cell in bytes, a power of two; the last one may be shorter.
    pub cell_bytes: u64,
    /// Bytes that are lent, for each cell.
    pub cells: Vec<u64>,
}

impl LentMap {
    /// The map of a disk of `size` bytes that lends these ranges; what lies outside it is not there.
    pub(crate) fn of(size: u64, lent: impl IntoIterator<Item = Span>) -> Self {
        let cell_bytes = size.div_ceil(CELLS).max(BLOCK).next_power_of_two();
        let mut cells = vec![0; size.div_ceil(cell_bytes) as usize];
        for span in lent {
            let Some(mut rest) = span.intersect(Span::whole(size)) else { continue };
            while !rest.is_empty() {
                let cell = rest.offset() / cell_bytes;
                let end = (cell + 1).saturating_mul(cell_bytes).min(rest.end());
                if let Some(lent) = cells.get_mut(cell as usize) {
                    *lent += end - rest.offset();
                }
                rest = Span::between(end, rest.end());
            }
        }
        Self { size, cell_bytes, cells }
    }
}

/// The size of a block device by its number, if the kernel tells it.
pub(crate) fn device_size(device: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/size"));
    let sectors: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    sectors.checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_lent_byte_is_in_the_cell_where_it_lies(
            size in 1..1u64 << 40,
            // Ranges that do not touch, in order.
            cuts in proptest::collection::btree_set(0..1u64 << 40, 0..20),
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let spans: Vec<Span> = cuts.chunks_exact(2).map(|c| Span::between(c[0], c[1])).collect();
            let map = LentMap::of(size, spans.iter().copied());
            prop_assert!(map.cells.len() as u64 <= CELLS);
            prop_assert!(map.cell_bytes.is_power_of_two());
            for (cell, lent) in map.cells.iter().enumerate() {
                let start = cell as u64 * map.cell_bytes;
                let bounds = Span::between(start, (start + map.cell_bytes).min(size));
                let there = spans.iter().filter_map(|span| span.intersect(bounds));
                prop_assert_eq!(*lent, there.map(|span| span.len()).sum::<u64>());
            }
        }
    }

    #[test]
    fn a_disk_of_no_size_has_no_cells() {
        assert!(LentMap::of(0, [Span::whole(4096)]).cells.is_empty());
    }
}
