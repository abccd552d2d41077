//! [`ScriptedDevice`], a layer that notes what it is asked, and does what a script says.

use super::{CallRecorder, UnderWay};
use crate::{
    Attempt, Device, Durability, Error, ErrorKind, Extent, Limits, Result, Sink, Span, ZeroMode,
};
use async_trait::async_trait;
use std::time::Duration;

/// A call on a device, as a script sees it.
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
    /// The announcement that the span will be read. It is noted, and ends there: the script is not asked.
    Prefetch(Span),
}

impl Operation {
    /// The span that it is about; a flush is about none.
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Read(span)
            | Self::Write(span)
            | Self::Discard(span)
            | Self::Zero(span)
            | Self::Extents(span)
            | Self::Prefetch(span) => Some(span),
            Self::Flush => None,
        }
    }
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
    /// It goes through after other tasks had their turn.
    Yield,
    /// It goes through once it is [released](CallRecorder::release).
    Hold,
    /// It is answered as if it were done; nothing is done.
    Lose,
    /// A write is applied up to this many bytes, then fails with
    /// [`Unavailable`](ErrorKind::Unavailable). Other calls fail.
    Tear(u64),
}

/// What is left to do of a call.
enum Rest {
    /// The call.
    All,
    /// A write of so many bytes, and then an error.
    Torn(u64),
    /// Nothing.
    Nothing,
}

type ExtentAnswer = Box<dyn Fn(Span, usize) -> Vec<Extent> + Send + Sync>;

/// A device that notes every call, and asks a script what shall become of it. What the script lets
/// through, the device below does.
pub struct ScriptedDevice<D, P> {
    inner: D,
    plan: P,
    limits: Option<Limits>,
    read_only: bool,
    written_through: bool,
    extents: Option<ExtentAnswer>,
    fast_reads: bool,
    fast_zeroes: bool,
    /// What it was asked.
    pub calls: CallRecorder<Operation>,
}

impl<D: Device> ScriptedDevice<D, fn(Operation) -> Fault> {
    /// Puts itself in front of `inner` to note what is asked of it, and lets everything through.
    pub fn noting(inner: D) -> Self {
        Self::new(inner, |_| Fault::None)
    }
}

impl<D: Device, P: Fn(Operation) -> Fault + Send + Sync> ScriptedDevice<D, P> {
    /// Puts itself and the script `plan` in front of `inner`.
    pub fn new(inner: D, plan: P) -> Self {
        let (limits, extents, calls) = (None, None, CallRecorder::default());
        Self {
            inner,
            plan,
            limits,
            read_only: false,
            written_through: false,
            extents,
            fast_reads: false,
            fast_zeroes: false,
            calls,
        }
    }

    /// Says that it takes requests of these sizes; it does not check them.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits: Some(limits), ..self }
    }

    /// Says that it takes no writes; it does not refuse them.
    pub fn with_read_only(self, read_only: bool) -> Self {
        Self { read_only, ..self }
    }

    /// Says that changes wait until they are safe elsewhere.
    pub fn with_write_through(self) -> Self {
        Self { written_through: true, ..self }
    }

    /// Answers what a span holds by this.
    pub fn with_extents(
        self,
        answer: impl Fn(Span, usize) -> Vec<Extent> + Send + Sync + 'static,
    ) -> Self {
        Self { extents: Some(Box::new(answer)), ..self }
    }

    /// Has reads that the script does nothing to try the fast path. (Where that would wait, the script is
    /// asked again for the slow one.)
    pub fn with_fast_reads(self) -> Self {
        Self { fast_reads: true, ..self }
    }

    /// Zeroes as if that were fast, however the device below does it.
    pub fn with_fast_zeroes(self) -> Self {
        Self { fast_zeroes: true, ..self }
    }

    /// The device behind.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The bytes of those calls that are such ones.
    pub fn bytes(&self, which: impl Fn(&Operation) -> bool) -> u64 {
        let log = self.calls.log();
        let such = log.asked.iter().filter(|call| which(call));
        such.filter_map(|call| call.span()).map(Span::len).sum()
    }

    fn enter(&self, operation: Operation) -> UnderWay<'_, Operation> {
        self.calls.enter(operation, operation.span().map_or(0, Span::len))
    }

    /// Waits or fails as planned.
    async fn meet(&self, operation: Operation) -> Result<Rest> {
        match (self.plan)(operation) {
            Fault::None => return Ok(Rest::All),
            Fault::Fail(kind) => {
                return Err(Error::new(kind, format!("injected fault at {operation:?}")));
            }
            Fault::Delay(time) => tokio::time::sleep(time).await,
            Fault::Yield => tokio::task::yield_now().await,
            Fault::Hold => self.calls.hold().await,
            Fault::Lose => return Ok(Rest::Nothing),
            Fault::Tear(bytes) => match operation {
                Operation::Write(_) => return Ok(Rest::Torn(bytes)),
                _ => return Err(Error::unavailable(format!("injected fault at {operation:?}"))),
            },
        }
        Ok(Rest::All)
    }

    /// Whether the script lets the operation do without waiting.
    fn is_fast(&self, operation: Operation) -> bool {
        self.fast_reads && (self.plan)(operation) == Fault::None
    }

    /// Notes a read that needed no waiting.
    fn note_fast(&self, span: Span, attempt: Result<Attempt>) -> Result<Attempt> {
        if matches!(attempt, Ok(Attempt::Done)) {
            drop(self.enter(Operation::Read(span)));
        }
        attempt
    }
}

#[async_trait]
impl<D: Device, P: Fn(Operation) -> Fault + Send + Sync> crate::Layer for ScriptedDevice<D, P> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn limits(&self) -> Limits {
        self.limits.unwrap_or_else(|| self.inner.limits())
    }

    fn read_only(&self) -> bool {
        self.read_only || self.inner.read_only()
    }

    fn is_written_through(&self) -> bool {
        self.written_through || self.inner.is_written_through()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        if !self.is_fast(Operation::Read(span)) {
            return Ok(Attempt::WouldWait);
        }
        self.note_fast(span, self.inner.try_read(span, buf))
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        if !self.is_fast(Operation::Read(span)) {
            return Ok(Attempt::WouldWait);
        }
        self.note_fast(span, self.inner.try_read_to(span, sink))
    }

    // The script must see every write, and may want it to wait: no fast path.
    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let _under_way = self.enter(Operation::Read(span));
        match self.meet(Operation::Read(span)).await? {
            Rest::Nothing => Ok(()),
            _ => self.inner.read(span, buf).await,
        }
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        let _under_way = self.enter(Operation::Write(span));
        match self.meet(Operation::Write(span)).await? {
            Rest::All => self.inner.write(span, data, durability).await,
            Rest::Nothing => Ok(()),
            Rest::Torn(torn) => {
                let (head, _) = span.split_at(span.offset().saturating_add(torn));
                self.inner.write(head, &data[..head.len() as usize], durability).await?;
                Err(Error::unavailable(format!("injected tear of a write at {span:?}")))
            }
        }
    }

    async fn flush(&self) -> Result<()> {
        let _under_way = self.enter(Operation::Flush);
        match self.meet(Operation::Flush).await? {
            Rest::Nothing => Ok(()),
            _ => self.inner.flush().await,
        }
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        let _under_way = self.enter(Operation::Discard(span));
        match self.meet(Operation::Discard(span)).await? {
            Rest::Nothing => Ok(()),
            _ => self.inner.discard(span, durability).await,
        }
    }

    async fn zero(&self, span: Span, mut mode: ZeroMode, durability: Durability) -> Result<()> {
        let _under_way = self.enter(Operation::Zero(span));
        mode.only_if_fast &= !self.fast_zeroes;
        match self.meet(Operation::Zero(span)).await? {
            Rest::Nothing => Ok(()),
            _ => self.inner.zero(span, mode, durability).await,
        }
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let _under_way = self.enter(Operation::Extents(span));
        self.meet(Operation::Extents(span)).await?;
        match &self.extents {
            Some(answer) => Ok(answer(span, limit)),
            None => self.inner.extents(span, limit).await,
        }
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        drop(self.enter(Operation::Prefetch(span)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::testing::InFlight;
    use std::sync::Arc;

    #[tokio::test]
    async fn without_faults_it_keeps_the_device_contract() {
        crate::conformance::check(|size| async move {
            Arc::new(ScriptedDevice::noting(Memory::new(size))) as _
        })
        .await;
        crate::conformance::check(|size| async move {
            Arc::new(ScriptedDevice::noting(Memory::new(size)).with_fast_reads()) as _
        })
        .await;
    }

    #[tokio::test]
    async fn a_torn_write_is_half_there_and_reported() {
        let device = ScriptedDevice::new(Memory::new(8192), |op| match op {
            Operation::Write(_) => Fault::Tear(100),
            _ => Fault::None,
        });
        let span = Span::whole(4096);
        let error = device.write(span, &[9; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let bytes = device.inner().to_vec();
        assert!(bytes[..100].iter().all(|b| *b == 9) && bytes[100..].iter().all(|b| *b == 0));
    }

    #[tokio::test]
    async fn a_held_write_lands_when_it_is_released_and_one_that_is_given_up_is_held_no_more() {
        let device = ScriptedDevice::new(Memory::new(8192), |op| match op {
            Operation::Write(_) => Fault::Hold,
            _ => Fault::None,
        });
        let (span, data) = (Span::whole(4096), [9; 4096]);
        let given_up = device.write(span, &data, Durability::Buffered);
        tokio::select! {
            biased;
            _ = given_up => unreachable!("it is held"),
            () = device.calls.until(|log| log.held == 1) => {}
        }
        assert_eq!(device.calls.log().held, 0);
        let release = async {
            device.calls.until(|log| log.held == 1).await;
            assert!(device.inner().to_vec().iter().all(|b| *b == 0));
            device.calls.release(1);
        };
        let write = device.write(span, &data, Durability::Buffered);
        let (written, ()) = tokio::join!(write, release);
        written.unwrap();
        assert_eq!(device.inner().to_vec()[..4096], data);
        let log = device.calls.log();
        assert_eq!(log.asked, [Operation::Write(span); 2]);
        assert_eq!((log.held, log.now), (0, InFlight::default()));
        assert_eq!(log.most, InFlight { calls: 1, bytes: 4096 });
    }

    #[tokio::test]
    async fn a_lost_write_is_answered_and_not_there() {
        let device = ScriptedDevice::new(Memory::new(4096), |_| Fault::Lose);
        device.write(Span::whole(4096), &[9; 4096], Durability::Durable).await.unwrap();
        assert!(device.inner().to_vec().iter().all(|b| *b == 0));
        assert_eq!(device.bytes(|op| matches!(op, Operation::Write(_))), 4096);
    }
}
