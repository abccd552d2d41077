//! What a server's cache would do with a trace, by the server's own policies.
//!
//! A cache holds chunks of images. A read of blocks that its client has written before is answered
//! from the disk's own file, and changes go there too: neither comes near the cache.

use block::{BLOCK, Error, Result};
use cache::PolicyKind;
use simulate::{Chunks, ReferenceStream, SimulatedPolicy};
use std::collections::{HashMap, HashSet};
use trace::{Header, Op, Request};

/// The most private blocks that are followed: about 1 GB.
const MOST_PRIVATE: usize = 50_000_000;
/// Disks, and pairs of a client and a disk, that are told apart.
const MOST_DISKS: u64 = 1 << 20;

/// Which chunks requests touch.
pub(super) struct TouchedChunks {
    cuts: Chunks,
    private: bool,
    /// What each disk shares with others: the first disk of the same base, or all of them one.
    bases: Vec<u64>,
    /// Whether the trace says what each disk was made from.
    based: Vec<bool>,
    /// Who has private blocks: pairs of a client and a disk, or a disk alone.
    owners: HashMap<(Option<u32>, u32), u64>,
    /// Blocks that are private by now.
    written: HashSet<u64>,
    chunks: Vec<u64>,
}

impl TouchedChunks {
    /// Chunks of about `grain` bytes; with `private`, no two disks share any.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a grain below a block or above 1 GiB.
    pub(super) fn new(grain: u64, private: bool) -> Result<Self> {
        Ok(Self {
            cuts: crate::commands::simulate::chunks(grain)?,
            private,
            bases: Vec::new(),
            based: Vec::new(),
            owners: HashMap::new(),
            written: HashSet::new(),
            chunks: Vec::new(),
        })
    }

    /// Where images may be cut.
    pub(super) fn cuts(&self) -> &Chunks {
        &self.cuts
    }

    /// Takes note of disks that the header names by now.
    pub(super) fn learn(&mut self, header: &Header) {
        for disk in &header.disks[self.bases.len().min(header.disks.len())..] {
            let same = |other: &trace::TraceDisk| other.base == disk.base;
            let first = header.disks.iter().position(same);
            self.bases.push(first.unwrap_or(0) as u64);
            self.based.push(!disk.base.is_empty());
        }
    }

    /// The chunks that a read needs from the cache, perhaps none; `None` for what is no read.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when too many blocks are written to follow
    /// them.
    pub(super) fn of(&mut self, request: &Request) -> Result<Option<&[u64]>> {
        if request.length == 0 {
            return Ok(None);
        }
        let owner = self.owner(request)?;
        let blocks = request.offset / BLOCK..=(request.end() - 1) / BLOCK;
        if request.op != Op::Read {
            // A block that is written in part is read first; that is left out.
            self.written.extend(blocks.map(|block| owner << 44 | block));
            if self.written.len() > MOST_PRIVATE {
                return Err(Error::unsupported(format!(
                    "the trace writes more than {MOST_PRIVATE} blocks: take a part of it with \
                     `sojourn trace cut`, or give --curve"
                )));
            }
            return Ok(None);
        }
        let base = match self.private {
            true => owner,
            false => self.bases.get(request.disk as usize).copied().unwrap_or(0),
        };
        self.chunks.clear();
        let (mut chunk, mut next) = (0, 0);
        for block in blocks {
            if block * BLOCK >= next {
                (chunk, next) = self.cuts.at(block * BLOCK);
            }
            if self.written.is_empty() || !self.written.contains(&(owner << 44 | block)) {
                let chunk = (base << 44) | chunk;
                if self.chunks.last() != Some(&chunk) {
                    self.chunks.push(chunk);
                }
            }
        }
        Ok(Some(&self.chunks))
    }

    /// A number for who has written what a request writes: the disk, whoever is its client by now; where
    /// the trace does not say what disks are made from, each of its clients may have one of its own.
    fn owner(&mut self, request: &Request) -> Result<u64> {
        let based = self.based.get(request.disk as usize).copied().unwrap_or(false);
        let key = ((!based).then_some(request.client), request.disk);
        let next = self.owners.len() as u64;
        let owner = *self.owners.entry(key).or_insert(next);
        if owner >= MOST_DISKS {
            return Err(Error::unsupported(format!(
                "the trace has more than {MOST_DISKS} disks: take a part of it with `sojourn trace cut`, \
                 or give --curve"
            )));
        }
        Ok(owner)
    }
}

/// The reads of a trace, as references to chunks with dense numbers.
#[derive(Default)]
pub(super) struct Reads {
    ids: HashMap<u64, u32>,
    references: Vec<u32>,
    /// Where the references of each read end.
    ends: Vec<u32>,
}

impl Reads {
    /// A read that needs these chunks.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when there are too many to count.
    pub(super) fn push(&mut self, chunks: &[u64]) -> Result<()> {
        for chunk in chunks {
            let next = self.ids.len() as u32;
            self.references.push(*self.ids.entry(*chunk).or_insert(next));
        }
        let end = u32::try_from(self.references.len()).ok().filter(|end| end >> 31 == 0);
        self.ends.push(end.ok_or_else(|| {
            Error::unsupported(
                "the trace reads more than 2^31 chunks: take a part of it with `sojourn trace cut`, or \
                 give --curve",
            )
        })?);
        Ok(())
    }

    /// What caches of these sizes do, each with chunks of `grain` bytes, and `pieces` bytes of the store kept
    /// on the server's disk.
    pub(super) fn curve(
        self,
        policy: PolicyKind,
        sizes: &[u64],
        grain: u64,
        pieces: u64,
    ) -> Vec<Cached> {
        let stream = ReferenceStream::of_reads(self.references);
        let reads = self.ends.len().max(1) as f64;
        let of = |bytes: u64| u32::try_from(bytes / grain).unwrap_or(u32::MAX);
        let point = |size: &u64| {
            let chunks = of(*size).clamp(1, stream.blocks().max(1));
            let whole = simulate::whole(policy, chunks, of(pieces), &stream, &self.ends);
            Cached {
                size: *size,
                answered: whole.cache as f64 / reads,
                kept: whole.below as f64 / reads,
                hits: simulate::run(SimulatedPolicy::Kind(policy), chunks, &stream, false)
                    .hit_ratio(),
            }
        };
        sizes.iter().map(point).collect()
    }
}

/// What a cache of a size does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cached {
    pub(super) size: u64,
    /// The share of the reads that need nothing but the cache and their disk's own blocks.
    pub(super) answered: f64,
    /// The share that need the piece cache in addition, but not the store.
    pub(super) kept: f64,
    /// The share of look-ups of chunks that are hits, as the server itself counts them.
    pub(super) hits: f64,
}

impl Cached {
    /// The share of the reads that miss the cache which need the store.
    pub(super) fn store_share(&self) -> f64 {
        let missing = 1.0 - self.answered;
        if missing > 0.0 { (1.0 - self.kept / missing).clamp(0.0, 1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::simulate::chunks;

    fn request(client: u32, op: Op, offset: u64, length: u32) -> Request {
        Request { client, op, offset, length, ..Request::default() }
    }

    #[test]
    fn what_a_client_wrote_never_needs_the_cache_again() {
        let grain = 120 << 10;
        let (_, next) = chunks(grain).unwrap().at(0);
        let (second, _) = chunks(grain).unwrap().at(next);
        let mut keys = TouchedChunks::new(grain, false).unwrap();
        let mut of = |client, op, offset, length: u64| {
            let request = request(client, op, offset, length as u32);
            keys.of(&request).unwrap().map(<[u64]>::to_vec)
        };
        assert_eq!(of(0, Op::Read, next - 6, 10), Some(vec![0, second]));
        assert_eq!(of(0, Op::Write, next, 4096), None);
        assert_eq!(of(0, Op::Read, next, 4096), Some(vec![]));
        assert_eq!(of(0, Op::Read, 0, next + 4096), Some(vec![0]));
        assert_eq!(of(1, Op::Read, next, 4096), Some(vec![second]));
        assert_eq!(of(0, Op::Flush, 0, 0), None);
        assert!(TouchedChunks::new(512, false).is_err());
    }

    #[test]
    fn chunks_are_shared_by_disks_of_one_base_unless_they_are_private() {
        let read = |client, disk| Request { disk, ..request(client, Op::Read, 0, 4096) };
        let disk =
            |base: &str| trace::TraceDisk { base: base.to_owned(), ..trace::TraceDisk::default() };
        let header = Header { disks: vec![disk("a"), disk("b"), disk("a")], ..Header::default() };
        for (private, same) in [(false, true), (true, false)] {
            let mut keys = TouchedChunks::new(65536, private).unwrap();
            keys.learn(&header);
            let mut of = |client, disk| keys.of(&read(client, disk)).unwrap().unwrap()[0];
            assert_eq!(of(0, 0) == of(1, 2), same);
            assert_ne!(of(0, 0), of(0, 1));
        }
    }

    #[test]
    fn what_a_disk_wrote_stays_private_when_its_guest_comes_back_as_another_client() {
        let disk =
            |base: &str| trace::TraceDisk { base: base.to_owned(), ..trace::TraceDisk::default() };
        for (base, chunks) in [("debian:1", 0), ("", 1)] {
            let mut keys = TouchedChunks::new(65536, false).unwrap();
            keys.learn(&Header { disks: vec![disk(base)], ..Header::default() });
            keys.of(&request(0, Op::Write, 0, 4096)).unwrap();
            assert_eq!(keys.of(&request(1, Op::Read, 0, 4096)).unwrap().unwrap().len(), chunks);
        }
    }

    #[test]
    fn a_read_is_answered_when_all_its_chunks_are_there() {
        let mut reads = Reads::default();
        for chunks in [&[7, 8][..], &[8], &[], &[9, 7], &[7, 9]] {
            reads.push(chunks).unwrap();
        }
        // Of two chunks: 8 hits, nothing hits, and 7 and 9 hit at the end.
        let curve = reads.curve(PolicyKind::Lru, &[8192, 1 << 40], 4096, 0);
        let answered: Vec<f64> = curve.iter().map(|point| point.answered).collect();
        assert_eq!(answered, [0.6, 0.6]);
        // 8, 7 and 9 again, of 7 look-ups: in a cache of two, 7 is gone when it is read again.
        assert_eq!(curve[1].hits, 4.0 / 7.0);
    }

    #[test]
    fn what_left_the_cache_is_kept_in_pieces_where_there_are_some() {
        for (pieces, kept) in [(0, 0.0), (1 << 30, 0.25)] {
            let mut reads = Reads::default();
            (0..4u64).for_each(|read| reads.push(&[read % 3]).unwrap());
            let curve = reads.curve(PolicyKind::Lru, &[8192], 4096, pieces);
            assert_eq!((curve[0].answered, curve[0].kept), (0.0, kept));
        }
    }
}
