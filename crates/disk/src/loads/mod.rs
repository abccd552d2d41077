//! How chunks come from the store into the cache: shared by all disks of a server, in turns. What a source
//! beside the store has, and is expected to give sooner, is asked of that, out of turn.
//!
//! | module | concept |
//! |---|---|
//! | `queue` | which chunk is next, and which come with it |
//! | `fair` | turns of disks: start-time fair queueing |
//! | `reach` | how long a request may be |

mod fair;
mod queue;
mod reach;

pub(crate) use queue::Urgency;

use crate::guest_waits::{GuestWaits, WaitCause, WaitingChunk};
use crate::health::{Slow, SlowBound, WaitKind, Waits};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use cache::Cache;
use fair::FlowId;
use lookaside::{ReadOrder, Sources};
use parking_lot::Mutex;
use queue::{LoadQueue, QueuePosition};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{ChunkRef, Store};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How a [`Loader`] goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// The most requests to the store under way at a time; how many serve best up to this is found
    /// out. 0 is no limit: every load begins at once, and disks have no turns.
    pub most: usize,
    /// Any number of readers that miss the same chunk at the same time share one load.
    pub share: bool,
    /// How far ahead of a guest that reads in order its disk is loaded, in bytes: the most at a time
    /// for each disk. 0 is not at all.
    pub ahead: u64,
    /// The store orders the reads that it is given, and is the better at it the more they are: it is always given as
    /// many as `most`.
    pub is_ordered_below: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { most: 64, share: true, ahead: 2 << 20, is_ordered_below: false }
    }
}

/// The way from a store into a cache.
#[derive(Debug)]
pub struct Loader {
    store: Store,
    cache: Arc<Cache>,
    options: LoadOptions,
    /// Who else may have a chunk, if there is anybody.
    sources: Option<Arc<Sources>>,
    queue: Mutex<LoadQueue>,
    /// How long what waits is called slow.
    bound: SlowBound,
    /// Reads of the store.
    waits: Waits,
    /// What times are counted from.
    began: Instant,
    flows: AtomicU64,
}

impl Loader {
    /// Chunks come from `store` into `cache`.
    pub fn new(store: Store, cache: Arc<Cache>, options: LoadOptions) -> Arc<Self> {
        Self::with_sources(store, cache, options, None)
    }

    /// Chunks come from `store` into `cache`; what one of `sources` has, and is expected to give sooner, comes
    /// from there, and what the store cannot give as well.
    pub fn with_sources(
        store: Store,
        cache: Arc<Cache>,
        options: LoadOptions,
        sources: Option<Arc<Sources>>,
    ) -> Arc<Self> {
        let bound = SlowBound::default();
        Arc::new(Self {
            store,
            cache,
            options,
            sources,
            queue: Mutex::new(match options.is_ordered_below {
                true => LoadQueue::for_ordered(options.most),
                false => LoadQueue::new(options.most),
            }),
            waits: Waits::new(bound.clone()),
            bound,
            began: Instant::now(),
            flows: AtomicU64::new(0),
        })
    }

    /// From now on a disk or a store is called slow when somebody has to wait for longer than this;
    /// 0, as at the beginning, is never.
    pub fn call_slow(&self, bound: Duration) {
        self.bound.set(bound);
    }

    /// What took long of the reads of the store since this was asked last.
    pub fn slow(&self) -> Option<Slow> {
        self.waits.look()
    }

    pub(crate) fn bound(&self) -> SlowBound {
        self.bound.clone()
    }

    /// Whether a guest waits for the store.
    pub fn has_demand(&self) -> bool {
        self.queue.lock().has_demand()
    }

    /// Who else is asked for chunks, if there is anybody.
    pub fn sources(&self) -> Option<&Arc<Sources>> {
        self.sources.as_ref()
    }

    /// Whether a chunk is asked of somebody else than the store.
    fn goes_elsewhere(&self, at: &ChunkRef) -> bool {
        self.sources.as_ref().is_some_and(|sources| sources.prefers(at))
    }

    /// A line of one disk's own, whose guest's waits are counted.
    pub(crate) fn line(self: &Arc<Self>, waits: Arc<GuestWaits>) -> LoadLine {
        let flow = self.flows.fetch_add(1, Ordering::Relaxed);
        LoadLine { loader: Arc::clone(self), flow, waits }
    }

    /// A line for chunks that are read for others, not for a disk of this machine.
    pub fn chunk_line(self: &Arc<Self>) -> ChunkLine {
        ChunkLine(self.line(Arc::default()))
    }

    /// Where chunks come from.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Where they are kept.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(crate) fn options(&self) -> &LoadOptions {
        &self.options
    }
}

/// What one disk asks of a [`Loader`]; it has turns with the others.
#[derive(Debug)]
pub(crate) struct LoadLine {
    loader: Arc<Loader>,
    flow: FlowId,
    waits: Arc<GuestWaits>,
}

impl Drop for LoadLine {
    fn drop(&mut self) {
        self.loader.queue.lock().forget(self.flow);
    }
}

impl LoadLine {
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        self.loader.cache()
    }

    pub(crate) fn options(&self) -> &LoadOptions {
        self.loader.options()
    }

    pub(crate) fn waits(&self) -> &Arc<GuestWaits> {
        &self.waits
    }

    /// Loads of several chunks, in their order. Those that are not held get into the line together,
    /// so that what lies side by side comes in one request. All have to be driven at the same time: one
    /// that is not keeps others from their turns.
    pub(crate) fn chunks(&self, list: &[ChunkRef], urgency: Urgency) -> Vec<ChunkLoad<'_>> {
        self.loads(list, urgency, false)
    }

    /// Loads, as [`chunks`](Self::chunks) does, a boot list's chunks out of its boot copy. Whoever else waits for
    /// one of them before its turn came has it from there as well.
    pub(crate) fn copies(&self, list: &[ChunkRef]) -> Vec<ChunkLoad<'_>> {
        self.loads(list, Urgency::Boot, true)
    }

    fn loads(&self, list: &[ChunkRef], urgency: Urgency, copies: bool) -> Vec<ChunkLoad<'_>> {
        let load =
            |at: &ChunkRef| ChunkLoad { line: self, at: *at, urgency, copy: copies, want: None };
        let mut loads: Vec<_> = list.iter().map(load).collect();
        let is_missing = |load: &&mut ChunkLoad<'_>| {
            !self.cache().contains(load.at.id.as_bytes()) && !self.loader.goes_elsewhere(&load.at)
        };
        let mut missing = loads.iter_mut().filter(is_missing).peekable();
        if missing.peek().is_some() {
            let mut queue = self.loader.queue.lock();
            missing.for_each(|load| load.want = Some(self.want(&mut queue, &load.at, urgency)));
            queue.go_on(self.loader.began.elapsed());
        }
        loads
    }

    /// Loads a chunk that is not held, to be read later.
    pub(crate) async fn bring(&self, at: ChunkRef, urgency: Urgency) {
        ChunkLoad { line: self, at, urgency, copy: false, want: None }.bring().await;
    }

    /// A place in the line, which goes on.
    fn join(&self, at: &ChunkRef, urgency: Urgency) -> Want<'_> {
        let mut queue = self.loader.queue.lock();
        let want = self.want(&mut queue, at, urgency);
        queue.go_on(self.loader.began.elapsed());
        want
    }

    /// The bytes of a chunk out of the store, when it is its turn.
    async fn ask_store(
        &self,
        at: &ChunkRef,
        urgency: Urgency,
        copy: bool,
        want: Option<Want<'_>>,
        waiting: Option<&WaitingChunk<'_>>,
    ) -> Result<Bytes> {
        let now = |cause| waiting.inspect(|waiting| waiting.now(cause));
        now(WaitCause::Queue);
        let want = want.unwrap_or_else(|| self.join(at, urgency));
        want.turn().await;
        now(WaitCause::Store);
        let waits = self.loader.waits.begin(WaitKind::Read);
        // In a box, made when it is its turn: hundreds may wait, and what a read of the store
        // takes is some ten thousand bytes.
        let chunk = Box::pin(want.read(at, copy)).await;
        drop(waits);
        want.landed(chunk.is_ok());
        chunk
    }

    /// A place in the line; somebody has to have the queue go on.
    fn want(&self, queue: &mut LoadQueue, at: &ChunkRef, urgency: Urgency) -> Want<'_> {
        let place = queue.join(self.flow, at, urgency, self.loader.options.share);
        Want { loader: &self.loader, place }
    }
}

/// Chunks that are read for others, in turn with the disks of this machine.
#[derive(Debug)]
pub struct ChunkLine(LoadLine);

impl ChunkLine {
    /// The bytes of a chunk, out of the cache or from whoever gives it soonest. `urgent`: a guest elsewhere waits.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when nobody can be asked for
    /// it, [`NotFound`](ErrorKind::NotFound) when its pack is gone, [`Corrupt`](ErrorKind::Corrupt) when it
    /// is damaged.
    pub async fn chunk(&self, at: &ChunkRef, urgent: bool) -> Result<Bytes> {
        let urgency = if urgent { Urgency::Demand } else { Urgency::Boot };
        ChunkLoad { line: &self.0, at: *at, urgency, copy: false, want: None }.chunk().await
    }
}

/// A chunk that is about to be loaded.
pub(crate) struct ChunkLoad<'a> {
    line: &'a LoadLine,
    at: ChunkRef,
    urgency: Urgency,
    /// It is a boot copy's, and has a place of its own elsewhere.
    copy: bool,
    /// Its place in the line, if it has one already.
    want: Option<Want<'a>>,
}

impl ChunkLoad<'_> {
    /// The bytes of the chunk, out of the cache or the store.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when nobody can be asked for
    /// it, [`NotFound`](ErrorKind::NotFound) when its pack is gone, [`Corrupt`](ErrorKind::Corrupt) when it
    /// is damaged.
    pub(crate) async fn chunk(self) -> Result<Bytes> {
        let (line, loader) = (self.line, &*self.line.loader);
        let (id, cache) = (self.at.id, line.cache());
        let key = id.as_bytes();
        if let Some(chunk) = cache.get(key) {
            return Ok(chunk);
        }
        let Self { at, urgency, copy, want, .. } = self;
        // Those who share a load have a place in the line as well, so that the most urgent counts.
        let want = want.or_else(|| (!loader.goes_elsewhere(&at)).then(|| line.join(&at, urgency)));
        let first = if want.is_some() { WaitCause::Queue } else { WaitCause::Nearby };
        let waiting = (urgency == Urgency::Demand).then(|| line.waits.chunk(first));
        let (waiting, gate) = (waiting.as_ref(), want.as_ref().map(|want| &want.place.gate));
        let gate = gate.filter(|_| waiting.is_some()).map(Arc::clone);
        let load = async {
            let Some(sources) = &loader.sources else {
                return line.ask_store(&at, urgency, copy, want, waiting).await;
            };
            let order = if want.is_some() { ReadOrder::StoreFirst } else { ReadOrder::Cheapest };
            let urgent = match urgency {
                Urgency::Demand => lookaside::Urgency::Demand,
                Urgency::Ahead | Urgency::Boot => lookaside::Urgency::Background,
            };
            let store = || line.ask_store(&at, urgency, copy, want, waiting);
            Box::pin(sources.read(&at, order, urgent, store)).await
        };
        if loader.options.share {
            let shared = std::pin::pin!(cache.get_or_load(key, load));
            return until_turn(shared, gate, waiting).await;
        }
        let chunk = load.await?;
        cache.get_or_load(key, std::future::ready(Ok(chunk))).await
    }

    /// Loads a chunk that is not held, to be read later; returns the bytes that came into the cache, or
    /// `None` when it cannot be had.
    pub(crate) async fn bring(self) -> Option<u64> {
        if self.line.cache().contains(self.at.id.as_bytes()) {
            return Some(0);
        }
        match self.chunk().await {
            Ok(chunk) => Some(chunk.len() as u64),
            Err(error) => {
                tracing::debug!(error = Error::message(&error), "cannot fetch ahead");
                None
            }
        }
    }
}

/// Waits for a load that somebody else may be doing: who does is told by the `gate` when it is the chunk's turn.
async fn until_turn<T>(
    mut load: Pin<&mut impl Future<Output = T>>,
    gate: Option<Arc<Semaphore>>,
    waiting: Option<&WaitingChunk<'_>>,
) -> T {
    if let (Some(gate), Some(waiting)) = (gate, waiting) {
        tokio::select! {
            biased;
            loaded = &mut load => return loaded,
            // It is closed then.
            _ = gate.acquire() => waiting.now(WaitCause::Store),
        }
    }
    load.await
}

/// A place in the line, until it is dropped.
struct Want<'a> {
    loader: &'a Loader,
    place: QueuePosition,
}

impl Want<'_> {
    /// Waits until it is the chunk's turn.
    async fn turn(&self) {
        // A closed gate is an open door. Requests that hang do not count after a while: somebody
        // has to look.
        while tokio::time::timeout(queue::LATE, self.place.gate.acquire()).await.is_err() {
            self.loader.queue.lock().go_on(self.loader.began.elapsed());
        }
    }

    /// The chunk's bytes out of the store, alone or in one request with others whose turn came with it.
    /// `copy`: it is a boot copy's, and nobody fails by it.
    async fn read(&self, at: &ChunkRef, copy: bool) -> Result<Bytes> {
        let store = &self.loader.store;
        let (place, together) = {
            let queue = self.loader.queue.lock();
            (queue.place(&self.place).unwrap_or(*at), queue.together(&self.place))
        };
        let stretch =
            together.as_ref().map(|run| run.stretch.get_or_init(|| store.stretch(&run.chunks)));
        if copy || place != *at {
            return match store.read_copy(&place, stretch).await {
                // Another place in the store does not help when the store gives no answer.
                Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                    Err(error)
                }
                // Those who share the load try the chunk's own place then.
                Err(e) if copy => {
                    Err(Error::not_found("a boot copy cannot be read").with_source(e))
                }
                Err(error) => {
                    tracing::debug!(%error, "a boot copy cannot be read");
                    store.read_chunk(at).await
                }
                chunk => chunk,
            };
        }
        match stretch {
            Some(stretch) => store.read_chunk_of(at, stretch).await,
            None => store.read_chunk(at).await,
        }
    }

    /// It was loaded, or failed to be.
    fn landed(&self, answered: bool) {
        self.loader.queue.lock().landed(&self.place, answered, self.loader.began.elapsed());
    }
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        self.loader.queue.lock().leave(&self.place, self.loader.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use store::{ChunkId, Encoding, PackId, testing};

    async fn line() -> LoadLine {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let config = cache::Config { capacity: 1 << 20, policy: cache::PolicyKind::Lru, seed: 1 };
        let cache = Arc::new(Cache::new(config));
        Loader::new(store, cache, LoadOptions::default()).line(Arc::default())
    }

    fn chunk() -> ChunkRef {
        let (id, pack) = (ChunkId([1; 32]), PackId([2; 32]));
        let encoding = Encoding::Plain;
        ChunkRef { id, len: 4096, pack, offset: 16, stored: 4096, encoding }
    }

    #[tokio::test]
    async fn only_a_guest_that_waits_for_the_store_is_demand() {
        let line = line().await;
        let ahead = line.join(&chunk(), Urgency::Ahead);
        assert!(!line.loader.has_demand());
        let guest = line.join(&chunk(), Urgency::Demand);
        assert!(line.loader.has_demand());
        drop(guest);
        assert!(!line.loader.has_demand());
        drop(ahead);
    }

    #[tokio::test]
    async fn a_read_that_waits_takes_little_memory() {
        let line = line().await;
        let load = line.chunks(&[chunk()], Urgency::Demand).pop().unwrap();
        let bytes = size_of_val(&load.chunk());
        assert!(bytes <= 4096, "{bytes}");
    }
}
