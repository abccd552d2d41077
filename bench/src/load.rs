//! The loads, and one measured window of one load against one server.

use crate::client::{self, BenchConnection, ConnectionResult, Job};
use crate::place::Endpoint;
use crate::process::Tree;
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};
use trace::TimeHistogram;

/// What a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// 4 KiB reads anywhere on the disk.
    Read,
    /// 128 KiB reads, one after the other.
    Sequential,
    /// 4 KiB writes, each to a block that was never written: what a copy-on-write layer does
    /// when a guest starts to use its disk. Ends when there is no such block any more.
    FirstWrite,
    /// 4 KiB writes to blocks that were written before.
    Write,
}

/// A pattern with a number of clients, each with a number of requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatternLoad {
    pub(crate) pattern: Pattern,
    pub(crate) clients: usize,
    pub(crate) depth: usize,
    /// Part of the quick run.
    pub(crate) quick: bool,
}

const fn load(pattern: Pattern, clients: usize, depth: usize, quick: bool) -> PatternLoad {
    PatternLoad { pattern, clients, depth, quick }
}

/// All loads, in the order in which they run: reads while the disk is untouched.
pub(crate) const ALL: [PatternLoad; 12] = [
    load(Pattern::Read, 1, 1, true),
    load(Pattern::Read, 8, 1, false),
    load(Pattern::Read, 8, 16, true),
    load(Pattern::Read, 50, 1, false),
    load(Pattern::Read, 50, 16, false),
    load(Pattern::Sequential, 1, 16, true),
    load(Pattern::FirstWrite, 8, 16, false),
    load(Pattern::FirstWrite, 50, 16, false),
    load(Pattern::Write, 1, 1, true),
    load(Pattern::Write, 8, 16, true),
    load(Pattern::Write, 50, 1, false),
    load(Pattern::Write, 50, 16, false),
];

/// The most clients of any load.
pub(crate) const MOST_CLIENTS: usize = 50;

const SMALL: u64 = 4096;
const LARGE: u64 = 128 << 10;
/// Blocks that are written again and again, over all clients.
const REWRITTEN: u64 = 64 << 20;
/// The longest that a window takes which ends when all is written: a slow server's ends before.
const LONGEST: Duration = Duration::from_secs(10);
/// Unmeasured running before a window of reads.
const WARM_UP: Duration = Duration::from_millis(100);

impl PatternLoad {
    /// Whether it wants a disk that nobody wrote to.
    pub(crate) fn wants_untouched(&self) -> bool {
        self.pattern == Pattern::FirstWrite
    }

    /// Whether it writes.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.pattern, Pattern::FirstWrite | Pattern::Write)
    }

    /// How long a window is at most: every window of first writes does the same work, so that each meets as much
    /// of what the file system does now and then.
    fn window(&self, window: Duration) -> Duration {
        if self.wants_untouched() { window.max(LONGEST) } else { window }
    }

    /// A short name: `read-8x16` is 8 clients with 16 requests in flight each.
    pub(crate) fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Read => "read",
            Pattern::Sequential => "sequential",
            Pattern::FirstWrite => "first-write",
            Pattern::Write => "write",
        };
        format!("{pattern}-{}x{}", self.clients, self.depth)
    }

    /// The name in words.
    pub(crate) fn title(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Read => "4 KiB random read",
            Pattern::Sequential => "128 KiB sequential read",
            Pattern::FirstWrite => "4 KiB first write of a block",
            Pattern::Write => "4 KiB random write",
        };
        let plural = if self.clients == 1 { "" } else { "s" };
        format!("{pattern}, {} client{plural} x depth {}", self.clients, self.depth)
    }

    /// Length of a request, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        if self.pattern == Pattern::Sequential { LARGE } else { SMALL }
    }

    /// Where client `index` works on a disk of `size` bytes: offset and length. Clients write
    /// apart from each other, as guests with disks of their own do.
    fn region(&self, index: usize, size: u64) -> (u64, u64) {
        let (index, clients) = (index as u64, self.clients as u64);
        match self.pattern {
            Pattern::Read | Pattern::Sequential => (0, size),
            Pattern::FirstWrite => {
                // A power of two, for the permutation in `Walk::once`.
                let share = 1 << (size / clients).ilog2();
                (index * share, share)
            }
            Pattern::Write => {
                let share = (REWRITTEN.min(size) / clients) / LARGE * LARGE;
                (index * share, share)
            }
        }
    }

    fn walk(&self, index: usize, size: u64) -> Walk {
        let (base, length) = self.region(index, size);
        let blocks = length / self.bytes();
        let bytes = self.bytes();
        let kind = match self.pattern {
            Pattern::Read | Pattern::Write => {
                WalkKind::Random((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            }
            Pattern::Sequential => WalkKind::Sequential(0),
            Pattern::FirstWrite => WalkKind::Once { state: 0, left: blocks },
        };
        Walk { base, blocks, bytes, kind }
    }
}

/// The offsets of one client's requests.
struct Walk {
    base: u64,
    blocks: u64,
    bytes: u64,
    kind: WalkKind,
}

enum WalkKind {
    /// Xorshift64 (Marsaglia, "Xorshift RNGs", 2003): the state is never zero.
    Random(u64),
    Sequential(u64),
    /// Every block once, in an order without neighbours: a linear congruential generator whose
    /// period is the whole power of two (Knuth, TAOCP 2, 3.2.1.2, theorem A).
    Once {
        state: u64,
        left: u64,
    },
}

impl Walk {
    fn next(&mut self) -> Option<u64> {
        let block = match &mut self.kind {
            WalkKind::Random(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                *state % self.blocks
            }
            WalkKind::Sequential(next) => {
                let block = *next;
                *next = (*next + 1) % self.blocks;
                block
            }
            WalkKind::Once { state, left } => {
                *left = left.checked_sub(1)?;
                *state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491)
                    & (self.blocks - 1);
                *state
            }
        };
        Some(self.base + block * self.bytes)
    }
}

/// What one window measured.
#[derive(Debug, Clone)]
pub(crate) struct WindowSample {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of the server for all requests that `latency` counts, seconds.
    pub(crate) cpu: f64,
    /// Most memory the server held while the clients were connected, bytes.
    pub(crate) peak_memory: u64,
    /// Request latencies.
    pub(crate) latency: TimeHistogram,
}

/// Runs one window of `load` on a server that listens at `place`; `export` names the disk of
/// each client.
///
/// # Errors
/// When any client is refused, loses its connection, gets an error or wrong data, or waits too
/// long: a server that does not serve everybody has no figure.
pub(crate) fn measure(
    load: PatternLoad,
    window: Duration,
    size: u64,
    place: &Endpoint,
    export: &(dyn Fn(usize) -> String + Sync),
    tree: &mut Tree,
) -> Result<WindowSample> {
    // All clients and this thread meet three times: when everybody is warm, when everybody is
    // answered, and when the server's use has been read, before anybody disconnects.
    let barrier = Barrier::new(load.clients + 1);
    let (window, done) = (load.window(window), AtomicUsize::new(0));
    let start = OnceLock::new();
    let client = |index: usize| -> Result<ConnectionResult> {
        let ready = prepare(load, size, place, &export(index), index);
        barrier.wait();
        barrier.wait();
        let result = ready.and_then(|mut connection| {
            let job = job_of(load);
            let mut walk = load.walk(index, size);
            // The same window for all, also for whose thread comes late.
            let until = *start.get_or_init(Instant::now) + window;
            let tally = connection.drive(job, Some(until), || walk.next())?;
            Ok((connection, tally))
        });
        done.fetch_add(1, Ordering::Relaxed);
        barrier.wait();
        barrier.wait();
        result.map(|(connection, tally)| {
            connection.close();
            tally
        })
    };
    let (client, barrier) = (&client, &barrier);
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..load.clients).map(|index| scope.spawn(move || client(index))).collect();
        barrier.wait();
        tree.refresh();
        let before = tree.usage();
        barrier.wait();
        let mut peak_memory = 0;
        let start = *start.get_or_init(Instant::now);
        let end = start + window;
        while Instant::now() < end && done.load(Ordering::Relaxed) < load.clients {
            peak_memory = peak_memory.max(tree.memory());
            std::thread::sleep((window / 5).min(Duration::from_millis(100)));
        }
        barrier.wait();
        tree.refresh();
        let cpu = tree.usage().since(&before);
        peak_memory = peak_memory.max(tree.memory());
        barrier.wait();

        let mut latency = TimeHistogram::default();
        let (mut tallies, mut failures) = (Vec::new(), Vec::new());
        for client in clients {
            match client.join().map_err(|_| anyhow::anyhow!("the load generator panicked"))? {
                Ok(tally) => {
                    latency.merge(&tally.latency);
                    tallies.push(tally);
                }
                Err(error) => failures.push(error),
            }
        }
        if let Some(first) = failures.first() {
            anyhow::bail!(
                "served {} of {} clients; first failure: {first:#}",
                load.clients - failures.len(),
                load.clients
            );
        }
        ensure!(latency.count() > 0, "no request was answered in {} s", window.as_secs_f64());
        Ok(WindowSample { rate: client::rate(start, tallies.iter()), cpu, peak_memory, latency })
    })
}

fn job_of(load: PatternLoad) -> Job {
    Job { writes: load.writes(), bytes: load.bytes() as usize, depth: load.depth }
}

/// Connects, and does what must have happened before the window: reads run for a moment; blocks
/// to be rewritten are written once.
fn prepare(
    load: PatternLoad,
    size: u64,
    place: &Endpoint,
    export: &str,
    index: usize,
) -> Result<BenchConnection> {
    let mut connection = BenchConnection::open_at(place, export)?;
    ensure!(
        connection.size() >= size,
        "export {export:?} has {} bytes, {size} were expected",
        connection.size()
    );
    match load.pattern {
        Pattern::Read | Pattern::Sequential => {
            let mut walk = load.walk(index, size);
            let until = Instant::now() + WARM_UP;
            connection.drive(job_of(load), Some(until), || walk.next()).context("warm-up")?;
        }
        Pattern::FirstWrite => {}
        Pattern::Write => {
            let (base, length) = load.region(index, size);
            let mut offsets = (base..base + length).step_by(LARGE as usize);
            let job = Job { writes: true, bytes: LARGE as usize, depth: 4 };
            connection.drive(job, None, || offsets.next()).context("warm-up")?;
        }
    }
    Ok(connection)
}

/// Reads the whole of `export` once, so that every server measures from warm caches, and so that
/// every block was checked.
pub(crate) fn read_all(place: &Endpoint, export: &str, size: u64) -> Result<()> {
    let mut connection = BenchConnection::open_at(place, export)?;
    let mut offsets = (0..size).step_by(LARGE as usize);
    let job = Job { writes: false, bytes: LARGE as usize, depth: 8 };
    connection.drive(job, None, || offsets.next())?;
    connection.close();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SIZE: u64 = 256 << 20;

    #[test]
    fn first_writes_touch_every_block_of_every_region_once() {
        for load in ALL.into_iter().filter(PatternLoad::wants_untouched) {
            let mut seen = BTreeSet::new();
            for index in 0..load.clients {
                let mut walk = load.walk(index, SIZE);
                while let Some(offset) = walk.next() {
                    assert!(offset + SMALL <= SIZE && offset % SMALL == 0);
                    assert!(seen.insert(offset), "{offset} twice");
                }
            }
            let (_, length) = load.region(0, SIZE);
            assert_eq!(seen.len() as u64, load.clients as u64 * length / SMALL);
        }
    }

    #[test]
    fn walks_stay_on_the_disk_and_rewrites_in_their_region() {
        for load in ALL {
            let mut regions = Vec::new();
            for index in 0..load.clients {
                let (base, length) = load.region(index, SIZE);
                let mut walk = load.walk(index, SIZE);
                for _ in 0..1000 {
                    let offset = walk.next().unwrap();
                    assert!(offset >= base && offset + load.bytes() <= base + length);
                    assert_eq!(offset % load.bytes(), 0);
                }
                assert!(base + length <= SIZE);
                regions.push((base, length));
            }
            if load.writes() {
                assert!(regions.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            }
        }
    }

    #[test]
    fn load_names_are_distinct() {
        let names: BTreeSet<String> = ALL.iter().map(PatternLoad::name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|load| load.clients <= MOST_CLIENTS));
    }
}
