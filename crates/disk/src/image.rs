//! A manifest as a read-only device.

use crate::chunk_map::BlockPlace;
use crate::guest_waits::{GuestWaits, WaitCause};
use crate::loads::{ChunkLoad, LoadLine, LoadOptions, Loader, Urgency};
use crate::{BootProgress, BootTrace};
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Filling, Result, Sink, Span,
    ZeroMode, extent,
};
use bytes::Buf;
use cache::{Cache, ReadAhead};
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use store::boot_list::Located;
use store::{ChunkId, ChunkRef, Content, Manifest, Piece, Store, boot_copy, boot_list};
use tokio::task::JoinSet;

/// Pieces whose chunks one read loads at the same time, in one request where they lie near each other.
const LOADS: usize = 16;
/// Chunks that a client may have had fetched ahead at the same time; more requests to do so are
/// dropped.
const AHEAD: usize = 16;
/// Chunks of a boot list that wait for their turns at the same time: of those, what lies near each other
/// in the store comes in one request.
const STREAM: usize = 2048;
/// A disk asks for no more ahead than this part of the cache.
const SHARE_AHEAD: u64 = 64;
/// How much of a manifest is looked at in one step when it is asked for extents: a segment.
const WINDOW: u64 = 256 << 20;

/// The content of a manifest, read through the cache. Chunks are verified when they enter it.
pub struct Image {
    source: Arc<ImageSource>,
    /// Whether the guest reads in order.
    streams: ReadAhead,
    /// Chunks that are being fetched ahead; they end with the image.
    ahead: Mutex<JoinSet<()>>,
    /// Who wants to know what is read; none when there is nobody.
    notes: ArcSwapOption<ReadNotes>,
}

/// Who wants to know what is read of an image.
#[derive(Clone, Default)]
struct ReadNotes {
    /// While a boot is recorded.
    trace: Option<Arc<BootTrace>>,
    /// While a boot is watched.
    progress: Option<Arc<BootProgress>>,
}

impl ReadNotes {
    fn is_empty(&self) -> bool {
        self.trace.is_none() && self.progress.is_none()
    }

    fn note(&self, piece: &Piece, at: &ChunkRef, skip: u32) {
        if let Some(trace) = &self.trace {
            trace.note(piece.span.offset().saturating_sub(skip.into()), &at.id, at.len);
        }
        if let Some(progress) = &self.progress {
            progress.note(&at.id, at.len);
        }
    }
}

struct ImageSource {
    manifest: Arc<Manifest>,
    line: LoadLine,
}

impl ImageSource {
    fn cache(&self) -> &Cache {
        self.line.cache()
    }

    /// Loads what `span` shows and is not held; returns the bytes that came into the cache, and whether all came.
    async fn bring(&self, span: Span) -> (u64, bool) {
        let pieces = match self.manifest.pieces(span).await {
            Ok(pieces) => pieces,
            Err(error) => {
                tracing::debug!(%error, "cannot read ahead");
                return (0, false);
            }
        };
        let chunks = pieces.iter().filter_map(|piece| match piece.content {
            Content::Chunk { at, .. } => Some(at),
            Content::Hole => None,
        });
        let loads = self.line.chunks(&chunks.collect::<Vec<_>>(), Urgency::Ahead);
        let mut loads: FuturesUnordered<_> = loads.into_iter().map(ChunkLoad::bring).collect();
        let (mut bytes, mut all) = (0, true);
        while let Some(brought) = loads.next().await {
            bytes += brought.unwrap_or_default();
            all &= brought.is_some();
        }
        (bytes, all)
    }
}

/// After so many chunks that a boot copy does not have, the rest are not looked for there.
const COPY_FAILURES: usize = 4;

/// What came of a boot copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootCopyLoad {
    /// The bytes that came into the cache.
    pub bytes: u64,
    /// Whether all of the list is there that the budget allows: else the list may have more.
    pub whole: bool,
}

/// What came of some loads.
struct Streamed {
    bytes: u64,
    failed: usize,
    /// The budget was not enough for all.
    over: bool,
}

/// Loads chunks in their order, `budget` bytes at the most, some of them waiting at a time. Begins no
/// more of them after `failures`.
async fn stream<'a>(
    chunks: impl Iterator<Item = ChunkRef>,
    budget: u64,
    failures: usize,
    load: impl Fn(&[ChunkRef]) -> Vec<ChunkLoad<'a>>,
) -> Streamed {
    let (mut asked, mut over) = (0, false);
    let mut left = chunks.take_while(|at| {
        asked += u64::from(at.len);
        over |= asked > budget;
        asked <= budget
    });
    let (mut bytes, mut failed) = (0, 0);
    let mut running = FuturesUnordered::new();
    loop {
        if running.len() < STREAM / 2 && failed < failures {
            let batch: Vec<_> = left.by_ref().take(STREAM).collect();
            running.extend(load(&batch).into_iter().map(ChunkLoad::bring));
        }
        match running.next().await {
            Some(Some(brought)) => bytes += brought,
            Some(None) => failed += 1,
            None => break,
        }
    }
    drop(left);
    Streamed { bytes, failed, over }
}

/// The bytes of a chunk that a piece shows.
fn part<'a>(at: &ChunkRef, skip: u32, span: Span, chunk: &'a [u8]) -> Result<&'a [u8]> {
    let start = skip as usize;
    chunk.get(start..start + span.len() as usize).ok_or_else(|| {
        Error::corrupt(format!(
            "chunk {}: has {} bytes, but the manifest shows {} from {start}; verify the image",
            at.id,
            chunk.len(),
            span.len()
        ))
    })
}

impl Image {
    /// The image that `manifest` describes; its chunks come from `store` through `cache`, in no
    /// turns with other images.
    pub fn new(store: Store, manifest: Arc<Manifest>, cache: Arc<Cache>) -> Self {
        Self::through(&Loader::new(store, cache, LoadOptions::default()), manifest)
    }

    /// The image that `manifest` describes; its chunks come through `loader`, in turns with those
    /// of its other images.
    pub fn through(loader: &Arc<Loader>, manifest: Arc<Manifest>) -> Self {
        Self::for_guest(loader, manifest, Arc::default())
    }

    /// The same, for a guest whose waits are counted.
    pub(crate) fn for_guest(
        loader: &Arc<Loader>,
        manifest: Arc<Manifest>,
        waits: Arc<GuestWaits>,
    ) -> Self {
        let line = loader.line(waits);
        let most = line.options().ahead.min(line.cache().capacity() / SHARE_AHEAD);
        Self {
            source: Arc::new(ImageSource { manifest, line }),
            streams: ReadAhead::new(most),
            ahead: Mutex::new(JoinSet::new()),
            notes: ArcSwapOption::empty(),
        }
    }

    /// The same image, whose reads say nothing of what is read next: nothing is read ahead unless it is
    /// [asked for](Self::fetch_ahead).
    #[must_use]
    pub fn read_at_random(self) -> Self {
        Self { streams: ReadAhead::new(0), ..self }
    }

    /// Loads what `span` shows and is not held, behind all that somebody waits for; returns the bytes that came into
    /// the cache. A reader of the same chunk shares the load, and goes before others by that. What cannot be had is
    /// passed over. `span` lies inside the image.
    pub async fn fetch_ahead(&self, span: Span) -> u64 {
        self.source.bring(span).await.0
    }

    /// The same for who wants all of it.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when not all of it can be had; the log says why.
    pub async fn fetch_all_ahead(&self, span: Span) -> Result<u64> {
        match self.source.bring(span).await {
            (bytes, true) => Ok(bytes),
            _ => Err(Error::unavailable("not all of it can be fetched now")),
        }
    }

    /// Begins to note which chunks are read, at most `limit` of them. `None` when that is being done
    /// already.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for an image above 1 TiB.
    pub fn record(&self, limit: usize) -> Result<Option<Arc<BootTrace>>> {
        let is_recorded = |notes: &Option<Arc<ReadNotes>>| {
            notes.as_ref().is_some_and(|notes| notes.trace.is_some()) //
        };
        if is_recorded(&self.notes.load()) {
            return Ok(None);
        }
        let touches = Arc::new(BootTrace::new(self.size(), limit)?);
        let before = self.change_notes(|notes| {
            notes.trace.get_or_insert_with(|| Arc::clone(&touches));
        });
        Ok((!is_recorded(&before)).then_some(touches))
    }

    /// Notes nothing more.
    pub fn stop_recording(&self) {
        self.change_notes(|notes| notes.trace = None);
    }

    /// Begins to note how much a guest reads; instead of anything that did before.
    pub fn watch(&self, progress: &Arc<BootProgress>) {
        self.change_notes(|notes| notes.progress = Some(Arc::clone(progress)));
    }

    /// Notes no more how much a guest reads, if it is noted there.
    pub fn stop_watching(&self, progress: &Arc<BootProgress>) {
        self.change_notes(|notes| {
            notes.progress.take_if(|noted| Arc::ptr_eq(noted, progress));
        });
    }

    /// What its guest waits for.
    pub fn waits(&self) -> &Arc<GuestWaits> {
        self.source.line.waits()
    }

    /// Changes who wants to know what is read; gives who did before.
    fn change_notes(&self, change: impl Fn(&mut ReadNotes)) -> Option<Arc<ReadNotes>> {
        self.notes.rcu(|now| {
            let mut notes = now.as_deref().cloned().unwrap_or_default();
            change(&mut notes);
            (!notes.is_empty()).then(|| Arc::new(notes))
        })
    }

    /// Loads the chunks of a boot list into the cache, `budget` bytes at the most; returns how many
    /// bytes. They come in the order of the list, each with the ones that lie near it in the
    /// store. What a guest waits for, here or elsewhere, is loaded before them.
    ///
    /// # Errors
    /// Any error from the manifest; a chunk that cannot be had is passed over.
    pub async fn bring(&self, list: &[ChunkId], budget: u64) -> Result<u64> {
        let located = boot_list::locate(self.manifest(), list).await?;
        let chunks = located.into_iter().map(|Located { at, .. }| at);
        let load = |batch: &[ChunkRef]| self.source.line.chunks(batch, Urgency::Boot);
        Ok(stream(chunks, budget, usize::MAX, load).await.bytes)
    }

    /// Brings, as [`bring`](Self::bring) does, the boot list whose boot copy is `copy`: its chunks lie side
    /// by side there. A guest that waits for one before its turn came has it from there as well, with those
    /// behind it. Nobody fails by a copy: what it does not have is read from its own place.
    ///
    /// # Errors
    /// Any error from the copy's manifest.
    pub async fn bring_copy(&self, copy: &Manifest, budget: u64) -> Result<BootCopyLoad> {
        let chunks = boot_copy::chunks(copy).await?;
        let load = |batch: &[ChunkRef]| self.source.line.copies(batch);
        let loads = stream(chunks.into_iter(), budget, COPY_FAILURES, load);
        let Streamed { bytes, failed, over } = loads.await;
        Ok(BootCopyLoad { bytes, whole: failed == 0 && (over || !boot_copy::may_lack(copy)) })
    }

    /// Runs a task that ends with the image; nothing when there are too many.
    fn run_ahead(&self, most: usize, task: impl Future<Output = ()> + Send + 'static) {
        let mut ahead = self.ahead.lock();
        while ahead.try_join_next().is_some() {}
        if ahead.len() < most {
            ahead.spawn(task);
        }
    }

    /// What it shows.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.source.manifest
    }

    /// Whether the cache holds every chunk that `span` shows; no access of it.
    fn holds(&self, span: Span) -> Result<bool> {
        let mut all = true;
        let attempt = self.source.manifest.try_pieces(span, &mut |piece| {
            if let Content::Chunk { at, .. } = piece.content {
                all &= self.source.cache().contains(at.id.as_bytes());
            }
            Ok(if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(all && attempt == Attempt::Done)
    }

    /// Tells `each` where the bytes of the parts of `span` are, in order; `is_kept` says of a chunk that is not in
    /// the cache whether it is near. Nothing is told, and [`Attempt::WouldWait`] returned, when what the image holds
    /// there was not read yet. No access of the cache.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the span is not inside the image.
    pub(crate) fn places(
        &self,
        span: Span,
        is_kept: &dyn Fn(&ChunkRef) -> bool,
        each: &mut dyn FnMut(Span, BlockPlace),
    ) -> Result<Attempt> {
        self.source.manifest.try_pieces(span, &mut |piece| {
            let place = match piece.content {
                Content::Hole => BlockPlace::Zero,
                Content::Chunk { at, .. } => match self.source.cache().contains(at.id.as_bytes()) {
                    true => BlockPlace::Cached,
                    false if is_kept(&at) => BlockPlace::Kept,
                    false => BlockPlace::Stored,
                },
            };
            each(piece.span, place);
            Ok(ControlFlow::Continue(()))
        })
    }

    fn refuse(&self) -> Error {
        Error::denied(format!(
            "image {} never changes; create a disk from it to write",
            self.source.manifest.id()
        ))
    }
}

#[async_trait]
impl Device for Image {
    fn size(&self) -> u64 {
        self.source.manifest.size()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_to(span, &mut Filling::new(buf))
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        // What is inside one block is inside one chunk. Elsewhere all is looked for first: a chunk
        // that is taken here and again by the read that waits would count as used twice.
        let blocks = span.align_outward(BLOCK).len() / BLOCK;
        if self.streams.is_due(span) {
            return Ok(Attempt::WouldWait);
        }
        if blocks > 1 && !self.holds(span)? {
            return Ok(Attempt::WouldWait);
        }
        let mut all = true;
        let notes = self.notes.load();
        let attempt = self.source.manifest.try_pieces(span, &mut |piece| {
            match piece.content {
                Content::Hole => sink.room(piece.span.len() as usize).fill(0),
                Content::Chunk { at, skip } => match self.source.cache().get(at.id.as_bytes()) {
                    Some(mut chunk) => {
                        let (len, whole) =
                            (part(&at, skip, piece.span, &chunk)?.len(), chunk.len());
                        chunk.advance(skip as usize);
                        chunk.truncate(len);
                        sink.share(chunk, whole);
                        if let Some(notes) = notes.as_deref() {
                            notes.note(&piece, &at, skip);
                        }
                    }
                    None => {
                        all = false;
                        return Ok(ControlFlow::Break(()));
                    }
                },
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(if all { attempt } else { Attempt::WouldWait })
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        // The cache may have become smaller since the image was opened.
        let room = self.source.cache().capacity() / SHARE_AHEAD;
        let ahead = self.streams.note(span, self.size()).filter(|ahead| ahead.len() <= room);
        if let Some(span) = ahead {
            let source = Arc::clone(&self.source);
            self.run_ahead(AHEAD, async move {
                source.bring(span).await;
            });
        }
        let pieces = {
            let _map = self.waits().chunk(WaitCause::Store);
            self.source.manifest.pieces(span).await?
        };
        if let Some(notes) = &*self.notes.load() {
            for piece in &pieces {
                if let Content::Chunk { at, skip } = piece.content {
                    notes.note(piece, &at, skip);
                }
            }
        }
        let mut rest = buf;
        for group in pieces.chunks(LOADS) {
            let mut wanted = Vec::with_capacity(group.len());
            let mut shown = Vec::with_capacity(group.len());
            for piece in group {
                let (target, behind) = rest.split_at_mut(piece.span.len() as usize);
                rest = behind;
                match piece.content {
                    Content::Hole => target.fill(0),
                    Content::Chunk { at, skip } => {
                        wanted.push(at);
                        shown.push((piece.span, skip, target));
                    }
                }
            }
            let loads = self.source.line.chunks(&wanted, Urgency::Demand);
            let reads = wanted.iter().zip(loads).zip(shown);
            let reads = reads.map(|((at, load), (span, skip, target))| async move {
                target.copy_from_slice(part(at, skip, span, &load.chunk().await?)?);
                Ok::<_, Error>(())
            });
            reads.collect::<FuturesUnordered<_>>().try_collect::<()>().await?;
        }
        Ok(())
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        for window in span.pieces(WINDOW) {
            for piece in self.source.manifest.pieces(window).await? {
                let kind = match piece.content {
                    Content::Hole => ExtentKind::Hole,
                    Content::Chunk { .. } => ExtentKind::Data,
                };
                extent::push(&mut list, piece.span, kind);
            }
            if list.len() > limit {
                list.truncate(limit);
                break;
            }
        }
        Ok(list)
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        let mut wanted = Vec::new();
        let _ = self.source.manifest.try_pieces(span, &mut |piece| {
            if let Content::Chunk { at, .. } = piece.content
                && !self.source.cache().contains(at.id.as_bytes())
            {
                wanted.push(at);
            }
            Ok(if wanted.len() < AHEAD {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        for at in wanted {
            let source = Arc::clone(&self.source);
            self.run_ahead(AHEAD, async move {
                source.line.bring(at, Urgency::Ahead).await;
            });
        }
        Ok(())
    }
}
