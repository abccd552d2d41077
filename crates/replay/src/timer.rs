//! Waking tasks at exact times. The runtime's own timers tick in milliseconds; a request that is
//! due must not be late by that. Where so many are due that a wake-up for each would be the most of
//! the work, what is due within a tenth of a millisecond is woken together.

use block::{Error, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// The system's timer goes off again at the earliest after this time.
const TICK: Duration = Duration::from_micros(100);

/// Wakes sleepers, each known by a number, at the time that each last asked for.
pub(crate) struct Timer {
    /// The system's timer. To the runtime it looks like a pipe that can be read when it is time.
    fd: Receiver,
    state: Mutex<TimerState>,
}

struct TimerState {
    /// Times at which sleepers asked to be woken; those that changed their minds are still in.
    heap: BinaryHeap<Reverse<(Instant, usize)>>,
    sleepers: Vec<Option<(Instant, Waker)>>,
    /// What the descriptor is set to.
    set: Option<Instant>,
    /// When it may go off next.
    next: Instant,
}

impl Timer {
    /// A timer for this many sleepers.
    ///
    /// # Errors
    /// When the system gives no timer.
    pub(crate) fn new(sleepers: usize) -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| Error::io("cannot make a timer", e.into()))?;
        let fd = Receiver::from_owned_fd_unchecked(fd)
            .map_err(|e| Error::io("cannot watch a timer", e))?;
        let sleepers = (0..sleepers).map(|_| None).collect();
        let state = Mutex::new(TimerState {
            heap: BinaryHeap::new(),
            sleepers,
            set: None,
            next: Instant::now(),
        });
        Ok(Self { fd, state })
    }

    fn lock(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes `waker` at `at`, instead of whatever this sleeper asked for before.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub(crate) fn wake_at(&self, sleeper: usize, at: Instant, waker: &Waker) -> Result<()> {
        let mut state = self.lock();
        match &mut state.sleepers[sleeper] {
            Some((asked, known)) if *asked == at => {
                known.clone_from(waker);
                return Ok(());
            }
            slot => *slot = Some((at, waker.clone())),
        }
        state.heap.push(Reverse((at, sleeper)));
        let at = at.max(state.next);
        if state.set.is_none_or(|set| at < set) { self.set(&mut state, at) } else { Ok(()) }
    }

    /// Wakes all that sleep, now.
    pub(crate) fn wake_all(&self) {
        let mut state = self.lock();
        state.heap.clear();
        for (_, waker) in state.sleepers.iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }

    fn set(&self, state: &mut TimerState, at: Instant) -> Result<()> {
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec)
            .map_err(|e| Error::io("cannot set a timer", e.into()))?;
        state.set = Some(at);
        Ok(())
    }

    /// Wakes sleepers, for as long as it is polled.
    ///
    /// # Errors
    /// When the timer fails.
    pub(crate) async fn drive(&self) -> Result<()> {
        loop {
            self.fd.readable().await.map_err(|e| Error::io("cannot watch a timer", e))?;
            // Setting it again makes it unreadable; only the runtime has to be told.
            let nothing = || Err::<(), _>(std::io::ErrorKind::WouldBlock.into());
            let _ = self.fd.try_io(nothing);
            let mut state = self.lock();
            let now = Instant::now();
            state.next = now + TICK;
            state.set = None;
            while let Some(Reverse((at, sleeper))) = state.heap.peek().copied() {
                let asked = state.sleepers[sleeper].as_ref().map(|(asked, _)| *asked);
                if at > now && asked == Some(at) {
                    let at = at.max(state.next);
                    self.set(&mut state, at)?;
                    break;
                }
                state.heap.pop();
                if asked == Some(at)
                    && let Some((_, waker)) = state.sleepers[sleeper].take()
                {
                    waker.wake();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{poll_fn, select};
    use std::pin::pin;
    use std::task::Poll;

    async fn sleep(timer: &Timer, sleeper: usize, at: Instant) -> Instant {
        poll_fn(|context| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            timer.wake_at(sleeper, at, context.waker()).unwrap();
            Poll::Pending
        })
        .await;
        Instant::now()
    }

    #[tokio::test]
    async fn every_sleeper_wakes_and_none_early() {
        let timer = Timer::new(3).unwrap();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_micros(ms * 1000);
        let work = async {
            futures::join!(
                sleep(&timer, 0, at(30)),
                sleep(&timer, 1, at(10)),
                sleep(&timer, 2, at(20))
            )
        };
        let (a, b, c) = match select(pin!(work), pin!(timer.drive())).await {
            futures::future::Either::Left((times, _)) => times,
            futures::future::Either::Right(_) => panic!("the timer ended"),
        };
        assert!(b >= at(10) && c >= at(20) && a >= at(30));
    }

    #[tokio::test]
    async fn all_can_be_woken_before_their_time() {
        let timer = Timer::new(1).unwrap();
        let mut polls = 0;
        let sleeper = poll_fn(|context| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(());
            }
            let far = Instant::now() + Duration::from_secs(3600);
            timer.wake_at(0, far, context.waker()).unwrap();
            Poll::Pending
        });
        let waker = async {
            tokio::task::yield_now().await;
            timer.wake_all();
        };
        futures::join!(sleeper, waker);
    }
}
