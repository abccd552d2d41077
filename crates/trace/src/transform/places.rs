//! Where an anonymous trace has what the original has somewhere else.
//!
//! What moves together are runs of extents: two neighbours are in one run when a request touches both, so
//! that every request stays whole.

use super::mix;
use crate::{Bases, Op, Request, Source};
use block::{Error, Result};
use std::collections::BTreeMap;

/// What places are shuffled in, in bytes.
const EXTENT: u64 = 1 << 20;

/// Runs that are told apart, of all disks together: about 1 GiB of memory.
const MOST_RUNS: usize = 1 << 24;

/// Extents that stay together.
#[derive(Debug, Clone, Copy)]
struct ExtentRun {
    last: u64,
    /// Where the first one goes.
    moved_to: u64,
}

/// The places that a trace touches, and where each goes: the runs of a disk stand behind each other in a
/// random order, so that the whole is never larger than before. Disks that were made from the same image share blocks:
/// what any of them touches moves alike on all.
#[derive(Debug, Default)]
pub struct ShuffledPlaces {
    /// By disk, the first one of its base, and first extent. No two of them share an extent.
    runs: BTreeMap<(u32, u64), ExtentRun>,
    bases: Bases,
}

impl ShuffledPlaces {
    /// Reads a trace to its end, and chooses by `key` where what it touches goes.
    ///
    /// # Errors
    /// Any error from the trace; [`Invalid`](block::ErrorKind::Invalid) when it touches more than 16 million
    /// places.
    pub fn of(source: &mut dyn Source, key: u64) -> Result<Self> {
        let (mut places, mut batch) = (Self::default(), Vec::new());
        while source.read(&mut batch)? {
            places.bases.learn(&source.header().disks);
            batch.iter().filter(|request| request.op != Op::Flush).for_each(|r| places.join(r));
            if places.runs.len() > MOST_RUNS {
                return Err(Error::invalid(format!(
                    "the trace touches more than {MOST_RUNS} places, which are too many to shuffle: take \
                     some of its disks with `sojourn trace cut`, or leave out --places"
                )));
            }
        }
        places.shuffle(key);
        Ok(places)
    }

    /// The first disk of those that share blocks with this one.
    fn sharing(&self, disk: u32) -> u32 {
        self.bases.of(disk).unwrap_or(disk)
    }

    /// The run that begins at or before an extent, and is the last of those.
    fn before(&self, disk: u32, extent: u64) -> Option<(u64, ExtentRun)> {
        let (of, run) = self.runs.range((disk, 0)..=(disk, extent)).next_back()?;
        Some((of.1, *run))
    }

    /// Makes one run of all extents that a request touches, and of the runs that these are in.
    fn join(&mut self, request: &Request) {
        let (disk, (mut first, mut last)) = (self.sharing(request.disk), extents(request));
        if self.before(disk, first).is_some_and(|(_, run)| run.last >= last) {
            return;
        }
        while let Some((start, run)) = self.before(disk, last) {
            if run.last < first {
                break;
            }
            (first, last) = (first.min(start), last.max(run.last));
            self.runs.remove(&(disk, start));
        }
        self.runs.insert((disk, first), ExtentRun { last, moved_to: 0 });
    }

    fn shuffle(&mut self, key: u64) {
        let order = |disk: u32, first: u64| mix(key ^ mix(first ^ u64::from(disk).rotate_left(40)));
        let mut runs: Vec<_> = self.runs.iter_mut().collect();
        runs.sort_by_key(|((disk, first), _)| (*disk, order(*disk, *first)));
        let (mut of, mut next) = (None, 0);
        for ((disk, first), run) in runs {
            if of != Some(*disk) {
                (of, next) = (Some(*disk), 0);
            }
            run.moved_to = next;
            next += run.last - *first + 1;
        }
    }

    /// Where a request goes; `None` for one that was not there when the places were looked for.
    pub(super) fn moved(&self, request: &Request) -> Option<u64> {
        let (first, last) = extents(request);
        let disk = self.sharing(request.disk);
        let (start, run) = self.before(disk, first).filter(|(_, run)| run.last >= last)?;
        Some((run.moved_to + first - start) * EXTENT + request.offset % EXTENT)
    }
}

/// The first and the last extent that a request touches.
fn extents(request: &Request) -> (u64, u64) {
    let end = request.end().max(request.offset.saturating_add(1));
    (request.offset / EXTENT, (end - 1) / EXTENT)
}
