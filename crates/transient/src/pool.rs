//! One disk shared by any number of devices, each of which takes room as it is written.
//!
//! The disk is cut into cells. A device has a table that says which cell holds each of its parts;
//! a part without one reads as zeroes. Cells go back when the device is dropped, and never while it
//! lives, so that nobody reads a cell that has another owner by now. A cell that had an owner before
//! is zeroed before it is used again.

use async_trait::async_trait;
use block::{
    Attempt, Device, Durability, Error, Extent, ExtentKind, Limits, Result, Span, ZeroMode, extent,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
mod tests;

/// Bytes of a cell.
const CELL: u64 = 1 << 20;

/// The largest device, in bytes: its table takes 4 MiB.
const LARGEST: u64 = 1 << 40;

/// A disk as room for others.
pub struct Pool {
    disk: Arc<dyn Device>,
    cells: Mutex<Cells>,
}

struct Cells {
    /// Cells from here on were never used: they are as the disk was.
    fresh: u32,
    /// Cells that are in use no more.
    back: Vec<u32>,
    count: u32,
}

impl Pool {
    /// Room on a disk that reads as zeroes and is used by nobody else; whole cells of 1 MiB count.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a disk without a whole cell, or one of more than
    /// 4 PiB.
    pub fn new(disk: Arc<dyn Device>) -> Result<Arc<Self>> {
        let count =
            u32::try_from(disk.size() / CELL).ok().filter(|count| (1..u32::MAX).contains(count));
        let count = count.ok_or_else(|| {
            Error::invalid(format!(
                "a disk of {} bytes cannot be shared; give 1 MiB to 4 PiB",
                disk.size()
            ))
        })?;
        Ok(Arc::new(Self { disk, cells: Mutex::new(Cells { fresh: 0, back: Vec::new(), count }) }))
    }

    /// Bytes of all cells.
    pub fn size(&self) -> u64 {
        u64::from(self.cells.lock().count) * CELL
    }

    /// Bytes of the cells that are in use.
    pub fn used(&self) -> u64 {
        let cells = self.cells.lock();
        (u64::from(cells.fresh) - cells.back.len() as u64) * CELL
    }

    /// A device of `size` bytes that reads as zeroes and takes no room yet.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for more than 1 TiB, which would take too much
    /// memory for what may be a small room.
    pub fn device(self: &Arc<Self>, size: u64) -> Result<Thin> {
        if size > LARGEST {
            return Err(Error::unsupported(format!(
                "a disk of {size} bytes cannot have its private blocks in borrowed room; at most \
                 1 TiB can"
            )));
        }
        let table = (0..size.div_ceil(CELL)).map(|_| AtomicU32::new(NONE)).collect();
        Ok(Thin { pool: Arc::clone(self), size, table, growing: tokio::sync::Mutex::new(()) })
    }

    /// A cell that reads as zeroes.
    async fn take(&self) -> Result<u32> {
        let (cell, used_before) = {
            let mut cells = self.cells.lock();
            match cells.back.pop() {
                Some(cell) => (cell, true),
                None if cells.fresh < cells.count => {
                    cells.fresh += 1;
                    (cells.fresh - 1, false)
                }
                None => {
                    return Err(Error::no_space(format!(
                        "all {} bytes of the borrowed room are in use; borrow more, or detach other \
                         disks",
                        u64::from(cells.count) * CELL
                    )));
                }
            }
        };
        if used_before {
            let unclean = CellGuard { pool: self, cell: Some(cell) };
            let mode = ZeroMode { may_punch: true, only_if_fast: false };
            self.disk.zero(span_of(cell), mode, Durability::Buffered).await?;
            unclean.keep();
        }
        Ok(cell)
    }
}

/// Gives a cell back when zeroing it failed or was given up.
struct CellGuard<'a> {
    pool: &'a Pool,
    cell: Option<u32>,
}

impl CellGuard<'_> {
    fn keep(mut self) {
        self.cell = None;
    }
}

impl Drop for CellGuard<'_> {
    fn drop(&mut self) {
        self.pool.cells.lock().back.extend(self.cell);
    }
}

/// No cell.
const NONE: u32 = u32::MAX;

fn span_of(cell: u32) -> Span {
    let start = u64::from(cell) * CELL;
    Span::between(start, start + CELL)
}

/// A device in a [`Pool`]; see the module's text.
pub struct Thin {
    pool: Arc<Pool>,
    size: u64,
    table: Box<[AtomicU32]>,
    /// Held by who takes a cell.
    growing: tokio::sync::Mutex<()>,
}

impl Drop for Thin {
    fn drop(&mut self) {
        let mut cells = self.pool.cells.lock();
        cells.back.extend(self.table.iter_mut().map(|cell| *cell.get_mut()).filter(|c| *c != NONE));
    }
}

impl Thin {
    /// Bytes of the cells that it has.
    pub fn room(&self) -> u64 {
        let cells = self.table.iter().filter(|cell| cell.load(Ordering::Relaxed) != NONE);
        cells.count() as u64 * CELL
    }

    /// Where a piece that lies in one cell is on the disk; `None` when it has no room.
    #[inline]
    fn place(&self, piece: Span) -> Option<Span> {
        let cell = self.table.get((piece.offset() / CELL) as usize)?.load(Ordering::Acquire);
        (cell != NONE).then(|| at(cell, piece))
    }

    /// The same, taking room where there is none.
    async fn take(&self, piece: Span) -> Result<Span> {
        if let Some(place) = self.place(piece) {
            return Ok(place);
        }
        let _growing = self.growing.lock().await;
        if let Some(place) = self.place(piece) {
            return Ok(place); // somebody else was quicker
        }
        let entry = self.table.get((piece.offset() / CELL) as usize);
        let entry = entry.ok_or_else(|| Error::internal("a piece beyond the end of its device"))?;
        let cell = self.pool.take().await?;
        entry.store(cell, Ordering::Release);
        Ok(at(cell, piece))
    }

    fn disk(&self) -> &dyn Device {
        &*self.pool.disk
    }
}

#[inline]
fn at(cell: u32, piece: Span) -> Span {
    let start = u64::from(cell) * CELL + piece.offset() % CELL;
    Span::between(start, start + piece.len())
}

#[async_trait]
impl Device for Thin {
    fn size(&self) -> u64 {
        self.size
    }

    fn limits(&self) -> Limits {
        self.pool.disk.limits()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        for piece in span.pieces(CELL) {
            let out = &mut buf[piece.index_in(span)];
            match self.place(piece) {
                None => out.fill(0),
                Some(place) => {
                    if self.disk().try_read(place, out)? == Attempt::WouldWait {
                        return Ok(Attempt::WouldWait);
                    }
                }
            }
        }
        Ok(Attempt::Done)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        // Nothing may have been done when it has to wait: all is in one cell.
        if span.pieces(CELL).nth(1).is_some() {
            return Ok(Attempt::WouldWait);
        }
        match self.place(span) {
            Some(place) => self.disk().try_write(place, data),
            None => Ok(Attempt::WouldWait),
        }
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        for piece in span.pieces(CELL) {
            let out = &mut buf[piece.index_in(span)];
            match self.place(piece) {
                None => out.fill(0),
                Some(place) => self.disk().read(place, out).await?,
            }
        }
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        for piece in span.pieces(CELL) {
            let place = self.take(piece).await?;
            self.disk().write(place, &data[piece.index_in(span)], durability).await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.disk().flush().await
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        for place in span.pieces(CELL).filter_map(|piece| self.place(piece)) {
            self.disk().discard(place, durability).await?;
        }
        Ok(())
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        for place in span.pieces(CELL).filter_map(|piece| self.place(piece)) {
            self.disk().zero(place, mode, durability).await?;
        }
        Ok(())
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        for piece in span.pieces(CELL) {
            if list.len() >= limit {
                break;
            }
            let Some(place) = self.place(piece) else {
                extent::push(&mut list, piece, ExtentKind::Hole);
                continue;
            };
            for found in self.disk().extents(place, limit - list.len()).await? {
                let start = piece.offset() + (found.span.offset() - place.offset());
                extent::push(&mut list, Span::between(start, start + found.span.len()), found.kind);
            }
            if list.last().is_none_or(|last: &Extent| last.span.end() != piece.end()) {
                break; // the disk has more to tell than was asked for
            }
        }
        Ok(list)
    }
}
