//! Turns: uploads leave room for what somebody waits for.
//!
//! Requests and uploads share one connection, and over a thin link the way up is what an upload has filled before it: a
//! guest that reads while its disk is written back waited for 256 KiB of upload with each read. So while others are under
//! way, and a little longer, as the next one follows soon, uploads send one slice for each of them that
//! was answered: what lies before a request is a slice or two, and the quicker the link, the more goes up.

use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// How long after the answer to a request the next one is expected.
const PAUSE: Duration = Duration::from_millis(250);
/// However many requests there are, an upload sends a slice so often: at 100 Kb/s that is a third of the link.
const AT_LEAST: Duration = Duration::from_secs(4);
/// Slices that may be sent later, for requests that were answered while nobody had one to send.
const MOST_EARNED: u32 = 4;

/// Whose turn it is on one connection.
#[derive(Debug, Default)]
pub(super) struct UploadTurns(Mutex<TurnState>);

#[derive(Debug, Default)]
struct TurnState {
    /// Requests that were not answered yet, but for uploads.
    waiting: u32,
    /// When the last of them was answered.
    answered: Option<Instant>,
    /// Slices that may be sent although there are requests.
    earned: u32,
    /// Uploads that have something to send.
    held: Vec<Waker>,
}

/// A request that is waited for; until this is dropped.
pub(super) struct AwaitedAnswer(Arc<UploadTurns>);

impl UploadTurns {
    /// A request is sent that is no upload.
    pub(super) fn ask(self: &Arc<Self>) -> AwaitedAnswer {
        self.0.lock().waiting += 1;
        AwaitedAnswer(Arc::clone(self))
    }

    /// Whether an upload whose last slice went at `last` may send the next one; else when it may ask again, before which
    /// it is woken when a request was answered.
    pub(super) fn poll(&self, last: Instant, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.until(last).is_none() {
            return Poll::Ready(());
        }
        if state.earned > 0 {
            state.earned -= 1;
            return Poll::Ready(());
        }
        if !state.held.iter().any(|held| held.will_wake(context.waker())) {
            state.held.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Until when an upload whose last slice went at `last` is held at the most; `None` when it is not.
    pub(super) fn until(&self, last: Instant) -> Option<Instant> {
        self.0.lock().until(last)
    }
}

impl TurnState {
    fn until(&self, last: Instant) -> Option<Instant> {
        let quiet = match (self.waiting, self.answered) {
            (0, None) => return None,
            (0, Some(answered)) => answered + PAUSE,
            _ => last + AT_LEAST,
        };
        let until = quiet.min(last + AT_LEAST);
        (until > Instant::now()).then_some(until)
    }
}

impl Drop for AwaitedAnswer {
    fn drop(&mut self) {
        let held = {
            let mut state = self.0.0.lock();
            state.waiting -= 1;
            state.answered = Some(Instant::now());
            state.earned = (state.earned + 1).min(MOST_EARNED);
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::{advance, timeout};

    /// Sends slices, each when it is its turn; after how many seconds each went.
    async fn upload(turns: &UploadTurns, slices: usize) -> Vec<u64> {
        let (began, mut went) = (Instant::now(), Vec::new());
        let mut last = began;
        while went.len() < slices {
            let turn = poll_fn(|context| turns.poll(last, context));
            match turns.until(last) {
                Some(until) => {
                    let _ = tokio::time::timeout_at(until, turn).await;
                }
                None => turn.await,
            }
            last = Instant::now();
            went.push(began.elapsed().as_secs());
        }
        went
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_waits_for_nobody_when_nothing_is_asked_for() {
        let turns = Arc::new(UploadTurns::default());
        assert_eq!(upload(&turns, 3).await, [0, 0, 0]);
        drop(turns.ask());
        advance(PAUSE).await;
        assert_eq!(upload(&turns, 100).await, [0; 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_goes_on_however_long_a_request_takes() {
        let turns = Arc::new(UploadTurns::default());
        let _waiting = turns.ask();
        assert_eq!(upload(&turns, 4).await, [4, 8, 12, 16]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_that_is_answered_lets_one_slice_go() {
        let turns = Arc::new(UploadTurns::default());
        let mut waiting = turns.ask();
        let asks = async {
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let next = turns.ask();
                drop(std::mem::replace(&mut waiting, next));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            went = upload(&turns, 6) => assert_eq!(went, [1, 2, 3, 4, 5, 6]),
            () = asks => unreachable!("it does not end"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_earned_while_nothing_went_up_is_a_few_slices() {
        let turns = Arc::new(UploadTurns::default());
        let _waiting = turns.ask();
        (0..100).for_each(|_| drop(turns.ask()));
        let more = upload(&turns, MOST_EARNED as usize + 1).await;
        assert_eq!(more, [0, 0, 0, 0, 4]);
        let held = poll_fn(|context| turns.poll(Instant::now(), context));
        assert!(timeout(Duration::from_secs(1), held).await.is_err());
    }
}
