//! The chunk map: where the bytes of a disk are now, in cells of equal size.

use block::{BLOCK, Error, Result, Span};
use std::time::Duration;

/// Where the bytes of a part of a disk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockPlace {
    /// Nowhere: they are zeroes.
    Zero,
    /// In the image, whose chunk the store has.
    Stored,
    /// In the image, whose chunk is near: in the piece cache of this machine.
    Kept,
    /// In the image, whose chunk the block cache holds in memory.
    Cached,
    /// In the disk's own files: its client wrote them, and the store does not have them.
    Private,
    /// The same, and frozen: on their way to the store, for a snapshot, a commit or a publication that has not ended.
    Waiting,
    /// In the image, of which nobody has read here yet what it holds there.
    Unread,
}

impl BlockPlace {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Zero,
        Self::Stored,
        Self::Kept,
        Self::Cached,
        Self::Private,
        Self::Waiting,
        Self::Unread,
    ];
}

/// Where the bytes of a disk are, in cells of equal size; the last one may be shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkMap {
    size: u64,
    cell: u64,
    /// How long it took to draw, without what was waited for.
    work: Duration,
    /// Bytes of each cell, by place.
    cells: Vec<[u64; BlockPlace::ALL.len()]>,
}

impl ChunkMap {
    /// The most cells of a map.
    pub const MOST_CELLS: usize = 4096;

    /// An empty one for a disk of `size` bytes: a cell is a power of two of blocks, as few as make `most` cells or
    /// less.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for no cell, and for more than [`MOST_CELLS`](Self::MOST_CELLS).
    pub(crate) fn new(size: u64, most: usize) -> Result<Self> {
        if most == 0 || most > Self::MOST_CELLS {
            return Err(Error::invalid(format!(
                "a chunk map cannot have {most} cells; ask for 1 to {}",
                Self::MOST_CELLS
            )));
        }
        let blocks = size.div_ceil(BLOCK).div_ceil(most as u64).next_power_of_two();
        let cell = blocks * BLOCK;
        let cells = vec![Default::default(); size.div_ceil(cell) as usize];
        Ok(Self { size, cell, work: Duration::ZERO, cells })
    }

    /// Notes where the bytes of `span` are, which lies inside the disk.
    pub(crate) fn add(&mut self, span: Span, place: BlockPlace) {
        for part in span.pieces(self.cell) {
            if let Some(cell) = self.cells.get_mut((part.offset() / self.cell) as usize) {
                cell[place as usize] += part.len();
            }
        }
    }

    /// Notes that drawing it took so long once more.
    pub(crate) fn worked(&mut self, time: Duration) {
        self.work += time;
    }

    /// How long it took to draw, without what was waited for.
    pub fn work(&self) -> Duration {
        self.work
    }

    /// The size of the disk, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The size of a cell, in bytes.
    pub fn cell_bytes(&self) -> u64 {
        self.cell
    }

    /// The bytes of each cell that are at a place, in the order of the disk.
    pub fn cells(&self, place: BlockPlace) -> impl Iterator<Item = u64> + '_ {
        self.cells.iter().map(move |cell| cell[place as usize])
    }

    /// The bytes of the disk that are at a place.
    pub fn total(&self, place: BlockPlace) -> u64 {
        self.cells(place).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_no_more_cells_than_asked_for_and_every_byte_in_one() {
        for size in [512, 4096, 4608, 8 << 20, (20 << 30) + 512, 256 << 40] {
            for most in [1, 2, 3, 100, 1024, ChunkMap::MOST_CELLS] {
                let mut map = ChunkMap::new(size, most).unwrap();
                let cells = map.cells(BlockPlace::Zero).count();
                assert!(cells >= 1 && cells <= most, "{size} in {most}: {cells}");
                assert!(
                    cells * 2 >= most || map.cell_bytes() == BLOCK,
                    "{size} in {most}: {cells}"
                );
                map.add(Span::whole(size), BlockPlace::Cached);
                assert_eq!(map.total(BlockPlace::Cached), size);
                assert_eq!(map.cells(BlockPlace::Cached).max(), Some(map.cell_bytes().min(size)));
                assert_eq!(map.total(BlockPlace::Zero), 0);
            }
        }
        for wrong in [0, ChunkMap::MOST_CELLS + 1, usize::MAX] {
            let error = ChunkMap::new(1 << 20, wrong).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Invalid);
        }
    }
}
