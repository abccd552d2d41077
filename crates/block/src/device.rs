//! The device trait.

use crate::{Extent, Result, Sink, Span};
use async_trait::async_trait;

/// Whether a fast path did the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    /// The operation is complete.
    Done,
    /// It would have to wait; nothing was done (a read buffer's content is unspecified). Use the
    /// asynchronous method.
    WouldWait,
}

/// When a write may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once later reads see it; it survives a crash after the next flush.
    #[default]
    Buffered,
    /// Once it survives power loss (forced unit access). Says nothing of other writes.
    Durable,
}

/// How a range is to be zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroMode {
    /// The room of the range may be given back.
    pub may_punch: bool,
    /// Fail with [`Unsupported`](crate::ErrorKind::Unsupported) rather than write zeroes one by one.
    pub only_if_fast: bool,
}

/// Request sizes that a device accepts and likes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Offsets and lengths must be multiples of this: 1 to 64 KiB, a power of two.
    pub minimum: u32,
    /// Requests aligned to this cost no read-modify-write; a power of two, at least 512.
    pub preferred: u32,
    /// The longest read or write; zeroing and discarding have no limit.
    pub maximum: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { minimum: 1, preferred: crate::BLOCK as u32, maximum: 32 << 20 }
    }
}

/// A block device: what a guest sees, and what every layer both is and stands on.
///
/// # Contract
/// * Spans lie inside the device (`span.end() <= size()` at the time of the call), and a buffer is
///   exactly as long as its span. The edge that takes requests from outside checks this once, with
///   [`Span::within`]; layers rely on it.
/// * Methods may be called at the same time from any number of tasks. Operations that overlap in
///   time and in place are applied in some order, block by block; an operation that was answered
///   before another one started is seen by it.
/// * An answered write is seen by every later read. It survives a crash once a flush that started
///   after the answer was answered, or at once with [`Durability::Durable`].
/// * A failed or cancelled write may have been applied to any of its blocks.
/// * A read gives the right bytes or an error, never wrong bytes.
/// * `try_*` never wait for a disk or a network, and never block on a lock that is held across
///   such a wait.
///
/// [`conformance`](crate::conformance) checks the contract; every implementation runs it. A device that
/// stands on one other and changes some of its calls is a [`Layer`](crate::Layer).
#[async_trait]
pub trait Device: Send + Sync {
    /// The size in bytes. It may grow while the device is in use; it never shrinks.
    fn size(&self) -> u64;

    /// The sizes of requests it accepts and likes.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Whether writing is refused.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether a change waits until it is safe elsewhere, whatever its durability: what that takes hardly depends on
    /// its length, so who cuts long writes has them wait once for each part.
    fn is_written_through(&self) -> bool {
        false
    }

    /// Reads into `buf` if that needs no waiting.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) or [`Unavailable`](crate::ErrorKind::Unavailable)
    /// when the right bytes cannot be had.
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let _ = (span, buf);
        Ok(Attempt::WouldWait)
    }

    /// Reads into `sink` if that needs no waiting: exactly the span's bytes. What the sink was given
    /// is worth nothing unless the read was done. A layer that holds bytes in shared memory gives
    /// those, and does not copy them.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) or [`Unavailable`](crate::ErrorKind::Unavailable)
    /// when the right bytes cannot be had.
    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.try_read(span, sink.room(span.len() as usize))
    }

    /// Writes `data` if that needs no waiting. Never done for [`Durability::Durable`].
    ///
    /// # Errors
    /// [`Denied`](crate::ErrorKind::Denied) on a read-only device,
    /// [`NoSpace`](crate::ErrorKind::NoSpace) when it has no room,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the thing behind fails.
    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        let _ = (span, data);
        Ok(Attempt::WouldWait)
    }

    /// Reads `span` into `buf`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) or [`Unavailable`](crate::ErrorKind::Unavailable)
    /// when the right bytes cannot be had.
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()>;

    /// Writes `data` at `span`.
    ///
    /// # Errors
    /// [`Denied`](crate::ErrorKind::Denied) on a read-only device,
    /// [`NoSpace`](crate::ErrorKind::NoSpace) when it has no room,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the thing behind fails.
    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()>;

    /// Makes every write that was answered before this call durable.
    ///
    /// # Errors
    /// Any error from [`write`](Self::write). After a failed flush the fate of unflushed writes is unknown.
    async fn flush(&self) -> Result<()>;

    /// Says that the content of `span` is no longer needed. Each of its bytes then reads as before
    /// or as zero; room may be given back.
    ///
    /// # Errors
    /// [`Denied`](crate::ErrorKind::Denied) on a read-only device,
    /// [`NoSpace`](crate::ErrorKind::NoSpace) when it has no room,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the thing behind fails.
    async fn discard(&self, span: Span, durability: Durability) -> Result<()>;

    /// Makes `span` read as zeroes.
    ///
    /// # Errors
    /// Any error from [`write`](Self::write), and see [`ZeroMode::only_if_fast`].
    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()>;

    /// What `span` holds: extents in order, without gaps, from its start; they may end before its
    /// end when there are more than `limit`, or finding them was much work (at least one is returned
    /// for a span that is not empty). Two neighbours may be of the same kind.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) or [`Unavailable`](crate::ErrorKind::Unavailable)
    /// when the right bytes cannot be had.
    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>>;

    /// Says that `span` will be read soon. Returns when that was noted, not when it was fetched.
    ///
    /// # Errors
    /// None that matter: a failed prefetch is a slow read later.
    async fn prefetch(&self, span: Span) -> Result<()> {
        let _ = span;
        Ok(())
    }
}
