//! One writer at a time in a part of a disk, and readers that find out without taking a lock whether
//! one was at work (a sequence lock).
//!
//! A count is odd while somebody writes. A reader looks at it before and after; what it read counts
//! when both are the same even number. Those who can wait share the lock instead.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A part of a disk, with what its only writer works in.
#[derive(Debug, Default)]
pub(crate) struct Region<T> {
    writes: AtomicU64,
    inside: RwLock<T>,
}

/// When a look at a region began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl<T> Region<T> {
    /// Begins to read without a lock; `None` while somebody writes.
    #[inline]
    pub(crate) fn look(&self) -> Option<Moment> {
        let count = self.writes.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(Moment(count))
    }

    /// Whether nobody has begun to write since: what was read in between is whole.
    #[inline]
    pub(crate) fn undisturbed(&self, since: Moment) -> bool {
        // What was read before is not read after the count.
        fence(Ordering::Acquire);
        self.writes.load(Ordering::Relaxed) == since.0
    }

    /// Waits until nobody writes, and keeps it so.
    pub(crate) async fn shared(&self) -> RwLockReadGuard<'_, T> {
        self.inside.read().await
    }

    /// Waits until nobody else reads with the lock or writes.
    pub(crate) async fn alone(&self) -> WriteGuard<'_, T> {
        WriteGuard::new(&self.writes, self.inside.write().await)
    }

    /// The same, if it can be had at once.
    #[inline]
    pub(crate) fn try_alone(&self) -> Option<WriteGuard<'_, T>> {
        Some(WriteGuard::new(&self.writes, self.inside.try_write().ok()?))
    }
}

/// The right to write in a region, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a, T> {
    writes: &'a AtomicU64,
    inside: RwLockWriteGuard<'a, T>,
}

impl<'a, T> WriteGuard<'a, T> {
    #[inline]
    fn new(writes: &'a AtomicU64, inside: RwLockWriteGuard<'a, T>) -> Self {
        // The lock's holder is the only one who changes the count.
        writes.store(writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // What is written from here on is not seen before the count.
        fence(Ordering::Release);
        Self { writes, inside }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Before the lock is given up, which happens after this.
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inside
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_learns_of_every_writer_that_was_at_work_meanwhile() {
        let region = Region::<()>::default();
        let before = region.look().unwrap();
        assert!(region.undisturbed(before));
        let alone = region.alone().await;
        assert_eq!(region.look(), None);
        assert!(!region.undisturbed(before), "one writes now");
        assert!(region.try_alone().is_none());
        drop(alone);
        assert!(!region.undisturbed(before), "one wrote");
        let after = region.look().unwrap();
        assert!(region.undisturbed(after));
        drop(region.try_alone().unwrap());
        assert!(!region.undisturbed(after));
    }

    #[tokio::test]
    async fn who_shares_it_keeps_writers_away_but_no_reader() {
        let region = Region::<()>::default();
        let shared = region.shared().await;
        assert!(region.look().is_some());
        assert!(region.try_alone().is_none());
        drop(shared);
        assert!(region.try_alone().is_some());
    }

    #[test]
    fn what_counts_as_read_was_never_half_written() {
        let region = Region::<()>::default();
        let (left, right) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=200_000 {
                    let _alone = region.try_alone().unwrap();
                    left.store(value, Ordering::Relaxed);
                    right.store(value, Ordering::Relaxed);
                }
            });
            let mut whole = 0;
            while left.load(Ordering::Relaxed) < 200_000 || whole == 0 {
                let Some(since) = region.look() else { continue };
                let pair = (left.load(Ordering::Relaxed), right.load(Ordering::Relaxed));
                if region.undisturbed(since) {
                    assert_eq!(pair.0, pair.1);
                    whole += 1;
                }
            }
        });
    }
}
