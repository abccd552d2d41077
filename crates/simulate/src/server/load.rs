//! What clients ask of a server, each in its own order.

use crate::Chunks;
use block::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use trace::{Op, Request};

/// The most requests that are held: about 1 GB.
const MOST_REQUESTS: usize = 20_000_000;
/// Bits of a key below its base: see [`ServerLoad::push`].
const BASE_BITS: u32 = 44;

/// Where a chunk lies in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedChunk {
    /// What lies in the same packs.
    pub(super) base: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl PlacedChunk {
    pub(super) fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// A request of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientRequest {
    /// Nanoseconds from the answer before to this request.
    pub(super) pause: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) disk: u32,
    /// The touched chunks; none where the request needs no image.
    pub(super) touched: Range<u32>,
}

/// The requests of one client of the trace.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientScript {
    pub(super) steps: Vec<ClientRequest>,
    /// When the last request was answered, nanoseconds of the trace.
    answered: u64,
}

/// What clients ask: the requests of a trace by client, with the chunks that they need.
#[derive(Debug, Clone)]
pub struct ServerLoad {
    chunks: Chunks,
    ids: HashMap<u64, u32>,
    pub(super) placed: Vec<PlacedChunk>,
    pub(super) touched: Vec<u32>,
    pub(super) scripts: Vec<ClientScript>,
    by_client: HashMap<u32, usize>,
    requests: usize,
    /// By chunk: the base of its image.
    pub(super) bases: Vec<u64>,
    /// How far each base was read, in bytes.
    pub(super) ends: HashMap<u64, u64>,
}

impl ServerLoad {
    /// Nothing yet, of images that are cut so.
    pub fn new(chunks: Chunks) -> Self {
        Self {
            chunks,
            ids: HashMap::new(),
            placed: Vec::new(),
            touched: Vec::new(),
            scripts: Vec::new(),
            by_client: HashMap::new(),
            requests: 0,
            bases: Vec::new(),
            ends: HashMap::new(),
        }
    }

    /// The next request of the trace, and the chunks that it needs of its image: for each the image's
    /// number (below 2^20) times 2^44 and the chunk's ([`Chunks::at`]). Requests of no length are passed
    /// over.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for more than 20 million requests.
    pub fn push(&mut self, request: &Request, keys: &[u64]) -> Result<()> {
        if request.length == 0 {
            return Ok(());
        }
        self.requests += 1;
        if self.requests > MOST_REQUESTS || self.touched.len() + keys.len() > MOST_REQUESTS * 8 {
            return Err(Error::unsupported(format!(
                "more than {MOST_REQUESTS} requests are not simulated: take a part with `sojourn trace cut`"
            )));
        }
        let from = self.touched.len() as u32;
        for key in keys {
            let id = self.id(*key);
            self.touched.push(id);
            let end = self.ends.entry(key >> BASE_BITS).or_default();
            *end = (*end).max(request.end());
        }
        let next = self.scripts.len();
        let at = *self.by_client.entry(request.client).or_insert(next);
        if at == next {
            self.scripts.push(ClientScript { steps: Vec::new(), answered: request.time });
        }
        let script = &mut self.scripts[at];
        script.steps.push(ClientRequest {
            pause: request.time.saturating_sub(script.answered),
            offset: request.offset,
            length: request.length,
            disk: request.disk,
            touched: if request.op == Op::Read { from..self.touched.len() as u32 } else { 0..0 },
        });
        let answered = request.time.saturating_add(request.latency.into());
        script.answered = script.answered.max(answered);
        Ok(())
    }

    /// The number of the chunk with this key.
    fn id(&mut self, key: u64) -> u32 {
        let (base, number) = (key >> BASE_BITS, key & ((1 << BASE_BITS) - 1));
        let next = self.placed.len() as u32;
        let id = *self.ids.entry(key).or_insert(next);
        if id == next {
            let (offset, bytes) = self.chunks.extent(number);
            self.placed.push(PlacedChunk { base, offset, bytes });
            self.bases.push(base);
        }
        id
    }

    /// The chunks of a range of a base, known or not; no more than it was read.
    pub(super) fn range(&mut self, base: u64, from: u64, to: u64) -> Vec<u32> {
        let to = to.min(self.ends.get(&base).copied().unwrap_or(0));
        let (mut at, mut list) = (from, Vec::new());
        while at < to {
            let (number, next) = self.chunks.at(at);
            list.push(self.id(base << BASE_BITS | number));
            at = next;
        }
        list
    }

    /// Clients of the trace.
    pub fn clients(&self) -> u32 {
        self.scripts.len() as u32
    }

    /// Chunks that are asked for.
    pub fn distinct(&self) -> u32 {
        self.placed.len() as u32
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Requests of all clients together.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Bytes of a chunk in a cache, on average.
    pub fn grain(&self) -> u64 {
        self.chunks.grain()
    }

    /// Bytes of the longest chunk that is asked for.
    pub(super) fn longest_chunk(&self) -> u64 {
        self.placed.iter().map(|chunk| chunk.bytes).max().unwrap_or(0)
    }
}
