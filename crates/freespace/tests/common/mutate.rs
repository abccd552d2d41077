//! Mutations: random damage to whatever a reader reads. An image is refused, or what it yields is
//! free in the undamaged one too.

use super::sparse::{Changed, Recording, Sparse};
use block::Span;
use freespace::{FileSystem, FreeSpace, FreeSpaceOptions, Source, Window};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// One file system to damage: an undamaged image, and how it is read.
pub(crate) struct Seam {
    pub(crate) name: &'static str,
    pub(crate) kind: FileSystem,
    pub(crate) options: FreeSpaceOptions,
    pub(crate) image: Sparse,
    /// What the image yields, confirmed by somebody else's tool.
    pub(crate) free: Vec<Span>,
}

/// What happened to the damaged images.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Processor time of the one that took longest.
    pub(crate) slowest: Duration,
}

/// Mutations per seam: `FREESPACE_MUTATIONS`, else `usual`.
pub(crate) fn count(usual: u64) -> u64 {
    let wanted = std::env::var("FREESPACE_MUTATIONS").ok();
    wanted.map_or(usual, |text| text.parse().unwrap())
}

/// Numbers that look random and are the same in every run (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }
}

impl Seam {
    /// Damages the image `count` times, each time anew.
    pub(crate) fn run(&self, count: u64) -> Outcome {
        let read = self.what_is_read();
        let next = AtomicU64::new(0);
        let workers: Vec<Outcome> = std::thread::scope(|scope| {
            let worker = || {
                let mut outcome = Outcome { accepted: 0, refused: 0, slowest: Duration::ZERO };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return outcome;
                    }
                    self.one(number, &read, &mut outcome);
                }
            };
            let handles = [scope.spawn(worker), scope.spawn(worker)];
            // A worker's panic goes on here, with its own words.
            let join = |handle: ScopedJoinHandle<'_, Outcome>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            handles.map(join).into()
        });
        let outcome = Outcome {
            accepted: workers.iter().map(|worker| worker.accepted).sum(),
            refused: workers.iter().map(|worker| worker.refused).sum(),
            slowest: workers.iter().map(|worker| worker.slowest).max().unwrap(),
        };
        eprintln!("{}: {count} mutations: {outcome:?}", self.name);
        outcome
    }

    /// The bytes that a reader looks at, and that hence can mislead it.
    fn what_is_read(&self) -> Vec<Range<u64>> {
        let recording = Recording::new(&self.image);
        let found = freespace::read(self.kind, &Window::whole(&recording), &self.options).unwrap();
        assert!(found.free == self.free, "{}: the undamaged image reads differently", self.name);
        recording.finish()
    }

    fn one(&self, number: u64, read: &[Range<u64>], outcome: &mut Outcome) {
        let changed = Changed { image: &self.image, changes: self.damage(number, read) };
        let window = Window::whole(&changed);
        let start = processor_time();
        let result = freespace::read(self.kind, &window, &self.options);
        outcome.slowest = outcome.slowest.max(processor_time().saturating_sub(start));
        match result {
            Err(_) => outcome.refused += 1,
            Ok(found) => {
                outcome.accepted += 1;
                assert!(
                    is_subset(&found.free, &self.free),
                    "{}: mutation {number} yields bytes in use: {:?}",
                    self.name,
                    changed.changes
                );
                assert!(well_formed(&found, self.image.size()), "{}: {number}", self.name);
            }
        }
    }

    /// Damage number `number`: mostly one place, sometimes two or three single bytes; now and then
    /// a whole sector.
    fn damage(&self, number: u64, read: &[Range<u64>]) -> Vec<(u64, Vec<u8>)> {
        let mut dice = Dice(number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let places = if dice.below(8) == 0 { 1 + dice.below(3) } else { 1 };
        if places == 1 && dice.below(16) == 0 {
            let at = self.place(&mut dice, read) / 512 * 512;
            let sector = match dice.below(4) {
                0 => vec![0; 512],
                1 => vec![0xFF; 512],
                2 => (0..512).map(|_| dice.roll() as u8).collect(),
                _ => self.image.bytes(self.place(&mut dice, read) / 512 * 512, 512),
            };
            return vec![(at, sector)];
        }
        (0..places)
            .map(|_| {
                let at = self.place(&mut dice, read);
                let old = self.image.bytes(at, 1)[0];
                let value = dice.roll();
                let bytes = match (places, dice.below(8)) {
                    (2.., _) | (_, 0) => vec![value as u8],
                    (_, 1 | 2) => vec![old ^ (1 << (value % 8))],
                    (_, 3) => vec![old.wrapping_add(1)],
                    (_, 4) => vec![old.wrapping_sub(1)],
                    (_, 5) => vec![[0, 0xFF, 0x7F, 0x80, 1][(value % 5) as usize]],
                    (_, 6) => value.to_le_bytes()[..1 << (value % 4)].to_vec(),
                    _ => vec![[0, 0xFF][(value % 2) as usize]; 1 << (dice.below(4))],
                };
                let room = (self.image.size() - at).min(bytes.len() as u64) as usize;
                (at, bytes[..room].to_vec())
            })
            .collect()
    }

    /// A byte that is read; mostly one that is not zero, as most of what is read is zero.
    fn place(&self, dice: &mut Dice, read: &[Range<u64>]) -> u64 {
        let mut at = 0;
        for _ in 0..12 {
            // Every range alike, or by its length.
            let range = if dice.below(2) == 0 {
                read[dice.below(read.len() as u64) as usize].clone()
            } else {
                let total: u64 = read.iter().map(|range| range.end - range.start).sum();
                let mut skip = dice.below(total);
                let range = read.iter().find(|range| {
                    let len = range.end - range.start;
                    let here = skip < len;
                    if !here {
                        skip -= len;
                    }
                    here
                });
                range.unwrap().clone()
            };
            at = range.start + dice.below(range.end - range.start);
            if self.image.bytes(at, 1)[0] != 0 || dice.below(8) == 0 {
                break;
            }
        }
        at
    }
}

/// The processor time of this thread: unlike the clock's, it does not grow while others run.
pub(crate) fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Whether all of `mine` lies in `theirs`.
pub(crate) fn is_subset(mine: &[Span], theirs: &[Span]) -> bool {
    mine.iter().all(|span| {
        let i = theirs.partition_point(|other| other.end() <= span.offset());
        theirs.get(i).is_some_and(|other| other.intersect(*span) == Some(*span))
    })
}

/// Whether what was found is sorted, apart, not empty, and inside of the file system.
pub(crate) fn well_formed(found: &FreeSpace, size: u64) -> bool {
    found.size <= size
        && found.free.iter().all(|span| !span.is_empty() && span.end() <= found.size)
        && found.free.windows(2).all(|pair| pair[0].end() < pair[1].offset())
}
