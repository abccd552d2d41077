//! The policies by their definitions, with vectors for lists and a search for every question.

use super::super::sketch::Sketch;
use super::super::{PolicyKind, Ratio, duel, fbr, fmpq, lirs, s3fifo, twoq, wtinylfu};
use std::collections::{HashMap, VecDeque};

/// A model says of each access whether it hits.
pub(super) trait Model {
    fn access(&mut self, key: u64) -> bool;
    fn remove(&mut self, key: u64);
}

/// The model of a policy.
pub(super) fn of(kind: PolicyKind, capacity: usize) -> Box<dyn Model> {
    let queue = |rule| Box::new(Queue::new(rule, capacity));
    match kind {
        PolicyKind::Lru => queue(Rule::Lru),
        PolicyKind::Fifo => queue(Rule::Fifo),
        PolicyKind::Clock => queue(Rule::Clock),
        PolicyKind::Sieve => queue(Rule::Sieve),
        PolicyKind::Lfu => queue(Rule::Lfu),
        PolicyKind::Arc => Box::new(ArcModel { capacity, ..ArcModel::default() }),
        PolicyKind::TwoQ(parameters) => {
            Box::new(TwoQModel { parameters, capacity, lists: Default::default() })
        }
        PolicyKind::S3Fifo(parameters) => {
            Box::new(S3FifoModel { parameters, capacity, filling: true, lists: Default::default() })
        }
        PolicyKind::Fmpq(p) => Box::new(FmpqModel::new(capacity, p, false)),
        PolicyKind::Mq(p) => {
            let lifetime = Ratio::times(4);
            let parameters =
                fmpq::FmpqParameters { queues: p.queues, lifetime, history: p.history };
            Box::new(FmpqModel::new(capacity, parameters, true))
        }
        PolicyKind::Fbr(parameters) => Box::new(FbrModel { parameters, capacity, stack: vec![] }),
        PolicyKind::Lirs(parameters) => Box::new(LirsModel::new(capacity, parameters)),
        PolicyKind::Duel(duel::DuelParameters { lead, queue, history }) => Box::new(DuelModel {
            lead: lead.into(),
            capacity,
            held: Vec::new(),
            lru: Queue::new(Rule::Lru, capacity),
            lirs: LirsModel::new(capacity, lirs::LirsParameters { queue, history }),
            dropped: Default::default(),
            behind: 0,
        }),
        PolicyKind::WTinyLfu(parameters) => Box::new(WTinyLfuModel {
            sketch: Sketch::new(capacity),
            parameters,
            capacity,
            lists: Default::default(),
        }),
    }
}

/// Takes `key` out of a list; whether it was there.
fn take(list: &mut VecDeque<u64>, key: u64) -> bool {
    let at = list.iter().position(|other| *other == key);
    at.is_some_and(|at| list.remove(at).is_some())
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Lru,
    Fifo,
    Clock,
    Sieve,
    Lfu,
}

/// Policies of one list of keys, oldest first, each with a number.
struct Queue {
    rule: Rule,
    capacity: usize,
    order: VecDeque<(u64, u32)>,
    /// SIEVE's: the place to look at next.
    hand: usize,
}

impl Queue {
    fn new(rule: Rule, capacity: usize) -> Self {
        Self { rule, capacity, order: VecDeque::new(), hand: 0 }
    }

    fn drop_at(&mut self, at: usize) {
        self.order.remove(at);
        if at < self.hand {
            self.hand -= 1;
        }
    }

    fn make_room(&mut self) {
        match self.rule {
            Rule::Lru | Rule::Fifo => self.drop_at(0),
            Rule::Lfu => {
                let least = self.order.iter().map(|entry| entry.1).min().unwrap();
                let at = self.order.iter().position(|entry| entry.1 == least).unwrap();
                self.drop_at(at);
            }
            Rule::Clock => {
                while self.order[0].1 > 0 {
                    let (key, _) = self.order.pop_front().unwrap();
                    self.order.push_back((key, 0));
                }
                self.drop_at(0);
            }
            Rule::Sieve => loop {
                self.hand %= self.order.len();
                if self.order[self.hand].1 == 0 {
                    self.order.remove(self.hand);
                    // Behind the newest the hand goes back to the oldest, also when others come.
                    if self.hand == self.order.len() {
                        self.hand = 0;
                    }
                    return;
                }
                self.order[self.hand].1 = 0;
                self.hand += 1;
            },
        }
    }
}

impl Model for Queue {
    fn access(&mut self, key: u64) -> bool {
        if let Some(at) = self.order.iter().position(|entry| entry.0 == key) {
            match self.rule {
                Rule::Fifo => {}
                Rule::Clock | Rule::Sieve => self.order[at].1 = 1,
                Rule::Lru | Rule::Lfu => {
                    let (key, count) = self.order.remove(at).unwrap();
                    self.order.push_back((key, count + 1));
                }
            }
            return true;
        }
        if self.order.len() == self.capacity {
            self.make_room();
        }
        self.order.push_back((key, 0));
        false
    }

    fn remove(&mut self, key: u64) {
        if let Some(at) = self.order.iter().position(|entry| entry.0 == key) {
            self.drop_at(at);
            if self.hand == self.order.len() {
                self.hand = 0;
            }
        }
    }
}

#[derive(Default)]
struct ArcModel {
    capacity: usize,
    t: [VecDeque<u64>; 2],
    b: [VecDeque<u64>; 2],
    p: f64,
}

impl ArcModel {
    fn replace(&mut self, in_b2: bool) {
        let once = self.t[0].len() as f64;
        let from = usize::from(
            !(once >= 1.0 && (once > self.p || (in_b2 && once == self.p))) && !self.t[1].is_empty(),
        );
        let victim = self.t[from].pop_front().unwrap();
        self.b[from].push_back(victim);
    }
}

impl Model for ArcModel {
    fn access(&mut self, key: u64) -> bool {
        if take(&mut self.t[0], key) || take(&mut self.t[1], key) {
            self.t[1].push_back(key);
            return true;
        }
        let c = self.capacity;
        let full = self.t[0].len() + self.t[1].len() == c;
        let (b1, b2) = (self.b[0].len() as f64, self.b[1].len() as f64);
        if self.b[0].contains(&key) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(c as f64);
            if full {
                self.replace(false);
            }
            take(&mut self.b[0], key);
            self.t[1].push_back(key);
        } else if self.b[1].contains(&key) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            if full {
                self.replace(true);
            }
            take(&mut self.b[1], key);
            self.t[1].push_back(key);
        } else {
            if full && self.t[0].len() + self.b[0].len() >= c {
                if self.b[0].pop_front().is_some() {
                    self.replace(false);
                } else {
                    self.t[0].pop_front();
                }
            } else if full {
                if c + self.b[0].len() + self.b[1].len() >= 2 * c && self.b[1].pop_front().is_none()
                {
                    self.b[0].pop_front();
                }
                self.replace(false);
            }
            self.t[0].push_back(key);
        }
        false
    }

    fn remove(&mut self, key: u64) {
        self.t.iter_mut().for_each(|list| {
            take(list, key);
        });
    }
}

struct TwoQModel {
    parameters: twoq::TwoQParameters,
    capacity: usize,
    /// A1in, Am, A1out.
    lists: [VecDeque<u64>; 3],
}

impl Model for TwoQModel {
    fn access(&mut self, key: u64) -> bool {
        let [inside, main, out] = &mut self.lists;
        if inside.contains(&key) {
            return true;
        }
        if take(main, key) {
            main.push_back(key);
            return true;
        }
        let known = out.contains(&key);
        if inside.len() + main.len() == self.capacity {
            if inside.len() > self.parameters.inside.of(self.capacity) || main.is_empty() {
                out.push_back(inside.pop_front().unwrap());
                while out.len() > self.parameters.outside.of(self.capacity) {
                    out.pop_front();
                }
            } else {
                main.pop_front();
            }
        }
        take(out, key);
        if known { main } else { inside }.push_back(key);
        false
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.lists[0], key);
        take(&mut self.lists[1], key);
    }
}

struct S3FifoModel {
    parameters: s3fifo::S3FifoParameters,
    capacity: usize,
    filling: bool,
    /// Small, main, ghost: keys and uses.
    lists: [VecDeque<(u64, u32)>; 3],
}

impl S3FifoModel {
    fn make_room(&mut self) {
        let least = self.parameters.small.of(self.capacity).max(1);
        let [small, main, ghost] = &mut self.lists;
        let mut try_small = small.len() >= least;
        loop {
            if try_small {
                while let Some((key, uses)) = small.pop_front() {
                    if uses >= u32::from(self.parameters.promote) {
                        main.push_back((key, 0));
                        continue;
                    }
                    ghost.push_back((key, 0));
                    while ghost.len() > self.parameters.history.of(self.capacity) {
                        ghost.pop_front();
                    }
                    return;
                }
            }
            while let Some((key, uses)) = main.pop_front() {
                if uses == 0 {
                    return;
                }
                main.push_back((key, uses - 1));
            }
            try_small = true;
        }
    }
}

impl Model for S3FifoModel {
    fn access(&mut self, key: u64) -> bool {
        let [small, main, _] = &mut self.lists;
        if let Some(entry) = small.iter_mut().chain(main).find(|entry| entry.0 == key) {
            entry.1 = (entry.1 + 1).min(3);
            return true;
        }
        if self.lists[0].len() + self.lists[1].len() == self.capacity {
            self.filling = false;
            self.make_room();
        }
        let least = self.parameters.small.of(self.capacity).max(1);
        let first = self.filling && self.parameters.fill == s3fifo::Fill::Main;
        if first && self.lists[0].len() >= least {
            self.lists[1].push_back((key, 0));
            return false;
        }
        let known = self.lists[2].iter().position(|entry| entry.0 == key);
        let known = known.and_then(|at| self.lists[2].remove(at)).is_some();
        self.lists[usize::from(known)].push_back((key, 0));
        false
    }

    fn remove(&mut self, key: u64) {
        self.lists[..2].iter_mut().for_each(|list| list.retain(|entry| entry.0 != key));
    }
}

/// FMPQ, or with a histogram MQ.
struct FmpqModel {
    capacity: usize,
    parameters: fmpq::FmpqParameters,
    /// Key, count, and the access at which it came to its queue.
    queues: Vec<VecDeque<(u64, u32, u64)>>,
    history: VecDeque<(u64, u32)>,
    now: u64,
    lifetime: u64,
    adaptive: bool,
    last: HashMap<u64, u64>,
    /// Distances by the upper end of their quarter of an octave.
    distances: HashMap<u64, u32>,
    left: usize,
}

impl FmpqModel {
    fn new(capacity: usize, parameters: fmpq::FmpqParameters, adaptive: bool) -> Self {
        Self {
            queues: vec![VecDeque::new(); usize::from(parameters.queues)],
            history: VecDeque::new(),
            now: 0,
            lifetime: parameters.lifetime.of(capacity) as u64,
            adaptive,
            last: HashMap::new(),
            distances: HashMap::new(),
            left: capacity,
            capacity,
            parameters,
        }
    }

    fn take(&mut self, key: u64) -> Option<u32> {
        self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|entry| entry.0 == key)?;
            queue.remove(at).map(|entry| entry.1)
        })
    }

    fn note(&mut self, key: u64, again: bool) {
        let last = self.last.insert(key, self.now);
        if let Some(last) = last.filter(|_| again) {
            let distance = (self.now - last).max(1);
            let octave = 1 << distance.ilog2();
            let quarter = (distance * 4 / octave) & 3;
            *self.distances.entry(octave * 8 + quarter).or_default() += 1;
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.capacity;
            let peak = self.distances.iter().filter(|(_, count)| **count > 0);
            let peak = peak.max_by_key(|(step, count)| (**count, **step));
            if let Some((step, _)) = peak {
                let (octave, quarter) = (step / 8, step % 8);
                self.lifetime = (octave * (5 + quarter) / 4).max(self.capacity as u64);
            }
            self.distances.values_mut().for_each(|count| *count /= 2);
        }
    }
}

impl Model for FmpqModel {
    fn access(&mut self, key: u64) -> bool {
        let held = self.queues.iter().flatten().any(|entry| entry.0 == key);
        if !held && self.queues.iter().map(VecDeque::len).sum::<usize>() == self.capacity {
            let lowest = self.queues.iter_mut().find(|queue| !queue.is_empty());
            let (victim, count, _) = lowest.unwrap().pop_front().unwrap();
            self.history.push_back((victim, count));
            while self.history.len() > self.parameters.history.of(self.capacity) {
                self.history.pop_front();
            }
        }
        let known = self.history.iter().position(|entry| entry.0 == key);
        if self.adaptive {
            self.note(key, held || known.is_some());
        }
        let known = known.and_then(|at| self.history.remove(at)).map(|entry| entry.1);
        let count = self.take(key).or(known).unwrap_or(0) + 1;
        let level = (count.ilog2() as usize).min(self.queues.len() - 1);
        self.queues[level].push_back((key, count, self.now));
        self.now += 1;
        for level in 1..self.queues.len() {
            if self.queues[level].front().is_some_and(|head| self.now - head.2 > self.lifetime)
                && let Some((key, count, _)) = self.queues[level].pop_front()
            {
                self.queues[level - 1].push_back((key, count, self.now));
            }
        }
        held
    }

    fn remove(&mut self, key: u64) {
        self.take(key);
    }
}

struct FbrModel {
    parameters: fbr::FbrParameters,
    capacity: usize,
    /// Key, count and section (0 new, 1 middle, 2 old), the most recently used first.
    stack: Vec<(u64, u32, u8)>,
}

impl FbrModel {
    /// Moves on what a section has too much: its last, which is then the first of the next.
    fn settle(&mut self) {
        let new = self.parameters.new.of(self.capacity).max(1);
        let middle = self.capacity.saturating_sub(new + self.parameters.old.of(self.capacity));
        for (section, most) in [(0, new), (1, middle)] {
            while self.stack.iter().filter(|entry| entry.2 == section).count() > most {
                let last = self.stack.iter().rposition(|entry| entry.2 == section).unwrap();
                self.stack[last].2 += 1;
            }
        }
        let sum: u32 = self.stack.iter().map(|entry| entry.1).sum();
        if sum > self.parameters.mean * self.stack.len() as u32 {
            self.stack.iter_mut().for_each(|entry| entry.1 = entry.1.div_ceil(2));
        }
    }
}

impl Model for FbrModel {
    fn access(&mut self, key: u64) -> bool {
        let found = self.stack.iter().position(|entry| entry.0 == key);
        let count = match found {
            Some(at) => {
                let (_, count, section) = self.stack.remove(at);
                count + u32::from(section > 0)
            }
            None => 1,
        };
        if found.is_none() && self.stack.len() == self.capacity {
            let oldest = self.stack.iter().map(|entry| entry.2).max().unwrap();
            let mut section = self.stack.iter().enumerate().filter(|(_, entry)| entry.2 == oldest);
            // In the old section the fewest uses decide, then the place; elsewhere only the place.
            let victim = match oldest {
                2 => section.min_by_key(|(at, entry)| (entry.1, usize::MAX - at)),
                _ => section.next_back(),
            };
            let at = victim.unwrap().0;
            self.stack.remove(at);
        }
        self.stack.insert(0, (key, count, 0));
        self.settle();
        found.is_some()
    }

    fn remove(&mut self, key: u64) {
        self.stack.retain(|entry| entry.0 != key);
    }
}

struct LirsModel {
    parameters: lirs::LirsParameters,
    capacity: usize,
    most: usize,
    names: usize,
    /// Key and whether it is LIR, the lowest first.
    stack: Vec<(u64, bool)>,
    queue: VecDeque<u64>,
    left: VecDeque<u64>,
}

impl LirsModel {
    fn new(capacity: usize, parameters: lirs::LirsParameters) -> Self {
        Self {
            most: capacity.saturating_sub(parameters.queue.of(capacity).max(1)),
            names: parameters.history.of(capacity),
            parameters,
            capacity,
            stack: Vec::new(),
            queue: VecDeque::new(),
            left: VecDeque::new(),
        }
    }

    fn prune(&mut self) {
        while self.stack.first().is_some_and(|entry| !entry.1) {
            let (key, _) = self.stack.remove(0);
            take(&mut self.left, key);
        }
    }

    fn take(&mut self, key: u64) -> Option<bool> {
        let at = self.stack.iter().position(|entry| entry.0 == key)?;
        Some(self.stack.remove(at).1)
    }

    fn push_proven(&mut self, key: u64) {
        self.stack.push((key, true));
        while self.stack.iter().filter(|entry| entry.1).count() > self.most {
            let (lowest, _) = self.stack.remove(0);
            self.queue.push_back(lowest);
            self.prune();
        }
    }
}

impl Model for LirsModel {
    fn access(&mut self, key: u64) -> bool {
        if self.queue.contains(&key) {
            if self.take(key).is_some() {
                take(&mut self.queue, key);
                self.push_proven(key);
            } else {
                take(&mut self.queue, key);
                self.queue.push_back(key);
                self.stack.push((key, false));
                self.prune();
            }
            return true;
        }
        if self.stack.contains(&(key, true)) {
            self.take(key);
            self.stack.push((key, true));
            self.prune();
            return true;
        }
        let proven = self.stack.iter().filter(|entry| entry.1).count();
        if proven + self.queue.len() == self.capacity {
            self.most =
                self.capacity.saturating_sub(self.parameters.queue.of(self.capacity).max(1));
            match self.queue.pop_front() {
                Some(victim) if self.stack.iter().any(|entry| entry.0 == victim) => {
                    self.left.push_back(victim);
                    while self.left.len() > self.names {
                        let old = self.left.pop_front().unwrap();
                        self.take(old);
                    }
                }
                Some(_) => {}
                None => {
                    self.stack.remove(0);
                    self.prune();
                }
            }
        }
        let proven = self.stack.iter().filter(|entry| entry.1).count();
        let known = take(&mut self.left, key);
        if known {
            self.take(key);
        }
        if known || proven < self.most {
            self.push_proven(key);
        } else {
            self.stack.push((key, false));
            self.queue.push_back(key);
            self.prune();
        }
        false
    }

    fn remove(&mut self, key: u64) {
        let held = take(&mut self.queue, key) || self.stack.contains(&(key, true));
        if held && self.take(key).is_some() {
            self.prune();
        }
    }
}

struct WTinyLfuModel {
    parameters: wtinylfu::WTinyLfuParameters,
    capacity: usize,
    /// Window, probation, protected.
    lists: [VecDeque<u64>; 3],
    sketch: Sketch,
}

impl Model for WTinyLfuModel {
    fn access(&mut self, key: u64) -> bool {
        let most_new = self.parameters.window.of(self.capacity).max(1);
        let rest = self.capacity.saturating_sub(most_new);
        let most_protected = self.parameters.protected.of(rest);
        let [window, probation, protected] = &mut self.lists;
        if take(window, key) {
            window.push_back(key);
            self.sketch.add(Sketch::key(key));
            return true;
        }
        if take(probation, key) || take(protected, key) {
            protected.push_back(key);
            while protected.len() > most_protected {
                probation.push_back(protected.pop_front().unwrap());
            }
            self.sketch.add(Sketch::key(key));
            return true;
        }
        if window.len() + probation.len() + protected.len() == self.capacity {
            let main = if probation.is_empty() { protected } else { &mut *probation };
            let use_of = |key: Option<&u64>| key.map(|key| self.sketch.estimate(Sketch::key(*key)));
            let competes = !window.is_empty() && window.len() >= most_new;
            if main.is_empty() {
                window.pop_front();
            } else if !competes {
                main.pop_front();
            } else if use_of(window.front()) > use_of(main.front()) {
                main.pop_front();
                probation.push_back(window.pop_front().unwrap());
            } else {
                window.pop_front();
            }
        }
        let [window, probation, _] = &mut self.lists;
        window.push_back(key);
        while window.len() > most_new {
            probation.push_back(window.pop_front().unwrap());
        }
        self.sketch.add(Sketch::key(key));
        false
    }

    fn remove(&mut self, key: u64) {
        self.lists.iter_mut().for_each(|list| {
            take(list, key);
        });
    }
}

/// Both contenders whole, and the cache's own entries beside them.
struct DuelModel {
    lead: i64,
    capacity: usize,
    held: Vec<u64>,
    lru: Queue,
    lirs: LirsModel,
    /// What the cache holds and each of them does not, as they let it go.
    dropped: [VecDeque<u64>; 2],
    behind: i64,
}

impl DuelModel {
    /// What a contender holds.
    fn contents(&self, contender: usize) -> Vec<u64> {
        let proven = self.lirs.stack.iter().filter(|entry| entry.1).map(|entry| entry.0);
        match contender {
            0 => self.lru.order.iter().map(|entry| entry.0).collect(),
            _ => proven.chain(self.lirs.queue.iter().copied()).collect(),
        }
    }

    /// The cache holds it no more.
    fn let_go(&mut self, key: u64) {
        self.held.retain(|other| *other != key);
        self.dropped.iter_mut().for_each(|list| {
            take(list, key);
        });
    }

    /// An access to a contender: whether it hit, and what it let go.
    fn contend(&mut self, contender: usize, key: u64) -> (bool, Option<u64>) {
        let before = self.contents(contender);
        let hit = match contender {
            0 => self.lru.access(key),
            _ => self.lirs.access(key),
        };
        let after = self.contents(contender);
        (hit, before.into_iter().find(|other| !after.contains(other)))
    }
}

impl Model for DuelModel {
    fn access(&mut self, key: u64) -> bool {
        let leader = usize::from(self.behind > 0);
        let hit = self.held.contains(&key);
        let mut hits = [None, None];
        if !hit && self.held.len() == self.capacity {
            let victim = self.dropped[leader].front().copied().unwrap_or_else(|| {
                // The cache holds what the leader does.
                let (hit, left) = self.contend(leader, key);
                hits[leader] = Some(hit);
                left.unwrap()
            });
            self.let_go(victim);
        }
        if !hit {
            self.held.push(key);
        }
        for contender in [0, 1] {
            if hits[contender].is_none() {
                let (hit, left) = self.contend(contender, key);
                hits[contender] = Some(hit);
                take(&mut self.dropped[contender], key);
                self.dropped[contender].extend(left.filter(|left| self.held.contains(left)));
            }
        }
        let ahead = i64::from(hits[1] == Some(true)) - i64::from(hits[0] == Some(true));
        self.behind = (self.behind + ahead).clamp(-self.lead, self.lead);
        hit
    }

    fn remove(&mut self, key: u64) {
        if self.held.contains(&key) {
            self.let_go(key);
            self.lru.remove(key);
            self.lirs.remove(key);
            if take(&mut self.lirs.left, key) {
                self.lirs.take(key);
            }
        }
    }
}
