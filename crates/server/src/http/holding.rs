//! A body that holds something, and lets go of it as it is sent.

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A body that holds something.
pub(super) struct HoldingBody<T> {
    body: Body,
    held: Option<T>,
    /// When it lets go.
    until: HoldingUntil,
}

/// When a body lets go of what it holds; when it is dropped in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldingUntil {
    /// Its first part is there.
    FirstPart,
    /// It was sent, or is not wanted any more.
    End,
}

impl<T: Unpin + Send + 'static> HoldingBody<T> {
    /// The same body, which holds something.
    pub(super) fn wrap(body: Body, held: T, until: HoldingUntil) -> Body {
        Body::new(Self { body, held: Some(held), until })
    }
}

impl<T: Unpin> hyper::body::Body for HoldingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if self.until == HoldingUntil::FirstPart {
            self.held = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
