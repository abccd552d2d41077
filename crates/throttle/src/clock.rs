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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// Tells the time and waits for it.
#[async_trait]
pub trait ThrottleClock: Debug + Send + Sync {
    /// Nanoseconds since some moment.
    fn now(&self) -> Nanos;

    /// Returns at that moment, or at once when it has passed. It cannot fail: what is answered then has been done.
    async fn until(&self, at: Nanos);
}

/// How much sooner than wanted a timer is set, in nanoseconds: all but a few timers of a machine are no later than
/// this. What is left of a wait when one comes is spun.
#[derive(Debug, Default)]
struct TimerLead(AtomicU64);

impl TimerLead {
    /// The longest: what may be spun away of a wait.
    const LONGEST: Nanos = 100_000;
    /// 32 of 33 timers come in time when a late one counts as much as 32 of those.
    const LATE: Nanos = 3_200;
    const IN_TIME: Nanos = 100;

    fn get(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    /// A timer came so late.
    fn learn(&self, lateness: Nanos) {
        let lead = self.get();
        let better = match lateness > lead {
            true => (lead + Self::LATE).min(Self::LONGEST),
            false => lead.saturating_sub(Self::IN_TIME),
        };
        // Of two at the same time one may be lost.
        self.0.store(better, Ordering::Relaxed);
    }
}

/// The machine's clock, waited for by timers of the system, which are set a little too soon; the rest, 0.1 ms at most,
/// is spun while other tasks run.
#[derive(Debug)]
pub struct Precise {
    start: Instant,
    lead: TimerLead,
}

impl Precise {
    /// A clock that begins at 0 now.
    pub fn new() -> Self {
        Self { start: Instant::now(), lead: TimerLead::default() }
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

    async fn until(&self, at: Nanos) {
        let early = at.saturating_sub(self.lead.get());
        let wait = early.saturating_sub(self.now());
        if wait > 0 {
            match timer(wait).await {
                Ok(()) => self.lead.learn(self.now().saturating_sub(early)),
                // There are too many open files: less exact, and nothing is learned from it.
                Err(_) => {
                    let rest = early.saturating_sub(self.now());
                    tokio::time::sleep(Duration::from_nanos(rest)).await;
                }
            }
        }
        while self.now() < at {
            tokio::task::yield_now().await;
        }
    }
}

/// Waits for so many nanoseconds, and for as long as the system takes to wake this task.
async fn timer(wait: Nanos) -> Result<()> {
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
    let fd =
        Receiver::from_owned_fd_unchecked(fd).map_err(|e| Error::io("cannot watch a timer", e))?;
    fd.readable().await.map_err(|e| Error::io("cannot watch a timer", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_returns_never_before_its_time() {
        let clock = Precise::new();
        for wait in [0, 50_000, 400_000, 3_000_000] {
            let at = clock.now() + wait;
            clock.until(at).await;
            assert!(clock.now() >= at);
        }
        clock.until(0).await;
    }

    #[test]
    fn the_lead_is_what_all_but_a_few_timers_need_and_bounded() {
        let lead = TimerLead::default();
        let mut random = schedule::Random::new(1);
        // Between 40 and 60 us late, one of a hundred by 1 ms.
        for _ in 0..20_000 {
            let rare = random.below(100) == 0;
            lead.learn(if rare { 1_000_000 } else { 40_000 + random.below(20_000) });
        }
        let mut in_time = 0;
        for _ in 0..20_000 {
            let lateness = 40_000 + random.below(20_000);
            in_time += u32::from(lateness <= lead.get());
            lead.learn(lateness);
        }
        assert!((0.95..0.99).contains(&(f64::from(in_time) / 20_000.0)), "{in_time}");
        (0..1000).for_each(|_| lead.learn(Nanos::MAX));
        assert_eq!(lead.get(), TimerLead::LONGEST);
        (0..1000).for_each(|_| lead.learn(0));
        assert_eq!(lead.get(), 0);
    }
}
