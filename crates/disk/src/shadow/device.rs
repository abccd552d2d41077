//! The shadow as a device.

use super::write::Parts;
use super::{REGION, Shadow};
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, Filling, Limits, Result, Sink, Span,
    ZeroMode,
};

/// The longest write that is done on the caller's thread at once.
const QUICK: usize = 1 << 20;

#[async_trait]
impl Device for Shadow {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_to(span, &mut Filling::new(buf))
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.inner.stack.load().try_read_to(0, span, sink)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        if data.len() > QUICK {
            return Ok(Attempt::WouldWait);
        }
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        if (parts.head.is_some() || parts.tail.is_some())
            && self.inner.try_write_parts(span, data, &parts)? == Attempt::WouldWait
        {
            return Ok(Attempt::WouldWait);
        }
        for piece in parts.whole.iter().flat_map(|whole| whole.pieces(REGION)) {
            self.inner.put_whole(piece, &data[piece.index_in(span)])?;
        }
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let stack = self.inner.stack.load_full();
        stack.read(0, span, buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        for part in [parts.head, parts.tail].into_iter().flatten() {
            self.inner.write_part(part, &data[part.index_in(span)]).await?;
        }
        for piece in parts.whole.iter().flat_map(|whole| whole.pieces(REGION)) {
            self.inner.put_whole(piece, &data[piece.index_in(span)])?;
            if piece.end() != span.end() {
                tokio::task::yield_now().await;
            }
        }
        self.finish(durability).await
    }

    async fn flush(&self) -> Result<()> {
        self.flush_round().await
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.inner.check()?;
        if let Some(whole) = Parts::of(span, self.size()).whole {
            self.clear_blocks(whole).await?;
        }
        self.finish(durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        let mut must_write = false;
        if let Some(whole) = parts.whole
            && !mode.may_punch
            && !self.can_reserve(whole).await?
        {
            if mode.only_if_fast {
                return Err(Error::unsupported(
                    "the file system of the shadow cannot reserve zeroed room; allow a hole, or \
                     write the zeroes",
                ));
            }
            must_write = true;
        }
        if let Some(whole) = parts.whole
            && !mode.may_punch
        {
            self.fill_with_zeroes(whole, must_write).await?;
        }
        let zeroes = [0; BLOCK as usize];
        for part in [parts.head, parts.tail].into_iter().flatten() {
            self.inner.write_part(part, &zeroes[..part.len() as usize]).await?;
        }
        if let Some(whole) = parts.whole
            && mode.may_punch
        {
            self.clear_blocks(whole).await?;
        }
        self.finish(durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let stack = self.inner.stack.load_full();
        stack.extents(0, span, limit).await
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        let stack = self.inner.stack.load_full();
        stack.prefetch(0, span).await
    }
}
