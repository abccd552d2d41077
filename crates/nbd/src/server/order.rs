//! Who has been at work on a thread, and who goes first there.
//!
//! The runtime polls the connections of a thread in the order in which they were woken. One with many
//! requests in flight takes long, and with some of them a client that asks for little waits for a
//! round of all. So a connection that had much to do steps aside, to the end of the queue, when one
//! with little to do was woken behind it. It does so at most [`STEPS`] times before it works.
//!
//! Nothing is shared between threads: a connection that another thread takes keeps its place there.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

/// How often a connection steps aside before it works.
const STEPS: u32 = 2;
/// Who has less to do each time that it is woken, in units of work, goes first.
const LIGHT: u64 = 8;
/// Turns in a row until a connection counts as alone on its thread.
const ALONE: u32 = 16;

/// What happened on this thread.
struct Here {
    /// Its number; 0 has none yet.
    thread: Cell<u64>,
    /// How many times a connection with little to do was woken.
    light: Cell<u64>,
    /// Who received last, and how many times in a row.
    last: Cell<u64>,
    row: Cell<u32>,
}

thread_local! {
    static HERE: Here = const {
        Here { thread: Cell::new(0), light: Cell::new(0), last: Cell::new(0), row: Cell::new(0) }
    };
}

impl Here {
    fn thread(&self) -> u64 {
        static THREADS: AtomicU64 = AtomicU64::new(1);
        if self.thread.get() == 0 {
            self.thread.set(THREADS.fetch_add(1, Relaxed));
        }
        self.thread.get()
    }
}

/// Wakes a connection's task, and notes its place in the queue.
struct Place {
    task: Waker,
    queued: AtomicBool,
    /// On which thread it was woken, and how many with little to do were woken there before.
    thread: AtomicU64,
    light_before: AtomicU64,
    /// It has little to do itself.
    light: AtomicBool,
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Relaxed) {
            HERE.with(|here| {
                self.thread.store(here.thread(), Relaxed);
                self.light_before.store(here.light.get(), Relaxed);
                if self.light.load(Relaxed) {
                    here.light.set(here.light.get() + 1);
                }
            });
        }
        self.task.wake_by_ref();
    }
}

/// One connection's part in the order.
pub(super) struct Order {
    /// Tells those that are there apart.
    number: u64,
    place: Option<(Arc<Place>, Waker)>,
    /// What it had to do each time of late, in sixteenths of a unit.
    usual: u64,
    steps: u32,
}

impl Order {
    /// That of a new connection, which counts as one with little to do.
    pub(super) fn new() -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        Self { number: CONNECTIONS.fetch_add(1, Relaxed), place: None, usual: 0, steps: 0 }
    }

    /// What wakes the connection.
    pub(super) fn waker(&mut self, cx: &Context<'_>) -> Waker {
        if let Some((place, waker)) = &self.place
            && place.task.will_wake(cx.waker())
        {
            return waker.clone();
        }
        let place = Arc::new(Place {
            task: cx.waker().clone(),
            queued: AtomicBool::new(false),
            thread: AtomicU64::new(0),
            light_before: AtomicU64::new(0),
            light: AtomicBool::new(self.is_light()),
        });
        let waker = Waker::from(Arc::clone(&place));
        self.place = Some((place, waker.clone()));
        waker
    }

    /// The connection is polled; true when it goes to the end of the queue instead: it was woken
    /// again.
    pub(super) fn steps_aside(&mut self) -> bool {
        let Some((place, waker)) = &self.place else { return false };
        let queued = place.queued.swap(false, Relaxed);
        if !queued || self.is_light() || self.steps == STEPS {
            self.steps = 0;
            return false;
        }
        let (thread, before) = (place.thread.load(Relaxed), place.light_before.load(Relaxed));
        let behind = HERE.with(|here| here.thread() == thread && here.light.get() != before);
        if !behind {
            self.steps = 0;
            return false;
        }
        self.steps += 1;
        waker.wake_by_ref();
        true
    }

    /// The connection did so much work since it was woken.
    pub(super) fn worked(&mut self, units: u64) {
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

    /// The connection received something.
    pub(super) fn received(&self) {
        HERE.with(|here| {
            let again = here.last.replace(self.number) == self.number;
            let row = if again { here.row.get() } else { 0 };
            here.row.set(row.saturating_add(1));
        });
    }

    /// Whether it was the only one on this thread that received anything of late.
    pub(super) fn is_alone(&self) -> bool {
        HERE.with(|here| here.last.get() == self.number && here.row.get() >= ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    type Queue = Arc<Mutex<VecDeque<usize>>>;

    /// What a runtime has of a task.
    struct Task(usize, Queue);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            let mut queue = self.1.lock().unwrap();
            if !queue.contains(&self.0) {
                queue.push_back(self.0);
            }
        }
    }

    /// A connection, and what its task is woken by.
    struct Member {
        order: Order,
        task: Waker,
    }

    impl Member {
        fn new(number: usize, usual: u64, queue: &Queue) -> Self {
            let task = Waker::from(Arc::new(Task(number, Arc::clone(queue))));
            let mut member = Self { order: Order::new(), task };
            member.waker();
            (0..20).for_each(|_| member.order.worked(usual));
            member
        }

        fn waker(&mut self) -> Waker {
            self.order.waker(&Context::from_waker(&self.task))
        }

        fn wake(&mut self) {
            self.waker().wake();
        }
    }

    /// The order in which those that were woken work; each has this much to do.
    fn works(usual: &[u64], woken: &[usize]) -> Vec<usize> {
        let queue = Queue::default();
        let mut members: Vec<_> =
            usual.iter().enumerate().map(|(i, usual)| Member::new(i, *usual, &queue)).collect();
        woken.iter().for_each(|i| members[*i].wake());
        let mut worked = Vec::new();
        loop {
            let Some(next) = queue.lock().unwrap().pop_front() else { return worked };
            if !members[next].order.steps_aside() {
                worked.push(next);
            }
        }
    }

    const HEAVY: u64 = 32;

    #[test]
    fn who_has_much_to_do_lets_those_first_who_have_little() {
        assert_eq!(works(&[HEAVY, HEAVY, 2], &[0, 1, 2]), [2, 0, 1]);
        assert_eq!(works(&[HEAVY, 2, HEAVY], &[0, 1, 2]), [1, 2, 0]);
        assert_eq!(works(&[2, HEAVY, HEAVY], &[0, 1, 2]), [0, 1, 2], "nobody is behind them");
        assert_eq!(works(&[HEAVY; 3], &[0, 1, 2]), [0, 1, 2]);
        assert_eq!(works(&[2; 3], &[0, 1, 2]), [0, 1, 2]);
    }

    #[test]
    fn a_single_small_batch_does_not_make_a_connection_light() {
        let mut order = Order::new();
        assert!(order.is_light(), "a new one");
        (0..4).for_each(|_| order.worked(HEAVY));
        assert!(!order.is_light());
        order.worked(2);
        assert!(!order.is_light());
        order.worked(0); // it was polled, and nothing was there
        (0..12).for_each(|_| order.worked(2));
        assert!(order.is_light());
    }

    #[test]
    fn who_receives_alone_is_alone_until_another_one_does() {
        let queue = Queue::default();
        let (one, two) = (Member::new(0, 2, &queue), Member::new(1, 2, &queue));
        for _ in 0..2 {
            (1..ALONE).for_each(|_| one.order.received());
            assert!(!one.order.is_alone());
            one.order.received();
            assert!(one.order.is_alone());
            two.order.received();
            assert!(!one.order.is_alone() && !two.order.is_alone());
        }
    }

    proptest! {
        #[test]
        fn nobody_steps_aside_for_ever_nor_works_before_a_light_one_that_was_woken_behind_it(
            heavy in prop::collection::vec(any::<bool>(), 1..8),
            steps in prop::collection::vec(any::<prop::sample::Index>(), 1..300),
        ) {
            let queue = Queue::default();
            let mut members: Vec<_> = heavy
                .iter()
                .enumerate()
                .map(|(i, heavy)| Member::new(i, if *heavy { HEAVY } else { 2 }, &queue))
                .collect();
            let mut aside = vec![0; heavy.len()];
            for step in steps {
                // Twice as many are woken as work.
                let woken = step.index(3 * heavy.len() / 2 + 1);
                if let Some(member) = members.get_mut(woken) {
                    member.wake();
                    continue;
                }
                let Some(next) = queue.lock().unwrap().pop_front() else { continue };
                if members[next].order.steps_aside() {
                    prop_assert!(heavy[next]);
                    let last = queue.lock().unwrap().back().copied();
                    prop_assert_eq!(last, Some(next));
                    aside[next] += 1;
                    prop_assert!(aside[next] <= STEPS);
                    continue;
                }
                if heavy[next] && aside[next] < STEPS {
                    // All that wait were woken behind it.
                    prop_assert!(queue.lock().unwrap().iter().all(|waits| heavy[*waits]));
                }
                aside[next] = 0;
            }
        }
    }
}
