//! A disk with one arm: what a store or an image lies on while storms are measured.
//!
//! A read costs a movement of the arm, unless it goes on where the last one ended, and its transfer;
//! reads are served one after the other. The arm's time is reckoned and not slept through: who wakes
//! late answers late, but the next read does not begin later for that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The disk.
#[derive(Debug)]
pub(crate) struct Arm {
    seek: Duration,
    /// Bytes in a second.
    rate: f64,
    state: Mutex<ArmState>,
}

/// What it did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub(crate) struct DiskWork {
    /// Reads.
    pub(crate) reads: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// How long it was busy, seconds.
    pub(crate) seconds: f64,
}

#[derive(Debug)]
struct ArmState {
    /// Takes no time while it is off: for what is prepared.
    on: bool,
    free: Instant,
    /// What was read last, and where that ended.
    last: Option<(String, u64)>,
    work: DiskWork,
}

impl Arm {
    /// A disk that is off.
    pub(crate) fn new(seek: Duration, rate: f64) -> Self {
        let state =
            ArmState { on: false, free: Instant::now(), last: None, work: DiskWork::default() };
        Self { seek, rate, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ArmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on reads take their time; what was done is counted anew.
    pub(crate) fn start(&self) {
        let mut state = self.state();
        (state.on, state.work, state.last) = (true, DiskWork::default(), None);
    }

    /// From now on reads take no time; what was done since [`start`](Self::start).
    pub(crate) fn stop(&self) -> DiskWork {
        let mut state = self.state();
        state.on = false;
        state.work
    }

    /// Returns when the arm has read so many bytes there.
    pub(crate) fn read(&self, file: &str, offset: u64, bytes: u64) {
        let wait = self.reckon(file, offset, bytes, Instant::now());
        std::thread::sleep(wait);
    }

    fn reckon(&self, file: &str, offset: u64, bytes: u64, now: Instant) -> Duration {
        let mut state = self.state();
        if !state.on {
            return Duration::ZERO;
        }
        let goes_on = state.last.as_ref().is_some_and(|(last, end)| last == file && *end == offset);
        let seek = if goes_on { Duration::ZERO } else { self.seek };
        let service = seek + Duration::from_secs_f64(bytes as f64 / self.rate);
        state.free = state.free.max(now) + service;
        state.last = Some((file.to_owned(), offset + bytes));
        state.work.reads += 1;
        state.work.bytes += bytes;
        state.work.seconds += service.as_secs_f64();
        state.free - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_for_each_other_and_only_those_elsewhere_move_the_arm() {
        let ms = Duration::from_millis;
        let arm = Arm::new(ms(6), 80e6);
        let now = Instant::now();
        assert_eq!(arm.reckon("a", 0, 800_000, now), Duration::ZERO, "it is off");
        arm.start();
        assert_eq!(arm.reckon("a", 0, 800_000, now), ms(16));
        assert_eq!(arm.reckon("a", 800_000, 800_000, now), ms(26), "it goes on");
        assert_eq!(arm.reckon("b", 1_600_000, 800_000, now), ms(42), "elsewhere");
        assert_eq!(arm.reckon("b", 0, 800_000, now + ms(100)), ms(16), "it was idle");
        let work = arm.stop();
        assert_eq!((work.reads, work.bytes), (4, 3_200_000));
        assert!((work.seconds - 0.058).abs() < 1e-9);
    }
}
