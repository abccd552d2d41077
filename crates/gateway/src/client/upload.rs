//! The body of a request on its way to the server, and for how long it may stand still.

use super::upload_turns::UploadTurns;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use objects::SLOWEST_LINK;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a request may stand still: nothing of it is taken, or after its end the headers of the answer do not come.
const ANSWER: Duration = Duration::from_secs(60);
/// What the network takes at once, so that it shows how it goes on: a frame of HTTP/2.
const SLICE: usize = 16 << 10;
/// What may be on its way still when the last slice was taken, with other uploads beside it.
const UNDER_WAY: usize = 256 << 10;

/// How far the body of a request is.
pub(super) struct SendProgress {
    /// How long it may stand still, with what is on its way.
    patience: Duration,
    moved: Mutex<Instant>,
}

impl SendProgress {
    /// When it has stood still for too long.
    fn deadline(&self) -> Instant {
        *self.moved.lock() + self.patience
    }
}

/// A body in memory, handed out in slices, each when it is its turn.
pub(super) struct SentBody {
    rest: Bytes,
    progress: Arc<SendProgress>,
    /// Whose turn it is; none for a body of one slice, and for what is waited for itself.
    turns: Option<Arc<UploadTurns>>,
    /// Until when it is held, at the most.
    held: Option<Pin<Box<Sleep>>>,
}

impl SentBody {
    /// The same bytes, and how far they are; with turns, they leave room for requests.
    pub(super) async fn of(
        body: Full<Bytes>,
        turns: Option<&Arc<UploadTurns>>,
    ) -> (Self, Arc<SendProgress>) {
        let Ok(collected) = body.collect().await;
        let rest = collected.to_bytes();
        let on_its_way = Duration::from_secs(rest.len().min(UNDER_WAY) as u64 / SLOWEST_LINK);
        let (patience, moved) = (ANSWER + on_its_way, Mutex::new(Instant::now()));
        let progress = Arc::new(SendProgress { patience, moved });
        let turns = turns.filter(|_| rest.len() > SLICE).cloned();
        (Self { rest, progress: Arc::clone(&progress), turns, held: None }, progress)
    }

    /// Waits for the turn of a slice.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(turns) = &self.turns else { return Poll::Ready(()) };
        let last = *self.progress.moved.lock();
        while turns.poll(last, context).is_pending() {
            let Some(until) = turns.until(last) else { continue };
            let held = self.held.get_or_insert_with(|| Box::pin(sleep_until(until)));
            held.as_mut().reset(until);
            ready!(held.as_mut().poll(context));
        }
        Poll::Ready(())
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        ready!(self.poll_turn(context));
        *self.progress.moved.lock() = Instant::now();
        let len = self.rest.len().min(SLICE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// What comes of `answer`; `None` when the request stood still for too long.
pub(super) async fn in_time<T>(
    progress: &SendProgress,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let deadline = progress.deadline();
        tokio::select! {
            answered = &mut answer => return Some(answered),
            () = tokio::time::sleep_until(deadline) => {
                if progress.deadline() <= Instant::now() {
                    return None;
                }
            }
        }
    }
}
