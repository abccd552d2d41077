//! The stitched disk: lent ranges of several members as one device, encrypted.
//!
//! # What its bytes are
//! A block that was never written reads as zeroes and is not read: what a member holds there is the
//! owner's deleted data. A bit for each block says which were written; it lives in memory, like
//! the key, so after a crash there is nothing but ciphertext that nobody can read.
//!
//! # How it keeps the device contract
//! The disk is cut into regions with a lock each. Writers hold their region alone, readers share
//! it: a block is then never decrypted while half of it is new. Members are read and written in whole
//! blocks only, so no access ever touches a page that is not lent.
//!
//! There is one path for reading and one for writing; the fast half of the trait runs it with the
//! order not to wait.

use crate::bits::Bits;
use crate::key::{Cipher, Key};
use crate::layout::Layout;
use crate::xts::Xts;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Limits, Result, Span, ZeroMode,
    extent,
};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::RwLock;

#[cfg(test)]
mod tests;

/// What one lock covers, in bytes; locks are shared by regions far apart.
const REGION: u64 = 1 << 20;
const LOCKS: usize = 64;

/// Bytes that are encrypted at a time, and of a scratch buffer.
const CHUNK: u64 = 128 << 10;
/// Scratch buffers that are kept.
const SPARE: usize = 16;

/// Lent ranges as one device; see the module's text.
pub struct Stitched {
    members: Vec<Arc<dyn Device>>,
    layout: Layout,
    size: u64,
    cipher: Option<Cipher>,
    written: Bits,
    regions: [RwLock<()>; LOCKS],
    scratch: Mutex<Vec<Vec<u8>>>,
}

impl Stitched {
    /// A disk of `size` bytes that reads as zeroes, on the ranges of `layout` in `members`. `key`
    /// encrypts it; without one the members hold what is written as it is, which is for members
    /// that are private or encrypted themselves.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a size of 0, or one that the layout does not hold;
    /// those of locking memory.
    pub fn new(
        members: Vec<Arc<dyn Device>>,
        layout: Layout,
        size: u64,
        key: Option<&Key>,
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
            cipher: key.map(Key::expand).transpose()?,
            written: Bits::new(size),
            regions: std::array::from_fn(|_| RwLock::new(())),
            scratch: Mutex::default(),
        })
    }

    /// Bytes of blocks that were written and not given up since.
    pub fn written(&self) -> u64 {
        (self.written.count() * BLOCK).min(self.size)
    }

    /// The lent ranges.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn region(&self, offset: u64) -> &RwLock<()> {
        &self.regions[(offset / REGION) as usize % LOCKS]
    }

    fn xts(&self) -> Result<Option<&Xts>> {
        self.cipher.as_ref().map(Cipher::xts).transpose()
    }

    async fn read_parts(&self, span: Span, buf: &mut [u8], wait: bool) -> Result<Attempt> {
        for region in span.pieces(REGION) {
            let lock = self.region(region.offset());
            let _shared = match lock.try_read() {
                Ok(guard) => guard,
                Err(_) if wait => lock.read().await,
                Err(_) => return Ok(Attempt::WouldWait),
            };
            let mut at = region.offset();
            while at < region.end() {
                let (run, written) = self.written.run(Span::between(at, region.end()));
                let out = &mut buf[run.index_in(span)];
                if !written {
                    out.fill(0);
                } else if self.get(run, out, wait).await? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                at = run.end();
            }
        }
        Ok(Attempt::Done)
    }

    /// Reads written blocks, or parts of them.
    async fn get(&self, span: Span, out: &mut [u8], wait: bool) -> Result<Attempt> {
        let Some(xts) = self.xts()? else { return self.fetch(span, out, wait).await };
        for part in cut(span) {
            let out = &mut out[part.index_in(span)];
            if part.is_aligned(BLOCK) {
                if self.fetch(part, out, wait).await? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                for_each_block(part, out, |number, bytes| xts.decrypt(number, bytes));
            } else {
                let around = part.align_outward(BLOCK);
                let mut bytes = [0; BLOCK as usize];
                if self.fetch(around, &mut bytes, wait).await? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                xts.decrypt(around.offset() / BLOCK, &mut bytes);
                out.copy_from_slice(&bytes[part.index_in(around)]);
            }
        }
        Ok(Attempt::Done)
    }

    /// Reads what the members hold.
    async fn fetch(&self, span: Span, out: &mut [u8], wait: bool) -> Result<Attempt> {
        let mut at = span.offset();
        while at < span.end() {
            let place = self.layout.map(Span::between(at, span.end()))?;
            let here = Span::between(at, at + place.physical.len());
            let out = &mut out[here.index_in(span)];
            let member = &self.members[place.member];
            if member.try_read(place.physical, out)? == Attempt::WouldWait {
                if !wait {
                    return Ok(Attempt::WouldWait);
                }
                member.read(place.physical, out).await?;
            }
            at = here.end();
        }
        Ok(Attempt::Done)
    }

    async fn write_parts(
        &self,
        span: Span,
        data: &[u8],
        durability: Durability,
        wait: bool,
    ) -> Result<Attempt> {
        for region in span.pieces(REGION) {
            let lock = self.region(region.offset());
            let _alone = match lock.try_write() {
                Ok(guard) => guard,
                Err(_) if wait => lock.write().await,
                Err(_) => return Ok(Attempt::WouldWait),
            };
            let data = &data[region.index_in(span)];
            // What has to be read is read before anything is written.
            let mut edges = [None; 2];
            for (edge, part) in edges.iter_mut().zip(cut(region).filter(|p| !p.is_aligned(BLOCK))) {
                let around = part.align_outward(BLOCK);
                let mut bytes = [0; BLOCK as usize];
                if self.written.get(around.offset())
                    && self.get(around, &mut bytes, wait).await? == Attempt::WouldWait
                {
                    return Ok(Attempt::WouldWait);
                }
                bytes[part.index_in(around)].copy_from_slice(&data[part.index_in(region)]);
                *edge = Some((around, bytes));
            }
            for part in cut(region).filter(|part| part.is_aligned(BLOCK)) {
                let data = &data[part.index_in(region)];
                if self.put(part, data, durability, wait).await? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
            }
            for (around, bytes) in edges.iter().flatten() {
                if self.put(*around, bytes, durability, wait).await? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
            }
        }
        Ok(Attempt::Done)
    }

    /// Writes whole blocks.
    async fn put(
        &self,
        span: Span,
        data: &[u8],
        durability: Durability,
        wait: bool,
    ) -> Result<Attempt> {
        let attempt = match self.xts()? {
            None => self.store(span, data, durability, wait).await?,
            Some(xts) if data.len() == BLOCK as usize => {
                let mut bytes = [0; BLOCK as usize];
                bytes.copy_from_slice(data);
                xts.encrypt(span.offset() / BLOCK, &mut bytes);
                self.store(span, &bytes, durability, wait).await?
            }
            Some(xts) => {
                let mut scratch = self.scratch.lock().pop().unwrap_or_default();
                let mut attempt = Attempt::Done;
                for chunk in span.pieces(CHUNK) {
                    scratch.clear();
                    scratch.extend_from_slice(&data[chunk.index_in(span)]);
                    for_each_block(chunk, &mut scratch, |number, bytes| xts.encrypt(number, bytes));
                    attempt = self.store(chunk, &scratch, durability, wait).await?;
                    if attempt == Attempt::WouldWait {
                        break;
                    }
                }
                let mut spare = self.scratch.lock();
                if spare.len() < SPARE {
                    spare.push(scratch);
                }
                attempt
            }
        };
        if attempt == Attempt::Done {
            self.written.put(span, true);
        }
        Ok(attempt)
    }

    /// Writes to the members.
    async fn store(
        &self,
        span: Span,
        data: &[u8],
        durability: Durability,
        wait: bool,
    ) -> Result<Attempt> {
        let mut at = span.offset();
        while at < span.end() {
            let place = self.layout.map(Span::between(at, span.end()))?;
            let here = Span::between(at, at + place.physical.len());
            let data = &data[here.index_in(span)];
            let member = &self.members[place.member];
            let tried = durability == Durability::Buffered
                && member.try_write(place.physical, data)? == Attempt::Done;
            if !tried {
                if !wait {
                    return Ok(Attempt::WouldWait);
                }
                member.write(place.physical, data, durability).await?;
            }
            at = here.end();
        }
        Ok(Attempt::Done)
    }

    /// Forgets whole blocks: from now on they read as zeroes. The members are told.
    async fn forget(&self, span: Span) -> Result<()> {
        for region in span.pieces(REGION) {
            let _alone = self.region(region.offset()).write().await;
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
        let span = span.align_outward(BLOCK);
        let mut at = span.offset();
        while at < span.end() {
            let place = self.layout.map(Span::between(at, span.end()))?;
            self.members[place.member].discard(place.physical, Durability::Buffered).await?;
            at += place.physical.len();
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

/// Calls `each` with every block of `span`: its number and its bytes.
fn for_each_block(span: Span, bytes: &mut [u8], mut each: impl FnMut(u64, &mut [u8])) {
    let first = span.offset() / BLOCK;
    for (i, block) in bytes.chunks_exact_mut(BLOCK as usize).enumerate() {
        each(first + i as u64, block);
    }
}

/// The result of work that was told not to wait.
fn now(work: impl Future<Output = Result<Attempt>>) -> Result<Attempt> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Ok(Attempt::WouldWait),
    }
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
        now(self.read_parts(span, buf, false))
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        // Nothing may have been done when it has to wait, so all is under one lock.
        if span.pieces(REGION).nth(1).is_some() {
            return Ok(Attempt::WouldWait);
        }
        now(self.write_parts(span, data, Durability::Buffered, false))
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.read_parts(span, buf, true).await.map(|_| ())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.write_parts(span, data, durability, true).await.map(|_| ())
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
            let _done = self.write_parts(part, zeroes, durability, true).await?;
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
