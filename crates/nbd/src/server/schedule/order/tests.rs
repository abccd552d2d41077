//! Connections that are woken and polled by hand, as the runtime does it.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::VecDeque;
use std::sync::Mutex;

const HEAVY: u64 = 32;
const FEW: u64 = 2;

/// The tasks of a thread that are to be polled, as the runtime has them.
#[derive(Default)]
struct Ready {
    queue: VecDeque<usize>,
    /// The one that was woken last, which is polled next.
    last: Option<usize>,
    /// The one that is polled; it goes to the end of the queue when it is woken meanwhile.
    polled: Option<usize>,
}

impl Ready {
    fn wake(&mut self, task: usize) {
        if self.last == Some(task) || self.queue.contains(&task) {
            return;
        }
        if self.polled == Some(task) {
            self.queue.push_back(task);
        } else {
            self.queue.extend(self.last.replace(task));
        }
    }

    /// Begins to poll the next one: the last woken, or always the first in the queue.
    fn begin(&mut self, last_first: bool) -> Option<usize> {
        if !last_first {
            self.queue.extend(self.last.take());
        }
        self.polled = self.last.take().or_else(|| self.queue.pop_front());
        self.polled
    }
}

struct Task(usize, Arc<Mutex<Ready>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().wake(self.0);
    }
}

/// A connection, and what its task is woken by.
struct Member {
    order: TurnOrder,
    task: Waker,
}

impl Member {
    fn waker(&mut self) -> Waker {
        self.order.waker(&Context::from_waker(&self.task))
    }

    fn work(&mut self, units: u64) {
        (0..20).for_each(|_| self.order.worked(units));
    }
}

/// A thread with its connections.
struct Thread {
    counts: LightCounts,
    ready: Arc<Mutex<Ready>>,
    members: Vec<Member>,
}

impl Thread {
    /// Each connection usually has so much to do.
    fn new(usual: &[u64]) -> Self {
        own_slot(); // as after the first poll of all
        let counts = LightCounts::default();
        let mut thread = Self { counts, ready: Arc::default(), members: Vec::new() };
        for (number, units) in usual.iter().enumerate() {
            let mut member = thread.member(number);
            member.waker();
            member.work(*units);
            thread.members.push(member);
        }
        thread
    }

    fn member(&self, number: usize) -> Member {
        Member { order: TurnOrder::new(&self.counts), task: self.task(number) }
    }

    fn task(&self, number: usize) -> Waker {
        // A clone is known again by its clones, as a task's waker is.
        Waker::from(Arc::new(Task(number, Arc::clone(&self.ready)))).clone()
    }

    fn wake(&mut self, numbers: &[usize]) {
        numbers.iter().for_each(|number| self.members[*number].waker().wake());
    }

    /// Polls the next one, while `works` says what it does if it does not step aside; gives who it was,
    /// and whether it did.
    fn poll(&mut self, last_first: bool, works: impl FnOnce(&mut Member)) -> Option<(usize, bool)> {
        let number = self.ready.lock().unwrap().begin(last_first)?;
        let member = &mut self.members[number];
        member.waker();
        let aside = member.order.steps_aside();
        if !aside {
            works(member);
        }
        self.ready.lock().unwrap().polled = None;
        Some((number, aside))
    }

    /// How many with little to do wait on this thread.
    fn counted(&self) -> isize {
        self.counts.waiting(own_slot())
    }

    /// Polls the next one as the runtime does.
    fn poll_next(&mut self) -> Option<(usize, bool)> {
        self.poll(true, |_| {})
    }

    /// Polls until there is nothing to do; gives who worked.
    fn work(&mut self) -> Vec<usize> {
        let polls = std::iter::from_fn(|| self.poll_next());
        polls.filter(|(_, aside)| !aside).map(|(number, _)| number).collect()
    }
}

#[test]
fn who_has_much_to_do_lets_those_first_who_have_little() {
    let works = |usual: &[u64]| {
        let mut thread = Thread::new(usual);
        thread.wake(&[0, 1, 2]);
        thread.work()
    };
    // The last one is polled first.
    assert_eq!(works(&[HEAVY, HEAVY, FEW]), [2, 0, 1]);
    assert_eq!(works(&[HEAVY, FEW, HEAVY]), [1, 2, 0]);
    assert_eq!(works(&[FEW, HEAVY, HEAVY]), [0, 1, 2]);
    assert_eq!(works(&[FEW, HEAVY, FEW]), [2, 0, 1]);
    assert_eq!(works(&[HEAVY; 3]), [2, 0, 1], "nobody has little to do");
    assert_eq!(works(&[FEW; 3]), [2, 0, 1]);
}

#[test]
fn one_that_is_polled_first_because_it_was_woken_last_steps_aside() {
    let mut thread = Thread::new(&[FEW, HEAVY]);
    for _ in 0..3 {
        thread.wake(&[0, 1, 0]);
        assert_eq!(thread.counted(), 1, "it is counted once");
        assert_eq!(thread.poll_next(), Some((1, true)));
        assert_eq!(thread.poll_next(), Some((0, false)));
        assert_eq!(thread.counted(), 0);
        assert_eq!(thread.poll_next(), Some((1, false)), "nobody waits any more");
        assert_eq!(thread.poll_next(), None);
    }
}

#[test]
fn who_steps_aside_works_after_some_times_whoever_waits() {
    let mut thread = Thread::new(&[FEW, HEAVY]);
    thread.wake(&[0]);
    for _ in 0..3 {
        // The other one is never polled.
        *thread.ready.lock().unwrap() = Ready::default();
        thread.wake(&[1]);
        for _ in 0..STEPS {
            assert_eq!(thread.poll_next(), Some((1, true)));
        }
        assert_eq!(thread.poll_next(), Some((1, false)));
        assert_eq!(thread.poll_next(), None);
    }
    assert_eq!(thread.counted(), 1);
}

#[test]
fn nobody_waits_for_one_that_ended_or_that_another_task_has() {
    let mut thread = Thread::new(&[FEW, HEAVY]);
    thread.wake(&[0, 1]);
    let old = thread.members[0].waker();
    thread.members[0].task = thread.task(0);
    thread.members[0].waker();
    assert_eq!(thread.counted(), 0, "its new task was not woken");
    old.wake();
    assert_eq!(thread.counted(), 0, "nor is it by what woke the old one");
    assert_eq!(thread.poll_next(), Some((1, false)));

    thread.wake(&[0, 1]);
    assert_eq!(thread.counted(), 1);
    let old = thread.members[0].waker();
    thread.members[0] = thread.member(0); // the other one ends
    assert_eq!(thread.counted(), 0);
    old.wake();
    assert_eq!(thread.counted(), 0, "a wake after the end");
    assert_eq!(thread.poll_next(), Some((1, false)));
}

#[test]
fn a_wake_is_passed_on_wherever_the_connection_is_counted() {
    let mut thread = Thread::new(&[FEW]);
    let old = thread.members[0].waker();
    let woken = |thread: &Thread| thread.ready.lock().unwrap().last.take();
    for _ in 0..2 {
        old.wake_by_ref();
        assert_eq!(woken(&thread), Some(0), "though it was queued before");
    }
    thread.members.clear();
    old.wake();
    assert_eq!(woken(&thread), Some(0), "though it ended");
}

#[test]
fn who_was_woken_on_another_thread_is_not_waited_for_here() {
    let mut thread = Thread::new(&[FEW, HEAVY]);
    let waker = thread.members[0].waker();
    let elsewhere = std::thread::scope(|scope| {
        let polls_too = || {
            let slot = own_slot();
            waker.wake_by_ref();
            (slot, thread.counts.waiting(slot))
        };
        scope.spawn(polls_too).join().unwrap()
    });
    assert_eq!((elsewhere.1, thread.counted()), (1, 0));
    thread.wake(&[1]);
    assert_eq!(thread.poll_next(), Some((1, false)));
    assert_eq!(thread.poll_next(), Some((0, false)), "it is taken by this thread");
    assert_eq!((thread.counts.waiting(elsewhere.0), thread.counted()), (0, 0));
}

#[test]
fn threads_that_poll_nothing_take_no_slot_and_count_nobody() {
    let mut thread = Thread::new(&[FEW, HEAVY]);
    let waker = thread.members[0].waker();
    let slot = std::thread::scope(|scope| {
        let only_wakes = || {
            waker.wake_by_ref();
            SLOT.get()
        };
        scope.spawn(only_wakes).join().unwrap()
    });
    assert_eq!(slot, QUEUED);
    thread.wake(&[0, 1]);
    assert_eq!(thread.counted(), 0, "it is queued there already");
    assert_eq!(thread.poll_next(), Some((1, false)));
    assert_eq!(thread.poll_next(), Some((0, false)));
}

/// A task that is polled all the time.
struct Busy;

impl Wake for Busy {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn no_count_is_left_by_wakes_that_race_with_polls_and_the_end() {
    const ROUNDS: usize = 2000;
    const TIMES: usize = 100;
    let tasks = [(); 2].map(|()| Waker::from(Arc::new(Busy)).clone());
    let waker =
        |order: &mut TurnOrder, task: usize| order.waker(&Context::from_waker(&tasks[task]));
    let counts = LightCounts::default();
    let mut order = TurnOrder::new(&counts);
    let shown = Mutex::new(waker(&mut order, 0));
    let slots = std::thread::scope(|scope| {
        let wakes = || {
            let slot = own_slot();
            for _ in 0..ROUNDS {
                let waker = shown.lock().unwrap().clone();
                (0..TIMES).for_each(|_| waker.wake_by_ref());
            }
            slot
        };
        let threads = [scope.spawn(wakes), scope.spawn(wakes)];
        for round in 0..ROUNDS {
            if round % 5 == 0 {
                order = TurnOrder::new(&counts);
            }
            *shown.lock().unwrap() = waker(&mut order, round % 2); // another task polls it
            for _ in 0..TIMES {
                if !order.steps_aside() {
                    order.worked(if round % 4 < 2 { FEW } else { HEAVY });
                }
            }
        }
        drop(order); // others may still wake it
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(slots.map(|slot| counts.waiting(slot)), [0, 0]);
    assert_eq!(counts.waiting(own_slot()), 0);
}

#[test]
fn a_single_small_batch_does_not_make_a_connection_light() {
    let mut order = TurnOrder::new(&LightCounts::default());
    assert!(order.is_light(), "a new one");
    (0..4).for_each(|_| order.worked(HEAVY));
    assert!(!order.is_light());
    order.worked(FEW);
    assert!(!order.is_light());
    order.worked(0); // it was polled, and nothing was there
    (0..12).for_each(|_| order.worked(FEW));
    assert!(order.is_light());
}

#[derive(Debug, Clone)]
enum Step {
    Wake(Index),
    /// A wake by a waker of some time ago.
    WakeOld(Index),
    /// The next one is polled, or the one that was woken last. If it works, it may be woken meanwhile,
    /// and has much or little to do from now on.
    Poll {
        last_first: bool,
        again: bool,
        heavy: bool,
    },
    /// Another thread takes the next one, and does not come to polling it.
    Take,
    /// Another task has the connection from now on.
    Move(Index),
    /// It ends, and another one begins.
    End(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let poll = any::<(bool, bool, bool)>();
    prop_oneof![
        6 => any::<Index>().prop_map(Step::Wake),
        1 => any::<Index>().prop_map(Step::WakeOld),
        9 => poll.prop_map(|(last_first, again, heavy)| Step::Poll { last_first, again, heavy }),
        1 => Just(Step::Take),
        1 => any::<Index>().prop_map(Step::Move),
        1 => any::<Index>().prop_map(Step::End),
    ]
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// It was woken, by the task that it has now, and not polled since.
    woken: bool,
    /// And had little to do then.
    counted: bool,
    heavy: bool,
    /// Steps aside since it worked.
    aside: u32,
}

impl Known {
    fn wake(&mut self) {
        if !self.woken {
            (self.woken, self.counted) = (true, !self.heavy);
        }
    }
}

proptest! {
    #[test]
    fn nobody_steps_aside_for_ever_or_in_vain_nor_works_while_one_with_little_to_do_waits(
        heavy in prop::collection::vec(any::<bool>(), 1..8),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let units = |heavy| if heavy { HEAVY } else { FEW };
        let usual: Vec<_> = heavy.iter().copied().map(units).collect();
        let mut thread = Thread::new(&usual);
        let mut known: Vec<_> =
            heavy.iter().map(|&heavy| Known { heavy, ..Known::default() }).collect();
        let mut old: Vec<_> = thread.members.iter_mut().map(Member::waker).collect();
        let mut replaced = vec![false; heavy.len()];
        for step in steps {
            match step {
                Step::Wake(index) => {
                    let number = index.index(known.len());
                    thread.wake(&[number]);
                    known[number].wake();
                }
                Step::WakeOld(index) => {
                    let number = index.index(known.len());
                    old[number].wake_by_ref();
                    if !replaced[number] {
                        known[number].wake();
                    }
                }
                Step::Take => {
                    let mut ready = thread.ready.lock().unwrap();
                    ready.begin(true);
                    ready.polled = None;
                }
                Step::Move(index) => {
                    let number = index.index(known.len());
                    old[number] = thread.members[number].waker();
                    thread.members[number].task = thread.task(number);
                    thread.members[number].waker();
                    (known[number].woken, known[number].counted) = (false, false);
                    replaced[number] = true;
                }
                Step::End(index) => {
                    let number = index.index(known.len());
                    old[number] = thread.members[number].waker();
                    thread.members[number] = thread.member(number);
                    known[number] = Known::default();
                    replaced[number] = true;
                }
                Step::Poll { last_first, again, heavy } => {
                    let polled = thread.poll(last_first, |member| {
                        if again {
                            member.waker().wake();
                        }
                        member.work(units(heavy));
                    });
                    let Some((number, aside)) = polled else { continue };
                    let before = std::mem::take(&mut known[number]);
                    let waits = known.iter().any(|known| known.counted);
                    let now = &mut known[number];
                    now.heavy = before.heavy;
                    if aside {
                        prop_assert!(before.woken && before.heavy && waits, "in vain: {before:?}");
                        let ready = thread.ready.lock().unwrap();
                        prop_assert_eq!(ready.queue.back(), Some(&number), "it is polled again");
                        now.wake();
                        now.aside = before.aside + 1;
                        prop_assert!(now.aside <= STEPS);
                    } else {
                        let lets_first = before.woken && before.heavy && waits;
                        prop_assert!(!lets_first || before.aside == STEPS, "{before:?}");
                        if again {
                            now.wake();
                        }
                        now.heavy = heavy;
                    }
                }
            }
            let waiting = known.iter().filter(|known| known.counted).count();
            prop_assert_eq!(thread.counted(), waiting as isize);
        }
        thread.members.clear();
        prop_assert_eq!(thread.counted(), 0);
        old.into_iter().for_each(Waker::wake);
        prop_assert_eq!(thread.counted(), 0);
    }
}
