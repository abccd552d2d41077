//! Whether a disk is short of room or slow: what whoever looks after a server wants to see.
//!
//! What has to wait is looked at: flushes, durable writes, reads that are not held in memory; and writes
//! that are answered on the spot, which wait for a slow file system when nobody flushes. Reads from
//! memory cost nothing here, and tell nothing either. Nothing is remembered beyond one look: whoever
//! looks, about once a second, keeps what he wants to.

mod quick;

use self::quick::{Quick, Write};
use crate::space::HomeSpace;
use block::fs::{FsPath, Open};
use block::{Durability, Error, ErrorKind, Result, offload};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// What must be possible to write before there is room again, in bytes: as much as is written at once.
const ENOUGH: usize = 1 << 20;
/// The file that is written for that. What a crash leaves is swept away as an unfinished map.
const PROBE: &str = "room.map.new";

/// What was seen since the last look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskHealth {
    /// Why something was refused for want of room.
    pub refused: Option<String>,
    /// What took long.
    pub slow: Option<Slow>,
}

/// Requests that took longer than is called slow: more than one in a hundred of those that had to
/// wait, or one that is still under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// `read`, `write` (also of zeroes) or `flush` (also a durable write).
    pub what: &'static str,
    /// The longest.
    pub took: Duration,
    /// It is not over yet.
    pub under_way: bool,
}

/// What has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
    Read,
    Write,
    Flush,
}

impl WaitKind {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Flush];

    /// That of a change.
    pub(crate) fn of(durability: Durability) -> Self {
        match durability {
            Durability::Buffered => Self::Write,
            Durability::Durable => Self::Flush,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }
}

/// How long a wait is called slow, shared by all who measure theirs; 0 is never.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowBound(Arc<AtomicU64>);

impl SlowBound {
    pub(crate) fn set(&self, bound: Duration) {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Ordering::Relaxed);
    }

    fn is_exceeded_by(&self, took: Duration) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => false,
            nanos => took > Duration::from_nanos(nanos),
        }
    }
}

/// Those who wait, and how long others waited since the last look.
#[derive(Debug)]
pub(crate) struct Waits {
    bound: SlowBound,
    state: Mutex<WaitsState>,
}

#[derive(Debug, Default)]
struct WaitsState {
    next: u64,
    /// In the order in which they began.
    under_way: BTreeMap<u64, (WaitKind, Instant)>,
    over: [FinishedWaits; WaitKind::ALL.len()],
}

/// Waits of one kind that are over.
#[derive(Debug, Clone, Copy, Default)]
struct FinishedWaits {
    all: u64,
    slow: u64,
    longest: Duration,
}

impl FinishedWaits {
    fn add(&mut self, more: Self) {
        self.all += more.all;
        self.slow += more.slow;
        self.longest = self.longest.max(more.longest);
    }
}

/// One who waits, until it is dropped.
pub(crate) struct Wait<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Waits {
    pub(crate) fn new(bound: SlowBound) -> Self {
        Self { bound, state: Mutex::default() }
    }

    /// Something begins that has to wait.
    pub(crate) fn begin(&self, kind: WaitKind) -> Wait<'_> {
        let began = Instant::now();
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, (kind, began));
        Wait { waits: self, number }
    }

    /// What was slow since the last look.
    pub(crate) fn look(&self) -> Option<Slow> {
        self.look_beside(FinishedWaits::default(), None)
    }

    /// The same, with `written`: writes that were measured elsewhere, and one that is `under_way`.
    fn look_beside(&self, written: FinishedWaits, under_way: Option<Slow>) -> Option<Slow> {
        let mut state = self.state.lock();
        let mut over = std::mem::take(&mut state.over);
        over[WaitKind::Write as usize].add(written);
        let oldest = state.under_way.first_key_value().map(|(_, (kind, began))| Slow {
            what: kind.name(),
            took: began.elapsed(),
            under_way: true,
        });
        drop(state);
        let over =
            WaitKind::ALL.into_iter().zip(over).filter(|(_, over)| over.slow * 100 > over.all);
        let over = over.map(|(kind, over)| Slow {
            what: kind.name(),
            took: over.longest,
            under_way: false,
        });
        let oldest = oldest.filter(|slow| self.bound.is_exceeded_by(slow.took));
        over.chain(oldest).chain(under_way).max_by_key(|slow| slow.took)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = self.waits.state.lock();
        let Some((kind, began)) = state.under_way.remove(&self.number) else { return };
        let took = began.elapsed();
        let slow = u64::from(self.waits.bound.is_exceeded_by(took));
        state.over[kind as usize].add(FinishedWaits { all: 1, slow, longest: took });
    }
}

/// The strain of one disk.
#[derive(Debug)]
pub(crate) struct Strained {
    waits: Waits,
    quick: Quick,
    refused: Mutex<Option<String>>,
}

impl Strained {
    pub(crate) fn new(bound: SlowBound) -> Self {
        let quick = Quick::new(bound.clone());
        Self { waits: Waits::new(bound), quick, refused: Mutex::default() }
    }

    /// Something begins that has to wait.
    pub(crate) fn begin(&self, kind: WaitKind) -> Wait<'_> {
        self.waits.begin(kind)
    }

    /// A write begins that may be done on the spot.
    #[inline]
    pub(crate) fn begin_write(&self) -> Write<'_> {
        self.quick.begin()
    }

    /// Something failed.
    #[cold]
    pub(crate) fn failed(&self, error: &Error) {
        if error.kind() == ErrorKind::NoSpace {
            *self.refused.lock() = Some(error.message().to_owned());
        }
    }

    pub(crate) fn look(&self) -> DiskHealth {
        let (written, under_way) = self.quick.look();
        let slow = self.waits.look_beside(written, under_way);
        DiskHealth { refused: self.refused.lock().take(), slow }
    }
}

/// Finds out whether a disk that was short of room has some again.
#[derive(Debug)]
pub struct RoomProbe {
    /// What was refused would be more private blocks than there may be.
    pub(crate) at_limit: bool,
    /// Where they are; none when they lie elsewhere, and nothing can be tried.
    pub(crate) directory: Option<FsPath>,
    /// What they share with the rest of the home.
    pub(crate) space: Arc<HomeSpace>,
}

impl RoomProbe {
    /// Whether a new block could be written now. Writes a small file beside the disk's, and
    /// removes it.
    pub async fn has_room(self) -> bool {
        let Some(directory) = self.directory else { return !self.at_limit };
        let space = self.space;
        let write = move || {
            space.check(ENOUGH as u64)?;
            let path = directory.join(PROBE);
            // Not zeroes: a file system might keep none of those.
            let written = path.open(Open::REPLACE).and_then(|file| {
                file.write_all_at(&vec![0x5a; ENOUGH], 0)?;
                file.sync_all() // some file systems find out only then
            });
            let removed = path.remove_file();
            written.and(removed).map_err(|e| path.error(e))
        };
        !self.at_limit && fits(offload(write).await)
    }
}

/// Whether what was tried found room: what fails for another reason is not for want of it.
fn fits(tried: Result<()>) -> bool {
    tried.map_or_else(|error| error.kind() != ErrorKind::NoSpace, |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> Waits {
        let bound = SlowBound::default();
        bound.set(Duration::from_millis(100));
        Waits::new(bound)
    }

    async fn pass(millis: u64) {
        tokio::time::advance(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_for_too_long_is_seen_while_it_is_and_when_it_is_over() {
        let waits = waits();
        let flush = waits.begin(WaitKind::Flush);
        pass(100).await;
        assert_eq!(waits.look(), None);
        pass(1).await;
        let slow = Slow { what: "flush", took: Duration::from_millis(101), under_way: true };
        assert_eq!(waits.look(), Some(slow));
        drop(waits.begin(WaitKind::Read));
        pass(99).await;
        drop(flush);
        let slow = Slow { what: "flush", took: Duration::from_millis(200), under_way: false };
        assert_eq!(waits.look(), Some(slow));
        assert_eq!(waits.look(), None, "only since the last look");
    }

    #[tokio::test(start_paused = true)]
    async fn one_in_a_hundred_may_take_long_and_kinds_are_told_apart() {
        let waits = waits();
        for (quick, slow) in [(99, false), (98, true)] {
            (0..quick).for_each(|_| drop(waits.begin(WaitKind::Read)));
            (0..1000).for_each(|_| drop(waits.begin(WaitKind::Write)));
            let long = waits.begin(WaitKind::Read);
            pass(101).await;
            drop(long);
            assert_eq!(waits.look().map(|slow| slow.what), slow.then_some("read"), "{quick}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_bound_nothing_is_slow() {
        let waits = Waits::new(SlowBound::default());
        let wait = waits.begin(WaitKind::Flush);
        pass(1 << 30).await;
        assert_eq!(waits.look(), None);
        drop(wait);
        assert_eq!(waits.look(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_nobody_flushes_and_that_take_long_are_seen() {
        let bound = SlowBound::default();
        bound.set(Duration::from_millis(100));
        let strained = Strained::new(bound);
        let write = strained.begin_write();
        pass(100).await;
        assert_eq!(strained.look(), DiskHealth::default());
        let behind = strained.begin_write();
        pass(1).await;
        let slow = |millis, under_way| {
            let took = Duration::from_millis(millis);
            Some(Slow { what: "write", took, under_way })
        };
        // To the nanosecond, but for the lowest bit.
        let seen = |strained: &Strained| {
            strained.look().slow.map(|slow| Slow {
                took: Duration::from_millis(slow.took.as_millis() as u64),
                ..slow
            })
        };
        assert_eq!(seen(&strained), slow(101, true));
        pass(100).await;
        drop((write, behind));
        assert_eq!(seen(&strained), slow(201, false));
        assert_eq!(seen(&strained), None, "only since the last look");

        // One in a hundred may; what has to wait is counted by whoever waits.
        for (quick, is_slow) in [(99, false), (98, true)] {
            (0..quick).for_each(|_| drop(strained.begin_write()));
            (0..1000).for_each(|_| strained.begin_write().would_wait());
            let long = strained.begin(WaitKind::Write);
            pass(101).await;
            drop(long);
            assert_eq!(seen(&strained), slow(101, false).filter(|_| is_slow), "{quick}");
        }
    }

    #[tokio::test]
    async fn only_want_of_room_is_noted_and_a_probe_leaves_nothing() {
        let strained = Strained::new(SlowBound::default());
        strained.failed(&Error::unavailable("gone"));
        assert_eq!(strained.look(), DiskHealth::default());
        strained.failed(&Error::no_space("full"));
        assert_eq!(strained.look().refused.as_deref(), Some("full"));
        assert_eq!(strained.look(), DiskHealth::default());

        let dir = tempfile::tempdir().unwrap();
        let space = Arc::new(HomeSpace::new(&dir.path().into()));
        let probe = |at_limit| RoomProbe {
            at_limit,
            directory: Some(dir.path().into()),
            space: Arc::clone(&space),
        };
        assert!(probe(false).has_room().await && !probe(true).has_room().await);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!fits(Err(Error::no_space("full"))) && fits(Err(Error::not_found("removed"))));
    }
}
