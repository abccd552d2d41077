//! The events of a run.

use super::laws::Balance;
use super::outcome::{DispatchedRequest, SimulationOutcome};
use crate::load::Load;
use crate::model::disk::{Service, Travel};
use crate::{CacheShape, Decision, DiskRequest, Model, ModelledDisk, Nanos, Op, Random, Scheduler};
use crate::{SegmentCache, View};
use block::{Error, Result};
use std::collections::VecDeque;

/// Requests in the system at most: an open load beyond what the disk can do grows for ever.
const MOST: usize = 1 << 16;

/// A run.
#[derive(Debug)]
pub struct SimulationSetup<'a> {
    /// The disk that serves.
    pub model: Box<dyn Model>,
    /// What the scheduler believes the disk to be like; the disk itself when not given.
    pub believed: Option<&'a dyn Model>,
    /// What the scheduler's shadow cache believes the cache on board to be like; as the disk's own
    /// when not given.
    pub shadow: Option<CacheShape>,
    /// The scheduler.
    pub scheduler: Box<dyn Scheduler>,
    /// Where requests come from.
    pub load: Box<dyn Load + 'a>,
    /// Requests that the driver takes before it waits for the disk, 1 or more.
    pub outstanding: usize,
    /// Requests to be done in all; the run ends sooner when the load does.
    pub requests: u64,
    /// How many of these come before the window begins.
    pub warm_up: u64,
    /// For what the model draws.
    pub seed: u64,
    /// Keep points for plots.
    pub samples: bool,
}

/// What the driver was given and the disk does not have yet.
#[derive(Clone, Copy, Debug)]
struct Queued {
    flight: DispatchedRequest,
    travel: Travel,
}

struct SimulationRun<'a> {
    believed: Option<&'a dyn Model>,
    scheduler: Box<dyn Scheduler>,
    load: Box<dyn Load + 'a>,
    disk: ModelledDisk,
    shadow: SegmentCache,
    random: Random,
    outstanding: usize,
    servers: usize,
    now: Nanos,
    /// Where the head will be when all that was handed out is done.
    head: u64,
    /// When that is expected.
    free: Nanos,
    /// Where the head is believed to be behind what the disk has.
    head_on_disk: u64,
    driver: VecDeque<Queued>,
    on_disk: Vec<(Nanos, DispatchedRequest)>,
    /// When each request in the system arrived, by id; free ids.
    arrived: Vec<Option<Nanos>>,
    free_ids: Vec<u64>,
    arriving: Vec<DiskRequest>,
    poll: Option<Nanos>,
    system: Balance,
    device: Balance,
    done: u64,
}

/// Runs until the requests are done or the load ends.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the load asks beyond the disk's end or for more than
/// the disk can do; [`Internal`](block::ErrorKind::Internal) when the scheduler loses or repeats a
/// request, or when Little's law or the utilisation law does not hold; any error from the load.
pub fn run(setup: SimulationSetup<'_>) -> Result<SimulationOutcome> {
    if setup.requests <= setup.warm_up {
        return Err(Error::invalid(format!(
            "{} requests, of which the first {} are not counted; give more",
            setup.requests, setup.warm_up
        )));
    }
    let shadow = setup.shadow.unwrap_or(setup.model.cache());
    let servers = setup.model.servers().max(1);
    let mut run = SimulationRun {
        believed: setup.believed,
        scheduler: setup.scheduler,
        load: setup.load,
        disk: ModelledDisk::new(setup.model),
        shadow: SegmentCache::new(shadow),
        random: Random::new(setup.seed),
        outstanding: setup.outstanding.max(1),
        servers,
        now: 0,
        head: 0,
        free: 0,
        head_on_disk: 0,
        driver: VecDeque::new(),
        on_disk: Vec::with_capacity(servers),
        arrived: Vec::new(),
        free_ids: Vec::new(),
        arriving: Vec::new(),
        poll: None,
        system: Balance::default(),
        device: Balance::default(),
        done: 0,
    };
    let mut outcome = SimulationOutcome { servers, ..SimulationOutcome::default() };
    let mut began = 0;
    if setup.warm_up == 0 {
        run.begin();
    }
    while run.done < setup.requests && run.step()? {
        while let Some(flight) = run.finished()? {
            if run.done > setup.warm_up {
                outcome.count(&flight, run.now);
                if setup.samples {
                    outcome.sample(&flight, run.now - began, run.system.present());
                }
            } else if run.done == setup.warm_up {
                run.begin();
                began = run.now;
            }
            if run.done == setup.requests {
                break;
            }
        }
        run.arrivals()?;
        run.dispatch()?;
    }
    if run.done <= setup.warm_up {
        return Err(Error::invalid(format!(
            "the load ended after {} requests, before the {} that are not counted; give a longer one \
             or a shorter --warm-up",
            run.done, setup.warm_up
        )));
    }
    outcome.finish(began, run.now, &run.system, &run.device)?;
    outcome.counters = run.scheduler.counters();
    Ok(outcome)
}

macro_rules! view {
    ($run:ident) => {
        View {
            now: $run.now,
            start: $run.free.max($run.now),
            head: $run.head,
            shadow: &$run.shadow,
            model: $run.believed.unwrap_or($run.disk.model()),
        }
    };
}

impl SimulationRun<'_> {
    /// The window begins.
    fn begin(&mut self) {
        self.system.begin(self.now);
        self.device.begin(self.now);
    }

    /// Goes to the next event; `false` when there is none.
    fn step(&mut self) -> Result<bool> {
        let done = self.on_disk.iter().map(|(at, _)| *at).min();
        let next = [self.load.next(), done, self.poll].into_iter().flatten().min();
        let Some(next) = next else {
            let waiting = self.scheduler.waiting();
            if self.system.present() == 0 {
                return Ok(false);
            }
            return Err(Error::internal(format!(
                "{} requests are in the system and nothing happens: the scheduler says that {waiting} \
                 wait in it",
                self.system.present()
            )));
        };
        let next = next.max(self.now);
        let by = next - self.now;
        self.system.pass(by);
        self.device.pass(by);
        self.now = next;
        if self.poll.is_some_and(|at| at <= next) {
            self.poll = None;
        }
        Ok(true)
    }

    /// A request that is done now.
    fn finished(&mut self) -> Result<Option<DispatchedRequest>> {
        let done = |(_, (at, flight)): &(usize, &(Nanos, DispatchedRequest))| (*at, flight.begun);
        let first = self.on_disk.iter().enumerate().min_by_key(done);
        let Some(index) = first.filter(|(_, (at, _))| *at <= self.now).map(|(i, _)| i) else {
            return Ok(None);
        };
        let (_, flight) = self.on_disk.swap_remove(index);
        self.device.leave(flight.begun, self.now);
        self.system.leave(flight.arrived, self.now);
        self.done += 1;
        self.free_ids.push(flight.request.id);
        self.scheduler.done(&flight.request, &view!(self));
        self.load.done(self.now, &flight.request);
        // The next one begins at once.
        self.feed();
        Ok(Some(flight))
    }

    /// Takes what arrives now.
    fn arrivals(&mut self) -> Result<()> {
        while self.load.next().is_some_and(|at| at <= self.now) {
            self.arriving.clear();
            let mut arriving = std::mem::take(&mut self.arriving);
            self.load.arrive(self.now, &mut arriving)?;
            for request in &arriving {
                self.add(*request)?;
            }
            self.arriving = arriving;
        }
        Ok(())
    }

    fn add(&mut self, mut request: DiskRequest) -> Result<()> {
        let sectors = self.disk.model().sectors();
        if request.sectors == 0 || request.end() > sectors {
            return Err(Error::invalid(format!(
                "the load asks for sectors {} to {}, the disk has {sectors}; take a larger profile",
                request.start,
                request.end()
            )));
        }
        request.id = match self.free_ids.pop() {
            Some(id) => id,
            None if self.arrived.len() == MOST => {
                return Err(Error::invalid(format!(
                    "{MOST} requests wait: the load is more than the disk can do; give a lower rate"
                )));
            }
            None => {
                self.arrived.push(None);
                self.arrived.len() as u64 - 1
            }
        };
        request.arrived = self.now;
        self.arrived[request.id as usize] = Some(self.now);
        self.system.come(self.now);
        self.scheduler.add(request, &view!(self));
        Ok(())
    }

    /// Has the scheduler fill the driver.
    fn dispatch(&mut self) -> Result<()> {
        self.feed();
        while self.driver.len() + self.on_disk.len() < self.outstanding {
            match self.scheduler.next(&view!(self)) {
                Decision::Go(request, travel) => self.take(request, travel)?,
                Decision::Wait(until) => {
                    self.poll = Some(until.max(self.now + 1));
                    return Ok(());
                }
                Decision::Idle => break,
            }
        }
        self.poll = None;
        Ok(())
    }

    /// The driver takes a request.
    fn take(&mut self, request: DiskRequest, travel: Travel) -> Result<()> {
        let id = request.id as usize;
        let arrived = self.arrived.get_mut(id).and_then(Option::take).ok_or_else(|| {
            Error::internal(format!(
                "the scheduler handed out request {id}, which it does not have"
            ))
        })?;
        let predicted = request.op == Op::Read && self.shadow.holds(request.start, request.end());
        // With more than one behind the disk's own, when the disk begins the next is a sum.
        let expect = self.on_disk.len() + self.driver.len() >= self.servers
            && self.outstanding > self.servers + 1;
        if expect {
            let model = self.believed.unwrap_or(self.disk.model());
            let begin = self.free.max(self.now);
            self.free = begin
                + if predicted {
                    model.expected_hit()
                } else {
                    model.expected(begin, self.head, &request)
                };
        }
        if !predicted {
            self.head = request.end();
        }
        match request.op {
            Op::Read => self.shadow.read(&request),
            Op::Write => self.shadow.write(&request),
        }
        let service = Service { time: 0, expected: 0, hit: false, distance: 0 };
        let dispatched = self.now;
        let flight =
            DispatchedRequest { request, arrived, dispatched, begun: 0, predicted, service };
        self.driver.push_back(Queued { flight, travel });
        self.feed();
        Ok(())
    }

    /// Has the disk take what it can.
    fn feed(&mut self) {
        while self.on_disk.len() < self.servers
            && let Some(Queued { mut flight, travel }) = self.driver.pop_front()
        {
            flight.begun = self.now;
            flight.service = self.disk.serve(self.now, &flight.request, travel, &mut self.random);
            self.device.come(self.now);
            if !flight.predicted {
                self.head_on_disk = flight.request.end();
            }
            self.free = self.now + flight.service.expected;
            self.expect_driver();
            self.on_disk.push((self.now + flight.service.time, flight));
        }
    }

    /// Puts off when the disk is expected to be free by what waits in the driver: anew each time, as what was expected
    /// is never quite what came.
    fn expect_driver(&mut self) {
        let model = self.believed.unwrap_or(self.disk.model());
        let mut head = self.head_on_disk;
        for Queued { flight, .. } in &self.driver {
            if flight.predicted {
                self.free += model.expected_hit();
            } else {
                self.free += model.expected(self.free, head, &flight.request);
                head = flight.request.end();
            }
        }
    }
}
