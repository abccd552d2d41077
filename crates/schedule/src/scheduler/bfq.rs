//! Like Linux' BFQ (budget fair queueing): a queue for each client, and turns of the same number of sectors, of at
//! most 125 ms. The client in turn may keep the disk idle for a moment, because its next request is likely near its
//! last one (Iyer and Druschel, "Anticipatory scheduling", 2001). No priorities, no groups.

use super::{Decision, Parameters, Scheduler, SchedulerKind, View};
use crate::{DiskRequest, Nanos, Op, model::disk::Travel};
use block::Result;
use std::collections::{HashMap, VecDeque};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "bfq",
    about: "like Linux' BFQ: clients in turns of 1,024 sectors, waits 8 ms for the next request",
    make,
};

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    let idle = parameters.time("idle", 8.0)?;
    let slice = parameters.time("slice", 125.0)?;
    let budget = parameters.number("budget", 1024.0, 1.0, 1e9)? as u64;
    let seeky_idle = parameters.time("seeky-idle", 1e9)?;
    Ok(Box::new(Bfq::new(TurnLimits { idle, slice, budget, seeky_idle })))
}

/// The client whose queue all writes share: nobody waits for them.
const WRITES: u32 = u32::MAX;

/// Requests farther apart than this, in sectors, are far.
const FAR: u64 = 800;

/// The requests of a client lie far apart when more than this of its last 32 were far (`BFQQ_SEEKY` of Linux 6.1).
const SEEKY: u32 = 19;

/// How long a turn is.
#[derive(Clone, Copy, Debug)]
struct TurnLimits {
    /// How long the disk waits for the next request of a client.
    idle: Nanos,
    /// The time of a turn.
    slice: Nanos,
    /// The sectors of a turn.
    budget: u64,
    /// How long the disk waits for a client whose requests lie far apart.
    seeky_idle: Nanos,
}

#[derive(Debug, Default)]
struct ClientQueue {
    requests: VecDeque<DiskRequest>,
    in_turn: bool,
    /// When its last request was done.
    done: Option<Nanos>,
    /// The mean time from there to its next request, at most twice the idle time.
    think: f64,
    /// Where its last request ended.
    last_end: Option<u64>,
    /// Its last 32 requests, a bit set for each that was far from the one before.
    far: u32,
}

#[derive(Debug)]
struct Bfq {
    turn: TurnLimits,
    index: HashMap<u32, usize>,
    queues: Vec<ClientQueue>,
    order: VecDeque<usize>,
    active: Option<usize>,
    slice_end: Nanos,
    idle_until: Nanos,
    used: u64,
    in_flight: usize,
    waiting: usize,
}

impl Bfq {
    fn new(turn: TurnLimits) -> Self {
        Self {
            turn,
            index: HashMap::new(),
            queues: Vec::new(),
            order: VecDeque::new(),
            active: None,
            slice_end: 0,
            idle_until: 0,
            used: 0,
            in_flight: 0,
            waiting: 0,
        }
    }

    fn queue(&mut self, request: &DiskRequest) -> usize {
        let client = if request.op == Op::Write { WRITES } else { request.client };
        let next = self.queues.len();
        let index = *self.index.entry(client).or_insert(next);
        if index == next {
            self.queues.push(ClientQueue::default());
        }
        index
    }

    fn line_up(&mut self, index: usize) {
        if !std::mem::replace(&mut self.queues[index].in_turn, true) {
            self.order.push_back(index);
        }
    }

    /// What the active client does next; `None` when its turn is over.
    fn go_on(&mut self, active: usize, now: Nanos) -> Option<Decision> {
        if now < self.slice_end && self.used < self.turn.budget {
            if let Some(request) = self.queues[active].requests.pop_front() {
                self.idle_until = 0;
                self.used += u64::from(request.sectors);
                self.in_flight += 1;
                self.waiting -= 1;
                return Some(Decision::Go(request, Travel::Direct));
            }
            if self.in_flight > 0 {
                return Some(Decision::Idle);
            }
            return (self.idle_until > now).then_some(Decision::Wait(self.idle_until));
        }
        let drained = self.queues[active].requests.is_empty();
        (drained && self.in_flight > 0).then_some(Decision::Idle)
    }
}

impl Scheduler for Bfq {
    fn add(&mut self, request: DiskRequest, view: &View<'_>) {
        let index = self.queue(&request);
        let most = self.turn.idle.saturating_mul(2);
        let queue = &mut self.queues[index];
        if let (true, true, Some(done)) = (request.awaited, queue.requests.is_empty(), queue.done) {
            let think = view.now.saturating_sub(done).min(most) as f64;
            queue.think = queue.think * 0.875 + think * 0.125;
        }
        if let Some(last) = queue.last_end.replace(request.end()) {
            queue.far = queue.far << 1 | u32::from(request.start.abs_diff(last) > FAR);
        }
        let at = queue.requests.partition_point(|r| r.start <= request.start);
        queue.requests.insert(at, request);
        self.waiting += 1;
        if self.active != Some(index) {
            self.line_up(index);
        }
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        loop {
            if let Some(active) = self.active {
                if let Some(decision) = self.go_on(active, view.now) {
                    return decision;
                }
                self.active = None;
                if !self.queues[active].requests.is_empty() {
                    self.line_up(active);
                }
            }
            let Some(index) = self.order.pop_front() else { return Decision::Idle };
            self.queues[index].in_turn = false;
            self.active = Some(index);
            self.slice_end = view.now.saturating_add(self.turn.slice);
            self.used = 0;
            self.idle_until = 0;
        }
    }

    fn done(&mut self, request: &DiskRequest, view: &View<'_>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let index = self.queue(request);
        let queue = &mut self.queues[index];
        queue.done = Some(view.now);
        let soon = request.op == Op::Read && queue.think <= self.turn.idle as f64;
        if self.active == Some(index) && queue.requests.is_empty() && soon {
            let idle = match queue.far.count_ones() > SEEKY {
                true => self.turn.idle.min(self.turn.seeky_idle),
                false => self.turn.idle,
            };
            self.idle_until = view.now.saturating_add(idle).min(self.slice_end);
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}
