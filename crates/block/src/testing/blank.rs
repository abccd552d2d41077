//! [`Blank`], a device without room for its bytes.

use crate::{Attempt, Device, Durability, Extent, ExtentKind, Result, Span, ZeroMode, extent};
use async_trait::async_trait;

/// A device of this many bytes that has no room for them: all of it is data and reads as zeroes, and
/// what is written is forgotten. It may be larger than any memory.
#[derive(Debug, Clone, Copy)]
pub struct Blank(pub u64);

#[async_trait]
impl Device for Blank {
    fn size(&self) -> u64 {
        self.0
    }

    fn try_read(&self, _: Span, buf: &mut [u8]) -> Result<Attempt> {
        buf.fill(0);
        Ok(Attempt::Done)
    }

    async fn read(&self, _: Span, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Ok(())
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Ok(())
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        extent::push(&mut list, span, ExtentKind::Data);
        Ok(list)
    }
}
