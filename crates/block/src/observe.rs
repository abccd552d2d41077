//! Being told of the requests to a device after they were answered: for traces and the like.

use crate::Span;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::Instant;

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`read`](crate::Device::read).
    Read,
    /// [`write`](crate::Device::write).
    Write,
    /// [`flush`](crate::Device::flush).
    Flush,
    /// [`discard`](crate::Device::discard).
    Trim,
    /// [`zero`](crate::Device::zero).
    Zero,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Where; without bytes for a flush.
    pub span: Span,
    /// What was asked for.
    pub action: Action,
    /// Whether the answer says that it is durable.
    pub durable: bool,
    /// Whether the answer was an error.
    pub failed: bool,
}

/// Who is told. Called on the fast path, in the middle of serving: it must not wait.
pub trait Observer: Debug + Send + Sync {
    /// Requests were taken up at `began`, and their answers were there `took` later. Those of one
    /// batch share their times.
    fn answered(&self, began: Instant, took: Duration, requests: &[Answered]);
}
