//! How long requests take.
//!
//! Times are counted in log-linear buckets, eight to a power of two, so that a percentile is at
//! most 12.5 % too high. Each connection counts in cells of its own, which it alone writes: that
//! takes no locked instruction. Requests that one batch answered share one time, so the clock is
//! read twice a batch and not twice a request.
//!
//! A time runs from the moment the server took the request up, which was received whole or (a long
//! write) with its header, to the moment its answer was handed to the system or, for requests that
//! waited for the device, was ready. Requests that failed are not counted.

use super::traffic::Traffic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

const SUB_BITS: u32 = 3;
/// Buckets to a power of two.
const SUB: usize = 1 << SUB_BITS;
/// Times below 2^SHIFT ns (256 ns) are not told apart.
const SHIFT: u32 = 8;
/// Powers of two above the linear part: up to 2^38 ns (4.6 min); longer times count as that.
const POWERS: usize = 27;
const BUCKETS: usize = SUB * (POWERS + 1);

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimedOperation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Trims.
    Trim,
    /// Write-zeroes requests.
    Zero,
}

impl TimedOperation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero];

    /// Its name in metrics and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Zero => "zero",
        }
    }

    fn count(self, traffic: &Traffic) -> u64 {
        match self {
            Self::Read => traffic.reads,
            Self::Write => traffic.writes,
            Self::Flush => traffic.flushes,
            Self::Trim => traffic.trims,
            Self::Zero => traffic.zeroes,
        }
    }
}

/// The times of requests of one kind, read at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latency {
    /// Empty, or one count for every bucket.
    counts: Vec<u64>,
    nanos: u64,
}

impl Latency {
    /// How many requests were timed.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of their times in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos
    }

    /// The buckets that are not empty, in order: the longest time that belongs to the bucket, in
    /// nanoseconds, and how many requests took so long.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(index, count)| (upper_bound(index), *count))
    }

    /// Adds `other` to it.
    pub fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        }
        self.nanos = self.nanos.wrapping_add(other.nanos);
    }
}

/// The times of one export's requests by [`TimedOperation`], in the order of [`TimedOperation::ALL`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies([Latency; TimedOperation::ALL.len()]);

impl Latencies {
    /// The latencies of one kind.
    pub fn of(&self, operation: TimedOperation) -> &Latency {
        &self.0[operation as usize]
    }

    /// Adds `other` to it.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, latency)| sum.add(latency));
    }
}

/// The cells of one connection, made when the first request of a kind is timed. One thread at a
/// time writes, any may read.
#[derive(Debug, Default)]
pub(crate) struct Meter([OnceLock<Box<Cells>>; TimedOperation::ALL.len()]);

#[derive(Debug)]
struct Cells {
    counts: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Meter {
    fn note(&self, operation: TimedOperation, nanos: u64, requests: u64) {
        let cells = self.0[operation as usize].get_or_init(|| {
            Box::new(Cells {
                counts: [const { AtomicU64::new(0) }; BUCKETS],
                nanos: AtomicU64::new(0),
            })
        });
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        };
        add(&cells.counts[bucket(nanos)], requests);
        add(&cells.nanos, nanos.wrapping_mul(requests));
    }

    /// What was counted so far.
    pub(crate) fn snapshot(&self) -> Latencies {
        Latencies(self.0.each_ref().map(|cells| match cells.get() {
            None => Latency::default(),
            Some(cells) => Latency {
                counts: cells.counts.iter().map(|count| count.load(Relaxed)).collect(),
                nanos: cells.nanos.load(Relaxed),
            },
        }))
    }
}

/// The clock of one connection.
#[derive(Debug)]
pub(crate) struct Timer {
    /// When the batch was taken up.
    began: Instant,
    /// Requests that were timed already, of those that are not settled yet.
    noted: [u64; TimedOperation::ALL.len()],
}

impl Timer {
    /// A clock that shows now.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), noted: [0; _] }
    }

    /// A batch begins now; all that was counted before is settled.
    pub(crate) fn begin(&mut self) {
        *self = Self::new();
    }

    /// The batch begins only now: it was held back.
    pub(crate) fn begin_anew(&mut self, now: Instant) {
        self.began = now;
    }

    /// When the batch began.
    pub(crate) fn now(&self) -> Instant {
        self.began
    }

    /// A request that was put in flight at `since` was answered; gives the time that it took.
    pub(crate) fn waited(
        &mut self,
        meter: &Meter,
        operation: TimedOperation,
        since: Instant,
    ) -> Duration {
        self.noted[operation as usize] += 1;
        let took = Instant::now() - since;
        meter.note(operation, nanos(took), 1);
        took
    }

    /// The batch's answers were handed over; `tally` has what was counted since it was settled.
    /// Another batch begins. Gives the time that the batch took, when it was one.
    #[inline]
    pub(crate) fn answered(&mut self, meter: &Meter, tally: &Traffic) -> Option<Duration> {
        let fresh = |timer: &Self, operation: TimedOperation| {
            operation.count(tally).saturating_sub(timer.noted[operation as usize])
        };
        if TimedOperation::ALL.iter().all(|operation| fresh(self, *operation) == 0) {
            return None;
        }
        let now = Instant::now();
        let took = now - self.began;
        for operation in TimedOperation::ALL {
            let requests = fresh(self, operation);
            if requests > 0 {
                meter.note(operation, nanos(took), requests);
                self.noted[operation as usize] += requests;
            }
        }
        self.began = now;
        Some(took)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The bucket of a time: in units of 2^SHIFT ns, the value itself below [`SUB`], then [`SUB`] steps
/// to each power of two.
fn bucket(nanos: u64) -> usize {
    let value = nanos >> SHIFT;
    if value < SUB as u64 {
        return value as usize;
    }
    let power = value.ilog2() - SUB_BITS;
    let index = (power as usize + 1) * SUB + (value >> power) as usize - SUB;
    index.min(BUCKETS - 1)
}

/// The longest time of a bucket, in nanoseconds.
fn upper_bound(index: usize) -> u64 {
    if index < SUB {
        return ((index as u64 + 1) << SHIFT) - 1;
    }
    let power = (index / SUB - 1) as u32;
    (((index % SUB + SUB) as u64 + 1) << (power + SHIFT)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_an_eighth_wide_and_holds_its_times(nanos in 0u64..1 << 38) {
            let index = bucket(nanos);
            let upper = upper_bound(index);
            prop_assert!(nanos <= upper);
            prop_assert!(upper as f64 <= (nanos as f64 * 1.125).max(nanos as f64 + 256.0));
            prop_assert_eq!(bucket(upper), index);
            prop_assert!(index + 1 == BUCKETS || bucket(upper + 1) == index + 1);
        }
    }

    #[test]
    fn a_stall_is_not_lost() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let meter = Meter::default();
        meter.note(TimedOperation::Flush, u64::MAX, 1);
        assert_eq!(meter.snapshot().of(TimedOperation::Flush).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_shares_one_time_and_what_waited_has_its_own() {
        let (meter, mut timer) = (Meter::default(), Timer::new());
        let since = timer.now();
        tokio::time::advance(Duration::from_millis(1)).await;
        timer.begin();
        tokio::time::advance(Duration::from_micros(10)).await;
        timer.waited(&meter, TimedOperation::Read, since);
        let tally = Traffic { reads: 5, writes: 2, ..Traffic::default() };
        timer.answered(&meter, &tally);
        tokio::time::advance(Duration::from_micros(10)).await;
        timer.answered(&meter, &tally); // nothing new
        let times = meter.snapshot();
        let reads: Vec<_> = times.of(TimedOperation::Read).buckets().collect();
        assert_eq!(reads.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [4, 1]);
        assert!((10_000..11_250).contains(&reads[0].0), "{reads:?}");
        assert!((1_010_000..1_140_000).contains(&reads[1].0), "{reads:?}");
        assert_eq!(times.of(TimedOperation::Write).count(), 2);
        assert_eq!(times.of(TimedOperation::Write).nanos(), 20_000);
        assert_eq!(times.of(TimedOperation::Trim).count(), 0);
        let mut sum = times.clone();
        sum.add(&times);
        sum.add(&Latencies::default());
        assert_eq!(sum.of(TimedOperation::Read).count(), 10);
    }
}
