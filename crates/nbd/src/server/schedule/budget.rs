//! The bytes that all connections together may hold.
//!
//! Each connection holds a little without asking, enough for small requests at any depth that is
//! usual: these touch nothing that is shared. Beyond it a connection takes shares of the budget,
//! and leaves its requests unread while there is none. It takes them out of its client's part first, so
//! that one client, with however many connections, leaves something to the others.

use super::spare::SpareOfAll;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// What a connection holds without asking, in bytes.
pub(in crate::server) const FREE: u64 = 256 << 10;
/// Shares are taken in multiples of this when there is plenty, in bytes.
const GRAIN: u64 = 1 << 20;

/// What is left, and who waits for more.
#[derive(Debug)]
pub(in crate::server) struct Budget {
    /// Below zero when more is held than the whole, which was made smaller, or another process had room
    /// for.
    left: AtomicI64,
    whole: Mutex<i64>,
    /// There may be somebody in `waiting`.
    wanted: AtomicBool,
    waiting: Mutex<BTreeMap<u64, Waker>>,
    next: AtomicU64,
    /// What is kept for reuse beside it.
    spare: Arc<SpareOfAll>,
}

impl Budget {
    /// A budget of `bytes`.
    pub(in crate::server) fn new(bytes: u64) -> Arc<Self> {
        let bytes = signed(bytes);
        Arc::new(Self {
            left: AtomicI64::new(bytes),
            whole: Mutex::new(bytes),
            wanted: AtomicBool::new(false),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            spare: Arc::default(),
        })
    }

    /// What all connections keep for reuse.
    pub(in crate::server) fn spare(&self) -> &Arc<SpareOfAll> {
        &self.spare
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it this large. What is held beyond it stays with its holders until they give it back.
    pub(in crate::server) fn resize(&self, bytes: u64) {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let change = signed(bytes) - *whole;
        *whole = signed(bytes);
        self.change(change);
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = |left: i64| left.checked_sub(signed(bytes)).filter(|left| *left >= 0);
        self.left.fetch_update(SeqCst, SeqCst, taken).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.change(signed(bytes));
    }

    fn change(&self, by: i64) {
        self.left.fetch_add(by, SeqCst);
        if self.wanted.swap(false, SeqCst) {
            let waiting = std::mem::take(&mut *self.waiting());
            waiting.into_values().for_each(Waker::wake);
        }
    }
}

/// Far above the memory of any machine in effect, so that sums do not overflow.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).min(1 << 60)
}

/// What one connection holds of the budget.
#[derive(Debug)]
pub(in crate::server) struct BudgetHold {
    budget: Arc<Budget>,
    id: u64,
    taken: u64,
    /// How much was asked for in vain.
    missing: u64,
}

impl BudgetHold {
    /// Nothing yet.
    pub(in crate::server) fn new(budget: &Arc<Budget>) -> Self {
        let id = budget.next.fetch_add(1, SeqCst);
        Self { budget: Arc::clone(budget), id, taken: 0, missing: 0 }
    }

    /// Whether the connection may hold `bytes`; takes from the budget what it needs for it.
    #[inline]
    pub(in crate::server) fn covers(&mut self, bytes: u64) -> bool {
        bytes <= FREE + self.taken || self.grow(bytes - FREE - self.taken)
    }

    fn grow(&mut self, more: u64) -> bool {
        let taken = [more.next_multiple_of(GRAIN), more].into_iter().find(|n| self.budget.take(*n));
        self.taken += taken.unwrap_or(0);
        self.missing = if taken.is_some() { 0 } else { more };
        taken.is_some()
    }

    /// Holds `bytes` that are there whether there is room for them or not.
    pub(in crate::server) fn owe(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(FREE + self.taken);
        self.budget.left.fetch_sub(signed(more), SeqCst);
        self.taken += more;
    }

    /// Gives back what is not needed to hold `bytes`. When something was asked for in vain, wakes
    /// `waker` as soon as there may be more.
    pub(in crate::server) fn settle(&mut self, bytes: u64, waker: &Waker) {
        let needed = bytes.saturating_sub(FREE).next_multiple_of(GRAIN);
        if self.taken > needed {
            self.budget.give(self.taken - needed);
            self.taken = needed;
        }
        let missing = std::mem::take(&mut self.missing);
        if missing > 0 {
            self.budget.waiting().insert(self.id, waker.clone());
            self.budget.wanted.store(true, SeqCst);
            if self.budget.left.load(SeqCst) >= signed(missing) {
                waker.wake_by_ref(); // it came back meanwhile
            }
        }
    }

    /// Whether others wait while this one holds something.
    pub(in crate::server) fn is_in_the_way(&self) -> bool {
        self.taken > 0 && self.budget.wanted.load(SeqCst)
    }
}

/// What one connection holds of its client's part and of the whole.
#[derive(Debug)]
pub(in crate::server) struct ConnectionHolds {
    part: BudgetHold,
    whole: BudgetHold,
}

impl ConnectionHolds {
    /// Nothing yet, of the `part` of a client and of the `whole` of all.
    pub(in crate::server) fn new(part: &Arc<Budget>, whole: &Arc<Budget>) -> Self {
        Self { part: BudgetHold::new(part), whole: BudgetHold::new(whole) }
    }

    /// Whether the connection may hold `bytes`; takes from both budgets what it needs for them.
    #[inline]
    pub(in crate::server) fn covers(&mut self, bytes: u64) -> bool {
        self.part.covers(bytes) && self.whole.covers(bytes)
    }

    /// Holds `bytes` that are there whether there is room for them in the budgets or not.
    pub(in crate::server) fn owe(&mut self, bytes: u64) {
        self.part.owe(bytes);
        self.whole.owe(bytes);
    }

    /// Gives back to both budgets what is not needed to hold `bytes`, and wakes `waker` as soon as there may be more
    /// of what was asked for in vain.
    pub(in crate::server) fn settle(&mut self, bytes: u64, waker: &Waker) {
        self.part.settle(bytes, waker);
        self.whole.settle(bytes, waker);
    }

    /// Whether others wait while this one holds something, connections of its own client among them.
    pub(in crate::server) fn is_in_the_way(&self) -> bool {
        self.part.is_in_the_way() || self.whole.is_in_the_way()
    }

    /// How much of the whole it holds, in bytes.
    pub(in crate::server) fn bytes(&self) -> u64 {
        self.whole.taken
    }
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        self.budget.waiting().remove(&self.id);
        if self.taken > 0 {
            self.budget.give(self.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::{ArcWake, waker};
    use proptest::prelude::*;

    struct Woken(AtomicBool);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.store(true, SeqCst);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn the_budget_is_exceeded_by_what_is_owed_alone_and_comes_back_whole(
            steps in prop::collection::vec((0usize..4, 0u64..40 << 20, 0..8), 1..80),
        ) {
            let total = 48 << 20;
            let budget = Budget::new(total);
            let mut all: Vec<_> = (0..4).map(|_| (BudgetHold::new(&budget), 0u64)).collect();
            let mut owed = false;
            for (who, bytes, owes) in steps {
                let (held, holds) = &mut all[who];
                let before = *holds;
                if owes == 0 {
                    held.owe(bytes);
                    owed = true;
                }
                let got = held.covers(bytes);
                prop_assert!(got || owes > 0);
                prop_assert!(owed || budget.left.load(SeqCst) >= 0);
                *holds = if got { bytes } else { 0 };
                held.settle(*holds, Waker::noop());
                prop_assert!(got || before < bytes);
                let taken: u64 = all.iter().map(|(held, _)| held.taken).sum();
                prop_assert_eq!(signed(taken) + budget.left.load(SeqCst), signed(total));
                let beyond: u64 = all.iter().map(|(_, holds)| holds.saturating_sub(FREE)).sum();
                prop_assert!(beyond <= taken);
            }
            all.clear();
            prop_assert_eq!(budget.left.load(SeqCst), signed(total));
        }
    }

    #[test]
    fn who_waits_is_woken_when_another_gives_back() {
        let budget = Budget::new(4 << 20);
        let (mut one, mut two) = (BudgetHold::new(&budget), BudgetHold::new(&budget));
        let flag = Arc::new(Woken(AtomicBool::new(false)));
        assert!(one.covers(4 << 20));
        assert!(two.covers(FREE), "small requests need nobody's leave");
        assert!(!two.covers(2 << 20));
        two.settle(0, &waker(Arc::clone(&flag)));
        assert!(!flag.0.load(SeqCst) && one.is_in_the_way());
        one.settle(0, Waker::noop());
        assert!(flag.0.load(SeqCst) && !one.is_in_the_way());
        assert!(two.covers(2 << 20));
    }

    #[test]
    fn what_is_owed_is_held_beyond_the_budget_and_others_wait_until_it_is_given_back() {
        let budget = Budget::new(4 << 20);
        let (mut one, mut two) = (BudgetHold::new(&budget), BudgetHold::new(&budget));
        one.owe(FREE);
        assert!(one.taken == 0, "small answers need nobody's leave");
        one.owe(FREE + (6 << 20));
        assert!(two.covers(FREE) && !two.covers(FREE + 1));
        let flag = Arc::new(Woken(AtomicBool::new(false)));
        two.settle(FREE, &waker(Arc::clone(&flag)));
        one.settle(FREE + (3 << 20), Waker::noop());
        assert!(flag.0.load(SeqCst) && two.covers(FREE + (1 << 20)));
        assert!(!two.covers(FREE + (2 << 20)));
        drop(one);
        assert!(two.covers(FREE + (4 << 20)));
    }

    #[test]
    fn a_client_has_its_part_and_others_have_the_rest() {
        let (part, whole) = (Budget::new(2 << 20), Budget::new(4 << 20));
        let [mut one, mut two] = [(); 2].map(|()| ConnectionHolds::new(&part, &whole));
        let mut other = ConnectionHolds::new(&Budget::new(2 << 20), &whole);
        assert!(one.covers(FREE + (2 << 20)) && !two.covers(FREE + 1));
        let flag = Arc::new(Woken(AtomicBool::new(false)));
        two.settle(0, &waker(Arc::clone(&flag)));
        assert!(one.is_in_the_way() && !two.is_in_the_way());
        assert!(other.covers(FREE + (2 << 20)) && !other.is_in_the_way());
        one.settle(FREE, Waker::noop());
        assert!(flag.0.load(SeqCst) && one.bytes() == 0);
        assert!(two.covers(FREE + (2 << 20)));
        // What the whole does not have is not kept of the part.
        let (mut third, mut last) = (ConnectionHolds::new(&Budget::new(1 << 20), &whole), two);
        assert!(!third.covers(FREE + (1 << 20)));
        third.settle(0, Waker::noop());
        assert!(third.part.taken == 0 && last.is_in_the_way());
        last.settle(0, Waker::noop());
        assert!(third.covers(FREE + (1 << 20)));
    }

    #[test]
    fn a_budget_that_is_made_smaller_is_short_until_enough_came_back() {
        let budget = Budget::new(8 << 20);
        let (mut one, mut two) = (BudgetHold::new(&budget), BudgetHold::new(&budget));
        assert!(one.covers(6 << 20));
        budget.resize(4 << 20);
        assert!(one.covers(6 << 20) && !two.covers(1 << 20));
        let flag = Arc::new(Woken(AtomicBool::new(false)));
        two.settle(0, &waker(Arc::clone(&flag)));
        one.settle(FREE, Waker::noop());
        assert!(flag.0.load(SeqCst) && two.covers(4 << 20) && !two.covers(5 << 20));
        budget.resize(64 << 20);
        assert!(two.covers(60 << 20));
    }
}
