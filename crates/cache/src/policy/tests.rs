//! What every policy promises, and what each of them decides, against models that are slow and
//! plain.

use super::fmpq::Parameters;
use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

/// A cache of entries of one size over a policy: what a simulator does.
struct Simulated {
    policy: Box<dyn Policy>,
    capacity: usize,
    slots: HashMap<u64, u32>,
    keys: Vec<u64>,
    free: Vec<u32>,
}

impl Simulated {
    fn new(policy: Box<dyn Policy>, capacity: usize) -> Self {
        Self { policy, capacity, slots: HashMap::new(), keys: Vec::new(), free: Vec::new() }
    }

    /// An access; whether it was a hit.
    fn access(&mut self, key: u64) -> bool {
        if let Some(slot) = self.slots.get(&key) {
            self.policy.hit(*slot);
            return true;
        }
        if self.slots.len() == self.capacity {
            let slot = self.policy.evict().expect("a full cache has an entry to evict");
            assert!(self.slots.remove(&self.keys[slot as usize]).is_some(), "evicted twice");
            self.free.push(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() as u32 - 1
        });
        self.keys[slot as usize] = key;
        self.slots.insert(key, slot);
        self.policy.insert(slot, key);
        false
    }

    fn access_all(&mut self, keys: std::ops::Range<u64>) {
        for key in keys {
            self.access(key);
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(slot) = self.slots.remove(&key) {
            self.policy.remove(slot);
            self.free.push(slot);
        }
    }
}

/// A model says of each access whether it hits.
trait Model {
    fn access(&mut self, key: u64) -> bool;
    fn remove(&mut self, key: u64);
}

struct LruModel {
    capacity: usize,
    order: VecDeque<u64>,
}

impl Model for LruModel {
    fn access(&mut self, key: u64) -> bool {
        let hit = self.order.contains(&key);
        self.order.retain(|other| *other != key);
        if self.order.len() == self.capacity {
            self.order.pop_front();
        }
        self.order.push_back(key);
        hit
    }
    fn remove(&mut self, key: u64) {
        self.order.retain(|other| *other != key);
    }
}

/// FMPQ by its definition, with vectors for queues.
struct FmpqModel {
    capacity: usize,
    parameters: Parameters,
    /// Key, count, and the access at which it expires.
    queues: Vec<VecDeque<(u64, u32, u64)>>,
    history: VecDeque<(u64, u32)>,
    now: u64,
}

impl FmpqModel {
    fn new(capacity: usize, parameters: Parameters) -> Self {
        let queues = vec![VecDeque::new(); parameters.queues];
        Self { capacity, parameters, queues, history: VecDeque::new(), now: 0 }
    }

    fn take(&mut self, key: u64) -> Option<u32> {
        self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|entry| entry.0 == key)?;
            queue.remove(at).map(|entry| entry.1)
        })
    }
}

impl Model for FmpqModel {
    fn access(&mut self, key: u64) -> bool {
        let lifetime = self.parameters.lifetime * self.capacity as u64;
        let found = self.take(key);
        let count = match found {
            Some(count) => count + 1,
            None => {
                if self.queues.iter().map(VecDeque::len).sum::<usize>() == self.capacity {
                    let lowest = self.queues.iter_mut().find(|queue| !queue.is_empty());
                    let (victim, count, _) = lowest.unwrap().pop_front().unwrap();
                    self.history.push_back((victim, count));
                    while self.history.len() > self.parameters.history * self.capacity {
                        self.history.pop_front();
                    }
                }
                let known = self.history.iter().position(|entry| entry.0 == key);
                known.and_then(|at| self.history.remove(at)).map_or(0, |entry| entry.1) + 1
            }
        };
        let level = (count.ilog2() as usize).min(self.queues.len() - 1);
        self.queues[level].push_back((key, count, self.now + lifetime));
        self.now += 1;
        for level in 1..self.queues.len() {
            if self.queues[level].front().is_some_and(|head| head.2 < self.now)
                && let Some((key, count, _)) = self.queues[level].pop_front()
            {
                self.queues[level - 1].push_back((key, count, self.now + lifetime));
            }
        }
        found.is_some()
    }

    fn remove(&mut self, key: u64) {
        self.take(key);
    }
}

/// Accesses of which some keys are much more frequent than others, and a few removals.
fn trace() -> impl Strategy<Value = Vec<(u64, bool)>> {
    let key = prop_oneof![3 => 0u64..6, 2 => 0u64..20, 1 => 0u64..60];
    prop::collection::vec((key, prop::bool::weighted(0.03)), 1..600)
}

fn decide_alike(
    policy: Box<dyn Policy>,
    model: &mut dyn Model,
    capacity: usize,
    trace: &[(u64, bool)],
) {
    let mut cache = Simulated::new(policy, capacity);
    for (step, (key, remove)) in trace.iter().enumerate() {
        if *remove {
            cache.remove(*key);
            model.remove(*key);
        } else {
            assert_eq!(cache.access(*key), model.access(*key), "step {step}, key {key}");
        }
        assert_eq!(cache.policy.len(), cache.slots.len());
    }
}

proptest! {
    #[test]
    fn lru_decides_as_its_model(capacity in 1usize..24, trace in trace()) {
        let mut model = LruModel { capacity, order: VecDeque::new() };
        decide_alike(Box::new(Lru::new(capacity as u32)), &mut model, capacity, &trace);
    }

    #[test]
    fn fmpq_decides_as_its_model(
        capacity in 1usize..24, queues in 1usize..9, lifetime in 1u64..6, history in 0usize..4,
        trace in trace(),
    ) {
        let parameters = Parameters { queues, lifetime, history };
        let mut model = FmpqModel::new(capacity, parameters);
        decide_alike(Box::new(Fmpq::new(capacity as u32, parameters)), &mut model, capacity, &trace);
    }

    #[test]
    fn every_policy_evicts_each_entry_once_and_then_none(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()), hits in prop::collection::vec(0u32..50, 0..200),
    ) {
        let mut policy = kind.build(50);
        for slot in 0..50 {
            policy.insert(slot, u64::from(slot));
        }
        for slot in hits {
            policy.hit(slot);
        }
        let mut left: Vec<u32> = std::iter::from_fn(|| policy.evict()).collect();
        left.sort_unstable();
        prop_assert_eq!(left, (0..50).collect::<Vec<_>>());
        prop_assert!(policy.is_empty());
    }
}

#[test]
fn fmpq_keeps_what_is_used_often_from_a_scan() {
    let mut cache = Simulated::new(PolicyKind::Fmpq.build(100), 100);
    for _ in 0..4 {
        cache.access_all(0..50);
    }
    cache.access_all(1000..1200);
    assert!((0..50).all(|key| cache.access(key)));
}

#[test]
fn fmpq_lets_go_of_what_was_used_often_long_ago() {
    let mut cache = Simulated::new(PolicyKind::Fmpq.build(10), 10);
    for _ in 0..8 {
        cache.access_all(0..10);
    }
    cache.access_all(1000..3000);
    assert!((0..10).all(|key| !cache.slots.contains_key(&key)));
}

#[test]
fn the_history_is_bounded_whatever_comes_back() {
    let mut history = history::History::new(4);
    for round in 0..10_000u64 {
        history.remember(round % 7, 1, 4);
        history.recall(round % 3);
        assert!(history.len() <= 4);
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
    }
    let error = "mru".parse::<PolicyKind>().unwrap_err();
    assert!(error.message().contains("use one of fmpq, lru"), "{error}");
}
