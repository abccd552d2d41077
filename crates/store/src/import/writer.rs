//! The last stage of an import: packs, then segments, then the root.
//!
//! A pack is uploaded while the next one fills. A segment is written when all packs that it names
//! are durable, and the root when all segments are.

use super::prepared::{ChunkOrigin, PreparedItem, Worked};
use crate::chunker::{PAGE, SEGMENT, SEGMENT_PAGES};
use crate::condemned::Absent;
use crate::manifest_root;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::pack::{self, Finished};
use crate::segment::{self, Placed, Segment};
use crate::{
    ChunkId, ChunkRef, Encoding, ImportStats, Imported, ManifestId, PackId, PackTail, Progress,
    SegmentId, Session, Store, UploadPlan,
};
use block::{Error, Result};
use bytes::{Bytes, BytesMut};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::task::JoinSet;

/// A chunk's place; the pack may not have its id yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackPosition {
    pack: u32,
    offset: u32,
    stored: u32,
    blocks: u16,
    encoding: Encoding,
}

struct SegmentRow {
    start: u32,
    blocks: u32,
    skip: u32,
    id: ChunkId,
    place: PackPosition,
}

/// A segment in the making.
struct Draft {
    index: u64,
    rows: Vec<SegmentRow>,
    /// Packs with lower numbers must be durable before it is written.
    packs: u32,
}

struct PackSlot {
    id: Option<PackId>,
    durable: bool,
}

enum Uploaded {
    /// Which, and its bytes.
    Pack(u32, Bytes),
    Segment,
}

pub(crate) struct Writer<'a> {
    store: &'a Store,
    plan: &'a UploadPlan,
    /// What no object may be called, and nothing may rely on.
    absent: Arc<Absent>,
    /// More packs of which no new one gets the id.
    avoided: HashSet<PackId>,
    progress: &'a dyn Progress,
    pack: pack::Builder,
    /// All packs that rows name; the open one has no id yet.
    slots: Vec<PackSlot>,
    numbers: HashMap<PackId, u32>,
    /// The number of the open pack.
    open: Option<u32>,
    /// The memory of a pack that was written.
    spare: Option<BytesMut>,
    /// How many packs from the first on are durable.
    durable: u32,
    /// Chunks stored by this import.
    fresh: HashMap<ChunkId, PackPosition>,
    draft: Option<Draft>,
    waiting: VecDeque<Draft>,
    segments: Vec<Option<SegmentId>>,
    uploads: JoinSet<Result<Uploaded>>,
    stats: ImportStats,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(session: &'a Session, progress: &'a dyn Progress) -> Self {
        Self {
            store: session.store(),
            plan: session.plan(),
            absent: Arc::clone(session.absent()),
            avoided: HashSet::new(),
            progress,
            pack: pack::Builder::new(),
            slots: Vec::new(),
            numbers: HashMap::new(),
            open: None,
            spare: None,
            durable: 0,
            fresh: HashMap::new(),
            draft: None,
            waiting: VecDeque::new(),
            segments: Vec::new(),
            uploads: JoinSet::new(),
            stats: ImportStats::default(),
        }
    }

    /// Gives no new pack one of these ids.
    pub(crate) fn avoiding(mut self, packs: HashSet<PackId>) -> Self {
        self.avoided = packs;
        self
    }

    /// Takes the next batch in image order.
    pub(crate) async fn take(&mut self, worked: Worked) -> Result<()> {
        let before = self.stats.stored_bytes;
        for done in worked.done {
            match done {
                PreparedItem::Chunk { start, len, id, source } => {
                    self.chunk(start, len, id, source).await?;
                }
                PreparedItem::Base { segment, placed } => {
                    let place = self.place(&placed.at);
                    let Placed { start, blocks, skip, at } = placed;
                    self.row(segment, SegmentRow { start, blocks, skip, id: at.id, place }).await?;
                }
                PreparedItem::Shared { segment, id } => {
                    self.rotate(None).await?;
                    self.set_segment(segment, id);
                }
            }
        }
        self.stats.scanned += worked.scanned;
        self.stats.zero += worked.zero;
        self.progress.advance(worked.scanned, self.stats.stored_bytes - before);
        Ok(())
    }

    async fn chunk(
        &mut self,
        start: u64,
        len: u32,
        id: ChunkId,
        source: ChunkOrigin,
    ) -> Result<()> {
        let mut reused = true;
        let place = match (self.fresh.get(&id), source) {
            (Some(place), _) => *place,
            (None, ChunkOrigin::Known(at)) => self.place(&at),
            (None, ChunkOrigin::New(encoding, stored)) => {
                reused = false;
                let place = self.store_chunk(id, len, encoding, &stored).await?;
                self.fresh.insert(id, place);
                place
            }
        };
        if reused {
            self.stats.reused_chunks += 1;
            self.stats.reused_bytes += u64::from(len);
        }
        let blocks = len / PAGE as u32;
        let row = SegmentRow { start: (start % SEGMENT_PAGES) as u32, blocks, skip: 0, id, place };
        self.row(start / SEGMENT_PAGES, row).await
    }

    async fn store_chunk(
        &mut self,
        id: ChunkId,
        len: u32,
        encoding: Encoding,
        stored: &[u8],
    ) -> Result<PackPosition> {
        if self.pack.has(self.plan.pack_bytes) {
            self.close_pack().await?;
        }
        let number = match self.open {
            Some(number) => number,
            None => {
                let number = self.slots.len() as u32;
                self.slots.push(PackSlot { id: None, durable: false });
                *self.open.insert(number)
            }
        };
        let offset = self.pack.add(id, len, encoding, stored);
        self.stats.new_chunks += 1;
        self.stats.new_bytes += u64::from(len);
        self.stats.stored_bytes += stored.len() as u64;
        let blocks = (len / PAGE as u32) as u16;
        Ok(PackPosition { pack: number, offset, stored: stored.len() as u32, blocks, encoding })
    }

    /// The place of a chunk that is stored already.
    fn place(&mut self, at: &ChunkRef) -> PackPosition {
        let slots = &mut self.slots;
        let pack = *self.numbers.entry(at.pack).or_insert_with(|| {
            slots.push(PackSlot { id: Some(at.pack), durable: true });
            slots.len() as u32 - 1
        });
        let ChunkRef { len, offset, stored, encoding, .. } = *at;
        PackPosition { pack, offset, stored, blocks: (len / PAGE as u32) as u16, encoding }
    }

    async fn row(&mut self, segment: u64, row: SegmentRow) -> Result<()> {
        if self.draft.as_ref().is_none_or(|draft| draft.index != segment) {
            self.rotate(Some(segment)).await?;
        }
        let Some(draft) = &mut self.draft else {
            return Err(Error::internal("an import has no open segment"));
        };
        draft.packs = draft.packs.max(row.place.pack + 1);
        match draft.rows.last_mut() {
            // Two pieces of a chunk that a change had parted and that are whole again.
            Some(last)
                if last.id == row.id
                    && last.place == row.place
                    && last.start + last.blocks == row.start
                    && last.skip + last.blocks == row.skip =>
            {
                last.blocks += row.blocks;
            }
            _ => draft.rows.push(row),
        }
        Ok(())
    }

    /// Ends the open segment, and opens another.
    async fn rotate(&mut self, next: Option<u64>) -> Result<()> {
        let fresh = next.map(|index| Draft { index, rows: Vec::new(), packs: 0 });
        if let Some(draft) = std::mem::replace(&mut self.draft, fresh) {
            self.waiting.push_back(draft);
            self.write_segments().await?;
        }
        Ok(())
    }

    /// Writes the segments whose packs are durable.
    async fn write_segments(&mut self) -> Result<()> {
        loop {
            while self.slots.get(self.durable as usize).is_some_and(|slot| slot.durable) {
                self.durable += 1;
            }
            let durable = self.durable;
            let Some(draft) = self.waiting.pop_front_if(|draft| draft.packs <= durable) else {
                return Ok(());
            };
            let rows = draft.rows.iter().map(|row| self.placed(row)).collect::<Result<Vec<_>>>()?;
            let settings = self.store.settings();
            let (body, id) = salted(|salt| {
                let body = Segment::encode(&rows, salt);
                let id = SegmentId(object::id_of(settings, ObjectKind::Segment, &body));
                (!self.absent.segment(&id)).then_some((body, id))
            });
            let key = segment::key(&id);
            let bytes = object::encode(settings, ObjectKind::Segment, &key, &body)?;
            self.set_segment(draft.index, id);
            let backend = self.store.shared_backend();
            self.make_room().await?;
            let pace = self.plan.pace.clone();
            self.uploads.spawn(async move {
                let compare = bytes.len();
                if let Some(pace) = &pace {
                    pace.admit(compare as u64).await;
                }
                objects::put_content(&*backend, &key, bytes, compare).await?;
                if let Some(pace) = &pace {
                    pace.uploaded(compare as u64);
                }
                Ok(Uploaded::Segment)
            });
        }
    }

    fn placed(&self, row: &SegmentRow) -> Result<Placed> {
        let place = &row.place;
        let pack = self.slots.get(place.pack as usize).and_then(|slot| slot.id);
        let at = ChunkRef {
            id: row.id,
            len: u32::from(place.blocks) * PAGE as u32,
            pack: pack.ok_or_else(|| Error::internal("a segment names an open pack"))?,
            offset: place.offset,
            stored: place.stored,
            encoding: place.encoding,
        };
        Ok(Placed { start: row.start, blocks: row.blocks, skip: row.skip, at })
    }

    fn set_segment(&mut self, index: u64, id: SegmentId) {
        let index = index as usize;
        if self.segments.len() <= index {
            self.segments.resize(index + 1, None);
        }
        self.segments[index] = Some(id);
    }

    async fn close_pack(&mut self) -> Result<()> {
        let Some(number) = self.open.take() else { return Ok(()) };
        self.make_room().await?;
        let next = pack::Builder::reusing(self.spare.take().unwrap_or_default());
        let builder = std::mem::replace(&mut self.pack, next);
        let taken = |id: &PackId| self.absent.pack(id) || self.avoided.contains(id);
        let Finished { id, bytes, tail } = builder.finish(self.store.settings(), taken)?;
        self.slots[number as usize].id = Some(id);
        self.stats.packs += 1;
        let backend = self.store.shared_backend();
        let UploadPlan { pace, journal, .. } = self.plan.clone();
        self.uploads.spawn(async move {
            let size = bytes.len() as u64;
            if let Some(pace) = &pace {
                pace.admit(size).await;
            }
            if let Some(journal) = &journal {
                let tail = bytes.slice(bytes.len() - tail..);
                journal.note(&PackTail { id, size, tail }).await;
            }
            pack::put(&*backend, &id, bytes.clone(), tail).await?;
            if let Some(pace) = &pace {
                pace.uploaded(size);
            }
            Ok(Uploaded::Pack(number, bytes))
        });
        self.write_segments().await
    }

    /// Waits until another upload may start.
    async fn make_room(&mut self) -> Result<()> {
        while let Some(done) = self.uploads.try_join_next() {
            self.settle(done)?;
        }
        while self.uploads.len() >= self.plan.at_once {
            self.settle_next().await?;
        }
        Ok(())
    }

    async fn settle_next(&mut self) -> Result<()> {
        match self.uploads.join_next().await {
            Some(done) => self.settle(done),
            None => Ok(()),
        }
    }

    fn settle(&mut self, done: Result<Result<Uploaded>, tokio::task::JoinError>) -> Result<()> {
        let done =
            done.map_err(|e| Error::internal("an upload of an import failed").with_source(e))?;
        if let Uploaded::Pack(number, bytes) = done? {
            self.slots[number as usize].durable = true;
            self.spare = bytes.try_into_mut().ok();
        }
        Ok(())
    }

    /// Writes what is left, then the root.
    pub(crate) async fn finish(mut self, size: u64) -> Result<Imported> {
        self.rotate(None).await?;
        if !self.pack.is_empty() {
            self.close_pack().await?;
        }
        while !self.uploads.is_empty() {
            self.settle_next().await?;
            self.write_segments().await?;
        }
        let count = size.div_ceil(SEGMENT) as usize;
        if !self.waiting.is_empty() || self.segments.len() > count {
            return Err(Error::internal("an import lost a segment"));
        }
        self.segments.resize(count, None);
        let (backend, settings) = (self.store.backend(), self.store.settings());
        let root = salted(|salt| {
            let root = manifest_root::encode(size, &self.segments, salt);
            let id = ManifestId(object::id_of(settings, ObjectKind::Root, &root));
            (!self.absent.manifest(&id)).then_some(root)
        });
        let id = object::write_content(backend, settings, ObjectKind::Root, &root).await?;
        Ok(Imported { manifest: ManifestId(id), size, stats: self.stats })
    }
}

/// What `make` gives for the first salt with which it gives something.
fn salted<T>(make: impl Fn(u32) -> Option<T>) -> T {
    let mut salt = 0;
    loop {
        match make(salt) {
            Some(made) => return made,
            None => salt += 1,
        }
    }
}
