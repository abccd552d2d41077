//! How exact a throttle is in real time, and what becomes of schedulers on one: `make bench-throttle`.
//!
//! `bench_throttle accuracy [READS]`: 4 KiB reads of the seed's disk, beside what theory says of them.
//!
//! `bench_throttle schedulers [REQUESTS]`: the seed's load with O_DIRECT on the seed's disk, `k` = 1, 4 and 8 times
//! as slow: responses divided by `k`, as the simulator has them and in real time, once with times to think and the
//! schedulers' own times `k` times as long, and once as they are.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use async_trait::async_trait;
use block::{Device, Durability, Error, Extent, Result, Span, ZeroMode};
use schedule::load::Load;
use schedule::load::layout::Layout;
use schedule::load::surge::{Habits, Surge};
use schedule::simulation::{SimulationSetup, run};
use schedule::{
    Decision, DiskRequest, Nanos, Profile, Random, SECTOR, SegmentCache, View, scheduler,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use throttle::{
    Faults, Precise, Throttle, ThrottleClock, ThrottleCounters, ThrottleSetup, Throttled,
};
use tokio::task::JoinSet;

/// The seed's disk.
const PROFILE: &str = "cheetah-15k4";

/// Requests that the driver gives to the disk at a time.
const OUTSTANDING: usize = 2;

/// A device of any size that takes no time.
#[derive(Debug)]
struct Instantaneous(u64);

#[async_trait]
impl Device for Instantaneous {
    fn size(&self) -> u64 {
        self.0
    }
    async fn read(&self, _: Span, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Ok(())
    }
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Ok(())
    }
    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Ok(())
    }
    async fn extents(&self, _: Span, _: usize) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }
}

/// The seed's disk, so many times as slow, with its clock.
fn throttled(times: f64) -> Result<(Arc<Throttled>, Arc<Throttle>, Arc<Precise>)> {
    let profile = Profile::named(PROFILE)?;
    let clock = Arc::new(Precise::new());
    let (model, faults) = (profile.model()?, Faults::default());
    let setup = ThrottleSetup { model, times, faults, seed: 1 };
    let throttle = Arc::new(Throttle::new(Arc::clone(&clock) as _, setup)?);
    let disk = throttle.over(Arc::new(Instantaneous(profile.sectors()? * SECTOR)));
    Ok((Arc::new(disk), throttle, clock))
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// The 99th percentile of sorted values.
fn p99(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
}

/// What the machine does otherwise.
fn machine_load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Sorted milliseconds of reads of 4 KiB, so many at a time, and what the throttle counted.
async fn reads(offsets: Vec<u64>, depth: usize) -> Result<(Vec<f64>, ThrottleCounters)> {
    let (disk, throttle, clock) = throttled(1.0)?;
    let (offsets, at) = (Arc::new(offsets), Arc::new(AtomicU64::new(0)));
    let mut readers = JoinSet::new();
    for _ in 0..depth {
        let (disk, clock) = (Arc::clone(&disk), Arc::clone(&clock));
        let (offsets, at) = (Arc::clone(&offsets), Arc::clone(&at));
        readers.spawn(async move {
            let mut took = Vec::new();
            while let Some(offset) = offsets.get(at.fetch_add(1, Ordering::Relaxed) as usize) {
                let before = clock.now();
                let span = Span::within(*offset, 4096, disk.size())?;
                disk.read(span, &mut [0; 4096]).await?;
                took.push((clock.now() - before) as f64 * 1e-6);
            }
            Ok::<_, Error>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(part) = readers.join_next().await {
        took.extend(part.map_err(|e| Error::internal(e.to_string()))??);
    }
    took.sort_by(f64::total_cmp);
    Ok((took, throttle.counters()))
}

/// The first table.
async fn accuracy(count: usize) -> Result<()> {
    let sectors = Profile::named(PROFILE)?.sectors()?;
    let mut random = Random::new(9);
    let anywhere: Vec<u64> = (0..count).map(|_| random.below(sectors / 8) * 4096).collect();
    let behind = |count: usize| (0..count as u64).map(|i| i * 4096).collect::<Vec<_>>();
    // Two places are a third of the disk apart on average, and less than 0.9 of it in 99 of 100 cases. What follows
    // the last read is in the cache on board.
    let cases = [
        ("random", 1, anywhere, 4.25 + 5.25 / 3.0, 4.25 + 5.25 * 0.9),
        ("sequential", 1, behind(count * 8), 0.25, 0.25),
        ("sequential", 4, behind(count * 8), 1.0, 1.0),
    ];
    println!("machine load before: {}", machine_load());
    println!(
        "| load | depth | reads | mean, ms | of theory | p99, ms | of theory | late by, us | at most |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, depth, offsets, mean_ms, p99_ms) in cases {
        let (took, counters) = reads(offsets, depth).await?;
        let (found, tail) = (mean(&took), p99(&took));
        println!(
            "| {name} | {depth} | {} | {found:.4} | {:.3} | {tail:.4} | {:.3} | {:.1} | {:.0} |",
            took.len(),
            found / mean_ms,
            tail / p99_ms,
            counters.late_mean_us,
            counters.late_worst_us
        );
    }
    println!("machine load after: {}", machine_load());
    Ok(())
}

/// A run in real time: a load, a scheduler, and the disk.
struct LiveRun {
    disk: Arc<Throttled>,
    clock: Arc<Precise>,
    /// The load's and the scheduler's time goes so many times slower than the clock.
    scale: f64,
    load: Box<dyn Load>,
    scheduler: Box<dyn schedule::Scheduler>,
    model: Box<dyn schedule::Model>,
    shadow: SegmentCache,
    head: u64,
    sent: u64,
    flying: JoinSet<(DiskRequest, Result<()>)>,
}

impl LiveRun {
    fn now(&self) -> Nanos {
        (self.clock.now() as f64 / self.scale) as Nanos
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut dyn schedule::Scheduler, &View<'_>) -> T) -> T {
        let now = self.now();
        let (shadow, model, head) = (&self.shadow, &*self.model, self.head);
        act(&mut *self.scheduler, &View { now, start: now, head, shadow, model })
    }

    /// Takes what has arrived.
    fn arrivals(&mut self) -> Result<()> {
        let mut arriving = Vec::new();
        while self.load.next().is_some_and(|at| at <= self.now()) {
            let now = self.now();
            self.load.arrive(now, &mut arriving)?;
            for request in arriving.drain(..) {
                self.sent += 1;
                let request = DiskRequest { id: self.sent, arrived: now, ..request };
                self.with(|scheduler, view| scheduler.add(request, view));
            }
        }
        Ok(())
    }

    /// Hands out what may go; when to ask again.
    fn dispatch(&mut self) -> Option<Nanos> {
        while self.flying.len() < OUTSTANDING {
            match self.with(|scheduler, view| scheduler.next(view)) {
                Decision::Go(request, _) => self.take(request),
                Decision::Wait(at) => return Some(at),
                Decision::Idle => break,
            }
        }
        None
    }

    fn take(&mut self, request: DiskRequest) {
        if !self.shadow.holds(request.start, request.end()) {
            self.head = request.end();
        }
        self.shadow.read(&request);
        let disk = Arc::clone(&self.disk);
        self.flying.spawn(async move {
            let span = Span::between(request.start * SECTOR, request.end() * SECTOR);
            let mut buffer = vec![0; span.len() as usize];
            (request, disk.read(span, &mut buffer).await)
        });
    }

    /// Sorted responses in milliseconds of the load's time, without the first tenth.
    async fn run(mut self, requests: usize) -> Result<Vec<f64>> {
        let mut responses = Vec::new();
        while responses.len() < requests {
            self.arrivals()?;
            let poll = self.dispatch();
            let until = self.load.next().into_iter().chain(poll).min();
            let at = until.map(|at| (at as f64 * self.scale) as Nanos);
            let clock = Arc::clone(&self.clock);
            tokio::select! {
                Some(done) = self.flying.join_next() => {
                    let (request, result) = done.map_err(|e| Error::internal(e.to_string()))?;
                    result?;
                    let now = self.now();
                    responses.push(now.saturating_sub(request.arrived) as f64 * 1e-6);
                    self.with(|scheduler, view| scheduler.done(&request, view));
                    self.load.done(now, &request);
                }
                () = clock.until(at.unwrap_or(Nanos::MAX / 4)), if at.is_some() => {}
            }
        }
        let mut counted = responses.split_off(requests / 10);
        counted.sort_by(f64::total_cmp);
        Ok(counted)
    }
}

/// Mean response and 99th percentile in real time.
async fn live(
    name: &str,
    layout: &Arc<Layout>,
    times: f64,
    scale: f64,
    requests: usize,
) -> Result<(f64, f64)> {
    let (disk, _, clock) = throttled(times)?;
    let model = Profile::named(PROFILE)?.model()?;
    let run = LiveRun {
        disk,
        clock,
        scale,
        load: Box::new(Surge::new(Arc::clone(layout), Habits::default(), 1)),
        scheduler: scheduler::make(name)?,
        shadow: SegmentCache::new(model.cache()),
        model,
        head: 0,
        sent: 0,
        flying: JoinSet::new(),
    };
    let responses = run.run(requests).await?;
    Ok((mean(&responses), p99(&responses)))
}

/// The same by the simulator: on a disk that is so many times as slow, with nothing else scaled.
fn simulated(name: &str, layout: &Arc<Layout>, times: f64, requests: usize) -> Result<(f64, f64)> {
    let mut profile = Profile::named(PROFILE)?;
    if let Some(line) = &mut profile.linear {
        line.base_ms *= times;
        line.seek_ms *= times;
        line.hit_ms = schedule::model::spread::Spread::Fixed(line.hit_ms.mean() * times);
    }
    let outcome = run(SimulationSetup {
        model: profile.model()?,
        believed: None,
        shadow: None,
        scheduler: scheduler::make(name)?,
        load: Box::new(Surge::new(Arc::clone(layout), Habits::default(), 1)),
        outstanding: OUTSTANDING,
        requests: requests as u64,
        warm_up: requests as u64 / 10,
        seed: 1,
        samples: false,
    })?;
    Ok((outcome.response.mean_ms() / times, outcome.response.quantile_ms(0.99) / times))
}

/// The second table.
async fn schedulers(requests: usize) -> Result<()> {
    let sectors = Profile::named(PROFILE)?.sectors()?;
    let layout = Arc::new(Layout::new(sectors, 1_000_000, 42)?);
    println!("machine load before: {}", machine_load());
    println!("mean response and p99 in ms, divided by k; {requests} requests");
    println!(
        "| scheduler | k | all scaled: simulated | real time | disk alone: simulated | real time |"
    );
    println!("|---|---|---|---|---|---|");
    let show = |(mean, p99): (f64, f64)| format!("{mean:.1} / {p99:.0}");
    for name in ["cats", "deadline", "cfq"] {
        for times in [1.0, 4.0, 8.0] {
            let all = simulated(name, &layout, 1.0, requests)?;
            let all_live = live(name, &layout, times, times, requests).await?;
            let alone = simulated(name, &layout, times, requests)?;
            let (mean, p99) = match times > 1.0 {
                true => live(name, &layout, times, 1.0, requests).await?,
                false => all_live,
            };
            // In real time with nothing scaled, a response is k times as long as the disk would make it.
            let alone_live = if times > 1.0 { (mean / times, p99 / times) } else { all_live };
            println!(
                "| {name} | {times} | {} | {} | {} | {} |",
                show(all),
                show(all_live),
                show(alone),
                show(alone_live)
            );
        }
    }
    println!("machine load after: {}", machine_load());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = |default: usize| match arguments.get(1) {
        Some(text) => text.parse().map_err(|_| Error::invalid(format!("{text} is no number"))),
        None => Ok(default),
    };
    match arguments.first().map(String::as_str) {
        Some("accuracy") => accuracy(count(3000)?).await,
        Some("schedulers") => schedulers(count(4000)?).await,
        _ => Err(Error::invalid("usage: bench_throttle accuracy|schedulers [COUNT]")),
    }
}
