//! A layer that fails, delays and tears on request.

use crate::{Attempt, Device, Durability, Error, ErrorKind, Extent, Result, Sink, Span, ZeroMode};
use async_trait::async_trait;
use std::time::Duration;

/// A call on a device, as a fault plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A read of the span.
    Read(Span),
    /// A write to the span.
    Write(Span),
    /// A flush.
    Flush,
    /// A discard of the span.
    Discard(Span),
    /// A zeroing of the span.
    Zero(Span),
    /// A question for the extents of the span.
    Extents(Span),
}

/// What is to happen to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the call goes through.
    None,
    /// It fails with an error of this kind; nothing is done.
    Fail(ErrorKind),
    /// It goes through after a while.
    Delay(Duration),
    /// A write is applied up to this many bytes, then fails with
    /// [`Unavailable`](ErrorKind::Unavailable). Other calls fail.
    Tear(u64),
}

/// A device that asks a plan, at every call, what shall go wrong.
pub struct Faulty<D, P> {
    inner: D,
    plan: P,
}

impl<D: Device, P: Fn(Operation) -> Fault + Send + Sync> Faulty<D, P> {
    /// Puts the plan in front of `inner`.
    pub fn new(inner: D, plan: P) -> Self {
        Self { inner, plan }
    }

    /// The device behind.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Waits or fails as planned; `Ok(Some(n))` when a write is to be torn after `n` bytes.
    async fn meet(&self, operation: Operation) -> Result<Option<u64>> {
        match (self.plan)(operation) {
            Fault::None => Ok(None),
            Fault::Fail(kind) => Err(Error::new(kind, format!("injected fault at {operation:?}"))),
            Fault::Delay(time) => {
                tokio::time::sleep(time).await;
                Ok(None)
            }
            Fault::Tear(bytes) => match operation {
                Operation::Write(_) => Ok(Some(bytes)),
                _ => Err(Error::unavailable(format!("injected fault at {operation:?}"))),
            },
        }
    }
}

#[async_trait]
impl<D: Device, P: Fn(Operation) -> Fault + Send + Sync> crate::Layer for Faulty<D, P> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    // The plan must see every call, and may want it to wait: no fast path.
    fn try_read(&self, _: Span, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn try_read_to(&self, _: Span, _: &mut dyn Sink) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.meet(Operation::Read(span)).await?;
        self.inner.read(span, buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        match self.meet(Operation::Write(span)).await? {
            None => self.inner.write(span, data, durability).await,
            Some(torn) => {
                let (head, _) = span.split_at(span.offset().saturating_add(torn));
                self.inner.write(head, &data[..head.len() as usize], durability).await?;
                Err(Error::unavailable(format!("injected tear of a write at {span:?}")))
            }
        }
    }

    async fn flush(&self) -> Result<()> {
        self.meet(Operation::Flush).await?;
        self.inner.flush().await
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.meet(Operation::Discard(span)).await?;
        self.inner.discard(span, durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.meet(Operation::Zero(span)).await?;
        self.inner.zero(span, mode, durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.meet(Operation::Extents(span)).await?;
        self.inner.extents(span, limit).await
    }

    // No operation of the plan: nothing that it does not see goes through.
    async fn prefetch(&self, _: Span) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::sync::Arc;

    #[tokio::test]
    async fn without_faults_it_keeps_the_device_contract() {
        crate::conformance::check(|size| async move {
            Arc::new(Faulty::new(Memory::new(size), |_| Fault::None)) as _
        })
        .await;
    }

    #[tokio::test]
    async fn a_torn_write_is_half_there_and_reported() {
        let device = Faulty::new(Memory::new(8192), |op| match op {
            Operation::Write(_) => Fault::Tear(100),
            _ => Fault::None,
        });
        let span = Span::whole(4096);
        let error = device.write(span, &[9; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let bytes = device.inner().to_vec();
        assert!(bytes[..100].iter().all(|b| *b == 9) && bytes[100..].iter().all(|b| *b == 0));
    }
}
