//! The device.

use crate::clock::ThrottleClock;
use crate::faults::Faults;
use crate::tally::{LiveThrottleCounters, ThrottleCounters};
use async_trait::async_trait;
use block::{Attempt, Device, Durability, Error, Result, Sink, Span, ZeroMode};
use parking_lot::Mutex;
use schedule::model::disk::Travel;
use schedule::{DiskRequest, Model, ModelledDisk, Nanos, Op, Random, SECTOR};
use std::sync::Arc;

/// Bounds of [`ThrottleSetup::times`]. Model time in nanoseconds then lasts for 5 years and more.
const TIMES: std::ops::RangeInclusive<f64> = 0.01..=1000.0;

/// What a device is to be like.
#[derive(Debug)]
pub struct ThrottleSetup {
    /// The disk.
    pub model: Box<dyn Model>,
    /// How many times as long everything takes, 0.01 to 1000; 1 is real time.
    pub times: f64,
    /// What goes wrong.
    pub faults: Faults,
    /// For what the model and the faults draw.
    pub seed: u64,
}

/// The state of a modelled disk: where its arm is, and until when it is busy. All layers over one disk
/// share it.
///
/// Requests are served in the order of arrival, as many at a time as the disk can. Each deadline follows
/// from the deadline of the request before, not from when that was answered, so lateness does not add
/// up.
pub struct Throttle {
    clock: Arc<dyn ThrottleClock>,
    times: f64,
    faults: Faults,
    tally: LiveThrottleCounters,
    state: Mutex<ModelledState>,
}

struct ModelledState {
    disk: ModelledDisk,
    /// When each of the disk's servers is free, in the model's time.
    free: Vec<Nanos>,
    random: Random,
}

/// The outcome of a request, decided on its arrival.
struct Fate {
    /// The deadline of the answer, by the clock.
    due: Nanos,
    fails: bool,
}

impl Throttle {
    /// A disk with nothing to do.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the setup makes no sense.
    pub fn new(clock: Arc<dyn ThrottleClock>, setup: ThrottleSetup) -> Result<Self> {
        if !TIMES.contains(&setup.times) {
            let text = format!("times is {}; give 0.01 to 1000", setup.times);
            return Err(Error::invalid(text));
        }
        setup.faults.check()?;
        let free = vec![0; setup.model.servers().max(1)];
        let random = Random::new(setup.seed);
        Ok(Self {
            clock,
            times: setup.times,
            faults: setup.faults,
            tally: LiveThrottleCounters::default(),
            state: Mutex::new(ModelledState { disk: ModelledDisk::new(setup.model), free, random }),
        })
    }

    /// `inner`, answering as this disk does.
    pub fn over(self: &Arc<Self>, inner: Arc<dyn Device>) -> Throttled {
        Throttled { inner, throttle: Arc::clone(self) }
    }

    /// What it did so far, and how late.
    pub fn counters(&self) -> ThrottleCounters {
        self.tally.counters()
    }

    /// Gives a request its place in the disk's queue.
    fn enter(&self, op: Op, span: Span) -> Fate {
        let now = (self.clock.now() as f64 / self.times) as Nanos;
        let state = &mut *self.state.lock();
        let pause = self.faults.pause(&mut state.random);
        if pause > 0 {
            self.tally.stalled();
            state.free.iter_mut().for_each(|free| *free = now.max(*free).saturating_add(pause));
        }
        let fails = self.faults.fails(span, &mut state.random);
        let capacity = state.disk.model().sectors();
        let start = span.offset() / SECTOR % capacity;
        let sectors = span.end().div_ceil(SECTOR) - span.offset() / SECTOR;
        let sectors = sectors.min(capacity - start).min(u64::from(u32::MAX)) as u32;
        let request = DiskRequest { op, start, sectors, ..DiskRequest::default() };
        // There is at least one server: the constructor sees to it.
        let earliest = state.free.iter_mut().min();
        let Some(free) = earliest else { return Fate { due: 0, fails } };
        let begin = now.max(*free);
        let time = state.disk.serve(begin, &request, Travel::Direct, &mut state.random).time;
        *free = begin.saturating_add(time);
        Fate { due: (*free as f64 * self.times) as Nanos, fails }
    }

    /// Answers a request when it is due.
    async fn answer(&self, fate: Fate, span: Span, result: Result<()>) -> Result<()> {
        self.clock.until(fate.due).await;
        self.tally.answered(self.clock.now().saturating_sub(fate.due), fate.fails);
        match fate.fails {
            true => Err(Error::unavailable(format!("injected fault at {span:?}"))),
            false => result,
        }
    }
}

/// A device that answers when a modelled disk would, and never earlier.
///
/// Reads and writes take their time; zeroing is a write; a flush and a discard take none. A device
/// that is larger than the disk begins again at its first sector; a smaller one is the disk's
/// beginning.
pub struct Throttled {
    inner: Arc<dyn Device>,
    throttle: Arc<Throttle>,
}

#[async_trait]
impl block::Layer for Throttled {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    // Every read and write waits for its deadline.
    fn try_read(&self, _: Span, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn try_read_to(&self, _: Span, _: &mut dyn Sink) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let fate = self.throttle.enter(Op::Read, span);
        let result = self.below().read(span, buf).await;
        self.throttle.answer(fate, span, result).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        let fate = self.throttle.enter(Op::Write, span);
        // A write that fails leaves what was there.
        let result = match fate.fails {
            true => Ok(()),
            false => self.below().write(span, data, durability).await,
        };
        self.throttle.answer(fate, span, result).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        let fate = self.throttle.enter(Op::Write, span);
        let result = match fate.fails {
            true => Ok(()),
            false => self.below().zero(span, mode, durability).await,
        };
        self.throttle.answer(fate, span, result).await
    }

    // Reading ahead would move the head of a disk that is not asked yet.
    async fn prefetch(&self, _: Span) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Stall;
    use block::testing::Blank;
    use block::{ErrorKind, Fault, Memory, Operation, ScriptedDevice};
    use schedule::Profile;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock that goes where it is waited for.
    #[derive(Debug, Default)]
    struct Virtual(AtomicU64);

    #[async_trait]
    impl ThrottleClock for Virtual {
        fn now(&self) -> Nanos {
            self.0.load(Ordering::SeqCst)
        }
        async fn until(&self, at: Nanos) {
            self.0.fetch_max(at, Ordering::SeqCst);
        }
    }

    fn setup(profile: &str, times: f64, faults: Faults) -> ThrottleSetup {
        let model = Profile::named(profile).unwrap().model().unwrap();
        ThrottleSetup { model, times, faults, seed: 1 }
    }

    /// The size of the seed's disk, in bytes.
    const SIZE: u64 = 143_374_744 * SECTOR;

    fn disk(times: f64, faults: Faults) -> (Throttled, Arc<Virtual>) {
        let clock = Arc::new(Virtual::default());
        let setup = setup("cheetah-15k4", times, faults);
        let throttle = Arc::new(Throttle::new(Arc::clone(&clock) as _, setup).unwrap());
        (throttle.over(Arc::new(Blank(SIZE))), clock)
    }

    /// Milliseconds of each of these reads of 4 KiB, one after the other.
    async fn reads(times: f64, offsets: impl Iterator<Item = u64>) -> Vec<f64> {
        let (throttle, clock) = disk(times, Faults::default());
        let mut took = Vec::new();
        for offset in offsets {
            let before = clock.now();
            let span = Span::within(offset, 4096, throttle.size()).unwrap();
            throttle.read(span, &mut [0; 4096]).await.unwrap();
            took.push((clock.now() - before) as f64 * 1e-6);
        }
        took.sort_by(f64::total_cmp);
        took
    }

    fn random_places(count: usize) -> impl Iterator<Item = u64> {
        let mut random = Random::new(9);
        (0..count).map(move |_| random.below(143_374_744 / 8) * 4096)
    }

    #[tokio::test]
    async fn random_reads_take_what_theory_says_and_k_times_that() {
        for times in [1.0, 8.0] {
            let took = reads(times, random_places(20_000)).await;
            let mean = took.iter().sum::<f64>() / took.len() as f64;
            // Distances of two uniform places: mean 1/3, 0.9 at the 99th percentile.
            assert!((mean / (4.25 + 5.25 / 3.0) / times - 1.0).abs() < 0.02, "{mean}");
            let p99 = took[took.len() * 99 / 100];
            assert!((p99 / (4.25 + 5.25 * 0.9) / times - 1.0).abs() < 0.05, "{p99}");
        }
    }

    #[tokio::test]
    async fn sequential_reads_come_out_of_the_cache_on_board() {
        let took = reads(1.0, (1..1000).map(|i| i * 4096)).await;
        assert!(took[..998].iter().all(|ms| (ms - 0.25).abs() < 1e-6));
        assert!(took[998] > 4.0, "the first one is read from the disk");
    }

    #[tokio::test]
    async fn it_keeps_the_device_contract() {
        block::conformance::check(|size| async move {
            let clock = Arc::new(Virtual::default());
            let setup = setup("ssd-nvme", 1.0, Faults::default());
            let throttle = Arc::new(Throttle::new(clock, setup).unwrap());
            Arc::new(throttle.over(Arc::new(Memory::new(size)))) as _
        })
        .await;
    }

    #[tokio::test]
    async fn requests_queue_for_the_one_arm_and_not_for_flash() {
        for (profile, least, most) in [("cheetah-15k4", 4.0 * 4.2, 1e9), ("ssd-nvme", 0.04, 0.2)] {
            let clock = Arc::new(Virtual::default());
            let setup = setup(profile, 1.0, Faults::default());
            let throttle = Throttle::new(Arc::clone(&clock) as _, setup).unwrap();
            // All four come at the same time.
            let fates: Vec<_> = (0..4u64)
                .map(|i| throttle.enter(Op::Read, Span::between(i << 30, (i << 30) + 4096)))
                .collect();
            let last = fates.iter().map(|fate| fate.due).max().unwrap() as f64 * 1e-6;
            assert!((least..most).contains(&last), "{profile}: {last}");
        }
    }

    #[tokio::test]
    async fn faults_come_as_often_and_where_they_were_asked_for() {
        let bad = vec![std::ops::Range { start: 1 << 20, end: 2 << 20 }];
        let stall = Some(Stall { part: 0.01, time: 1_000_000_000 });
        let (throttle, clock) = disk(1.0, Faults { fail: 0.1, bad, stall });
        let mut failed = 0;
        for offset in random_places(5000).map(|offset| offset.max(4 << 20)) {
            let result = throttle.read(Span::between(offset, offset + 4096), &mut [0; 4096]).await;
            failed += u32::from(result.is_err());
        }
        assert!((420..580).contains(&failed), "{failed}");
        let counters = throttle.throttle.counters();
        assert_eq!((counters.requests, counters.failed), (5000, u64::from(failed)));
        assert!((25..80).contains(&counters.stalls), "{}", counters.stalls);
        assert!(clock.now() > counters.stalls * 1_000_000_000);
        let span = Span::between((2 << 20) - 512, 2 << 20);
        let error = throttle.write(span, &[0; 512], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_device_that_fails_or_vanishes_below_is_told_when_the_model_would_answer() {
        let kinds = [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::NoSpace];
        for kind in kinds {
            let clock = Arc::new(Virtual::default());
            let setup = setup("cheetah-15k4", 1.0, Faults::default());
            let throttle = Arc::new(Throttle::new(Arc::clone(&clock) as _, setup).unwrap());
            let plan = move |_: Operation| Fault::Fail(kind);
            let disk = throttle.over(Arc::new(ScriptedDevice::new(Memory::new(1 << 20), plan)));
            let span = Span::between(8192, 12_288);
            let read = disk.read(span, &mut [0; 4096]).await.unwrap_err();
            let written = disk.write(span, &[0; 4096], Durability::Buffered).await.unwrap_err();
            assert_eq!((read.kind(), written.kind()), (kind, kind));
            assert!(clock.now() >= 2 * 4_250_000, "{}", clock.now());
            let counters = throttle.counters();
            assert_eq!((counters.requests, counters.failed), (2, 0), "not a fault of ours");
        }
    }

    #[tokio::test]
    async fn what_comes_late_is_counted() {
        let (throttle, clock) = disk(1.0, Faults::default());
        let fate = throttle.throttle.enter(Op::Read, Span::between(0, 4096));
        clock.until(fate.due + 3_000_000).await;
        throttle.throttle.answer(fate, Span::between(0, 4096), Ok(())).await.unwrap();
        let counters = throttle.throttle.counters();
        assert_eq!((counters.late, counters.late_worst_us), (1, 3000.0));
    }

    #[test]
    fn setups_that_make_no_sense_are_refused() {
        let refused = |times, faults| {
            let clock = Arc::new(Virtual::default());
            let made = Throttle::new(clock, setup("hdd-7200", times, faults));
            made.err().map(|e| e.message().to_owned()).unwrap_or_default()
        };
        assert!(refused(0.0, Faults::default()).contains("give 0.01 to 1000"));
        assert!(refused(f64::NAN, Faults::default()).contains("give 0.01 to 1000"));
        let stall = Some(Stall { part: 0.1, time: Nanos::MAX });
        assert!(refused(1.0, Faults { stall, ..Faults::default() }).contains("stall lasts"));
        let faults = |fail| Faults { fail, ..Faults::default() };
        assert!(refused(1.0, faults(2.0)).contains("fail is 2"));
        let bad = vec![std::ops::Range { start: 5, end: 5 }];
        assert!(refused(1.0, Faults { bad, ..Faults::default() }).contains("FROM-TO"));
    }
}
