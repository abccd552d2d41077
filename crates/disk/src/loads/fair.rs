//! Start-time fair queueing (P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996):
//! every flow gets its share of what is served, by cost and not by count, and a flow that asked for
//! little is served before those that have had their share.
//!
//! What a flow asks for begins, in virtual time, where its last one ended or now, whichever is later;
//! the earliest beginning is served next, and virtual time goes on to it. A flow's beginning is
//! reckoned when its turn comes and not when it asks, so that what is withdrawn costs nothing. Of two
//! that begin at the same time, which is common when costs are alike, the one that had less than its
//! share goes first: it does not wait for a round of all others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Who asks: a disk.
pub(super) type FlowId = u64;
/// What was asked, in the order of asking.
pub(super) type Ticket = u64;

/// Flows, and what each still waits for.
#[derive(Debug)]
pub(super) struct Fair<K> {
    /// Virtual time: the beginning of what was served last.
    now: u64,
    /// Flows that wait for something.
    order: BTreeSet<FlowTurn>,
    flows: HashMap<FlowId, Flow<K>>,
}

/// Where a flow stands: the beginning of its first, whether it had its share until then, and itself.
type FlowTurn = (u64, bool, FlowId);

#[derive(Debug)]
struct Flow<K> {
    turn: FlowTurn,
    /// The end of what was served last.
    finish: u64,
    waiting: BTreeMap<Ticket, (K, u64)>,
}

impl<K: Copy> Fair<K> {
    pub(super) fn new() -> Self {
        Self { now: 0, order: BTreeSet::new(), flows: HashMap::new() }
    }

    /// `flow` asks for `key`, which costs so much.
    pub(super) fn push(&mut self, flow: FlowId, ticket: Ticket, key: K, cost: u64) {
        let now = self.now;
        let one = self.flows.entry(flow).or_insert_with(|| Flow {
            turn: (now, false, flow),
            finish: 0,
            waiting: BTreeMap::new(),
        });
        if one.waiting.is_empty() {
            one.turn = (one.finish.max(now), one.finish > 0 && one.finish >= now, flow);
            self.order.insert(one.turn);
        }
        one.waiting.insert(ticket, (key, cost));
    }

    /// What is to be served next, at its cost.
    pub(super) fn pop(&mut self) -> Option<K> {
        let (start, _, id) = self.order.pop_first()?;
        self.now = start;
        let flow = self.flows.get_mut(&id)?;
        let (_, (key, cost)) = flow.waiting.pop_first()?;
        flow.finish = start.saturating_add(cost);
        if !flow.waiting.is_empty() {
            flow.turn = (flow.finish, true, id);
            self.order.insert(flow.turn);
        } else if self.order.is_empty() {
            // Nobody waits: everybody begins anew, and nothing has to be remembered.
            self.flows.clear();
            self.now = 0;
        }
        Some(key)
    }

    /// `flow` does not ask any more, or was served on another's turn: no cost.
    pub(super) fn remove(&mut self, id: FlowId, ticket: Ticket) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.waiting.remove(&ticket).is_some() && flow.waiting.is_empty() {
            self.order.remove(&flow.turn);
        }
    }

    /// Forgets a flow that will ask nothing more.
    pub(super) fn forget(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.remove(&id) {
            self.order.remove(&flow.turn);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_asks_for_little_does_not_wait_for_who_asks_for_much() {
        let mut fair = Fair::new();
        for ticket in 0..100 {
            fair.push(1, ticket, "storm", 10);
        }
        for _ in 0..5 {
            assert_eq!(fair.pop(), Some("storm"));
        }
        fair.push(2, 100, "light", 10);
        assert_eq!(fair.pop(), Some("light"));
        assert_eq!(fair.pop(), Some("storm"));
        // Nor for one round of many that are alike.
        for other in 3..50 {
            (0..10).for_each(|n| fair.push(other, 1000 * other + n, "storm", 10));
        }
        (0..70).for_each(|_| assert_eq!(fair.pop(), Some("storm")));
        fair.push(2, 101, "light", 10);
        assert_eq!(fair.pop(), Some("light"));
    }

    #[test]
    fn what_was_withdrawn_is_not_served_and_costs_nothing() {
        let mut fair = Fair::new();
        fair.push(1, 1, "a", 1000);
        fair.push(1, 2, "b", 10);
        fair.push(2, 3, "c", 10);
        fair.remove(1, 1);
        assert_eq!((fair.pop(), fair.pop(), fair.pop()), (Some("b"), Some("c"), None));
        fair.push(3, 4, "d", 10);
        fair.forget(3);
        assert!(fair.is_empty() && fair.pop().is_none());
    }

    proptest! {
        /// Flows that always wait for something get the same, but for two of the longest
        /// (theorem 1 of the paper: at most the longest of either).
        #[test]
        fn flows_that_always_wait_get_the_same(
            costs in prop::collection::vec(prop::collection::vec(1u64..100, 40), 2..6),
        ) {
            let mut fair = Fair::new();
            let mut ticket = 0;
            for round in 0..40 {
                for (flow, list) in costs.iter().enumerate() {
                    fair.push(flow as u64, ticket, flow, list[round]);
                    ticket += 1;
                }
            }
            let mut next = vec![0; costs.len()];
            let mut got = vec![0u64; costs.len()];
            while next.iter().all(|served| *served < 40) {
                let flow = fair.pop().unwrap();
                got[flow] += costs[flow][next[flow]];
                next[flow] += 1;
                let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
                prop_assert!(most - least <= 200, "{got:?}");
            }
        }

        /// Against a list: what is asked for and not withdrawn is served once, each flow's in order.
        #[test]
        fn everything_is_served_once_and_in_order_within_a_flow(
            steps in prop::collection::vec((0u64..4, 1u64..50, 0u8..4), 1..200),
        ) {
            let mut fair = Fair::new();
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (ticket, (flow, cost, what)) in steps.into_iter().enumerate() {
                let ticket = ticket as u64;
                match what {
                    0 => if let Some((flow, ticket)) = fair.pop() {
                        let first = model.iter().position(|one: &(u64, u64)| one.0 == flow);
                        prop_assert_eq!(first.map(|at| model.remove(at)), Some((flow, ticket)));
                    } else {
                        prop_assert!(model.is_empty());
                    },
                    1 if !model.is_empty() => {
                        let (flow, ticket) = model.remove(cost as usize % model.len());
                        fair.remove(flow, ticket);
                    }
                    _ => {
                        fair.push(flow, ticket, (flow, ticket), cost);
                        model.push((flow, ticket));
                    }
                }
                prop_assert_eq!(fair.is_empty(), model.is_empty());
            }
        }
    }
}
