//! Drawing a chunk map.
//!
//! What is told is what is known: the states of the disk's own blocks, which chunks the cache holds, and which
//! of the store are kept nearby. Nothing is opened or changed for it, and no chunk is read. Of an image's own map
//! the parts that nobody has read yet are read while no guest waits for the store; what is not read then is told
//! as such. A large disk is drawn in steps, off the threads that serve, with turns for others in between.

use crate::blockmap::{BlockMap, BlockState, GROUP};
use crate::chunk_map::{BlockPlace, ChunkMap};
use crate::disks::must_be_there;
use crate::layer::ShadowLayer;
use crate::maplog::Identity;
use crate::overlay::RoomLayer;
use crate::record::DiskRecord;
use crate::{Disk, Disks, Image, Loader};
use block::{Attempt, BLOCK, Device, Error, Result, Span, offload};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkRef, Manifest, check_name};
use tokio::time::Instant;

/// What is drawn at once, in bytes: what a segment of an image's map tells of.
const WINDOW: u64 = 256 << 20;
/// Chunks that are looked at in a step: some milliseconds.
const STEP: usize = 1 << 16;
/// How many chunks are as much work as the blocks of a window, where a layer holds any.
const BLOCKS_AS_CHUNKS: usize = 1 << 12;
/// Parts of an image's map that are read side by side.
const READS: u64 = 8;
/// For so long parts of it are read for one map. Somebody waits for that.
const READING: Duration = Duration::from_secs(2);

/// Whether the stored bytes of a chunk are near. May look into a file system.
pub type IsKept = Arc<dyn Fn(&ChunkRef) -> bool + Send + Sync>;

/// What a disk is made of at a moment: its own blocks, and what they lie over. Holds no lock of the disk. Or what the
/// memory of a suspended machine is made of.
pub struct DiskLayers {
    size: u64,
    /// Where in the image of a memory that begins which has to be xored to what it is at its start.
    delta: Option<u64>,
    /// The newest first.
    own: Vec<LayerMap>,
    /// What lies over all of these, in borrowed room.
    borrowed: Option<Arc<RoomLayer>>,
    image: Arc<Image>,
    loader: Arc<Loader>,
}

/// Which blocks one layer holds.
enum LayerMap {
    Open(Arc<ShadowLayer>),
    Closed(Box<BlockMap>),
}

impl LayerMap {
    fn blocks(&self) -> &BlockMap {
        match self {
            Self::Open(layer) => &layer.map,
            Self::Closed(map) => map,
        }
    }
}

impl Disk {
    /// What it is made of now.
    pub fn layers(&self) -> DiskLayers {
        // In this order: a base that takes the place of layers is there before they go.
        let stack = self.shadow.stack();
        let image = Arc::clone(&self.base.lock());
        let own = stack.layers.iter().map(|layer| LayerMap::Open(Arc::clone(layer))).collect();
        let borrowed = self.away.as_ref().map(|away| Arc::clone(&away.front()));
        let loader = Arc::clone(&self.loader);
        DiskLayers { size: self.size(), delta: None, own, borrowed, image, loader }
    }
}

/// The own blocks of a disk that nobody has open.
pub struct ClosedDisk {
    record: DiskRecord,
    own: Vec<LayerMap>,
    loader: Arc<Loader>,
}

impl Disks {
    /// Looks at the files of a disk that nobody has open, nor opens meanwhile. They stay as they are.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is none; [`Corrupt`](block::ErrorKind::Corrupt) when its
    /// record or a map is damaged; any error from the file system.
    pub async fn look(&self, name: &str) -> Result<ClosedDisk> {
        check_name("disk", name)?;
        let (directory, own) = (self.directory.join(name), name.to_owned());
        let loader = Arc::clone(&self.loader);
        offload(move || {
            must_be_there(&directory, &own)?;
            let record = DiskRecord::load(&directory)?;
            let look = |layer: &u32| {
                let identity = Identity { disk: record.uuid.0, layer: *layer };
                let map = ShadowLayer::look(&directory, identity, record.size)?;
                Ok(LayerMap::Closed(Box::new(map)))
            };
            let own = record.layers.iter().rev().map(look).collect::<Result<Vec<_>>>()?;
            Ok(ClosedDisk { record, own, loader })
        })
        .await
    }
}

impl ClosedDisk {
    /// What it is made of. From here on the disk may be opened.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub async fn layers(self) -> Result<DiskLayers> {
        let Self { record, own, loader } = self;
        let manifest = loader.store().manifest(&record.base).await?;
        let image = Arc::new(Image::through(&loader, manifest));
        Ok(DiskLayers { size: record.size, delta: None, own, borrowed: None, image, loader })
    }
}

impl DiskLayers {
    /// The memory of a suspended machine: the first `size` bytes of what a manifest shows, and what has to be xored to
    /// them, which begins at `delta`.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when the manifest does not show both.
    pub fn of_memory(
        loader: &Arc<Loader>,
        manifest: Arc<Manifest>,
        size: u64,
        delta: u64,
    ) -> Result<Self> {
        let end = delta.checked_add(size).filter(|end| size <= delta && *end <= manifest.size());
        if end.is_none() {
            return Err(Error::corrupt(format!(
                "memory image {} has {} bytes, which do not hold {size} bytes of memory twice",
                manifest.id(),
                manifest.size()
            )));
        }
        let image = Arc::new(Image::through(loader, manifest));
        let (loader, own) = (Arc::clone(loader), Vec::new());
        Ok(Self { size, delta: Some(delta), own, borrowed: None, image, loader })
    }

    /// Draws the map, in `cells` cells at the most.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for no cell, and for more than [`ChunkMap::MOST_CELLS`].
    pub async fn map(self, cells: usize, is_kept: IsKept) -> Result<ChunkMap> {
        let map = ChunkMap::new(self.size, cells)?;
        let mut drawing = Drawing { layers: self, is_kept, map, at: 0 };
        let mut reads_until = Some(Instant::now() + READING);
        loop {
            let may_read = reads_until.is_some();
            let (drawn, attempt) = offload(move || {
                let began = Instant::now();
                let attempt = drawing.step(may_read)?;
                drawing.map.worked(began.elapsed());
                Ok((drawing, attempt))
            })
            .await?;
            drawing = drawn;
            if drawing.at >= drawing.layers.size {
                return Ok(drawing.map);
            }
            if attempt == Attempt::WouldWait {
                let goes_on = reads_until.is_some_and(|until| Instant::now() < until)
                    && drawing.layers.read_maps(drawing.at).await;
                reads_until = reads_until.filter(|_| goes_on);
            }
        }
    }

    /// Where those blocks of a window are that are not the image's; `None` when all are.
    fn own_blocks(&self, window: Span) -> Option<Vec<Option<BlockPlace>>> {
        let blocks = window.offset() / BLOCK..window.end().div_ceil(BLOCK);
        let mut own = None;
        let count = (blocks.end - blocks.start) as usize;
        let mut put = |block: u64, place: BlockPlace| {
            let own = own.get_or_insert_with(|| vec![None; count]);
            if let Some(slot) = own.get_mut((block - blocks.start) as usize) {
                *slot = Some(place);
            }
        };
        // Upwards: what lies over a layer hides it.
        for (depth, layer) in self.own.iter().enumerate().rev() {
            let held = if depth == 0 { BlockPlace::Private } else { BlockPlace::Waiting };
            for (group, word) in
                layer.blocks().words(blocks.start / GROUP..blocks.end.div_ceil(GROUP))
            {
                for block in 0..GROUP {
                    match BlockState::of_word(word, block) {
                        BlockState::Below => {}
                        BlockState::Private => put(group * GROUP + block, held),
                        BlockState::Zero => put(group * GROUP + block, BlockPlace::Zero),
                    }
                }
            }
        }
        if let Some(borrowed) = &self.borrowed {
            let mut rest = window;
            while !rest.is_empty() {
                let (run, is_held) = (borrowed.held)(rest);
                if is_held {
                    run.pieces(BLOCK).for_each(|at| put(at.offset() / BLOCK, BlockPlace::Private));
                }
                rest = rest.split_at(run.end()).1;
            }
        }
        own
    }

    /// Reads what the image's map tells of the windows from `at` on, some of them; false when that cannot be had
    /// now.
    async fn read_maps(&self, at: u64) -> bool {
        if self.loader.has_demand() {
            return false;
        }
        let manifest = self.image.manifest();
        let windows = (0..READS).map(|n| at + n * WINDOW);
        let windows = windows.filter(|start| self.delta.is_none() || *start < self.size);
        let regions =
            windows.flat_map(|start| [Some(start), self.delta.map(|delta| delta + start)]);
        let starts = regions.flatten().filter(|start| *start < manifest.size());
        let first = |start: u64| Span::between(start, (start + BLOCK).min(manifest.size()));
        let reads = starts.map(|start| manifest.pieces(first(start)));
        match futures::future::try_join_all(reads).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "a chunk map is drawn without a part of its image's map");
                false
            }
        }
    }
}

/// A map that is being drawn.
struct Drawing {
    layers: DiskLayers,
    is_kept: IsKept,
    map: ChunkMap,
    /// What lies before it is drawn, in bytes.
    at: u64,
}

impl Drawing {
    /// Draws some windows. Stops before one of which the image's map is not read, if that may be done.
    fn step(&mut self, may_read: bool) -> Result<Attempt> {
        let mut looked = 0;
        for window in Span::between(self.at, self.layers.size).pieces(WINDOW) {
            let own = match self.layers.delta {
                None => self.layers.own_blocks(window),
                Some(delta) => match self.delta_blocks(window, delta)? {
                    None if may_read => return Ok(Attempt::WouldWait),
                    None => Some(vec![Some(BlockPlace::Unread); blocks_in(window, window).len()]),
                    found => found,
                },
            };
            looked += if own.is_some() { BLOCKS_AS_CHUNKS } else { 0 };
            if self.draw(window, own, may_read, &mut looked)? == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
            self.at = window.end();
            if looked >= STEP {
                break;
            }
        }
        Ok(Attempt::Done)
    }

    /// Where those blocks of a window of memory are to which something has to be xored; `None` while nobody has read
    /// which these are.
    fn delta_blocks(&self, window: Span, delta: u64) -> Result<Option<Vec<Option<BlockPlace>>>> {
        let mut found = vec![None; blocks_in(window, window).len()];
        let region = Span::between(window.offset() + delta, window.end() + delta);
        let attempt = self.layers.image.places(region, &*self.is_kept, &mut |span, place| {
            if place != BlockPlace::Zero {
                found[blocks_in(region, span)].fill(Some(place));
            }
        })?;
        Ok((attempt == Attempt::Done).then_some(found))
    }

    /// Draws a window whose `own` blocks have a place, if there are any; counts the chunks `looked` at.
    fn draw(
        &mut self,
        window: Span,
        mut own: Option<Vec<Option<BlockPlace>>>,
        may_read: bool,
        looked: &mut usize,
    ) -> Result<Attempt> {
        let (inside, beyond) = window.split_at(self.layers.image.size());
        let is_memory = self.layers.delta.is_some();
        let shows = |own: &Vec<_>| is_memory || own[blocks_in(window, inside)].contains(&None);
        let Self { layers, is_kept, map, .. } = self;
        if !inside.is_empty() && own.as_ref().is_none_or(shows) {
            let mut put = |span: Span, place: BlockPlace| {
                *looked += 1;
                match &mut own {
                    Some(own) => {
                        let below = own[blocks_in(window, span)].iter_mut();
                        below.for_each(|block| match block {
                            // Both are needed to have it.
                            Some(own) if is_memory => *own = farther(*own, place),
                            Some(_) => {}
                            None => *block = Some(place),
                        });
                    }
                    None => map.add(span, place),
                }
            };
            if layers.image.places(inside, &**is_kept, &mut put)? == Attempt::WouldWait {
                if may_read {
                    return Ok(Attempt::WouldWait);
                }
                put(inside, BlockPlace::Unread);
            }
        }
        match own {
            Some(own) => {
                for (span, block) in window.pieces(BLOCK).zip(own) {
                    // What the image does not reach.
                    map.add(span, block.unwrap_or(BlockPlace::Zero));
                }
            }
            None => map.add(beyond, BlockPlace::Zero),
        }
        Ok(Attempt::Done)
    }
}

/// The one of two places where bytes are harder to have.
fn farther(one: BlockPlace, other: BlockPlace) -> BlockPlace {
    let distance = |place| match place {
        BlockPlace::Zero => 0,
        BlockPlace::Private | BlockPlace::Waiting | BlockPlace::Cached => 1,
        BlockPlace::Kept => 2,
        BlockPlace::Stored => 3,
        BlockPlace::Unread => 4,
    };
    if distance(other) > distance(one) { other } else { one }
}

/// Which of a window's blocks a part of it touches.
fn blocks_in(window: Span, part: Span) -> Range<usize> {
    let part = part.relative_to(window.offset());
    (part.offset() / BLOCK) as usize..part.end().div_ceil(BLOCK) as usize
}
