//! A device that refuses changes.

use async_trait::async_trait;
use block::{Attempt, Device, Durability, Error, Result, Sink, Span, ZeroMode};
use std::sync::Arc;

/// Another device, which through this one can only be read.
pub struct ReadOnly(Arc<dyn Device>);

impl ReadOnly {
    /// `device`, for somebody who may not write.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self(device)
    }
}

fn denied() -> Error {
    Error::denied("this client may only read it; ask for the right to write")
}

#[async_trait]
impl block::Layer for ReadOnly {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.0
    }

    fn read_only(&self) -> bool {
        true
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.below().try_read(span, buf)
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.below().try_read_to(span, sink)
    }

    fn try_write(&self, _span: Span, _data: &[u8]) -> Result<Attempt> {
        Err(denied())
    }

    async fn write(&self, _span: Span, _data: &[u8], _durability: Durability) -> Result<()> {
        Err(denied())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _span: Span, _durability: Durability) -> Result<()> {
        Err(denied())
    }

    async fn zero(&self, _span: Span, _mode: ZeroMode, _durability: Durability) -> Result<()> {
        Err(denied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Memory, conformance};

    #[tokio::test]
    async fn it_is_a_device_that_can_only_be_read() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let memory = Memory::new(bytes.len() as u64);
        let whole = Span::whole(memory.size());
        memory.write(whole, &bytes, Durability::Buffered).await.unwrap();
        let device = ReadOnly::new(Arc::new(memory));
        conformance::check_read_only(&device, &bytes).await;
    }
}
