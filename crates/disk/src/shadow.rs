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
//! Between two flushes each change of a state is noted, unsynced, before it counts: a kill of the
//! process takes nothing that was answered.
//!
//! After a failed sync nobody knows what the disk holds, and a second sync would not tell: the
//! shadow then refuses writes and flushes until it is opened again.
//!
//! | module | concept |
//! |---|---|
//! | `device` | the shadow as a device |
//! | `write` | whole blocks, and parts of blocks |
//! | `zero` | zeroes, and giving room back |
//! | `flush` | rounds of flushing |
//! | `limit` | what the private blocks may take |
//! | `failure` | what nobody knows after a failed step |

mod device;
mod failure;
mod flush;
mod limit;
#[cfg(test)]
mod tests;
mod write;
mod zero;

use self::failure::Poison;
use self::limit::Limit;
use crate::blockmap::{BlockState, MAX_SIZE};
use crate::layer::ShadowLayer;
use crate::maplog::Identity;
use crate::space::HomeSpace;
use crate::stack::{Frozen, Stack};
use arc_swap::ArcSwap;
use block::fs::FsPath;
use block::{Device, Error, Result, offload};
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What one lock covers, in bytes; locks are shared by regions far apart.
const REGION: u64 = 1 << 20;
const LOCKS: usize = 64;

#[derive(Default)]
#[repr(align(64))] // a cache line each
struct RegionLock(RwLock<()>);

/// Private blocks over a base device, in files of a directory; see the module's text.
pub struct Shadow {
    inner: Arc<Inner>,
}

struct Inner {
    directory: FsPath,
    disk: [u8; 16],
    size: AtomicU64,
    stack: ArcSwap<Stack>,
    regions: [RegionLock; LOCKS],
    /// Held shared while room is given back or reserved outside of the regions' locks, and while the
    /// files of a layer are made, so that no layer is sealed nor the shadow closed in between.
    zeroing: Arc<tokio::sync::RwLock<()>>,
    /// The threads that may do so at a time.
    turns: Arc<tokio::sync::Semaphore>,
    /// Held while the files of a layer are made, also when nobody waits for them any more: the next ones may have
    /// their number.
    making: Arc<tokio::sync::Mutex<()>>,
    /// Whether the file system can reserve zeroed room, once it was asked.
    reserves: OnceLock<bool>,
    /// Rounds of flushing that were asked for.
    asked: AtomicU64,
    /// The last one that was done. Whoever holds the lock leads a round.
    round: Arc<tokio::sync::Mutex<u64>>,
    /// Why a sync failed.
    failed: Arc<Poison>,
    limit: Limit,
    /// The room of the home; none when nobody keeps any.
    space: OnceLock<Arc<HomeSpace>>,
}

impl Shadow {
    /// Makes an empty shadow of `size` bytes over `base`, with one layer, in a directory that
    /// exists. `disk` is written into its files, so that two disks' files cannot be mixed up.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a size of 0, not in sectors, or beyond 256 TiB; any error from
    /// the file system.
    pub async fn create(
        directory: impl Into<FsPath>,
        disk: [u8; 16],
        base: Arc<dyn Device>,
        size: u64,
    ) -> Result<Self> {
        check_size(size)?;
        let directory = directory.into();
        let at = directory.clone();
        let layer = offload(move || ShadowLayer::create(&at, Identity { disk, layer: 1 })).await?;
        Ok(Self::assemble(directory, disk, vec![Arc::new(layer)], base, size))
    }

    /// Opens a shadow whose layers have the given numbers, oldest first.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when a layer's map does not hold what was acknowledged, or
    /// belongs to another disk; any error from the file system.
    pub async fn open(
        directory: impl Into<FsPath>,
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
                    Ok(Arc::new(ShadowLayer::open(&at, Identity { disk, layer: *layer }, size)?))
                })
                .collect::<Result<Vec<_>>>()
        })
        .await?;
        Ok(Self::assemble(directory, disk, layers, base, size))
    }

    fn assemble(
        directory: FsPath,
        disk: [u8; 16],
        layers: Vec<Arc<ShadowLayer>>,
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
            turns: Arc::new(tokio::sync::Semaphore::new(zero::TURNS)),
            making: Arc::default(),
            reserves: OnceLock::new(),
            asked: AtomicU64::new(0),
            round: Arc::default(),
            failed: Arc::default(),
            limit: Limit::default(),
            space: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
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
        self.inner.limit.set(most);
    }

    /// From now on new private blocks leave the room that is kept in the home, and what must be
    /// written may take it.
    pub(crate) fn share(&self, space: Arc<HomeSpace>) {
        let _ = self.inner.space.set(space);
    }

    /// Whether as many blocks as were refused last, or one, still may not become private.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.inner.limit.is_reached(&self.inner.stack.load())
    }

    /// The same shadow for another user of it.
    pub(crate) fn handle(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }

    pub(crate) fn directory(&self) -> &FsPath {
        &self.inner.directory
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
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when a layer has this number;
    /// [`Unavailable`](block::ErrorKind::Unavailable) once a step failed; any error from the file system.
    pub(crate) async fn new_layer(&self, number: u32) -> Result<Arc<ShadowLayer>> {
        if self.inner.stack.load().layers.iter().any(|layer| layer.number == number) {
            let directory = self.inner.directory.display();
            return Err(Error::internal(format!("{directory}: layer {number} is there already")));
        }
        let (at, disk) = (self.inner.directory.clone(), self.inner.disk);
        let space = self.inner.space.get().cloned();
        // It may go on when its caller is gone: closing waits for it, and so does the next one.
        let making = Arc::clone(&self.inner.making).lock_owned().await;
        let guard = Arc::clone(&self.inner.zeroing).read_owned().await;
        // After a step that failed the record may name a layer of this number, whose files are cleared here.
        self.check()?;
        let create = move || {
            ShadowLayer::clear(&at, number)?;
            ShadowLayer::create(&at, Identity { disk, layer: number })
        };
        let layer = offload(move || {
            let (_making, _guard) = (making, guard);
            match space {
                Some(space) => space.spend(create),
                None => create(),
            }
        });
        Ok(Arc::new(layer.await?))
    }

    /// Puts `top` over all layers: the one that was the newest does not change any more.
    pub(crate) async fn seal(&self, top: Arc<ShadowLayer>) {
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
        lowest: Option<Arc<ShadowLayer>>,
    ) -> Vec<Arc<ShadowLayer>> {
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

    async fn swap(
        &self,
        change: impl FnOnce(&Stack) -> (Vec<Arc<ShadowLayer>>, Arc<dyn Device>) + Send,
    ) {
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

    /// Puts blocks of the newest layer, all inside one region whose lock is held, into a state. The note of
    /// it takes the room of the reserve, if there is no other.
    fn set(&self, top: &ShadowLayer, blocks: Range<u64>, state: BlockState) -> Result<()> {
        let set = || top.set(blocks.clone(), state);
        match self.space.get() {
            Some(space) => space.spend(set),
            None => set(),
        }
    }

    fn check(&self) -> Result<()> {
        self.failed.check(&self.directory)
    }
}
