//! What every policy promises, and what each of them decides, against models that are slow and
//! plain.

mod models;

use super::slotted::Slotted;
use super::*;
use models::Model;
use proptest::prelude::*;
use std::collections::HashMap;

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
        self.policy.miss(key);
        if self.slots.len() == self.capacity {
            let slot = self
                .policy
                .evict(&|slot| self.keys[slot as usize])
                .expect("a full cache has an entry to evict");
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

/// All policies of the table, with parameters as varied as a small cache can tell.
fn kind() -> impl Strategy<Value = PolicyKind> {
    prop::strategy::Union::new(PolicyKind::all().map(tuned))
}

/// A policy, and its parameters where it has some.
fn tuned(kind: PolicyKind) -> BoxedStrategy<PolicyKind> {
    let part = || (0u32..=100).prop_map(Ratio::hundredths);
    let times = || (0u32..=400).prop_map(Ratio::hundredths);
    match kind {
        PolicyKind::Duel(_) => (1u32..30, part(), times())
            .prop_map(|(lead, queue, history)| {
                PolicyKind::Duel(duel::DuelParameters { lead, queue, history })
            })
            .boxed(),
        PolicyKind::Fbr(_) => (part(), part(), 1u32..4)
            .prop_map(|(new, old, mean)| PolicyKind::Fbr(fbr::FbrParameters { new, old, mean }))
            .boxed(),
        PolicyKind::Fmpq(_) => (1u8..9, times(), times())
            .prop_map(|(queues, lifetime, history)| {
                PolicyKind::Fmpq(fmpq::FmpqParameters { queues, lifetime, history })
            })
            .boxed(),
        PolicyKind::Lirs(_) => (part(), times())
            .prop_map(|(queue, history)| PolicyKind::Lirs(lirs::LirsParameters { queue, history }))
            .boxed(),
        PolicyKind::Mq(_) => (1u8..9, times())
            .prop_map(|(queues, history)| PolicyKind::Mq(mq::MqParameters { queues, history }))
            .boxed(),
        PolicyKind::S3Fifo(_) => (part(), times(), 1u8..4, any::<bool>())
            .prop_map(|(small, history, promote, main)| {
                let fill = if main { s3fifo::Fill::Main } else { s3fifo::Fill::Small };
                PolicyKind::S3Fifo(s3fifo::S3FifoParameters { small, history, promote, fill })
            })
            .boxed(),
        PolicyKind::TwoQ(_) => (part(), times())
            .prop_map(|(inside, outside)| {
                PolicyKind::TwoQ(twoq::TwoQParameters { inside, outside })
            })
            .boxed(),
        PolicyKind::WTinyLfu(_) => (part(), part())
            .prop_map(|(window, protected)| {
                PolicyKind::WTinyLfu(wtinylfu::WTinyLfuParameters { window, protected })
            })
            .boxed(),
        other => Just(other).boxed(),
    }
}

#[test]
fn the_page_has_every_policy_of_the_table_with_its_parameters() {
    let page = include_str!("../../../../docs/simulate.md");
    let table = page.split("## Policies").nth(1).unwrap();
    for kind in PolicyKind::all() {
        let name = format!("`{}`", kind.as_str());
        let mut rows = table.lines().map(|line| line.split('|').collect::<Vec<_>>());
        let row = rows.find(|cells| cells.get(1).is_some_and(|cell| cell.contains(&name)));
        let row = row.unwrap_or_else(|| panic!("docs/simulate.md has no row for {name}"));
        assert_eq!(row[2].trim() == "yes", kind.serves(), "{name}");
        for (parameter, default) in kind.parameters() {
            let said = format!("`{parameter}={default}`");
            assert!(row[4].contains(&said), "docs/simulate.md does not say {said} of {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_policy_decides_as_its_model(kind in kind(), capacity in 1usize..24, trace in trace()) {
        let mut model = models::of(kind, capacity);
        decide_alike(kind.build(capacity as u32), model.as_mut(), capacity, &trace);
    }

    #[test]
    fn names_and_parameters_are_read_as_they_are_written(kind in kind()) {
        prop_assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
        prop_assert_eq!(PolicyKind::try_from(String::from(kind)).unwrap(), kind);
    }

    #[test]
    fn what_is_remembered_is_bounded(kind in kind(), trace in trace()) {
        struct Names<'a>(&'a [(u64, bool)]);
        impl Visitor for Names<'_> {
            type Output = usize;
            fn visit<A: Algorithm + 'static>(self, algorithm: A) -> usize {
                let mut policy = Slotted::new(algorithm, 4);
                let mut slots: HashMap<u64, u32> = HashMap::new();
                let mut most = 0;
                for (key, _) in self.0 {
                    if let Some(slot) = slots.get(key) {
                        policy.hit(*slot);
                        continue;
                    }
                    policy.miss(*key);
                    let mut slot = slots.len() as u32;
                    if slots.len() == 4 {
                        let of = |slot| slots.iter().find(|(_, other)| **other == slot);
                        slot = policy.evict(&|slot| *of(slot).unwrap().0).unwrap();
                        slots.retain(|_, other| *other != slot);
                    }
                    slots.insert(*key, slot);
                    policy.insert(slot, *key);
                    most = most.max(policy.remembered());
                }
                most
            }
        }
        let room = Room { entries: 4, ids: 0, reuse: true };
        // A duel also has what one of the two would hold, and the cache does not.
        prop_assert!(kind.visit(room, Names(&trace)) <= 24);
    }

    #[test]
    fn every_policy_evicts_each_entry_once_and_then_none(
        kind in kind(), hits in prop::collection::vec(0u32..50, 0..200),
    ) {
        let mut policy = kind.build(50);
        for slot in 0..50 {
            policy.insert(slot, u64::from(slot));
        }
        for slot in hits {
            policy.hit(slot);
        }
        let mut left: Vec<u32> = std::iter::from_fn(|| policy.evict(&|slot| slot.into())).collect();
        left.sort_unstable();
        prop_assert_eq!(left, (0..50).collect::<Vec<_>>());
        prop_assert!(policy.is_empty());
    }
}

#[test]
fn fmpq_keeps_what_is_used_often_from_a_scan() {
    let mut cache = Simulated::new(PolicyKind::FMPQ.build(100), 100);
    for _ in 0..4 {
        cache.access_all(0..50);
    }
    cache.access_all(1000..1200);
    assert!((0..50).all(|key| cache.access(key)));
}

#[test]
fn fmpq_lets_go_of_what_was_used_often_long_ago() {
    let mut cache = Simulated::new(PolicyKind::FMPQ.build(10), 10);
    for _ in 0..8 {
        cache.access_all(0..10);
    }
    cache.access_all(1000..3000);
    assert!((0..10).all(|key| !cache.slots.contains_key(&key)));
}

/// Behind a client's LRU cache SIEVE freezes; a policy for servers must not.
#[test]
fn policies_for_servers_go_with_the_load() {
    for kind in PolicyKind::serving() {
        let mut cache = Simulated::new(kind.build(100), 100);
        for _ in 0..20 {
            cache.access_all(0..80);
        }
        for _ in 0..60 {
            cache.access_all(1000..1080);
        }
        let held = (1000..1080).filter(|key| cache.slots.contains_key(key)).count();
        assert!(held >= 40, "{kind} holds {held} of the 80 that are used now");
    }
}

#[test]
fn wrong_names_and_parameters_are_refused_with_the_right_ones() {
    let error = |text: &str| text.parse::<PolicyKind>().unwrap_err().to_string();
    assert!(
        error("mru").contains("use one of arc, clock, duel, fbr, fifo, fmpq"),
        "{}",
        error("mru")
    );
    assert!(error("lru:x=1").contains("it has none"));
    assert!(error("fmpq:depth=1").contains("it has queues, lifetime, history"));
    assert!(error("fmpq:queues=0").contains("from 1 to 24"));
    assert!(error("fmpq:queues").contains("NAME=VALUE"));
    assert!(error("twoq:inside=1.5").contains("use 0 to 1"));
    assert!(error("lirs:history=-1").contains("0 to 10000"));
}
