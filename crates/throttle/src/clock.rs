//! Time for a throttle. The runtime's own timers tick in milliseconds, of which a hit in a disk's
//! cache is a quarter.

use async_trait::async_trait;
use block::{Error, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use schedule::Nanos;
use std::fmt::Debug;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// Tells the time and waits for it.
#[async_trait]
pub trait ThrottleClock: Debug + Send + Sync {
    /// Nanoseconds since some moment.
    fn now(&self) -> Nanos;

    /// Returns at that moment, or at once when it has passed.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the system gives no timer.
    async fn until(&self, at: Nanos) -> Result<()>;
}

/// The machine's clock, waited for by timers of the system: late by tens of microseconds on a machine
/// that is not busy.
#[derive(Debug)]
pub struct Precise {
    start: Instant,
}

impl Precise {
    /// A clock that begins at 0 now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for Precise {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl ThrottleClock for Precise {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }

    async fn until(&self, at: Nanos) -> Result<()> {
        let wait = at.saturating_sub(self.now());
        if wait == 0 {
            return Ok(());
        }
        let fault = |e: rustix::io::Errno| Error::io("cannot make a timer", e.into());
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(fault)?;
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (wait / 1_000_000_000) as i64,
                tv_nsec: (wait % 1_000_000_000) as _,
            },
        };
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &spec).map_err(fault)?;
        // To the runtime a timer looks like a pipe that can be read when it is time.
        let fd = Receiver::from_owned_fd_unchecked(fd)
            .map_err(|e| Error::io("cannot watch a timer", e))?;
        fd.readable().await.map_err(|e| Error::io("cannot watch a timer", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_returns_never_before_its_time() {
        let clock = Precise::new();
        for wait in [0, 50_000, 400_000, 3_000_000] {
            let at = clock.now() + wait;
            clock.until(at).await.unwrap();
            assert!(clock.now() >= at);
        }
        clock.until(0).await.unwrap();
    }
}
