//! The stitched disk: lent ranges of several members as one device, encrypted.
//!
//! # What its bytes are
//! A block that was never written reads as zeroes and is not read: what a member holds there is the
//! owner's deleted data. A bit for each block says which were written; it lives in memory, like
//! the key, so after a crash there is nothing but ciphertext that nobody can read.
//!
//! # How it keeps the device contract
//! The disk is cut into regions, each with one writer at a time and readers that notice one: a block
//! is then never taken for read while half of it is new. Members are read and written in whole blocks
//! only, so no access ever touches a page that is not lent.
//!
//! The fast half of the trait never waits: it allocates nothing, reads without a lock, and copies only
//! to encrypt. What it cannot do at once (a member has to wait, somebody writes there, a write ends
//! inside a block) the other half does.

use crate::bits::Bits;
use crate::key::{Cipher, DiskKey};
use crate::layout::{Layout, PhysicalSpan};
use crate::region::Region;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Limits, Result, Span, ZeroMode,
    extent,
};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// What a region covers, in bytes; regions far apart are the same one.
const REGION: u64 = 1 << 20;
const REGIONS: usize = 64;

/// Bytes that are encrypted at a time, and the most of a region's buffer.
const CHUNK: u64 = 128 << 10;

/// Lent ranges as one device; see the module's text.
pub struct Stitched {
    members: Vec<Arc<dyn Device>>,
    layout: Layout,
    size: u64,
    cipher: Option<Cipher>,
    /// Some member never writes at once.
    writes_wait: bool,
    written: Bits,
    /// Who holds one alone encrypts in its buffer, so that writing allocates nothing.
    regions: [Region<Vec<u8>>; REGIONS],
}

impl Stitched {
    /// A disk of `size` bytes that reads as zeroes, on the ranges of `layout` in `members`. `key`
    /// encrypts it; without one the members hold what is written as it is, which is for members
    /// that are private or encrypted themselves.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a size of 0, or one that the layout does not hold;
    /// any error from locking memory.
    pub fn new(
        members: Vec<Arc<dyn Device>>,
        layout: Layout,
        size: u64,
        key: Option<&DiskKey>,
    ) -> Result<Self> {
        if size == 0 || size > layout.capacity() {
            return Err(Error::invalid(format!(
                "a borrowed disk of {size} bytes cannot be made of {} lent bytes",
                layout.capacity()
            )));
        }
        if let Some(lent) = layout
            .lent()
            .find(|lent| members.get(lent.member).is_none_or(|m| m.size() < lent.span.end()))
        {
            return Err(Error::invalid(format!(
                "member {} does not reach to the end of a lent range at {}",
                lent.member,
                lent.span.end()
            )));
        }
        Ok(Self {
            members,
            layout,
            size,
            cipher: key.map(DiskKey::expand).transpose()?,
            writes_wait: false,
            written: Bits::new(size),
            regions: std::array::from_fn(|_| Region::default()),
        })
    }

    /// Says that some member never writes at once: then nothing is encrypted to find that out.
    pub(crate) fn writes_wait(self, wait: bool) -> Self {
        Self { writes_wait: wait, ..self }
    }

    /// Bytes of blocks that were written and not given up since.
    pub fn written(&self) -> u64 {
        (self.written.count() * BLOCK).min(self.size)
    }

    /// The lent ranges.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    fn region(&self, offset: u64) -> &Region<Vec<u8>> {
        &self.regions[(offset / REGION) as usize % REGIONS]
    }

    /// Where the parts of `span` are, in order: each with its place on a member.
    fn places(&self, span: Span) -> impl Iterator<Item = Result<(Span, PhysicalSpan)>> {
        let mut at = span.offset();
        std::iter::from_fn(move || {
            (at < span.end()).then(|| {
                let place = self.layout.map(Span::between(at, span.end()))?;
                let here = Span::between(at, at + place.physical.len());
                at = here.end();
                Ok((here, place))
            })
        })
    }

    /// Reads a part of a region, if no member has to wait. The caller knows whether somebody writes.
    #[inline]
    fn read_now(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let mut at = span.offset();
        while at < span.end() {
            let (run, written) = self.written.run(Span::between(at, span.end()));
            let out = &mut buf[run.index_in(span)];
            if !written {
                out.fill(0);
            } else if self.get_now(run, out)? == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
            at = run.end();
        }
        Ok(Attempt::Done)
    }

    /// Reads written blocks, or parts of them, if no member has to wait.
    #[inline]
    fn get_now(&self, span: Span, out: &mut [u8]) -> Result<Attempt> {
        let Some(cipher) = &self.cipher else { return self.fetch_now(span, out) };
        for part in cut(span) {
            let out = &mut out[part.index_in(span)];
            if part.is_aligned(BLOCK) {
                if self.fetch_now(part, out)? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                cipher.decrypt(part.offset() / BLOCK, out)?;
            } else {
                let around = part.align_outward(BLOCK);
                let mut bytes = [0; BLOCK as usize];
                if self.fetch_now(around, &mut bytes)? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                cipher.decrypt(around.offset() / BLOCK, &mut bytes)?;
                out.copy_from_slice(&bytes[part.index_in(around)]);
            }
        }
        Ok(Attempt::Done)
    }

    /// Reads what the members hold, if none has to wait.
    #[inline]
    fn fetch_now(&self, span: Span, out: &mut [u8]) -> Result<Attempt> {
        for place in self.places(span) {
            let (here, place) = place?;
            let out = &mut out[here.index_in(span)];
            if self.members[place.member].try_read(place.physical, out)? == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }

    /// Reads as [`read_now`](Self::read_now), waiting for members.
    async fn read_waiting(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut at = span.offset();
        while at < span.end() {
            let (run, written) = self.written.run(Span::between(at, span.end()));
            let out = &mut buf[run.index_in(span)];
            let around = run.align_outward(BLOCK);
            if !written {
                out.fill(0);
            } else if run == around {
                self.get_waiting(run, out).await?;
            } else {
                let mut bytes = vec![0; around.len() as usize];
                self.get_waiting(around, &mut bytes).await?;
                out.copy_from_slice(&bytes[run.index_in(around)]);
            }
            at = run.end();
        }
        Ok(())
    }

    /// Reads whole written blocks, waiting for members.
    async fn get_waiting(&self, span: Span, out: &mut [u8]) -> Result<()> {
        for place in self.places(span) {
            let (here, place) = place?;
            let (member, out) = (&self.members[place.member], &mut out[here.index_in(span)]);
            if member.try_read(place.physical, out)? == Attempt::WouldWait {
                member.read(place.physical, out).await?;
            }
        }
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(span.offset() / BLOCK, out)?;
        }
        Ok(())
    }

    /// Writes whole blocks of a region that the caller holds alone, if no member has to wait.
    #[inline]
    fn put_now(&self, span: Span, data: &[u8], scratch: &mut Vec<u8>) -> Result<Attempt> {
        let Some(cipher) = &self.cipher else { return self.store_now(span, data) };
        for chunk in span.pieces(CHUNK) {
            scratch.clear();
            scratch.extend_from_slice(&data[chunk.index_in(span)]);
            cipher.encrypt(chunk.offset() / BLOCK, scratch)?;
            if self.store_now(chunk, scratch)? == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }

    /// Writes what the members are to hold, if none has to wait.
    #[inline]
    fn store_now(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        for place in self.places(span) {
            let (here, place) = place?;
            let data = &data[here.index_in(span)];
            if self.members[place.member].try_write(place.physical, data)? == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
        }
        self.written.put(span, true);
        Ok(Attempt::Done)
    }

    /// Writes a part of a region that the caller holds alone, waiting for members.
    async fn write_waiting(
        &self,
        span: Span,
        data: &[u8],
        durability: Durability,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        for chunk in span.pieces(CHUNK) {
            let whole = chunk.align_outward(BLOCK);
            scratch.clear();
            scratch.resize(whole.len() as usize, 0);
            // What has to be read is read before anything of the chunk is written.
            for edge in cut(chunk).filter(|part| !part.is_aligned(BLOCK)) {
                let around = edge.align_outward(BLOCK);
                if self.written.get(around.offset()) {
                    self.get_waiting(around, &mut scratch[around.index_in(whole)]).await?;
                }
            }
            scratch[chunk.index_in(whole)].copy_from_slice(&data[chunk.index_in(span)]);
            if let Some(cipher) = &self.cipher {
                cipher.encrypt(whole.offset() / BLOCK, scratch)?;
            }
            for place in self.places(whole) {
                let (here, place) = place?;
                let data = &scratch[here.index_in(whole)];
                self.members[place.member].write(place.physical, data, durability).await?;
            }
            self.written.put(whole, true);
        }
        Ok(())
    }

    /// Forgets whole blocks: from now on they read as zeroes. The members are told.
    async fn forget(&self, span: Span) -> Result<()> {
        for region in span.pieces(REGION) {
            let _alone = self.region(region.offset()).alone().await;
            let mut at = region.offset();
            while at < region.end() {
                let (run, written) = self.written.run(Span::between(at, region.end()));
                if written {
                    self.written.put(run, false);
                    self.tell(run).await?;
                }
                at = run.end();
            }
        }
        Ok(())
    }

    /// Tells the members that they need not keep the whole blocks that `span` touches.
    async fn tell(&self, span: Span) -> Result<()> {
        for place in self.places(span.align_outward(BLOCK)) {
            let (_, place) = place?;
            self.members[place.member].discard(place.physical, Durability::Buffered).await?;
        }
        Ok(())
    }

    /// Whether `span` starts and ends between blocks; the end of the disk counts as such.
    fn whole_blocks(&self, span: Span) -> Option<Span> {
        let end = if span.end() == self.size { self.size } else { span.end() / BLOCK * BLOCK };
        let start = span.offset().next_multiple_of(BLOCK);
        (start < end).then(|| Span::between(start, end))
    }
}

/// A span cut into the part of a block before the whole blocks, these, and the part behind them.
fn cut(span: Span) -> impl Iterator<Item = Span> {
    let (start, end) = (span.offset().next_multiple_of(BLOCK), span.end() / BLOCK * BLOCK);
    let parts = if start > end {
        [Some(span), None, None] // inside one block
    } else {
        [(span.offset(), start), (start, end), (end, span.end())]
            .map(|(from, to)| (from < to).then(|| Span::between(from, to)))
    };
    parts.into_iter().flatten()
}

#[async_trait]
impl Device for Stitched {
    fn size(&self) -> u64 {
        self.size
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        for part in span.pieces(REGION) {
            let region = self.region(part.offset());
            let Some(since) = region.look() else { return Ok(Attempt::WouldWait) };
            let attempt = self.read_now(part, &mut buf[part.index_in(span)])?;
            if attempt == Attempt::WouldWait || !region.undisturbed(since) {
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        // Nothing may have been done when it has to wait: all is under one lock, and no block is
        // read to be completed.
        if self.writes_wait || !span.is_aligned(BLOCK) || span.pieces(REGION).nth(1).is_some() {
            return Ok(Attempt::WouldWait);
        }
        match self.region(span.offset()).try_alone() {
            Some(mut scratch) => self.put_now(span, data, &mut scratch),
            None => Ok(Attempt::WouldWait),
        }
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        for region in span.pieces(REGION) {
            let _shared = self.region(region.offset()).shared().await;
            self.read_waiting(region, &mut buf[region.index_in(span)]).await?;
        }
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        for region in span.pieces(REGION) {
            let mut scratch = self.region(region.offset()).alone().await;
            let data = &data[region.index_in(span)];
            self.write_waiting(region, data, durability, &mut scratch).await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        // Every member is reached, also behind one that fails.
        let mut result = Ok(());
        for member in &self.members {
            result = result.and(member.flush().await);
        }
        result
    }

    async fn discard(&self, span: Span, _: Durability) -> Result<()> {
        match self.whole_blocks(span) {
            Some(whole) => self.forget(whole).await,
            None => Ok(()),
        }
    }

    async fn zero(&self, span: Span, _: ZeroMode, durability: Durability) -> Result<()> {
        let whole = self.whole_blocks(span);
        let (head, tail) = match whole {
            Some(whole) => (
                Span::between(span.offset(), whole.offset()),
                Span::between(whole.end(), span.end()),
            ),
            None => (span, Span::between(span.end(), span.end())),
        };
        let zeroes = [0; 2 * BLOCK as usize];
        for part in [head, tail] {
            let zeroes = &zeroes[..part.len() as usize];
            self.write(part, zeroes, durability).await?;
        }
        match whole {
            Some(whole) => self.forget(whole).await,
            None => Ok(()),
        }
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut at = span.offset();
        while at < span.end() {
            let (run, written) = self.written.run(Span::between(at, span.end()));
            let kind = if written { ExtentKind::Data } else { ExtentKind::Hole };
            if list.len() == limit && list.last().is_none_or(|last: &Extent| last.kind != kind) {
                break;
            }
            extent::push(&mut list, run, kind);
            at = run.end();
        }
        Ok(list)
    }
}
