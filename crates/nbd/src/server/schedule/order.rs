//! Who goes first on a thread.
//!
//! The runtime polls the connections of a thread in the order in which they were woken, but for the
//! last one, which it polls next. One with many requests in flight takes long, and with some of them a
//! client that asks for little waits for a round of all, or for one that is woken again and again. So
//! a connection that had much to do steps aside, to the end of the queue, while one with little to do
//! waits on its thread. It does so at most [`STEPS`] times before it works.
//!
//! Threads share no more than the count of a connection that another one took. All of it decides who
//! goes first and nothing else: nothing waits for a count, and a wake is passed on whatever they say, so
//! that no order between the atomics is needed.
//!
//! The counts are the server's ([`LightCounts`]). Which of them is a thread's stays a thread-local, numbered
//! by a counter of the process: whoever wakes a connection must find it without a lock or a look-up, and a
//! thread serves whichever servers there are.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

/// How often a connection steps aside before it works. Each time the others of its thread have a turn,
/// those with little to do [`LIGHT`] units in it: so while one with much to do waits, each of them does
/// some 16 x 8 = 128 units of work, no more than that one may do in its own turn (`WORK` of a
/// connection), and nobody's share is taken.
const STEPS: u32 = 16;
/// Who usually has no more to do each time that it is woken, in units of work, goes first.
const LIGHT: u64 = 8;

thread_local! {
    /// The slot where those are counted that are woken on this thread, or [`QUEUED`] for nowhere while it has
    /// polled nobody, as with the threads that wait for disks.
    static SLOT: Cell<usize> = const { Cell::new(QUEUED) };
}

/// The slot of this thread, which polls connections.
fn own_slot() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    SLOT.with(|slot| {
        if slot.get() == QUEUED {
            slot.set(THREADS.fetch_add(1, Relaxed) % SLOTS);
        }
        slot.get()
    })
}

/// Connections with little to do that were woken on one thread and have not been polled yet; on several
/// when there were more threads than slots, and then some step aside in vain. Below zero for a moment
/// when one is polled before the thread that woke it has counted it. A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct WokenCount(AtomicIsize);

/// In tests every thread has its own.
const SLOTS: usize = if cfg!(test) { 4096 } else { 64 };

/// The counts of one server, a slot for each thread. Clones are the same ones.
#[derive(Debug, Clone)]
pub(in crate::server) struct LightCounts(Arc<[WokenCount]>);

impl Default for LightCounts {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| WokenCount::default()).collect())
    }
}

impl LightCounts {
    /// Counts so many more where `state` is a slot.
    fn count(&self, state: usize, more: isize) {
        if let Some(waiting) = self.0.get(state) {
            waiting.0.fetch_add(more, Relaxed);
        }
    }

    /// How many are counted in the slot.
    fn waiting(&self, slot: usize) -> isize {
        self.0.get(slot).map_or(0, |waiting| waiting.0.load(Relaxed))
    }
}

/// Where a connection is, while it is not counted in a slot.
const IDLE: usize = usize::MAX;
const QUEUED: usize = usize::MAX - 1;
const CLOSED: usize = usize::MAX - 2;

/// Wakes a connection's task, and counts it until it is polled if it has little to do.
struct ConnectionWaker {
    task: Waker,
    counts: LightCounts,
    /// Idle; woken and not polled since, counted in a slot or not; or out of use.
    state: AtomicUsize,
    /// It has little to do.
    light: AtomicBool,
}

impl ConnectionWaker {
    fn new(task: Waker, counts: LightCounts, light: bool) -> Self {
        Self { task, counts, state: AtomicUsize::new(IDLE), light: AtomicBool::new(light) }
    }

    /// Its task is polled; whether it was woken by this.
    fn polled(&self) -> bool {
        self.change(IDLE) != IDLE
    }

    /// Sets a state that is counted nowhere; gives the one before.
    fn change(&self, state: usize) -> usize {
        let before = self.state.swap(state, Relaxed);
        self.counts.count(before, -1);
        before
    }

    /// Its task is woken. Who is queued already stays where it is counted, and who is closed closed.
    fn woken(&self) {
        let light = self.light.load(Relaxed);
        let state = if light { SLOT.get() } else { QUEUED };
        if self.state.compare_exchange(IDLE, state, Relaxed, Relaxed).is_ok() {
            self.counts.count(state, 1);
        }
    }
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken();
        self.task.wake_by_ref();
    }
}

/// One connection's part in the order.
pub(in crate::server) struct TurnOrder {
    counts: LightCounts,
    place: Option<(Arc<ConnectionWaker>, Waker)>,
    /// What it had to do each time of late, in sixteenths of a unit.
    usual: u64,
    steps: u32,
}

impl TurnOrder {
    /// The part of a new connection of the server with these counts; it counts as one with little to do.
    pub(in crate::server) fn new(counts: &LightCounts) -> Self {
        Self { counts: counts.clone(), place: None, usual: 0, steps: 0 }
    }

    /// What wakes the connection.
    pub(in crate::server) fn waker(&mut self, cx: &Context<'_>) -> Waker {
        if let Some((place, waker)) = &self.place
            && place.task.will_wake(cx.waker())
        {
            return waker.clone();
        }
        self.leave();
        let place = Arc::new(ConnectionWaker::new(
            cx.waker().clone(),
            self.counts.clone(),
            self.is_light(),
        ));
        let waker = Waker::from(Arc::clone(&place));
        self.place = Some((place, waker.clone()));
        waker
    }

    /// The connection is polled; true when it goes to the end of the queue instead: it was woken
    /// again.
    pub(in crate::server) fn steps_aside(&mut self) -> bool {
        let Some((place, waker)) = &self.place else { return false };
        let woken = place.polled();
        let waits = self.counts.waiting(own_slot()) > 0;
        if !woken || self.is_light() || self.steps == STEPS || !waits {
            self.steps = 0;
            return false;
        }
        self.steps += 1;
        waker.wake_by_ref();
        true
    }

    /// Nothing is polled by the connection's place any more: who still wakes it is not counted.
    fn leave(&mut self) {
        if let Some((place, _)) = self.place.take() {
            place.change(CLOSED);
        }
    }

    /// The connection did so much work since it was woken.
    pub(in crate::server) fn worked(&mut self, units: u64) {
        if units > 0 {
            self.usual = (3 * self.usual + 16 * units) / 4;
            if let Some((place, _)) = &self.place {
                place.light.store(self.is_light(), Relaxed);
            }
        }
    }

    fn is_light(&self) -> bool {
        self.usual <= 16 * LIGHT
    }
}

impl Drop for TurnOrder {
    fn drop(&mut self) {
        self.leave();
    }
}
