//! What is changed on the way through: cut, sample, anonymize.

mod places;

use crate::request::PLACES;
use crate::{Bases, Header, Op, Request, Source, TraceDisk};
use block::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;

pub use places::ShuffledPlaces;

/// A source whose places are moved up.
pub(crate) struct Shifted<S> {
    source: S,
    shift: u64,
    header: Header,
    growth: usize,
}

impl<S: Source> Shifted<S> {
    pub(crate) fn new(source: S, shift: u64) -> Self {
        let header = header_of(&source, shift);
        Self { growth: source.header().growth(), source, shift, header }
    }
}

fn header_of(source: &impl Source, shift: u64) -> Header {
    let mut header = source.header().clone();
    if !shift.is_multiple_of(u64::from(header.alignment)) {
        header.alignment = 1;
    }
    header
}

impl<S: Source> Source for Shifted<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let more = self.source.read(batch)?;
        for request in batch.iter_mut().filter(|r| r.op != Op::Flush) {
            let end = request.end().checked_add(self.shift).filter(|end| *end <= PLACES);
            end.ok_or_else(|| Error::invalid("a request ends beyond 2^63 with this shift"))?;
            request.offset += self.shift;
        }
        if self.source.header().growth() != self.growth {
            self.growth = self.source.header().growth();
            self.header = header_of(&self.source, self.shift);
        }
        Ok(more)
    }
}

/// Which requests to keep.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only these times, in nanoseconds.
    pub times: Option<Range<u64>>,
    /// Only these clients; empty: all.
    pub clients: Vec<u32>,
    /// Only these disks; empty: all.
    pub disks: Vec<u32>,
    /// Only these operations; empty: all.
    pub ops: Vec<Op>,
    /// Only so many.
    pub requests: Option<u64>,
}

/// A part of a source. Times begin at 0 again where a range of times was asked for.
pub struct Cut<S> {
    source: S,
    selection: Selection,
    header: Header,
    growth: usize,
    kept: u64,
}

impl<S: Source> Cut<S> {
    /// The requests of `source` that `selection` holds.
    pub fn new(source: S, selection: Selection) -> Self {
        let header = cut_header(source.header(), &selection);
        Self { growth: source.header().growth(), source, selection, header, kept: 0 }
    }
}

fn cut_header(of: &Header, selection: &Selection) -> Header {
    let from = selection.times.as_ref().map_or(0, |times| times.start);
    // Where it is not known when the trace began, neither is it of a part.
    let start = if of.start > 0 { of.start.saturating_add(from) } else { 0 };
    Header { requests: None, start, ..of.clone() }
}

impl<S: Source> Source for Cut<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let of = &self.selection;
        let most = of.requests.unwrap_or(u64::MAX);
        loop {
            let more = self.kept < most && self.source.read(batch)?;
            if self.source.header().growth() != self.growth {
                self.growth = self.source.header().growth();
                self.header = cut_header(self.source.header(), &self.selection);
            }
            if !more {
                batch.clear();
                return Ok(false);
            }
            let past = of.times.as_ref().is_some_and(|t| batch.iter().all(|r| r.time >= t.end));
            let (kept, start) = (&mut self.kept, of.times.as_ref().map_or(0, |t| t.start));
            batch.retain_mut(|r| {
                let keep = of.times.as_ref().is_none_or(|t| t.contains(&r.time))
                    && (of.clients.is_empty() || of.clients.contains(&r.client))
                    && (of.disks.is_empty() || of.disks.contains(&r.disk))
                    && (of.ops.is_empty() || of.ops.contains(&r.op))
                    && *kept < most;
                *kept += u64::from(keep);
                r.time = r.time.saturating_sub(start);
                keep
            });
            if !batch.is_empty() {
                return Ok(true);
            }
            if past {
                return Ok(false);
            }
        }
    }
}

/// Spreads a number over all 64 bits (the finalizer of MurmurHash3, A. Appleby).
pub(crate) fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// One of `n` places: whatever is kept of a disk is kept always (C. Waldspurger et al., "Efficient
/// MRC Construction with SHARDS", FAST 2015), so that a cache of 1/n of the size sees what the
/// cache would have seen. Of disks that were made from the same image the same places are kept: they share blocks. A
/// request keeps the pieces that are chosen, as several requests
/// where they are not neighbours; one of `n` flushes is kept.
pub struct Sample<S> {
    source: S,
    n: u64,
    grain: u64,
    header: Header,
    growth: Option<usize>,
    bases: Bases,
    pieces: RequestPieces,
    flushes: u64,
}

impl<S: Source> Sample<S> {
    /// One of `n` pieces of `grain` bytes.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when either is 0.
    pub fn new(source: S, n: u64, grain: u64) -> Result<Self> {
        if n == 0 || grain == 0 {
            return Err(Error::invalid(
                "a sample of one in 0, or pieces of 0 bytes; give 1 or more",
            ));
        }
        let header = Header::default();
        let mut sample = Self {
            source,
            n,
            grain,
            header,
            growth: None,
            bases: Bases::default(),
            pieces: RequestPieces::default(),
            flushes: 0,
        };
        sample.update();
        Ok(sample)
    }

    fn update(&mut self) {
        let growth = Some(self.source.header().growth());
        if std::mem::replace(&mut self.growth, growth) == growth {
            return;
        }
        self.header = Header { requests: None, ..self.source.header().clone() };
        self.header.note(&format!("a sample of 1 in {} pieces of {} bytes", self.n, self.grain));
    }
}

/// Whether a piece of a disk, or of all that share it, is among the chosen.
fn keeps(n: u64, disk: u32, piece: u64) -> bool {
    mix(piece ^ u64::from(disk).rotate_left(40)).is_multiple_of(n)
}

impl<S: Source> Source for Sample<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let mut pieces = std::mem::take(&mut self.pieces);
        let more = pieces.fill(&mut self.source, batch, |header, request, taken| {
            if request.op == Op::Flush {
                self.flushes += 1;
                if self.flushes.is_multiple_of(self.n) {
                    taken.push(request);
                }
                return;
            }
            self.bases.learn(&header.disks);
            let shared = self.bases.of(request.disk).unwrap_or(request.disk);
            let (mut at, end) = (request.offset, request.end());
            while at < end {
                let next = (at / self.grain + 1).saturating_mul(self.grain).min(end);
                if keeps(self.n, shared, at / self.grain) {
                    let length = (next - at) as u32;
                    match taken.last_mut() {
                        Some(last) if last.end() == at => last.length += length,
                        _ => taken.push(Request { offset: at, length, ..request }),
                    }
                }
                at = next;
            }
        });
        self.pieces = pieces;
        self.update();
        more
    }
}

/// Requests being cut into pieces: one at a time, so that no more is held than one comes to.
#[derive(Default)]
struct RequestPieces {
    /// Requests of the source, from `next` on not cut yet.
    whole: Vec<Request>,
    next: usize,
    /// Pieces of the last one, backwards.
    taken: Vec<Request>,
}

impl RequestPieces {
    /// Fills a batch with what `cut` makes of the source's requests.
    fn fill(
        &mut self,
        source: &mut impl Source,
        batch: &mut Vec<Request>,
        mut cut: impl FnMut(&Header, Request, &mut Vec<Request>),
    ) -> Result<bool> {
        /// Requests of a batch at most.
        const MOST: usize = 16 << 10;
        batch.clear();
        while batch.len() < MOST {
            if let Some(piece) = self.taken.pop() {
                batch.push(piece);
            } else if let Some(request) = self.whole.get(self.next) {
                self.next += 1;
                cut(source.header(), *request, &mut self.taken);
                self.taken.reverse();
            } else if batch.is_empty() {
                self.next = 0;
                if !source.read(&mut self.whole)? {
                    return Ok(false);
                }
            } else {
                break;
            }
        }
        Ok(true)
    }
}

/// A trace that says less of where it comes from: names and notes go, and places where that is wanted, so
/// that what is where cannot be told. Which disks were made from the same image stays: without it, caches of the
/// trace could not be simulated.
pub struct Anonymous<S> {
    source: S,
    places: Option<ShuffledPlaces>,
    header: Header,
    growth: Option<usize>,
}

impl<S: Source> Anonymous<S> {
    /// Without names and notes; with `places`, which must be those of the same trace, everything is moved.
    pub fn new(source: S, places: Option<ShuffledPlaces>) -> Self {
        let mut anonymous = Self { source, places, header: Header::default(), growth: None };
        anonymous.update();
        anonymous
    }

    fn update(&mut self) {
        let header = self.source.header();
        let growth = Some(header.growth());
        if std::mem::replace(&mut self.growth, growth) == growth {
            return;
        }
        let numbered = |what: &str, n: usize| format!("{what}{n}");
        let mut images = HashMap::new();
        let mut base = |base: &str| {
            let next = images.len();
            let number = (!base.is_empty()).then(|| *images.entry(base.to_owned()).or_insert(next));
            number.map_or_else(String::new, |number| numbered("image", number))
        };
        self.header = Header {
            clients: (0..header.clients.len()).map(|n| numbered("client", n)).collect(),
            disks: (0..header.disks.len())
                .map(|n| TraceDisk {
                    name: numbered("disk", n),
                    // What was moved may lie beyond the end of the disk.
                    size: if self.places.is_some() { 0 } else { header.disks[n].size },
                    base: base(&header.disks[n].base),
                })
                .collect(),
            notes: "anonymized".to_owned(),
            start: 0,
            ..header.clone()
        };
        if self.places.is_some() {
            self.header
                .note("places shuffled in extents of 1 MiB, and more where a request has more");
        }
    }
}

impl<S: Source> Source for Anonymous<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let more = self.source.read(batch)?;
        self.update();
        if let Some(places) = &self.places {
            for request in batch.iter_mut().filter(|request| request.op != Op::Flush) {
                request.offset = places.moved(request).ok_or_else(|| {
                    Error::unavailable("the trace grew while it was made anonymous; try again")
                })?;
            }
        }
        Ok(more)
    }
}

#[cfg(test)]
mod tests;
