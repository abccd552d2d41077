//! A device in memory.

use crate::{Attempt, Device, Durability, Error, Extent, ExtentKind, Result, Span, ZeroMode};
use async_trait::async_trait;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A device whose bytes are a vector: a scratch export, and the model that others are tested by.
#[derive(Debug)]
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
}

impl Memory {
    /// A device of `size` zero bytes.
    pub fn new(size: u64) -> Self {
        Self::from(vec![0; size as usize])
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    // A writer cannot panic half way: it only copies and fills.
    fn bytes(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn bytes_mut(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.bytes.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes) }
    }
}

#[async_trait]
impl Device for Memory {
    fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let bytes = self.bytes();
        buf.copy_from_slice(&bytes[span.index_in(Span::whole(bytes.len() as u64))]);
        Ok(Attempt::Done)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        let mut bytes = self.bytes_mut();
        let whole = Span::whole(bytes.len() as u64);
        bytes[span.index_in(whole)].copy_from_slice(data);
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.try_read(span, buf).map(|_| ())
    }

    async fn write(&self, span: Span, data: &[u8], _: Durability) -> Result<()> {
        self.try_write(span, data).map(|_| ())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Ok(())
    }

    async fn zero(&self, span: Span, mode: ZeroMode, _: Durability) -> Result<()> {
        if mode.only_if_fast {
            return Err(Error::unsupported("memory is zeroed byte by byte"));
        }
        let mut bytes = self.bytes_mut();
        let whole = Span::whole(bytes.len() as u64);
        bytes[span.index_in(whole)].fill(0);
        Ok(())
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        crate::extent::push(&mut list, span, ExtentKind::Data);
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn memory_keeps_the_device_contract() {
        crate::conformance::check(|size| async move { Arc::new(Memory::new(size)) as _ }).await;
    }
}
