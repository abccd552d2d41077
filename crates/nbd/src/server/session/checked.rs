//! A request that was found to be right: what the engine does and what an observer is told.

use crate::codec::reply::Mark;
use crate::server::counters::latency::TimedOperation;
use block::{Action, Answered, Durability, Span, ZeroMode};

/// A request that was found to be right.
#[derive(Clone, Copy)]
pub(super) struct CheckedRequest {
    pub(super) mark: Mark,
    pub(super) span: Span,
    pub(super) durability: Durability,
    pub(super) kind: RequestKind,
}

impl CheckedRequest {
    /// What an observer is told of it; nothing that moves no data, and nothing about no byte.
    #[inline]
    pub(super) fn answered(&self, failed: bool) -> Option<Answered> {
        let action = match self.kind {
            RequestKind::Read => Action::Read,
            RequestKind::Write => Action::Write,
            RequestKind::Flush => Action::Flush,
            RequestKind::Trim => Action::Trim,
            RequestKind::Zero(_) => Action::Zero,
            RequestKind::Cache | RequestKind::Status { .. } => return None,
        };
        let durable = self.durability == Durability::Durable;
        Some(Answered { span: self.span, action, durable, failed })
    }

    /// Whether the device goes through its maps for it.
    #[inline]
    pub(super) fn is_survey(&self) -> bool {
        matches!(self.kind, RequestKind::Cache | RequestKind::Status { .. })
    }

    /// Whether it changes what later requests find, or makes that durable.
    #[inline]
    pub(super) fn changes(&self) -> bool {
        !matches!(self.kind, RequestKind::Read | RequestKind::Cache | RequestKind::Status { .. })
    }

    /// Whether it is about no byte: the device is not bothered then.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        self.span.is_empty() && !matches!(self.kind, RequestKind::Flush)
    }
}

#[derive(Clone, Copy)]
pub(super) enum RequestKind {
    Read,
    Write,
    Flush,
    Trim,
    Cache,
    Zero(ZeroMode),
    Status { one: bool },
}

impl RequestKind {
    /// Under what it is timed, if it is.
    #[inline]
    pub(super) fn operation(self) -> Option<TimedOperation> {
        match self {
            Self::Read => Some(TimedOperation::Read),
            Self::Write => Some(TimedOperation::Write),
            Self::Flush => Some(TimedOperation::Flush),
            Self::Trim => Some(TimedOperation::Trim),
            Self::Zero(_) => Some(TimedOperation::Zero),
            Self::Cache | Self::Status { .. } => None,
        }
    }
}
