//! State from elsewhere on a borrowed disk: copied in when it is wanted or ahead of that, and written
//! back as far as it was changed.
//!
//! The borrowed disk is the private place of the blocks of a *base*: any image or disk. A block is
//! read from the base the first time and kept; what is written stays on the borrowed disk until
//! [`write_back`](State::write_back). What was not written back is lost with the key.
//!
//! As the [shadow](State::shadow) of a base it keeps only what is written, and leaves the rest to the
//! base.

use crate::bits::Bits;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Limits, Result, Span, ZeroMode,
    extent,
};
use std::sync::Arc;
use tokio::sync::{RwLock, RwLockWriteGuard};

#[cfg(test)]
mod tests;

/// What one lock covers, and the most that is copied at a time, in bytes.
const REGION: u64 = 1 << 20;
const LOCKS: usize = 64;

/// Extents asked of the base at a time.
const EXTENTS: usize = 256;

/// A base seen through a borrowed disk; see the module's text.
pub struct State {
    base: Arc<dyn Device>,
    place: Arc<dyn Device>,
    size: u64,
    /// Blocks that are on the borrowed disk.
    here: Bits,
    /// The ones that the base does not have like that. Of a block that is not here: a write to it failed or was given
    /// up, so that the borrowed disk may hold some of that, and not zeroes.
    changed: Bits,
    keep: Keep,
    regions: [RwLock<()>; LOCKS],
}

/// Which blocks of the base come to the borrowed disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Those that were read or written.
    Used,
    /// Those that were written.
    Written,
}

impl State {
    /// The content of `base`, to be kept on `place`, which holds nothing yet and is at least as
    /// large.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when it is not;
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a base with sectors larger than a block.
    pub fn new(base: Arc<dyn Device>, place: Arc<dyn Device>) -> Result<Self> {
        Self::keeping(Keep::Used, base, place)
    }

    /// A base that does not change, and on `place` what is written over it. It is read from the base
    /// however often it is wanted: for bases that are fast or cached themselves.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when it is not;
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a base with sectors larger than a block.
    pub fn shadow(base: Arc<dyn Device>, place: Arc<dyn Device>) -> Result<Self> {
        Self::keeping(Keep::Written, base, place)
    }

    fn keeping(keep: Keep, base: Arc<dyn Device>, place: Arc<dyn Device>) -> Result<Self> {
        let size = base.size();
        if place.size() < size {
            return Err(Error::no_space(format!(
                "the borrowed disk has {} bytes and the state {size}; borrow more (--size)",
                place.size()
            )));
        }
        if u64::from(base.limits().minimum) > BLOCK {
            return Err(Error::unsupported(format!(
                "the state lies on a disk with sectors of {} bytes; at most 4096 are possible",
                base.limits().minimum
            )));
        }
        Ok(Self {
            base,
            place,
            size,
            here: Bits::new(size),
            changed: Bits::new(size),
            keep,
            regions: std::array::from_fn(|_| RwLock::new(())),
        })
    }

    /// Bytes that are on the borrowed disk, and how many of them differ from the base.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = |bits: &Bits| (bits.count() * BLOCK).min(self.size);
        (bytes(&self.here), bytes(&self.changed))
    }

    /// The run of blocks at the beginning of `span`, which is not empty, that either are on the borrowed disk or are
    /// not; and which of the two.
    pub fn run(&self, span: Span) -> (Span, bool) {
        self.here.run(span)
    }

    fn region(&self, offset: u64) -> &RwLock<()> {
        &self.regions[(offset / REGION) as usize % LOCKS]
    }

    /// The blocks that `span` touches.
    fn around(&self, span: Span) -> Span {
        span.align_outward(BLOCK).split_at(self.size).0
    }

    /// What the base is asked for, to know of `span`: its requests end on multiples of its smallest one, or with it.
    fn asked_of_base(&self, span: Span) -> Span {
        span.align_outward(u64::from(self.base.limits().minimum)).split_at(self.size).0
    }

    /// Copies in what `span`, inside a region that is held alone, misses.
    async fn fetch(&self, span: Span, _alone: &RwLockWriteGuard<'_, ()>) -> Result<()> {
        let span = self.around(span);
        let mut at = span.offset();
        let mut buf = Vec::new();
        while at < span.end() {
            let (run, here) = self.here.run(Span::between(at, span.end()));
            if !here {
                buf.resize(run.len() as usize, 0);
                self.base.read(run, &mut buf).await?;
                if buf.iter().any(|byte| *byte != 0) || self.changed.any(run) {
                    self.place.write(run, &buf, Durability::Buffered).await?;
                }
                self.changed.put(run, false);
                self.here.put(run, true);
            }
            at = run.end();
        }
        Ok(())
    }

    /// Copies in what lies in the base's data and is not here yet; `progress` is told of bytes, in
    /// sum the size of the base. May run while the disk is in use.
    ///
    /// # Errors
    /// Any error from the base and from the borrowed disk.
    pub async fn fetch_all(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let mut at = 0;
        while at < self.size {
            let asked = Span::between(at, self.size);
            for extent in self.base.extents(asked, EXTENTS).await? {
                for piece in extent.span.pieces(REGION) {
                    let alone = self.region(piece.offset()).write().await;
                    // A block that only starts as a hole is fetched with the extent behind it.
                    if extent.kind.reads_zero() && !self.changed.any(piece) {
                        self.keep_zero(piece);
                    } else {
                        self.fetch(piece, &alone).await?;
                    }
                    drop(alone);
                    progress(piece.len());
                }
                at = extent.span.end();
            }
        }
        Ok(())
    }

    /// Takes whole blocks that are not here as read: the base has zeroes there, and so has a fresh
    /// borrowed disk. The region is held alone.
    fn keep_zero(&self, span: Span) {
        let end = if span.end() == self.size { self.size } else { span.end() / BLOCK * BLOCK };
        let start = span.offset().next_multiple_of(BLOCK);
        if start < end {
            self.here.put(Span::between(start, end), true);
        }
    }

    /// Writes to the base what was changed, and flushes it; `progress` is told of bytes. Returns
    /// the bytes written. May run while the disk is in use.
    ///
    /// # Errors
    /// Any error from the base. What was not written back is still known as changed.
    pub async fn write_back(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<u64> {
        let mut written = Vec::new();
        let result = self.write_changed(&mut written, progress).await;
        let result = match result {
            Ok(()) => self.base.flush().await,
            failed => failed,
        };
        if let Err(error) = result {
            written.iter().for_each(|span| self.changed.put(*span, true));
            return Err(error.context("writing the state back"));
        }
        Ok(written.iter().map(|span| span.len()).sum())
    }

    async fn write_changed(
        &self,
        written: &mut Vec<Span>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let mut buf = Vec::new();
        let mut at = 0;
        while at < self.size {
            let (run, changed) = self.changed.run(Span::between(at, self.size));
            let (run, here) = self.here.run(run);
            at = run.end();
            if !changed || !here {
                continue;
            }
            for piece in run.pieces(REGION) {
                let _alone = self.region(piece.offset()).write().await;
                buf.resize(piece.len() as usize, 0);
                self.place.read(piece, &mut buf).await?;
                if buf.iter().all(|byte| *byte == 0) {
                    let mode = ZeroMode { may_punch: true, only_if_fast: false };
                    self.base.zero(piece, mode, Durability::Buffered).await?;
                } else {
                    self.base.write(piece, &buf, Durability::Buffered).await?;
                }
                self.changed.put(piece, false);
                written.push(piece);
                progress(piece.len());
            }
        }
        Ok(())
    }

    /// The first and the last block of `span`, as far as it covers them in part.
    fn edges(&self, span: Span) -> impl Iterator<Item = Span> {
        let first = self.around(span.split_at(span.offset() + 1).0);
        let last = self.around(span.split_at(span.end().saturating_sub(1)).1);
        let partial = move |block: &Span| span.intersect(*block) != Some(*block);
        [first, last].into_iter().filter(move |block| !span.is_empty() && partial(block))
    }

    /// Marks the blocks of `span`, whose edges are here, as changed: their bytes are about to be, and what comes of that
    /// is not known when it fails. Those that are here go back then as they are, and the others stay the base's.
    fn begin_change(&self, span: Span) {
        self.changed.put(span, true);
    }

    /// The blocks of `span` were changed here.
    fn end_change(&self, span: Span) {
        self.here.put(span, true);
    }

    /// Reads each block from where it is. A block that comes here meanwhile is being written, so its
    /// bytes in the base are as good as the new ones.
    async fn read_both(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut at = span.offset();
        while at < span.end() {
            let (run, here) = self.here.run(Span::between(at, span.end()));
            let out = &mut buf[run.index_in(span)];
            if here || self.asked_of_base(run) == run {
                let side = if here { &self.place } else { &self.base };
                if side.try_read(run, out)? == Attempt::WouldWait {
                    side.read(run, out).await?;
                }
            } else {
                let blocks = self.asked_of_base(run);
                let mut whole = vec![0; blocks.len() as usize];
                self.base.read(blocks, &mut whole).await?;
                out.copy_from_slice(&whole[run.index_in(blocks)]);
            }
            at = run.end();
        }
        Ok(())
    }

    async fn zero_parts(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        for part in span.pieces(REGION) {
            let alone = self.region(part.offset()).write().await;
            for edge in self.edges(part) {
                self.fetch(edge, &alone).await?;
            }
            self.begin_change(part);
            self.place.zero(part, mode, durability).await?;
            self.end_change(part);
        }
        Ok(())
    }
}

#[async_trait]
impl Device for State {
    fn size(&self) -> u64 {
        self.size
    }

    fn limits(&self) -> Limits {
        self.place.limits()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        if span.is_empty() {
            return Ok(Attempt::Done);
        }
        match self.here.run(span) {
            (run, true) if run == span => self.place.try_read(span, buf),
            (run, false) if run == span && self.keep == Keep::Written => {
                match self.asked_of_base(span) == span {
                    true => self.base.try_read(span, buf),
                    false => Ok(Attempt::WouldWait),
                }
            }
            _ => Ok(Attempt::WouldWait),
        }
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        if span.pieces(REGION).nth(1).is_some() {
            return Ok(Attempt::WouldWait);
        }
        let Ok(_alone) = self.region(span.offset()).try_write() else {
            return Ok(Attempt::WouldWait);
        };
        if self.edges(span).any(|edge| !self.here.all(edge)) {
            return Ok(Attempt::WouldWait);
        }
        let attempt = self.place.try_write(span, data);
        if !matches!(attempt, Ok(Attempt::WouldWait)) {
            self.begin_change(span);
        }
        if matches!(attempt, Ok(Attempt::Done)) {
            self.end_change(span);
        }
        attempt
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        if self.keep == Keep::Written {
            return self.read_both(span, buf).await;
        }
        for part in span.pieces(REGION) {
            if !self.here.all(part) {
                let alone = self.region(part.offset()).write().await;
                self.fetch(part, &alone).await?;
            }
            let out = &mut buf[part.index_in(span)];
            if self.place.try_read(part, out)? == Attempt::WouldWait {
                self.place.read(part, out).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        for part in span.pieces(REGION) {
            let alone = self.region(part.offset()).write().await;
            for edge in self.edges(part) {
                self.fetch(edge, &alone).await?;
            }
            self.begin_change(part);
            self.place.write(part, &data[part.index_in(span)], durability).await?;
            self.end_change(part);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.place.flush().await
    }

    /// Zeroes whole blocks: the base is told when the state is written back.
    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        match span.align_inward(BLOCK) {
            Some(whole) => {
                let mode = ZeroMode { may_punch: true, only_if_fast: false };
                self.zero_parts(whole, mode, durability).await
            }
            None => Ok(()),
        }
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.zero_parts(span, mode, durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut at = span.offset();
        while at < span.end() && list.len() < limit {
            let (run, here) = self.here.run(Span::between(at, span.end()));
            let (side, asked) = match here {
                true => (&self.place, run),
                false => (&self.base, self.asked_of_base(run)),
            };
            let before = at;
            for found in side.extents(asked, limit - list.len()).await? {
                let Some(part) = found.span.intersect(run) else { continue };
                extent::push(&mut list, part, found.kind);
                at = part.end();
            }
            // Of a base that tells of less than its smallest request, all in front of `run`.
            if at == before {
                let first = run.split_at((at + 1).next_multiple_of(BLOCK)).0;
                extent::push(&mut list, first, ExtentKind::Data);
                at = first.end();
            }
        }
        Ok(list)
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        let mut at = span.offset();
        while at < span.end() {
            let (run, here) = self.here.run(Span::between(at, span.end()));
            if !here {
                self.base.prefetch(self.asked_of_base(run)).await?;
            }
            at = run.end();
        }
        Ok(())
    }
}
