//! A clock that cannot be set and does not stand still: how old something is, also after the machine was
//! suspended.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;

/// Nanoseconds since some moment.
pub(crate) struct BootClock(Box<dyn Fn() -> u64 + Send + Sync>);

impl BootClock {
    /// Since the machine was started, the time for which it was suspended included.
    pub(crate) fn since_boot() -> Self {
        Self::new(|| {
            let now = clock_gettime(ClockId::Boottime);
            (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
        })
    }

    /// A clock that says what `now` returns.
    pub(crate) fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Box::new(now))
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BootClock")
    }
}
