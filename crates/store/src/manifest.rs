//! Manifests: what an image version or a snapshot holds.
//!
//! A manifest is a root object that names a segment for every 256 MiB of the image. Segments that
//! are alike are shared by their hash, in the store and in memory. A segment is loaded when it is
//! first needed and then kept.

use crate::chunker::{PAGE, SEGMENT};
use crate::document;
use crate::heal;
use crate::manifest_root::Root;
use crate::maps::MapId;
use crate::object_kind::ObjectKind;
use crate::segment::{self, Placed, Segment};
use crate::settings;
use crate::{ChunkRef, ManifestId, SegmentId, Store};
use block::{Attempt, Error, Result, Span};
use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::OnceCell;

const BLOCK: u64 = PAGE as u64;

/// A part of an image and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where, in bytes of the image.
    pub span: Span,
    /// What.
    pub content: Content,
}

/// What a part of an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Hole,
    /// Bytes of a chunk.
    Chunk {
        /// Which.
        at: ChunkRef,
        /// The byte of the chunk at which the part starts.
        skip: u32,
    },
}

/// The map of an image, or of a disk at the time of a snapshot. Immutable.
pub struct Manifest {
    store: Store,
    id: ManifestId,
    size: u64,
    /// Held, so that others of the same image need not read it.
    _root: Arc<Root>,
    segments: Vec<SegmentSlot>,
}

/// A segment that may not be loaded yet; `None` for one that is all hole.
struct SegmentSlot {
    id: Option<SegmentId>,
    loaded: OnceCell<Arc<Segment>>,
}

impl Manifest {
    fn new(store: &Store, id: &ManifestId, root: Arc<Root>) -> Self {
        let slot = |id: &Option<SegmentId>| SegmentSlot { id: *id, loaded: OnceCell::new() };
        let segments = root.ids.iter().map(slot).collect();
        Self { store: store.clone(), id: *id, size: root.size, _root: root, segments }
    }

    /// The manifest's id.
    pub fn id(&self) -> ManifestId {
        self.id
    }

    /// The image's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Calls `each` for the pieces of `span`, in order; together they are exactly the span. It may
    /// stop by breaking. Nothing is called, and [`Attempt::WouldWait`] returned, when a segment has
    /// to be loaded. Never allocates.
    ///
    /// # Errors
    /// Any error from `each`; [`Invalid`](block::ErrorKind::Invalid) when the span is not inside the
    /// image.
    pub fn try_pieces(
        &self,
        span: Span,
        each: &mut dyn FnMut(Piece) -> Result<ControlFlow<()>>,
    ) -> Result<Attempt> {
        let Some(slots) = self.slots(span)? else { return Ok(Attempt::Done) };
        let ready = |slot: &SegmentSlot| slot.id.is_none() || slot.loaded.get().is_some();
        if !self.segments[slots.clone()].iter().all(ready) {
            return Ok(Attempt::WouldWait);
        }
        for index in slots {
            let part = part_of(span, index);
            let segment = self.segments[index].loaded.get();
            if walk(segment.map(|segment| &**segment), index, part, each)?.is_break() {
                break;
            }
        }
        Ok(Attempt::Done)
    }

    /// The pieces of `span`, as [`try_pieces`](Self::try_pieces) gives them; segments are loaded.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) for a damaged segment,
    /// [`NotFound`](block::ErrorKind::NotFound) for a missing one; else the backend's;
    /// [`Invalid`](block::ErrorKind::Invalid) when the span is not inside the image.
    pub async fn pieces(&self, span: Span) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let Some(slots) = self.slots(span)? else { return Ok(pieces) };
        for index in slots {
            let slot = &self.segments[index];
            let segment = match &slot.id {
                Some(id) => Some(&**slot.loaded.get_or_try_init(|| self.hold(index, id)).await?),
                None => None,
            };
            let _ = walk(segment, index, part_of(span, index), &mut |piece| {
                pieces.push(piece);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(pieces)
    }

    /// Every distinct chunk, in the order of its first use in the image. Segments are read but not
    /// kept.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) for a damaged segment,
    /// [`NotFound`](block::ErrorKind::NotFound) for a missing one; else the backend's;
    /// [`Invalid`](block::ErrorKind::Invalid) when the span is not inside the image.
    pub async fn chunks(&self) -> Result<Vec<ChunkRef>> {
        let mut seen = HashSet::new();
        let mut chunks = Vec::new();
        for index in 0..self.segments.len() {
            self.visit(index, |placed| {
                if seen.insert(placed.at.id) {
                    chunks.push(placed.at);
                }
            })
            .await?;
        }
        Ok(chunks)
    }

    /// The root and the segments, each once.
    pub fn maps(&self) -> Vec<MapId> {
        let mut seen = HashSet::new();
        let segments = (0..self.segments()).filter_map(|index| self.segment_id(index));
        let segments = segments.filter(|id| seen.insert(*id)).map(MapId::Segment);
        std::iter::once(MapId::Root(self.id())).chain(segments).collect()
    }

    /// How many segments there are, holes included.
    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The id of a segment; `None` for a hole and beyond the end.
    pub(crate) fn segment_id(&self, index: usize) -> Option<SegmentId> {
        self.segments.get(index).and_then(|slot| slot.id)
    }

    /// The pieces of one segment, without keeping the segment. Beyond the end there are none.
    pub(crate) async fn visit(&self, index: usize, each: impl FnMut(Placed)) -> Result<()> {
        let Some(slot) = self.segments.get(index) else { return Ok(()) };
        match (&slot.id, slot.loaded.get()) {
            (_, Some(segment)) => segment.all().for_each(each),
            (Some(id), None) => self.fetch(index, id).await?.all().for_each(each),
            (None, None) => {}
        }
        Ok(())
    }

    /// Visits as [`visit`](Self::visit) does, and keeps the segment when `each` says so of one of its pieces; then
    /// it is returned, and who waits for it gets it while that is held.
    pub(crate) async fn visit_to_keep(
        &self,
        index: usize,
        mut each: impl FnMut(Placed) -> bool,
    ) -> Result<Option<Arc<Segment>>> {
        let Some((slot, id)) = self.segments.get(index).and_then(|s| Some((s, s.id.as_ref()?)))
        else {
            return Ok(None);
        };
        let mut visit = |segment: &Segment| segment.all().fold(false, |keep, at| each(at) | keep);
        if let Some(segment) = slot.loaded.get() {
            visit(segment);
            return Ok(None);
        }
        let key = (*id, segment::blocks_of(self.size, index as u64)?);
        let segments = self.store.segments();
        let turn = segments.turn(key);
        let _turn = turn.lock().await;
        let kept = match segments.get(&key) {
            Some(segment) => visit(&segment).then_some(segment),
            None => {
                let loaded = self.fetch(index, id).await?;
                visit(&loaded).then(|| segments.share(key, loaded))
            }
        };
        if let Some(segment) = &kept {
            // Whoever is about to load it sets it to the same.
            let _ = slot.loaded.set(Arc::clone(segment));
        }
        Ok(kept)
    }

    /// A segment, for whoever holds it; `None` where the image is empty.
    pub(crate) async fn segment(&self, index: usize) -> Result<Option<Arc<Segment>>> {
        let Some(slot) = self.segments.get(index) else { return Ok(None) };
        match (&slot.id, slot.loaded.get()) {
            (None, _) => Ok(None),
            (_, Some(segment)) => Ok(Some(Arc::clone(segment))),
            (Some(id), None) => self.hold(index, id).await.map(Some),
        }
    }

    /// A segment that is to be kept: the one that another manifest holds, or a loaded one.
    async fn hold(&self, index: usize, id: &SegmentId) -> Result<Arc<Segment>> {
        let key = (*id, segment::blocks_of(self.size, index as u64)?);
        // When many disks of an image are opened at once, all want the same segments.
        self.store.segments().get_or_load(key, || self.fetch(index, id)).await
    }

    async fn fetch(&self, index: usize, id: &SegmentId) -> Result<Segment> {
        let body = heal::content(&self.store, ObjectKind::Segment, &id.0).await?;
        Segment::decode(&segment::key(id), body, segment::blocks_of(self.size, index as u64)?)
    }

    /// Reads all but the chunks that is needed to read the image: the store's settings, the root and the
    /// segments. So whatever keeps what is read of the store has them from then on.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) and [`Corrupt`](block::ErrorKind::Corrupt) for an object that
    /// is missing or damaged; [`Unavailable`](block::ErrorKind::Unavailable) or
    /// [`Denied`](block::ErrorKind::Denied) from the backend.
    pub async fn fetch_maps(&self) -> Result<()> {
        objects::get(self.store.backend(), settings::KEY, document::MAX_LEN).await?;
        heal::content(&self.store, ObjectKind::Root, &self.id.0).await?;
        for id in self.segments.iter().filter_map(|slot| slot.id) {
            heal::content(&self.store, ObjectKind::Segment, &id.0).await?;
        }
        Ok(())
    }

    /// The segments that a span touches; `None` when it is empty.
    fn slots(&self, span: Span) -> Result<Option<std::ops::Range<usize>>> {
        if span.end() > self.size {
            return Err(Error::invalid(format!(
                "range of {} bytes at offset {} is beyond the end of the image ({} bytes)",
                span.len(),
                span.offset(),
                self.size
            )));
        }
        if span.is_empty() {
            return Ok(None);
        }
        Ok(Some((span.offset() / SEGMENT) as usize..span.end().div_ceil(SEGMENT) as usize))
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest").field("id", &self.id).field("size", &self.size).finish()
    }
}

/// The part of a span that lies in a segment.
fn part_of(span: Span, index: usize) -> Span {
    let start = index as u64 * SEGMENT;
    Span::between(span.offset().max(start), span.end().min(start + SEGMENT))
}

/// Gives the pieces of `span`, which lies in segment `index`.
fn walk(
    segment: Option<&Segment>,
    index: usize,
    span: Span,
    each: &mut dyn FnMut(Piece) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let origin = index as u64 * SEGMENT;
    let mut at = span.offset();
    if let Some(segment) = segment {
        let inner = span.relative_to(origin);
        let range =
            segment.range((inner.offset() / BLOCK) as u32, inner.end().div_ceil(BLOCK) as u32);
        for placed in range {
            let start = origin + u64::from(placed.start) * BLOCK;
            let end = origin + u64::from(placed.end()) * BLOCK;
            if start > at {
                let piece = Piece { span: Span::between(at, start), content: Content::Hole };
                if each(piece)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                at = start;
            }
            let until = end.min(span.end());
            let skip = placed.skip * PAGE as u32 + (at - start) as u32;
            let content = Content::Chunk { at: placed.at, skip };
            if each(Piece { span: Span::between(at, until), content })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at = until;
        }
    }
    if at < span.end() {
        return each(Piece { span: Span::between(at, span.end()), content: Content::Hole });
    }
    Ok(ControlFlow::Continue(()))
}

impl Store {
    /// Opens a manifest: its root is read now, unless somebody holds it, its segments when they are
    /// asked for.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), [`Corrupt`](block::ErrorKind::Corrupt),
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer format;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn manifest(&self, id: &ManifestId) -> Result<Arc<Manifest>> {
        let root = self.roots().get_or_load(*id, || load_root(self, id)).await?;
        Ok(Arc::new(Manifest::new(self, id, root)))
    }

    /// Opens a manifest whose root is read anew from a store, not from memory or a medium: for whoever is
    /// about to rely on its being there.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), [`Corrupt`](block::ErrorKind::Corrupt),
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer format;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn stored_manifest(&self, id: &ManifestId) -> Result<Arc<Manifest>> {
        // From a store, this one or another that it is healed from; never from a medium.
        let body = heal::stored_content(self, ObjectKind::Root, &id.0).await?;
        let root = Root::read(id, &body)?;
        Ok(Arc::new(Manifest::new(self, id, Arc::new(root))))
    }
}

async fn load_root(store: &Store, id: &ManifestId) -> Result<Root> {
    Root::read(id, &heal::content(store, ObjectKind::Root, &id.0).await?)
}
