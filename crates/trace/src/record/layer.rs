//! The layer: a device that notes every request.

use super::{Recorder, Tap};
use crate::{Disk, Flags, Op, Request};
use async_trait::async_trait;
use block::{Attempt, Device, Durability, Extent, Limits, Result, Sink, Span, ZeroMode};
use std::sync::Arc;

/// A device whose requests are noted, with the time until they are answered; of those that are
/// answered on the spot, that of one in sixteen. What moves no data
/// ([`extents`](Device::extents), [`prefetch`](Device::prefetch)) is not noted.
#[derive(Debug)]
pub struct Recorded<D> {
    inner: D,
    tap: Option<Arc<Tap>>,
}

impl<D: Device> Recorded<D> {
    /// Notes the requests of `client` to `inner`, which is `disk`.
    pub fn new(inner: D, recorder: &Arc<Recorder>, client: &str, disk: &Disk) -> Self {
        Self { inner, tap: recorder.tap(client, disk) }
    }

    #[inline]
    fn begin(&self) -> u64 {
        match &self.tap {
            Some(tap) if !tap.recorder.is_stopped() => tap.recorder.now(),
            _ => 0,
        }
    }

    #[inline]
    fn note(&self, start: u64, op: Op, span: Span, durability: Durability, failed: bool) {
        let Some(tap) = &self.tap else { return };
        if tap.recorder.is_stopped() {
            return;
        }
        let mut flags = Flags::NONE;
        if durability == Durability::Durable {
            flags = flags.with(Flags::FUA);
        }
        if failed {
            flags = flags.with(Flags::FAILED);
        }
        // A latency of 0 would say that it is not known.
        let took = tap.recorder.now().saturating_sub(start).max(1);
        self.push(tap, Request { time: start, op, flags, ..Request::default() }, took, span);
    }

    /// Notes a request that was answered on the spot.
    #[inline]
    fn note_quick(&self, start: u64, op: Op, span: Span, failed: bool) {
        let Some(tap) = &self.tap else { return };
        if failed || span.len() > u64::from(u32::MAX) || tap.is_timed() {
            return self.note(start, op, span, Durability::Buffered, failed);
        }
        if !tap.recorder.is_stopped() {
            let (offset, length) = (span.offset(), span.len() as u32);
            tap.note(&Request { time: start, op, offset, length, ..Request::default() }, 0);
        }
    }

    fn push(&self, tap: &Tap, request: Request, took: u64, span: Span) {
        // Longer effects than a request can say count as several.
        let (mut at, end) = (span.offset(), span.end());
        loop {
            let length = (end - at).min(u64::from(u32::MAX / 4096 * 4096)) as u32;
            tap.note(&Request { offset: at, length, ..request }, took);
            at += u64::from(length);
            if at >= end {
                break;
            }
        }
    }
}

#[async_trait]
impl<D: Device> Device for Recorded<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let start = self.begin();
        let result = self.inner.try_read(span, buf);
        // What would have to wait is asked again, and noted then.
        if !matches!(result, Ok(Attempt::WouldWait)) {
            self.note_quick(start, Op::Read, span, result.is_err());
        }
        result
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        let start = self.begin();
        let result = self.inner.try_read_to(span, sink);
        if !matches!(result, Ok(Attempt::WouldWait)) {
            self.note_quick(start, Op::Read, span, result.is_err());
        }
        result
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        let start = self.begin();
        let result = self.inner.try_write(span, data);
        if !matches!(result, Ok(Attempt::WouldWait)) {
            self.note_quick(start, Op::Write, span, result.is_err());
        }
        result
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let start = self.begin();
        let result = self.inner.read(span, buf).await;
        self.note(start, Op::Read, span, Durability::Buffered, result.is_err());
        result
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        let start = self.begin();
        let result = self.inner.write(span, data, durability).await;
        self.note(start, Op::Write, span, durability, result.is_err());
        result
    }

    async fn flush(&self) -> Result<()> {
        let start = self.begin();
        let result = self.inner.flush().await;
        self.note(start, Op::Flush, Span::whole(0), Durability::Buffered, result.is_err());
        result
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        let start = self.begin();
        let result = self.inner.discard(span, durability).await;
        self.note(start, Op::Trim, span, durability, result.is_err());
        result
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        let start = self.begin();
        let result = self.inner.zero(span, mode, durability).await;
        self.note(start, Op::Zero, span, durability, result.is_err());
        result
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.inner.extents(span, limit).await
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        self.inner.prefetch(span).await
    }
}
