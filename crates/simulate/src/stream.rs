//! A trace as a server's cache sees it: references to blocks with dense ids.

use crate::chunks::{BLOCK_BITS, Chunks};
use crate::client::{self, Clients};
use crate::options::{ReferenceOptions, Sharing};
use crate::shards::{Estimate, Shards};
use crate::table::{self, IdTable, mix};
use block::{Error, Result};
use std::collections::HashMap;
use trace::{Bases, Header, Op, Request, Source};

/// The bit of a reference that says that it is a write.
const WRITE: u32 = 1 << 31;

/// The bit of a key that says that it is a write.
const WRITE_KEY: u64 = (WRITE as u64) << 32;

/// References that a simulation looks ahead: what is known of as many blocks fits the processor's
/// first cache.
pub(crate) const AHEAD: usize = 64;

/// The most pairs of a client and a disk.
const PARTIES: u32 = 1 << (63 - BLOCK_BITS);

/// References to blocks, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceStream {
    references: Vec<u32>,
    blocks: u32,
    /// References that the sample was taken from; 0 when not known.
    from: u64,
    /// Requests that were read, those without blocks included.
    pub requests: u64,
    /// References of the clients, before their caches and before sampling.
    pub before: u64,
    /// The ones that read, and how many of these the clients' own caches answered.
    pub client_reads: u64,
    /// See `client_reads`.
    pub client_hits: u64,
    /// Bytes of a block.
    pub block: u32,
    /// One of so many blocks was kept.
    pub one_in: u32,
}

impl ReferenceStream {
    /// Reads a trace to its end. Takes 4 bytes per reference that is kept, and while it reads 32
    /// bytes at most per distinct block.
    ///
    /// # Errors
    /// Any error from the trace; [`Invalid`](block::ErrorKind::Invalid) for options out of range and for
    /// a trace with more than 2^31 blocks or 2^19 pairs of a client and a disk, or with clients whose
    /// caches take too much memory.
    pub fn read(source: &mut dyn Source, options: &ReferenceOptions) -> Result<Self> {
        let mut builder = Builder::new(options)?;
        let mut batch = Vec::new();
        while source.read(&mut batch)? {
            builder.learn(source.header());
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

/// Where the keys of a block are.
struct Space {
    /// For its client's own cache.
    all: u64,
    /// For the server's cache; `None` for what never comes there.
    cached: Option<u64>,
}

/// Builds a [`ReferenceStream`] from requests.
pub struct Builder {
    options: ReferenceOptions,
    /// What a reference and a block are shifted by.
    per: u32,
    shift: u32,
    ids: IdTable,
    parties: HashMap<(u32, u32), u32>,
    /// Whether references of all clients to all blocks are kept, and under the number of the disk.
    is_plain: bool,
    /// The last request's client and disk, and their party.
    latest: Option<((u32, u32), u32)>,
    clients: Clients,
    bases: Bases,
    /// The keys that a party or disk has written, with [`Sharing::Image`] and [`Sharing::Base`].
    written: IdTable,
    /// Where references go instead of into the stream, when they are only counted.
    shards: Option<Shards>,
    /// Keys of references to come, [`WRITE_KEY`] set for writes.
    pending: Vec<u64>,
    stream: ReferenceStream,
}

impl Builder {
    /// An empty one.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for options out of range.
    pub fn new(options: &ReferenceOptions) -> Result<Self> {
        let block = options.block;
        let chunks = options.chunks.as_ref();
        if chunks.is_some() && (options.writes || options.per.is_some() || options.client.is_some())
        {
            return Err(Error::invalid(
                "a cache of chunks holds no writes, counts whole chunks and has no clients' caches before \
                 it; simulate blocks instead",
            ));
        }
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
            ids: IdTable::new(),
            parties: HashMap::new(),
            is_plain: matches!(options.sharing, Sharing::Disk | Sharing::Base)
                && options.client.is_none()
                && options.one_in == 1
                && chunks.is_none(),
            latest: None,
            clients: Clients::new(options.client, client::ROOM),
            bases: Bases::default(),
            written: IdTable::new(),
            shards: None,
            pending: Vec::with_capacity(table::BATCH),
            stream: ReferenceStream {
                block: chunks.map_or(block, |chunks| chunks.grain() as u32),
                one_in: options.one_in,
                ..ReferenceStream::default()
            },
            options: options.clone(),
        })
    }

    /// Takes note of the disks that a trace has named by now; to be called before requests of theirs
    /// are added.
    pub fn learn(&mut self, header: &Header) {
        if self.options.sharing == Sharing::Base {
            self.bases.learn(&header.disks);
            self.is_plain &= !self.bases.are_known();
        }
    }

    /// Adds what a request touches.
    ///
    /// # Errors
    /// See [`ReferenceStream::read`].
    pub fn push(&mut self, request: &Request) -> Result<()> {
        self.push_all(std::slice::from_ref(request))
    }

    /// Adds what requests touch, faster than one by one.
    ///
    /// # Errors
    /// See [`ReferenceStream::read`].
    pub fn push_all(&mut self, requests: &[Request]) -> Result<()> {
        let (mut reads, mut writes) = (0, 0);
        for request in requests {
            match self.single_key(request) {
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
    fn single_key(&self, request: &Request) -> Option<u64> {
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
        if let Some(chunks) = self.options.chunks.take() {
            let added = self.add_chunks(&chunks, party, request, write);
            self.options.chunks = Some(chunks);
            return added;
        }
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

    /// Adds the chunks that a read touches; of a write only that its blocks are private from now on.
    fn add_chunks(
        &mut self,
        chunks: &Chunks,
        party: u32,
        request: &Request,
        write: bool,
    ) -> Result<()> {
        let mut last = None;
        for (block, chunk) in chunks.blocks(request.offset, request.end() - 1)? {
            let Some(space) = self.space(party, request.disk, block, write)?.cached else {
                continue;
            };
            let key = space | chunk;
            if !write && last != Some(key) {
                last = Some(key);
                self.stream.before += 1;
                self.stream.client_reads += 1;
                self.refer(key, false)?;
            }
        }
        Ok(())
    }

    /// Where the key of a block lies, of which a party reads or writes a part.
    fn space(&mut self, party: u32, disk: u32, block: u64, write: bool) -> Result<Space> {
        let of = |number: u32| u64::from(number) << BLOCK_BITS;
        let everywhere = |space: u64| Space { all: space, cached: Some(space) };
        Ok(match (self.options.sharing, self.bases.of(disk)) {
            (Sharing::Disk, _) | (Sharing::Base, None) => everywhere(of(disk)),
            (Sharing::Private, _) => everywhere(of(party + 1)),
            (Sharing::Image, _) => {
                let own = of(party + 1);
                everywhere(if self.is_private(own | block, write)? { own } else { 0 })
            }
            (Sharing::Base, Some(base)) => {
                // Behind the numbers of the disks.
                if disk >= PARTIES / 2 {
                    return Err(Error::invalid(format!(
                        "the trace has more than {} disks made from images; cut it into parts",
                        PARTIES / 2
                    )));
                }
                let own = of(PARTIES / 2 + disk);
                match self.is_private(own | block, write)? {
                    true => Space { all: own, cached: self.options.writes.then_some(own) },
                    false => everywhere(of(base)),
                }
            }
        })
    }

    /// Whether a block was written, by now, by whoever has this key of it.
    fn is_private(&mut self, own: u64, write: bool) -> Result<bool> {
        if write {
            self.written.id(own)?;
        }
        Ok(write || self.written.contains(own))
    }

    fn touch(&mut self, party: u32, disk: u32, block: u64, write: bool) -> Result<()> {
        let space = self.space(party, disk, block, write)?;
        self.stream.before += 1;
        self.stream.client_reads += u64::from(!write);
        if self.clients.access(party, space.all | block)? && !write {
            self.stream.client_hits += 1;
            return Ok(());
        }
        match space.cached {
            Some(cached) if !write || self.options.writes => self.refer(cached | block, write),
            _ => Ok(()),
        }
    }

    /// A reference that comes to the server's cache.
    fn refer(&mut self, key: u64, write: bool) -> Result<()> {
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
    pub(crate) fn counting(options: &ReferenceOptions, shards: Shards) -> Result<Self> {
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
    pub fn finish(mut self) -> ReferenceStream {
        self.stream.blocks = self.ids.len();
        self.stream
    }
}
impl Estimate {
    /// Reads a trace to its end, looking at so many blocks at most. Also tells what was read: a
    /// stream without references. Takes about 100 bytes per block that is looked at, and what clients'
    /// caches and what is written to a shared image take: see [`ReferenceOptions`].
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for fewer than 64 or more than 2^28 blocks, and what
    /// [`ReferenceStream::read`] fails with.
    pub fn read(
        source: &mut dyn Source,
        options: &ReferenceOptions,
        samples: u32,
    ) -> Result<(Self, ReferenceStream)> {
        let mut builder = Builder::counting(options, Shards::new(samples)?)?;
        let mut batch = Vec::new();
        while source.read(&mut batch)? {
            builder.learn(source.header());
            builder.push_all(&batch)?;
        }
        let shards = builder.counted().map_or_else(|| Shards::new(samples), Ok)?;
        Ok((shards.finish(), builder.finish()))
    }
}
