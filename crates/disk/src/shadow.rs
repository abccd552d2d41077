//! The shadow: the private blocks of one disk over a base that never changes.
//!
//! # How it keeps the device contract
//! Every block is in one of three states, per layer: below, private, zero. Readers take no lock:
//! they load the stack and the states, and read from where those say. Writers of whole blocks hold
//! the shared side of their region's lock while they write into the page cache and set the state.
//! A write of a part of a block that is not private yet needs the rest of the block: it is read
//! from below without a lock (what is below does not change), then the region is taken alone, the
//! state is looked at again, and the whole block is written.
//!
//! # How it keeps what was flushed
//! A flush waits for the writers that are inside a region's lock, takes the changed states, syncs
//! the data file, then appends the states to the log and syncs that: data first, then the map, then
//! the answer. Flushes that come in meanwhile share the next round. A round runs to its end even
//! when those who wait for it go away.
//!
//! After a failed sync nobody knows what the disk holds, and a second sync would not tell: the
//! shadow then refuses writes and flushes until it is opened again.

use crate::blockmap::{MAX_SIZE, State};
use crate::layer::{Layer, Round};
use crate::maplog::{Failure, Identity};
use crate::stack::{Frozen, Stack, blocks_of};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, ErrorKind, Extent, Filling, Limits, Result, Sink,
    Span, ZeroMode, offload,
};
use parking_lot::RwLock;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

#[cfg(test)]
mod tests;

/// What one lock covers, in bytes; locks are shared by regions far apart.
const REGION: u64 = 1 << 20;
const LOCKS: usize = 64;
/// The longest write that is done on the caller's thread at once.
const QUICK: usize = 1 << 20;
/// How much is zeroed between two looks at what is below.
const WINDOW: u64 = 1 << 30;

#[derive(Default)]
#[repr(align(64))] // a cache line each
struct RegionLock(RwLock<()>);

/// Private blocks over a base device, in files of a directory; see the module's text.
pub struct Shadow {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    disk: [u8; 16],
    size: AtomicU64,
    stack: ArcSwap<Stack>,
    regions: [RegionLock; LOCKS],
    /// Held shared while room is given back outside of the regions' locks, so that a layer is not
    /// sealed in between.
    zeroing: Arc<tokio::sync::RwLock<()>>,
    /// Rounds of flushing that were asked for.
    asked: AtomicU64,
    /// The last one that was done. Whoever holds the lock leads a round.
    round: Arc<tokio::sync::Mutex<u64>>,
    /// Why a sync failed.
    failed: Arc<Poison>,
    /// What the private blocks may take, bytes; 0 for any number.
    most: OnceLock<Arc<AtomicU64>>,
    /// Blocks that the last refusal was about.
    refused: AtomicU64,
}

/// Set once a sync failed: from then on nobody knows what stable storage holds.
#[derive(Default)]
pub(crate) struct Poison(OnceLock<(ErrorKind, String)>);

impl Poison {
    pub(crate) fn set(&self, error: &Error) {
        let _ = self.0.set((error.kind(), error.to_string()));
    }
}

/// Fails the shadow when it is dropped before [`done`](Interrupted::done) was called.
pub(crate) struct Interrupted {
    poison: Arc<Poison>,
    what: &'static str,
    done: bool,
}

impl Interrupted {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if !self.done {
            self.poison.set(&Error::unavailable(format!("a {} was interrupted", self.what)));
        }
    }
}

/// The rest of a block that is written in part.
struct Edge {
    /// The stack from whose lower layers `bytes` were read.
    generation: Option<u64>,
    bytes: [u8; BLOCK as usize],
}

impl Edge {
    const fn new() -> Self {
        Self { generation: None, bytes: [0; BLOCK as usize] }
    }
}

/// A span cut into whole blocks and the parts of blocks before and behind them.
struct Parts {
    head: Option<Span>,
    whole: Option<Span>,
    tail: Option<Span>,
}

impl Parts {
    /// The last block of a device of `size` bytes may be short, and counts as whole.
    fn of(span: Span, size: u64) -> Self {
        let start = span.offset().next_multiple_of(BLOCK);
        let end = if span.end() == size { size } else { span.end() / BLOCK * BLOCK };
        let some = |a, b| (a < b).then(|| Span::between(a, b));
        if start > end {
            // Inside one block.
            return Self { head: some(span.offset(), span.end()), whole: None, tail: None };
        }
        Self {
            head: some(span.offset(), start),
            whole: some(start, end),
            tail: some(end, span.end()),
        }
    }
}

impl Shadow {
    /// Makes an empty shadow of `size` bytes over `base`, with one layer, in a directory that
    /// exists. `disk` is written into its files, so that those of two disks cannot be mixed up.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a size of 0, not in sectors, or beyond 256 TiB; those of
    /// the file system.
    pub async fn create(
        directory: impl Into<PathBuf>,
        disk: [u8; 16],
        base: Arc<dyn Device>,
        size: u64,
    ) -> Result<Self> {
        check_size(size)?;
        let directory = directory.into();
        let at = directory.clone();
        let layer = offload(move || Layer::create(&at, Identity { disk, layer: 1 })).await?;
        Ok(Self::assemble(directory, disk, vec![Arc::new(layer)], base, size))
    }

    /// Opens a shadow whose layers have the given numbers, oldest first.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when a layer's map does not hold what was acknowledged, or
    /// belongs to another disk; those of the file system.
    pub async fn open(
        directory: impl Into<PathBuf>,
        disk: [u8; 16],
        layers: &[u32],
        base: Arc<dyn Device>,
        size: u64,
    ) -> Result<Self> {
        check_size(size)?;
        if layers.is_empty() {
            return Err(Error::corrupt("a shadow without a layer; its disk.json is damaged"));
        }
        let directory = directory.into();
        let at = directory.clone();
        let numbers = layers.to_vec();
        let layers = offload(move || {
            numbers
                .iter()
                .rev()
                .map(|layer| {
                    Ok(Arc::new(Layer::open(&at, Identity { disk, layer: *layer }, size)?))
                })
                .collect::<Result<Vec<_>>>()
        })
        .await?;
        Ok(Self::assemble(directory, disk, layers, base, size))
    }

    fn assemble(
        directory: PathBuf,
        disk: [u8; 16],
        layers: Vec<Arc<Layer>>,
        base: Arc<dyn Device>,
        size: u64,
    ) -> Self {
        let inner = Inner {
            directory,
            disk,
            size: AtomicU64::new(size),
            stack: ArcSwap::from_pointee(Stack { generation: 0, layers, base }),
            regions: std::array::from_fn(|_| RegionLock::default()),
            zeroing: Arc::new(tokio::sync::RwLock::new(())),
            asked: AtomicU64::new(0),
            round: Arc::default(),
            failed: Arc::default(),
            most: OnceLock::new(),
            refused: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Flushes, checkpoints the maps and seals them. The shadow can still be used.
    ///
    /// # Errors
    /// As [`Device::flush`].
    pub async fn close(&self) -> Result<()> {
        self.inner.check()?;
        let leader = Arc::clone(&self.inner.round).lock_owned().await;
        let inner = Arc::clone(&self.inner);
        offload(move || {
            let _leader = leader;
            inner.sync(Round::Close)
        })
        .await
    }

    /// Room that the private blocks take in the file system, in bytes.
    pub fn room(&self) -> u64 {
        self.inner.stack.load().layers.iter().map(|layer| layer.room()).sum()
    }

    /// Whether no block is private.
    pub fn is_empty(&self) -> bool {
        self.inner.stack.load().layers.iter().all(|layer| layer.is_empty())
    }

    /// From now on writes fail that would have more private blocks than `most` bytes hold, those
    /// of snapshots included; 0 is no limit. It may be changed at any time.
    pub(crate) fn limit(&self, most: Arc<AtomicU64>) {
        let _ = self.inner.most.set(most);
    }

    /// Whether as many blocks as were refused last, or one, still may not become private.
    pub(crate) fn is_at_limit(&self) -> bool {
        let most = self.inner.most.get().map_or(0, |most| most.load(Ordering::Relaxed));
        let wanted = self.inner.refused.load(Ordering::Relaxed).max(1);
        most > 0 && (self.inner.stack.load().private() + wanted).saturating_mul(BLOCK) > most
    }

    /// The same shadow for another user of it.
    pub(crate) fn handle(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// Refuses once a sync has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.inner.check()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.inner.check().is_err()
    }

    /// Guards a change whose steps must not come apart: when its caller goes away between them,
    /// files and memory would tell different stories, so the disk has to be opened again.
    pub(crate) fn unless_interrupted(&self, what: &'static str) -> Interrupted {
        Interrupted { poison: self.poison(), what, done: false }
    }

    pub(crate) fn poison(&self) -> Arc<Poison> {
        Arc::clone(&self.inner.failed)
    }

    pub(crate) fn stack(&self) -> Arc<Stack> {
        self.inner.stack.load_full()
    }

    /// What the lower layers and the base hold together: it does not change.
    pub(crate) fn sealed(&self) -> Frozen {
        let stack = self.stack();
        Frozen { stack, from: 1, size: self.size() }
    }

    /// Makes the files of another layer, for one of the calls below.
    pub(crate) async fn new_layer(&self, number: u32) -> Result<Arc<Layer>> {
        let (at, disk) = (self.inner.directory.clone(), self.inner.disk);
        let layer = offload(move || Layer::create(&at, Identity { disk, layer: number })).await?;
        Ok(Arc::new(layer))
    }

    /// Puts `top` over all layers: the one that was the newest does not change any more.
    pub(crate) async fn seal(&self, top: Arc<Layer>) {
        self.swap(|old| {
            let mut layers = vec![top];
            layers.extend(old.layers.iter().cloned());
            (layers, Arc::clone(&old.base))
        })
        .await;
    }

    /// Replaces the base, and keeps only the newest `keep` layers and `below` them `lowest`.
    /// The owner vouches that the content is what it wants it to be.
    pub(crate) async fn settle(
        &self,
        base: Arc<dyn Device>,
        keep: usize,
        lowest: Option<Arc<Layer>>,
    ) -> Vec<Arc<Layer>> {
        let mut dropped = Vec::new();
        self.swap(|old| {
            let mut layers = old.layers.clone();
            dropped = layers.split_off(keep.min(layers.len()));
            layers.extend(lowest);
            (layers, base)
        })
        .await;
        dropped
    }

    /// Sets the size: it grows while in use, or becomes that of another content while not.
    pub(crate) fn set_size(&self, size: u64) {
        self.inner.size.store(size, Ordering::Release);
    }

    async fn swap(&self, change: impl FnOnce(&Stack) -> (Vec<Arc<Layer>>, Arc<dyn Device>) + Send) {
        let _no_zeroing = self.inner.zeroing.write().await;
        let _all: Vec<_> = self.inner.regions.iter().map(|lock| lock.0.write()).collect();
        let old = self.inner.stack.load_full();
        let (layers, base) = change(&old);
        let generation = old.generation + 1;
        self.inner.stack.store(Arc::new(Stack { generation, layers, base }));
    }
}

/// Refuses sizes that a shadow cannot have.
pub(crate) fn check_size(size: u64) -> Result<()> {
    if size == 0 || !size.is_multiple_of(512) || size > MAX_SIZE {
        return Err(Error::invalid(format!(
            "a disk cannot have {size} bytes; give a multiple of 512 from 512 to {MAX_SIZE} (256 TiB)"
        )));
    }
    Ok(())
}

impl Inner {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn region(&self, offset: u64) -> &RwLock<()> {
        &self.regions[(offset / REGION) as usize % LOCKS].0
    }

    fn check(&self) -> Result<()> {
        match self.failed.0.get() {
            None => Ok(()),
            Some((ErrorKind::Fenced, why)) => Err(Error::fenced(why.clone())),
            Some((_, why)) => Err(Error::unavailable(format!(
                "{}: an earlier step failed ({why}), and what was written since the last good \
                 flush may be lost; detach the disk, repair its file system, and open it again",
                self.directory.display()
            ))),
        }
    }

    /// Refuses to make blocks private beyond the limit.
    #[inline]
    fn check_limit(&self, stack: &Stack, blocks: std::ops::Range<u64>) -> Result<()> {
        match self.most.get().map_or(0, |most| most.load(Ordering::Relaxed)) {
            0 => Ok(()),
            most => self.check_limit_of(most, stack, blocks),
        }
    }

    #[cold]
    fn check_limit_of(&self, most: u64, stack: &Stack, blocks: std::ops::Range<u64>) -> Result<()> {
        let map = &stack.top().map;
        let fresh = blocks.filter(|block| map.get(*block) != State::Private).count() as u64;
        if fresh == 0 || (stack.private() + fresh).saturating_mul(BLOCK) <= most {
            return Ok(());
        }
        self.refused.store(fresh, Ordering::Relaxed);
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the private blocks of a disk may take {most} bytes (limits.disk_space): raise it, \
                 commit the disk, remove its snapshots or reset it"
            ),
        ))
    }

    /// Writes whole blocks, all inside one region.
    fn put_whole(&self, span: Span, data: &[u8]) -> Result<()> {
        let _shared = self.region(span.offset()).read();
        let stack = self.stack.load();
        let top = stack.top();
        self.check_limit(&stack, blocks_of(span))?;
        top.write(span.offset(), data)?;
        top.map.set(blocks_of(span), State::Private);
        Ok(())
    }

    /// Writes a part of one block; `Ok(false)` when `edge` does not hold what is needed for that.
    fn put_part(&self, span: Span, data: &[u8], edge: &Edge) -> Result<bool> {
        let block = span.offset() / BLOCK;
        let region = self.region(span.offset());
        {
            let _shared = region.read();
            let stack = self.stack.load();
            if stack.top().map.get(block) == State::Private {
                stack.top().write(span.offset(), data)?;
                return Ok(true);
            }
        }
        let _alone = region.write();
        let stack = self.stack.load();
        let top = stack.top();
        let mut bytes = match top.map.get(block) {
            State::Private => {
                top.write(span.offset(), data)?;
                return Ok(true);
            }
            State::Zero => [0; BLOCK as usize],
            State::Below if edge.generation == Some(stack.generation) => edge.bytes,
            State::Below => return Ok(false),
        };
        self.check_limit(&stack, block..block + 1)?;
        let start = block * BLOCK;
        let len = (self.size() - start).min(BLOCK) as usize;
        let at = (span.offset() - start) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
        top.write(start, &bytes[..len])?;
        top.map.set(block..block + 1, State::Private);
        Ok(true)
    }

    /// The block around `part`, clipped to the device.
    fn block_around(&self, part: Span) -> Span {
        part.align_outward(BLOCK).split_at(self.size()).0
    }

    /// Reads into `edge` what is below the block of `part`, if that is needed and can be had now.
    fn try_edge(&self, part: Span, edge: &mut Edge) -> Result<Attempt> {
        let stack = self.stack.load();
        edge.generation = None;
        if stack.top().map.get(part.offset() / BLOCK) != State::Below {
            return Ok(Attempt::Done);
        }
        let span = self.block_around(part);
        let attempt = stack.try_read_to(
            1,
            span,
            &mut Filling::new(&mut edge.bytes[..span.len() as usize]),
        )?;
        if attempt == Attempt::Done {
            edge.generation = Some(stack.generation);
        }
        Ok(attempt)
    }

    async fn write_part(&self, part: Span, data: &[u8]) -> Result<()> {
        let mut edge = Box::new(Edge::new());
        loop {
            if self.try_edge(part, &mut edge)? == Attempt::WouldWait {
                let stack = self.stack.load_full();
                let span = self.block_around(part);
                stack.read(1, span, &mut edge.bytes[..span.len() as usize]).await?;
                edge.generation = Some(stack.generation);
            }
            if self.put_part(part, data, &edge)? {
                return Ok(());
            }
        }
    }

    /// A write with parts of blocks, if all that they need can be had now.
    fn try_write_parts(&self, span: Span, data: &[u8], parts: &Parts) -> Result<Attempt> {
        let mut edges = [Edge::new(), Edge::new()];
        let ends = [parts.head, parts.tail];
        for (part, edge) in ends.iter().zip(&mut edges) {
            if let Some(part) = part
                && self.try_edge(*part, edge)? == Attempt::WouldWait
            {
                return Ok(Attempt::WouldWait);
            }
        }
        for (part, edge) in ends.iter().zip(&edges) {
            if let Some(part) = part
                && !self.put_part(*part, &data[part.index_in(span)], edge)?
            {
                // A layer was sealed meanwhile. The other part may be written already; it will be
                // written again with the same bytes.
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }

    /// Makes blocks zero, all inside one region, and says which were private. Blocks below which
    /// all is zero in the stack `quiet` are left alone.
    fn mark_zero(
        &self,
        span: Span,
        quiet: Option<u64>,
        private_too: bool,
        private: &mut Vec<Span>,
    ) {
        let _alone = self.region(span.offset()).write();
        let stack = self.stack.load();
        let map = &stack.top().map;
        let all = blocks_of(span);
        let mut at = all.start;
        while at < all.end {
            let (state, end) = map.run(at..all.end);
            match state {
                State::Private => {
                    let run = Span::between(at * BLOCK, (end * BLOCK).min(span.end()));
                    match private.last_mut() {
                        Some(last) if last.end() == run.offset() => {
                            *last = Span::between(last.offset(), run.end());
                        }
                        _ => private.push(run),
                    }
                    if private_too {
                        map.set(at..end, State::Zero);
                    }
                }
                State::Below if quiet != Some(stack.generation) => map.set(at..end, State::Zero),
                _ => {}
            }
            at = end;
        }
    }

    /// Makes whole blocks zero and gives their room back, or reserves it, as long as somebody wants
    /// it: a write that is answered to the next client must not be hit by what is left of this. One
    /// that comes while the file is punched waits for that in the file system. Waits for the disk.
    fn zero_run(
        &self,
        span: Span,
        quiet: Option<u64>,
        mode: ZeroMode,
        wanted: &Weak<()>,
    ) -> Result<()> {
        let wanted = || match wanted.strong_count() {
            0 => Err(Error::unavailable("the request was given up")),
            _ => Ok(()),
        };
        if span.is_empty() {
            return Ok(());
        }
        let mut private = Vec::new();
        for piece in span.pieces(REGION) {
            wanted()?;
            self.mark_zero(piece, quiet, mode.may_punch, &mut private);
        }
        let stack = self.stack.load_full();
        let top = stack.top();
        if mode.may_punch {
            for run in private {
                wanted()?;
                match top.data.punch(run.align_outward(BLOCK)) {
                    Ok(()) => {}
                    // The room stays taken; the blocks are zero all the same.
                    Err(e) if e.kind() == ErrorKind::Unsupported => break,
                    Err(e) => return Err(e),
                }
            }
        } else {
            wanted()?;
            top.data.zero_range(span.align_outward(BLOCK))?;
        }
        top.touch();
        Ok(())
    }

    /// Waits for every writer that is inside a region's lock.
    fn barrier(&self) {
        for region in &self.regions {
            drop(region.0.write());
        }
    }

    /// One round of flushing, on a thread that may wait.
    fn sync(&self, round: Round) -> Result<()> {
        self.check()?;
        self.barrier();
        let stack = self.stack.load_full();
        for layer in stack.layers.iter().rev() {
            match layer.sync(round) {
                Ok(()) => {}
                Err(Failure::Retry(error)) => return Err(error),
                Err(Failure::Lost(error)) => {
                    self.failed.set(&error);
                    return Err(error.context("a sync failed, the disk must be opened again"));
                }
            }
        }
        Ok(())
    }
}

impl Shadow {
    async fn finish(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }

    /// Zeroes whole blocks. What reads as zeroes from below is left alone, so that the discard of
    /// a blank disk costs nothing.
    async fn zero_blocks(&self, span: Span, mode: ZeroMode) -> Result<()> {
        // Dropped with this future: what is left of a request whose client is gone must not go on
        // beside those of the next one.
        let wanted = Arc::new(());
        for window in span.pieces(WINDOW) {
            let mut at = window;
            while !at.is_empty() {
                let stack = self.inner.stack.load_full();
                let below = stack.extents(1, at, 256).await?;
                let end = below.last().map_or(at.end(), |e| e.span.end());
                // The last extent may end inside a block.
                let end = if end < at.end() {
                    (end / BLOCK * BLOCK).max(at.offset() + BLOCK).min(at.end())
                } else {
                    end
                };
                let (now, behind) = at.split_at(end);
                at = behind;
                let generation = stack.generation;
                drop(stack);
                let inner = Arc::clone(&self.inner);
                let guard = Arc::clone(&self.inner.zeroing).read_owned().await;
                let wanted = Arc::downgrade(&wanted);
                offload(move || {
                    let _guard = guard;
                    let mut from = now.offset();
                    for extent in below.iter().filter(|e| e.kind.reads_zero()) {
                        // Whole blocks of it, or the short last block of the device.
                        let start = extent.span.offset().next_multiple_of(BLOCK);
                        let end = if extent.span.end() >= now.end() {
                            now.end()
                        } else {
                            extent.span.end() / BLOCK * BLOCK
                        };
                        if start >= end || start < from {
                            continue;
                        }
                        inner.zero_run(Span::between(from, start), None, mode, &wanted)?;
                        let quiet = Some(generation);
                        inner.zero_run(Span::between(start, end), quiet, mode, &wanted)?;
                        from = end;
                    }
                    inner.zero_run(Span::between(from, now.end()), None, mode, &wanted)
                })
                .await?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Whether the file system can reserve zeroed room. It is asked with the first block of `span`,
    /// which is to be zeroed anyway.
    async fn can_reserve(&self, span: Span) -> Result<bool> {
        let stack = self.stack.load_full();
        let first = Span::between(span.offset(), span.offset() + BLOCK);
        match offload(move || stack.top().data.zero_range(first)).await {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[async_trait]
impl Device for Shadow {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_to(span, &mut Filling::new(buf))
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.inner.stack.load().try_read_to(0, span, sink)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        if data.len() > QUICK {
            return Ok(Attempt::WouldWait);
        }
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        if (parts.head.is_some() || parts.tail.is_some())
            && self.inner.try_write_parts(span, data, &parts)? == Attempt::WouldWait
        {
            return Ok(Attempt::WouldWait);
        }
        for piece in parts.whole.iter().flat_map(|whole| whole.pieces(REGION)) {
            self.inner.put_whole(piece, &data[piece.index_in(span)])?;
        }
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let stack = self.inner.stack.load_full();
        stack.read(0, span, buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        for part in [parts.head, parts.tail].into_iter().flatten() {
            self.inner.write_part(part, &data[part.index_in(span)]).await?;
        }
        for piece in parts.whole.iter().flat_map(|whole| whole.pieces(REGION)) {
            self.inner.put_whole(piece, &data[piece.index_in(span)])?;
            if piece.end() != span.end() {
                tokio::task::yield_now().await;
            }
        }
        self.finish(durability).await
    }

    async fn flush(&self) -> Result<()> {
        self.inner.check()?;
        let mine = self.inner.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut done = Arc::clone(&self.inner.round).lock_owned().await;
        if *done >= mine {
            return Ok(());
        }
        let all = self.inner.asked.load(Ordering::Acquire);
        let inner = Arc::clone(&self.inner);
        // The lock goes with the round: were it free when the leader is cancelled, the next round
        // could answer before this one has found that its sync failed.
        offload(move || {
            inner.sync(Round::Flush)?;
            *done = all;
            Ok(())
        })
        .await
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.inner.check()?;
        if let Some(whole) = Parts::of(span, self.size()).whole {
            self.zero_blocks(whole, ZeroMode { may_punch: true, only_if_fast: false }).await?;
        }
        self.finish(durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.inner.check()?;
        let parts = Parts::of(span, self.size());
        let mut must_write = false;
        if let Some(whole) = parts.whole
            && !mode.may_punch
            && !self.inner.can_reserve(whole).await?
        {
            if mode.only_if_fast {
                return Err(Error::unsupported(
                    "the file system of the shadow cannot reserve zeroed room; allow a hole, or \
                     write the zeroes",
                ));
            }
            must_write = true;
        }
        let zeroes = [0; BLOCK as usize];
        for part in [parts.head, parts.tail].into_iter().flatten() {
            self.inner.write_part(part, &zeroes[..part.len() as usize]).await?;
        }
        match parts.whole {
            Some(whole) if must_write => {
                let zeroes = vec![0; whole.len().min(REGION) as usize];
                for piece in whole.pieces(REGION) {
                    self.inner.put_whole(piece, &zeroes[..piece.len() as usize])?;
                    tokio::task::yield_now().await;
                }
            }
            Some(whole) => self.zero_blocks(whole, mode).await?,
            None => {}
        }
        self.finish(durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let stack = self.inner.stack.load_full();
        stack.extents(0, span, limit).await
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        let stack = self.inner.stack.load_full();
        stack.prefetch(0, span).await
    }
}
