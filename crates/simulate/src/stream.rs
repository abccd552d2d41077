//! A trace as a server's cache sees it: references to blocks with dense ids.

use crate::client::{self, Clients};
use crate::shards::Shards;
use crate::table::{self, Table, mix};
use block::{Error, Result};
use cache::PolicyKind;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use trace::{Op, Request, Source};

/// The bit of a reference that says that it is a write.
const WRITE: u32 = 1 << 31;

/// The bit of a key that says that it is a write.
const WRITE_KEY: u64 = (WRITE as u64) << 32;

/// References that a simulation looks ahead: what is known of as many blocks fits the processor's
/// first cache.
pub(crate) const AHEAD: usize = 64;

/// Bits of a key that number the block; the party stands above.
const BLOCK_BITS: u32 = 44;

/// The most pairs of a client and a disk.
const PARTIES: u32 = 1 << (63 - BLOCK_BITS);

/// Which blocks are one and the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// A disk is the same disk for every client.
    #[default]
    Disk,
    /// All disks began as one image: a block is the same for all, until a client writes it; from
    /// then on the client has its own (the shared and private blocks of TransCom, section 5.1).
    Image,
    /// Every client has its own blocks from the beginning.
    Private,
}

/// How a trace becomes references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a block: a power of two from 512 to 16 MiB.
    pub block: u32,
    /// Whether writes reach the server's cache. Without, they only fill the clients' caches and make
    /// blocks private.
    pub writes: bool,
    /// Which blocks are the same.
    pub sharing: Sharing,
    /// Bytes of a request that count as one reference: a power of two from 512 to the block. Without,
    /// each block that a request touches is one reference, however much of it is asked for; then hit
    /// ratios of different blocks are of different things.
    pub per: Option<u32>,
    /// A cache of each client in front of the server's: policy and blocks. All of them together may
    /// take 4 GiB of memory.
    pub client: Option<(PolicyKind, u32)>,
    /// Keeps one of so many blocks, chosen by hash; 1 keeps all. See [`Curve`](crate::Curve).
    pub one_in: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block: 4096,
            writes: false,
            sharing: Sharing::Disk,
            per: None,
            client: None,
            one_in: 1,
        }
    }
}

/// References to blocks, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    references: Vec<u32>,
    blocks: u32,
    /// References that the sample was taken from; 0 when not known.
    from: u64,
    /// Requests that were read, those without blocks included.
    pub requests: u64,
    /// References of the clients, before their caches and before sampling.
    pub before: u64,
    /// Those of them that read, and how many of these the clients' own caches answered.
    pub client_reads: u64,
    /// See `client_reads`.
    pub client_hits: u64,
    /// Bytes of a block.
    pub block: u32,
    /// One of so many blocks was kept.
    pub one_in: u32,
}

impl Stream {
    /// Reads a trace to its end. Takes 4 bytes per reference that is kept, and while it reads 32
    /// bytes at most per distinct block.
    ///
    /// # Errors
    /// Those of the trace; [`Invalid`](block::ErrorKind::Invalid) for options out of range and for
    /// a trace with more than 2^31 blocks or 2^19 pairs of a client and a disk, or with clients whose
    /// caches take too much memory.
    pub fn read(source: &mut dyn Source, options: &Options) -> Result<Self> {
        let mut builder = Builder::new(options)?;
        let mut batch = Vec::new();
        while source.read(&mut batch)? {
            builder.push_all(&batch)?;
        }
        Ok(builder.finish())
    }

    /// A stream of these ids, all reads.
    pub fn of_reads(references: Vec<u32>) -> Self {
        let blocks = references.iter().max().map_or(0, |most| most + 1);
        let before = references.len() as u64;
        Self {
            references,
            blocks,
            requests: before,
            before,
            block: 4096,
            one_in: 1,
            ..Self::default()
        }
    }

    /// The number of references.
    pub fn len(&self) -> usize {
        self.references.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// The number of distinct blocks: ids are below.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The references: the id, and whether it is a write.
    pub fn references(&self) -> impl ExactSizeIterator<Item = (u32, bool)> + '_ {
        self.references.iter().map(|reference| (reference & !WRITE, reference & WRITE != 0))
    }

    /// How many references the sample was taken from, when that is known.
    pub(crate) fn sampled_from(&self) -> Option<u64> {
        (self.from > 0).then_some(self.from)
    }

    pub(crate) fn packed(&self) -> &[u32] {
        &self.references
    }

    /// The id and whether it is a write, of one of [`Self::packed`].
    #[inline]
    pub(crate) const fn unpack(reference: u32) -> (u32, bool) {
        (reference & !WRITE, reference & WRITE != 0)
    }

    /// The references to one of `one_in` blocks, chosen by hash, with ids of their own.
    #[must_use]
    pub fn sample(&self, one_in: u32) -> Self {
        self.sample_number(one_in, 0)
    }

    /// One of `one_in` disjoint samples, which together are all.
    #[must_use]
    pub(crate) fn sample_number(&self, one_in: u32, number: u32) -> Self {
        let mut ids = vec![u32::MAX; self.blocks as usize];
        let mut blocks = 0;
        let mut references = Vec::new();
        for reference in &self.references {
            let (id, _) = Self::unpack(*reference);
            if class(u64::from(id), one_in) != number {
                continue;
            }
            let new = &mut ids[id as usize];
            if *new == u32::MAX {
                *new = blocks;
                blocks += 1;
            }
            references.push(*new | (reference & WRITE));
        }
        let from = if self.one_in > 1 { 0 } else { self.len() as u64 };
        let one_in = self.one_in.saturating_mul(one_in);
        Self { references, blocks, from, one_in, ..*self }
    }
}

/// Which of `one_in` samples a key belongs to.
const fn class(key: u64, one_in: u32) -> u32 {
    // The upper bits of a product are a fair die.
    (((mix(key ^ 0x5ee1_ed5a) >> 32) * one_in as u64) >> 32) as u32
}

/// Builds a [`Stream`] from requests.
pub struct Builder {
    options: Options,
    /// What a reference and a block are shifted by.
    per: u32,
    shift: u32,
    ids: Table,
    parties: HashMap<(u32, u32), u32>,
    /// Whether references of all clients to all blocks are kept, and under the number of the disk.
    is_plain: bool,
    /// The last request's client and disk, and their party.
    latest: Option<((u32, u32), u32)>,
    clients: Clients,
    /// The keys that a party has written, with [`Sharing::Image`].
    written: Table,
    /// Where references go instead of into the stream, when they are only counted.
    shards: Option<Shards>,
    /// Keys of references to come, [`WRITE_KEY`] set for writes.
    pending: Vec<u64>,
    stream: Stream,
}

impl Builder {
    /// An empty one.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for options out of range.
    pub fn new(options: &Options) -> Result<Self> {
        let block = options.block;
        if !block.is_power_of_two() || !(512..=16 << 20).contains(&block) {
            return Err(Error::invalid(format!(
                "a block of {block} bytes cannot be simulated; use a power of two from 512 to 16M"
            )));
        }
        if options.one_in == 0 {
            return Err(Error::invalid("a sample of one in 0 is empty; use 1 or more"));
        }
        if options.client.is_some_and(|(_, blocks)| blocks == 0) {
            return Err(Error::invalid(
                "a client's cache has no room for a block; make it larger or leave it out",
            ));
        }
        let per = options.per.unwrap_or(block);
        if !per.is_power_of_two() || !(512..=block).contains(&per) {
            return Err(Error::invalid(format!(
                "{per} bytes cannot count as one reference to a block of {block}; use a power of two \
                 from 512 to the block"
            )));
        }
        Ok(Self {
            per: per.trailing_zeros(),
            shift: block.trailing_zeros(),
            ids: Table::new(),
            parties: HashMap::new(),
            is_plain: options.sharing == Sharing::Disk
                && options.client.is_none()
                && options.one_in == 1,
            latest: None,
            clients: Clients::new(options.client, client::ROOM),
            written: Table::new(),
            shards: None,
            pending: Vec::with_capacity(table::BATCH),
            stream: Stream { block, one_in: options.one_in, ..Stream::default() },
            options: options.clone(),
        })
    }

    /// Adds what a request touches.
    ///
    /// # Errors
    /// See [`Stream::read`].
    pub fn push(&mut self, request: &Request) -> Result<()> {
        self.push_all(std::slice::from_ref(request))
    }

    /// Adds what requests touch, faster than one by one.
    ///
    /// # Errors
    /// See [`Stream::read`].
    pub fn push_all(&mut self, requests: &[Request]) -> Result<()> {
        let (mut reads, mut writes) = (0, 0);
        for request in requests {
            match self.plain(request) {
                Some(key) => {
                    let write = u64::from(key & WRITE_KEY != 0);
                    (reads, writes) = (reads + 1 - write, writes + write);
                    self.pending.push(key);
                    if self.pending.len() == table::BATCH {
                        self.number()?;
                    }
                }
                None => self.add(request)?,
            }
        }
        let all = reads + writes;
        self.stream.requests += all;
        self.stream.before += all;
        self.stream.from += all;
        self.stream.client_reads += reads;
        self.number()
    }

    /// The key of a request that is one reference and needs no more: as most requests of most traces
    /// are, they have a way of their own.
    #[inline]
    fn plain(&self, request: &Request) -> Option<u64> {
        let (latest, _) = self.latest?;
        let write = match request.op {
            Op::Read => 0,
            Op::Write if self.options.writes => WRITE_KEY,
            _ => return None,
        };
        let place = request.offset >> self.per;
        let block = place >> (self.shift - self.per);
        let one = request.length > 0 && place == (request.end() - 1) >> self.per;
        let known = latest == (request.client, request.disk) && block >> BLOCK_BITS == 0;
        (self.is_plain && one && known)
            .then_some(write | u64::from(request.disk) << BLOCK_BITS | block)
    }

    fn add(&mut self, request: &Request) -> Result<()> {
        self.stream.requests += 1;
        let write = match request.op {
            Op::Read => false,
            Op::Write | Op::Zero => true,
            Op::Flush | Op::Trim => return Ok(()),
        };
        if request.length == 0 {
            return Ok(());
        }
        if request.disk >= PARTIES {
            return Err(Error::invalid(format!(
                "disk {} is beyond the {PARTIES} that can be simulated; number the disks anew",
                request.disk
            )));
        }
        let party = self.party(request.client, request.disk)?;
        let first = request.offset >> self.per;
        let last = (request.end() - 1) >> self.per;
        let within = self.shift - self.per;
        if last >> within >> BLOCK_BITS != 0 {
            return Err(Error::invalid(format!(
                "offset {} is too far for blocks of {} bytes; use larger blocks",
                request.offset, self.options.block
            )));
        }
        for place in first..=last {
            self.touch(party, request.disk, place >> within, write)?;
        }
        Ok(())
    }

    fn party(&mut self, client: u32, disk: u32) -> Result<u32> {
        if let Some((latest, party)) = self.latest
            && latest == (client, disk)
        {
            return Ok(party);
        }
        let next = self.parties.len() as u32;
        let party = *self.parties.entry((client, disk)).or_insert(next);
        if party >= PARTIES - 1 {
            return Err(Error::invalid(format!(
                "the trace has more than {PARTIES} pairs of a client and a disk; cut it into parts"
            )));
        }
        self.clients.reach(party)?;
        self.latest = Some(((client, disk), party));
        Ok(party)
    }

    fn touch(&mut self, party: u32, disk: u32, block: u64, write: bool) -> Result<()> {
        let own = (u64::from(party + 1) << BLOCK_BITS) | block;
        let key = match self.options.sharing {
            Sharing::Disk => (u64::from(disk) << BLOCK_BITS) | block,
            Sharing::Private => own,
            Sharing::Image => {
                if write {
                    self.written.id(own)?;
                }
                if self.written.contains(own) { own } else { block }
            }
        };
        self.stream.before += 1;
        self.stream.client_reads += u64::from(!write);
        if self.clients.access(party, key)? && !write {
            self.stream.client_hits += 1;
            return Ok(());
        }
        if write && !self.options.writes {
            return Ok(());
        }
        self.stream.from += 1;
        if let Some(shards) = &mut self.shards {
            shards.reference(key);
            return Ok(());
        }
        if self.options.one_in > 1 && class(key, self.options.one_in) != 0 {
            return Ok(());
        }
        self.pending.push(if write { key | WRITE_KEY } else { key });
        if self.pending.len() == table::BATCH { self.number() } else { Ok(()) }
    }

    /// Gives the pending references their ids.
    fn number(&mut self) -> Result<()> {
        let mut keys = [0; table::BATCH];
        for (key, pending) in keys.iter_mut().zip(&self.pending) {
            *key = pending & !WRITE_KEY;
        }
        self.ids.ids(&mut keys[..self.pending.len()])?;
        let ids = keys.iter().zip(&self.pending);
        self.stream.references.extend(ids.map(|(id, key)| *id as u32 | (key >> 32) as u32 & WRITE));
        self.pending.clear();
        Ok(())
    }

    /// An empty one that only counts what would be references: its stream has none.
    pub(crate) fn counting(options: &Options, shards: Shards) -> Result<Self> {
        Ok(Self { shards: Some(shards), is_plain: false, ..Self::new(options)? })
    }

    /// What was [counted](Self::counting).
    pub(crate) fn counted(&mut self) -> Option<Shards> {
        self.shards.take()
    }

    /// The number of references so far.
    pub(crate) fn len(&self) -> usize {
        self.stream.len()
    }

    /// The stream of what was added.
    pub fn finish(mut self) -> Stream {
        self.stream.blocks = self.ids.len();
        self.stream
    }
}
