//! What a server's cache would do with a trace, by the server's own policies.
//!
//! A cache holds chunks of images. A read of blocks that its client has written before is answered
//! from the disk's own file, and changes go there too: neither comes near the cache.

use block::{BLOCK, Error, Result};
use cache::PolicyKind;
use cache::policy::Policy;
use std::collections::{HashMap, HashSet};
use trace::{Header, Op, Request};

/// The most private blocks that are followed: about 1 GB.
const MOST_PRIVATE: usize = 50_000_000;
/// Disks that are told apart.
const MOST_DISKS: u64 = 1 << 16;

/// Which chunks requests touch.
pub(super) struct Keys {
    grain: u64,
    private: bool,
    /// What each disk shares with others: the first disk of the same base, or all of them one.
    bases: Vec<u64>,
    /// Blocks that are private by now.
    written: HashSet<u64>,
    chunks: Vec<u64>,
}

impl Keys {
    /// Chunks of `grain` bytes; with `private`, no two disks share any.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a grain below a block or above 1 GiB.
    pub(super) fn new(grain: u64, private: bool) -> Result<Self> {
        if !(BLOCK..=1 << 30).contains(&grain) {
            return Err(Error::invalid(format!(
                "a cache of pieces of {grain} bytes: give a grain from 4K to 1G"
            )));
        }
        Ok(Self { grain, private, bases: Vec::new(), written: HashSet::new(), chunks: Vec::new() })
    }

    /// Takes note of disks that the header names by now.
    pub(super) fn learn(&mut self, header: &Header) {
        for disk in &header.disks[self.bases.len().min(header.disks.len())..] {
            let same = |other: &trace::Disk| other.base == disk.base;
            let first = header.disks.iter().position(same);
            self.bases.push(first.unwrap_or(0) as u64);
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
        let owner = disk(request) << 44;
        let blocks = request.offset / BLOCK..=(request.end() - 1) / BLOCK;
        if request.op != Op::Read {
            // A block that is written in part is read first; that is left out.
            self.written.extend(blocks.map(|block| owner | block));
            if self.written.len() > MOST_PRIVATE {
                return Err(Error::unsupported(format!(
                    "the trace writes more than {MOST_PRIVATE} blocks: take a part of it with \
                     `sojourn trace cut`, or give --curve"
                )));
            }
            return Ok(None);
        }
        let base = match self.private {
            true => disk(request),
            false => self.bases.get(request.disk as usize).copied().unwrap_or(0),
        };
        self.chunks.clear();
        for block in blocks {
            if self.written.is_empty() || !self.written.contains(&(owner | block)) {
                let chunk = (base << 44) | (block * BLOCK / self.grain);
                if self.chunks.last() != Some(&chunk) {
                    self.chunks.push(chunk);
                }
            }
        }
        Ok(Some(&self.chunks))
    }
}

/// A number for the disk of a client.
fn disk(request: &Request) -> u64 {
    (u64::from(request.client) * 31 + u64::from(request.disk)) % MOST_DISKS
}

/// A cache of one size.
pub(super) struct Cached {
    policy: Box<dyn Policy>,
    size: u64,
    entries: usize,
    slots: HashMap<u64, u32>,
    keys: Vec<u64>,
    reads: u64,
    hits: u64,
}

impl Cached {
    /// A cache of `size` bytes.
    pub(super) fn new(policy: PolicyKind, size: u64, grain: u64) -> Self {
        let entries = u32::try_from(size / grain).unwrap_or(u32::MAX).max(1);
        Self {
            policy: policy.build(entries),
            size,
            entries: entries as usize,
            slots: HashMap::new(),
            keys: Vec::new(),
            reads: 0,
            hits: 0,
        }
    }

    /// A read that needs these chunks.
    pub(super) fn read(&mut self, chunks: &[u64]) {
        let mut hit = true;
        for chunk in chunks {
            hit &= self.access(*chunk);
        }
        self.reads += 1;
        self.hits += u64::from(hit);
    }

    fn access(&mut self, chunk: u64) -> bool {
        if let Some(slot) = self.slots.get(&chunk) {
            self.policy.hit(*slot);
            return true;
        }
        let fingerprint = mix(chunk);
        self.policy.miss(fingerprint);
        let slot = match self.keys.len() < self.entries {
            true => {
                self.keys.push(chunk);
                self.keys.len() as u32 - 1
            }
            false => {
                let Some(slot) = self.policy.evict() else { return false };
                self.slots.remove(&self.keys[slot as usize]);
                self.keys[slot as usize] = chunk;
                slot
            }
        };
        self.slots.insert(chunk, slot);
        self.policy.insert(slot, fingerprint);
        false
    }

    /// Its size, and the share of the reads that it answered.
    pub(super) fn point(&self) -> (u64, f64) {
        (self.size, self.hits as f64 / self.reads.max(1) as f64)
    }
}

/// A hash of a chunk's number: the end of MurmurHash3 (A. Appleby, public domain).
fn mix(chunk: u64) -> u64 {
    let mut x = chunk.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(client: u32, op: Op, offset: u64, length: u32) -> Request {
        Request { client, op, offset, length, ..Request::default() }
    }

    #[test]
    fn what_a_client_wrote_never_needs_the_cache_again() {
        let mut keys = Keys::new(65536, false).unwrap();
        assert_eq!(keys.of(&request(0, Op::Read, 65530, 10)).unwrap(), Some(&[0, 1][..]));
        assert_eq!(keys.of(&request(0, Op::Write, 65536, 65536)).unwrap(), None);
        assert_eq!(keys.of(&request(0, Op::Read, 65536, 4096)).unwrap(), Some(&[][..]));
        assert_eq!(keys.of(&request(0, Op::Read, 0, 131_072)).unwrap(), Some(&[0][..]));
        assert_eq!(keys.of(&request(1, Op::Read, 65536, 4096)).unwrap(), Some(&[1][..]));
        assert_eq!(keys.of(&request(0, Op::Flush, 0, 0)).unwrap(), None);
        assert!(Keys::new(512, false).is_err());
    }

    #[test]
    fn chunks_are_shared_by_disks_of_one_base_unless_they_are_private() {
        let read = |client, disk| Request { disk, ..request(client, Op::Read, 0, 4096) };
        let disk = |base: &str| trace::Disk { base: base.to_owned(), ..trace::Disk::default() };
        let header = Header { disks: vec![disk("a"), disk("b"), disk("a")], ..Header::default() };
        for (private, same) in [(false, true), (true, false)] {
            let mut keys = Keys::new(65536, private).unwrap();
            keys.learn(&header);
            let mut of = |client, disk| keys.of(&read(client, disk)).unwrap().unwrap()[0];
            assert_eq!(of(0, 0) == of(1, 2), same);
            assert_ne!(of(0, 0), of(0, 1));
        }
    }

    proptest! {
        /// LRU by the definition: a list in order of use.
        #[test]
        fn the_simulated_cache_is_the_policy_by_its_definition(
            chunks in proptest::collection::vec(0u64..40, 1..300), entries in 1u64..20,
        ) {
            let mut cache = Cached::new(PolicyKind::Lru, entries * 4096, 4096);
            let (mut list, mut hits) = (Vec::new(), 0);
            for chunk in &chunks {
                cache.read(&[*chunk]);
                match list.iter().position(|held| held == chunk) {
                    Some(at) => {
                        list.remove(at);
                        hits += 1;
                    }
                    None if list.len() as u64 == entries => drop(list.remove(0)),
                    None => {}
                }
                list.push(*chunk);
            }
            let expected = hits as f64 / chunks.len() as f64;
            prop_assert_eq!(cache.point(), (entries * 4096, expected));
        }
    }
}
