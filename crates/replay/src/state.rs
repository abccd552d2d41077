//! What the connections of a replay share: the plan, the clock, buffers and counters.

use crate::plan::ReplayPlan;
use crate::report::{Progress, ReplayCounters};
use crate::script::Script;
use crate::timer::Timer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::time::Instant;

/// Length of a buffer for replies, in bytes.
const BUFFER: usize = 256 << 10;

/// Where to look while it runs.
#[derive(Clone, Debug, Default)]
pub struct Hub(Arc<Mutex<ReplayCounters>>);

impl Hub {
    /// How far the replay is.
    pub fn progress(&self) -> Progress {
        self.lock().progress()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ReplayCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all connections share.
pub(crate) struct ReplayState {
    pub(crate) plan: ReplayPlan,
    pub(crate) script: Arc<Script>,
    pub(crate) timer: Timer,
    pub(crate) stopping: AtomicBool,
    /// Clients that had not done everything at the end.
    pub(crate) left: AtomicU64,
    hub: Hub,
    start: OnceLock<Instant>,
    /// Buffers for replies: as many as are needed at a time, not one for each connection.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl ReplayState {
    pub(crate) fn new(script: Arc<Script>, plan: ReplayPlan, timer: Timer, hub: Hub) -> Self {
        Self {
            plan,
            script,
            timer,
            stopping: AtomicBool::new(false),
            left: AtomicU64::new(0),
            hub,
            start: OnceLock::new(),
            buffers: Mutex::new(Vec::new()),
        }
    }

    /// When it began; before that, the moment at which it is asked for the first time.
    pub(crate) fn start(&self) -> Instant {
        *self.start.get_or_init(Instant::now)
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, ReplayCounters> {
        self.hub.lock()
    }

    /// Whether an answer at `now` is counted.
    pub(crate) fn in_window(&self, now: u64) -> bool {
        u128::from(now) >= self.plan.warm_up.as_nanos()
            && self.plan.until.is_none_or(|until| u128::from(now) <= until.as_nanos())
    }

    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        let kept = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| vec![0; BUFFER])
    }

    pub(crate) fn give_buffer(&self, buffer: Vec<u8>) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Has all connections send nothing more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.timer.wake_all();
    }
}
