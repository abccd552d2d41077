//! Questions about disks to a store that may never answer: a few at a time, and never a second one
//! about a disk while the first one runs.
//!
//! A question that hangs may keep a thread, and nothing ends that but the store. So none is given up
//! and asked again: it keeps its place, and the others go on beside it. Where the store hangs for so
//! many disks that no place is left, the others wait, too.

use block::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::MissedTickBehavior;

/// Questions at a time.
const MOST: usize = 8;

/// One that runs.
struct RunningQuestion {
    name: String,
    /// The log says that it takes long.
    told: bool,
}

#[derive(Default)]
struct Questions {
    tasks: JoinSet<Result<()>>,
    running: HashMap<Id, RunningQuestion>,
    /// Disks of this round that are still to be asked.
    due: VecDeque<String>,
    /// The log says that this round takes long.
    told: bool,
}

/// Asks for ever about all disks that `names` gives, again `every` so often: `ask` begins a question,
/// unless there is nothing to ask about that disk, and its outcome goes to the log.
pub(super) async fn ask<F>(
    every: Duration,
    names: impl Fn() -> Vec<String>,
    ask: impl Fn(&str) -> Option<F>,
) where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    let mut questions = Questions::default();
    loop {
        tokio::select! {
            _ = tick.tick() => questions.begin_round(&names),
            Some(ended) = questions.tasks.join_next_with_id() => questions.end(ended),
        }
        questions.fill(&ask);
    }
}

impl Questions {
    /// Everything is to be asked about that is not being asked about. A round that is not over goes on.
    fn begin_round(&mut self, names: impl Fn() -> Vec<String>) {
        for RunningQuestion { name, told } in self.running.values_mut() {
            if !std::mem::replace(told, true) {
                tracing::warn!(
                    disk = name,
                    "the store does not say in time who holds the disk; it is asked again when it has"
                );
            }
        }
        let behind = !self.due.is_empty();
        if behind && !self.told {
            let disks = self.due.len();
            tracing::warn!(
                disks,
                "the store does not say in time who holds other disks: these wait"
            );
        }
        self.told = behind;
        if !behind {
            self.due = names().into();
            self.due.retain(|name| !self.running.values().any(|running| running.name == *name));
        }
    }

    /// Asks on, as far as there are places.
    fn fill<F>(&mut self, ask: impl Fn(&str) -> Option<F>)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        while self.running.len() < MOST
            && let Some(name) = self.due.pop_front()
        {
            if let Some(question) = ask(&name) {
                let id = self.tasks.spawn(question).id();
                self.running.insert(id, RunningQuestion { name, told: false });
            }
        }
    }

    fn end(&mut self, ended: std::result::Result<(Id, Result<()>), JoinError>) {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(e) => (e.id(), Err(Error::internal("a question panicked").with_source(e))),
        };
        if let (Some(RunningQuestion { name, .. }), Err(error)) =
            (self.running.remove(&id), outcome)
        {
            tracing::error!(disk = name, error = error.message(), "not sure of the disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    const EVERY: Duration = Duration::from_secs(20);

    /// A store that does not answer about the disks of `hangs` until it gets permits.
    struct Store {
        names: Vec<String>,
        hangs: fn(usize) -> bool,
        answers: Semaphore,
        seen: Mutex<Seen>,
    }

    #[derive(Default)]
    struct Seen {
        /// How often each was asked about.
        asked: BTreeMap<usize, usize>,
        running: usize,
        most: usize,
    }

    impl Store {
        fn new(disks: usize, hangs: fn(usize) -> bool) -> Arc<Self> {
            Arc::new(Self {
                names: (0..disks).map(|disk| disk.to_string()).collect(),
                hangs,
                answers: Semaphore::new(0),
                seen: Mutex::default(),
            })
        }

        async fn answer(self: Arc<Self>, disk: usize) -> Result<()> {
            if (self.hangs)(disk) {
                self.answers.acquire().await.unwrap().forget();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.seen.lock().running -= 1;
            assert_ne!(disk, 13, "a fault of the program");
            Ok(())
        }

        /// Asks for so many rounds, and stops.
        fn rounds(self: &Arc<Self>, rounds: u32) -> impl Future<Output = ()> + use<> {
            let (all, store) = (Arc::clone(self), Arc::clone(self));
            let begin = move |name: &str| {
                let disk = name.parse().unwrap();
                {
                    let mut seen = store.seen.lock();
                    *seen.asked.entry(disk).or_default() += 1;
                    seen.running += 1;
                    seen.most = seen.most.max(seen.running);
                }
                Some(Arc::clone(&store).answer(disk))
            };
            let asking = ask(EVERY, move || all.names.clone(), begin);
            async move {
                let ended = tokio::time::timeout(EVERY * rounds + EVERY / 2, asking).await;
                ended.unwrap_err();
            }
        }

        /// How often the disks of `which` were asked about; the same for all of them.
        fn asked(&self, which: impl Fn(usize) -> bool) -> usize {
            let seen = self.seen.lock();
            let disks = (0..self.names.len()).filter(|disk| which(*disk));
            let mut counts = disks.map(|disk| seen.asked.get(&disk).copied().unwrap_or(0));
            let first = counts.next().unwrap();
            assert!(counts.all(|count| count == first), "{:?}", seen.asked);
            first
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_asked_about_once_and_holds_up_no_other() {
        let store = Store::new(300, |disk| disk == 3);
        store.rounds(10).await;
        assert_eq!((store.asked(|disk| disk == 3), store.asked(|disk| disk != 3)), (1, 10));
        assert_eq!(store.seen.lock().most, MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_as_a_whole_gets_no_more_questions_than_there_are_places() {
        let store = Store::new(30, |_| true);
        let rounds = store.rounds(10);
        let mut rounds = std::pin::pin!(rounds);
        tokio::time::timeout(EVERY * 8, &mut rounds).await.unwrap_err();
        assert_eq!((store.asked(|disk| disk < MOST), store.asked(|disk| disk >= MOST)), (1, 0));
        // The round that began before goes to its end, and then comes another one.
        store.answers.add_permits(1000);
        rounds.await;
        assert_eq!(store.seen.lock().most, MOST);
        assert!(store.asked(|disk| disk < MOST) >= 2 && store.asked(|disk| disk >= MOST) >= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hung_is_asked_about_again_in_the_round_after_its_answer() {
        let store = Store::new(3, |disk| disk == 1);
        let rounds = store.rounds(6);
        let mut rounds = std::pin::pin!(rounds);
        tokio::time::timeout(EVERY * 3 + EVERY / 2, &mut rounds).await.unwrap_err();
        assert_eq!((store.asked(|disk| disk == 1), store.asked(|disk| disk != 1)), (1, 3));
        store.answers.add_permits(1000);
        rounds.await;
        assert_eq!((store.asked(|disk| disk == 1), store.asked(|disk| disk != 1)), (4, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_panics_gives_its_place_back() {
        let store = Store::new(20, |_| false);
        store.rounds(20).await;
        assert_eq!(store.asked(|_| true), 20);
    }
}
