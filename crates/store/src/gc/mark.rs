//! What is reachable from the names.
//!
//! Memory: 32 bytes and some for each manifest, segment and pack, 20 bytes for each distinct place of
//! a chunk that something refers to (at most three times that while it grows), and the ids of chunks
//! in packs that were rewritten or are gone.

use super::census::{Census, Named};
use super::lost;
use crate::bootlist;
use crate::chunker::{SEGMENT, SEGMENT_PAGES};
use crate::condemned::Absent;
use crate::manifest_root;
use crate::moved::{self, Moved};
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::{self, Segment};
use crate::{ChunkId, ChunkRef, ManifestId, PackId, Progress, SegmentId, Store, pack, rewritten};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Roots and segments that are read at the same time.
const CONCURRENCY: usize = 8;
/// Places that may be added before they are sorted and doubles removed.
const SLACK: usize = 1 << 18;

/// Where a chunk is that something refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MarkedChunk {
    pack: u32,
    offset: u32,
    stored: u32,
    /// The start of the chunk's id, a keyed hash.
    id: [u8; 8],
}

/// A place of a chunk that something refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReferencedChunk {
    pub(super) pack: PackId,
    pub(super) offset: u32,
    pub(super) stored: u32,
}

/// The packs that a listing showed before the census.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    /// Those that are there, and their lengths in bytes.
    pub(crate) listed: HashMap<PackId, u64>,
    /// Those that have a `moved` object.
    pub(crate) rewritten: HashSet<PackId>,
    /// What is, or was, condemned: it may go at any time, and stands in for nothing.
    pub(crate) absent: Absent,
}

impl Packs {
    /// Whether a pack can stand in for another one.
    fn stays(&self, id: &PackId) -> bool {
        self.listed.contains_key(id) && !self.absent.pack(id)
    }
}

/// A pack that was rewritten, and what still refers to it.
#[derive(Debug, Default)]
pub(crate) struct RewrittenPack {
    /// Packs that its chunks are in now.
    pub(crate) targets: HashSet<PackId>,
    /// Chunks that something refers to and that are nowhere else.
    pub(crate) left: usize,
}

/// Everything that is reachable, and how far that can be known.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) manifests: HashSet<ManifestId>,
    pub(crate) segments: HashSet<SegmentId>,
    pub(crate) boot_lists: HashSet<[u8; 32]>,
    numbers: HashMap<PackId, u32>,
    packs: Vec<PackId>,
    places: Vec<MarkedChunk>,
    sorted: usize,
    /// The chunks of packs that were rewritten or are gone.
    chunks: HashMap<PackId, HashSet<ChunkId>>,
    /// The packs that were rewritten and that something still refers to.
    pub(crate) rewritten: BTreeMap<PackId, RewrittenPack>,
    /// What is damaged or missing, and what therefore cannot be judged.
    pub(crate) doubts: Vec<UnreadableObject>,
}

/// What cannot be judged because of something that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unsure {
    /// All can be judged: only readers miss something.
    Nothing,
    Packs,
    Segments,
    Everything,
}

/// Something that cannot be read.
#[derive(Debug)]
pub(crate) struct UnreadableObject {
    pub(crate) unsure: Unsure,
    pub(crate) error: Error,
}

impl Marks {
    /// How much cannot be judged.
    pub(crate) fn unsure(&self) -> Option<Unsure> {
        self.doubts.iter().map(|doubt| doubt.unsure).max()
    }

    /// Whether something refers to a chunk of a pack.
    pub(crate) fn pack(&self, id: &PackId) -> bool {
        self.numbers.contains_key(id)
    }

    /// Whether something refers to a pack, and not all of what it refers to is elsewhere too.
    pub(crate) fn needs(&self, id: &PackId) -> bool {
        self.pack(id) && self.rewritten.get(id).is_none_or(|rewritten| rewritten.left > 0)
    }

    /// Bytes of each pack that are for chunks that something refers to, index entries included.
    pub(crate) fn live_bytes(&self) -> HashMap<PackId, u64> {
        let mut bytes: HashMap<PackId, u64> = HashMap::with_capacity(self.packs.len());
        for place in &self.places {
            *bytes.entry(self.packs[place.pack as usize]).or_default() +=
                u64::from(place.stored) + pack::OVERHEAD;
        }
        bytes
    }

    /// Whether something refers to the chunk at this place.
    pub(crate) fn chunk(&self, at: &ChunkRef) -> bool {
        let Some(pack) = self.numbers.get(&at.pack).copied() else { return false };
        let key = |place: &MarkedChunk| (place.pack, place.offset);
        self.places.binary_search_by_key(&(pack, at.offset), key).is_ok()
    }

    /// Every place, with the start of the chunk's id.
    pub(super) fn places(&self) -> impl Iterator<Item = ([u8; 8], ReferencedChunk)> + '_ {
        self.places.iter().map(|place| {
            let MarkedChunk { pack, offset, stored, id } = *place;
            (id, ReferencedChunk { pack: self.packs[pack as usize], offset, stored })
        })
    }

    /// How many chunks there are, each at its place.
    pub(crate) fn chunks(&self) -> u64 {
        self.places.len() as u64
    }

    fn doubt(&mut self, unsure: Unsure, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Corrupt
            | ErrorKind::NotFound
            | ErrorKind::Unsupported
            | ErrorKind::Invalid => {
                self.doubts.push(UnreadableObject { unsure, error });
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Notes a chunk; whether that is new where it matters.
    pub(super) fn refer(&mut self, at: &ChunkRef, known: &Packs) -> bool {
        let packs = &mut self.packs;
        let pack = *self.numbers.entry(at.pack).or_insert_with(|| {
            packs.push(at.pack);
            packs.len() as u32 - 1
        });
        let place = MarkedChunk { pack, offset: at.offset, stored: at.stored, id: at.id.short() };
        if self.places.last() != Some(&place) {
            self.places.push(place);
        }
        if self.places.len() > 2 * self.sorted + SLACK {
            self.sort();
        }
        let may_be_elsewhere =
            known.rewritten.contains(&at.pack) || !known.listed.contains_key(&at.pack);
        may_be_elsewhere && self.chunks.entry(at.pack).or_default().insert(at.id)
    }

    fn sort(&mut self) {
        self.places.sort_unstable();
        self.places.dedup_by_key(|place| (place.pack, place.offset));
        self.sorted = self.places.len();
    }
}

/// Marks what a census leads to.
pub(crate) async fn mark(
    store: &Store,
    census: &Census,
    packs: &Packs,
    progress: &dyn Progress,
) -> Result<Marks> {
    let mut marks = Marks::default();
    for error in &census.doubts {
        let error = Error::new(error.kind(), error.message().to_owned());
        marks.doubt(Unsure::Everything, error)?;
    }
    // A name for each manifest, to tell people whose it is.
    let mut names: HashMap<ManifestId, String> = HashMap::new();
    for Named { kind, record, .. } in &census.names {
        match record.body.roots() {
            Ok(roots) => {
                for id in roots {
                    names.entry(id).or_insert_with(|| format!("{kind} {}", record.name));
                }
            }
            Err(e) => {
                let error = e.context(format!("{kind} {}", record.name));
                marks.doubt(Unsure::Everything, error)?;
            }
        }
        if let Some(list) = record.body.labels.get(bootlist::LABEL) {
            match crate::id::parse_hex("boot list", list) {
                Ok(id) => drop(marks.boot_lists.insert(id)),
                Err(e) => marks.doubt(Unsure::Everything, e)?,
            }
        }
    }
    for seen in &census.pins {
        let Some(pin) = &seen.pin else { continue };
        for id in &pin.holds {
            names.entry(*id).or_insert_with(|| pin.what.clone());
        }
    }
    marks.manifests.extend(names.keys());
    roots(store, &mut marks, &names).await?;
    segments(store, &mut marks, packs, progress).await?;
    follow(store, &mut marks, packs).await?;
    marks.sort();
    Ok(marks)
}

/// Reads the roots; notes their segments.
async fn roots(
    store: &Store,
    marks: &mut Marks,
    names: &HashMap<ManifestId, String>,
) -> Result<()> {
    // In an order that does not depend on chance: a simulation takes the same course again.
    let mut ids: Vec<ManifestId> = names.keys().copied().collect();
    ids.sort_unstable();
    let mut reads = stream::iter(ids)
        .map(|id| async move { (id, read_root(store, id).await) })
        .buffer_unordered(CONCURRENCY);
    while let Some((id, read)) = reads.next().await {
        match read {
            Ok(segments) => marks.segments.extend(segments),
            Err(e) => {
                let error = match names.get(&id) {
                    Some(name) => e.context(name),
                    None => e,
                };
                marks.doubt(Unsure::Segments, error)?;
            }
        }
    }
    Ok(())
}

/// The segments of a manifest.
pub(crate) async fn read_root(store: &Store, id: ManifestId) -> Result<Vec<SegmentId>> {
    let (backend, settings) = (store.backend(), store.settings());
    let body = object::read_content(backend, settings, ObjectKind::Root, &id.0).await?;
    let (_, ids) = manifest_root::decode(&manifest_root::key(&id), &body)?;
    Ok(ids.into_iter().flatten().collect())
}

/// Reads the segments; notes their chunks.
async fn segments(
    store: &Store,
    marks: &mut Marks,
    packs: &Packs,
    progress: &dyn Progress,
) -> Result<()> {
    let mut ids: Vec<SegmentId> = marks.segments.iter().copied().collect();
    ids.sort_unstable();
    let mut reads =
        stream::iter(ids).map(|id| read_segment(store, id)).buffer_unordered(CONCURRENCY);
    while let Some(read) = reads.next().await {
        match read {
            Ok(segment) => segment.all().for_each(|placed| {
                marks.refer(&placed.at, packs);
            }),
            Err(e) => marks.doubt(Unsure::Packs, e)?,
        }
        progress.advance(SEGMENT, 0);
    }
    Ok(())
}

/// A segment, of whatever image.
pub(crate) async fn read_segment(store: &Store, id: SegmentId) -> Result<Segment> {
    let (backend, settings) = (store.backend(), store.settings());
    let body = object::read_content(backend, settings, ObjectKind::Segment, &id.0).await?;
    Segment::decode(&segment::key(&id), body, SEGMENT_PAGES as u32)
}

/// Follows chunks of packs that were rewritten to where they are now.
async fn follow(store: &Store, marks: &mut Marks, packs: &Packs) -> Result<()> {
    let mut known: HashMap<PackId, Moved> = HashMap::new();
    let mut work: Vec<PackId> = marks.chunks.keys().copied().collect();
    work.sort_unstable();
    let mut asked: HashSet<PackId> = HashSet::new();
    while let Some(pack) = work.pop() {
        if asked.insert(pack) {
            match rewritten::load(store, &pack).await {
                Ok(object) => known.extend(object.map(|object| (pack, object))),
                Err(e) => marks.doubt(Unsure::Packs, e)?,
            }
        }
        let Some(object) = known.get(&pack) else { continue };
        let mut chunks: Vec<ChunkId> =
            marks.chunks.get(&pack).into_iter().flatten().copied().collect();
        chunks.sort_unstable();
        for at in chunks.iter().filter_map(|id| object.find(id)) {
            // A pack that was rewritten again leads on.
            if marks.refer(&at, packs) && !work.contains(&at.pack) {
                work.push(at.pack);
            }
        }
    }
    let lost = lost(marks, packs, &known);
    if !lost.is_empty() {
        lost::find(store, marks, packs, &lost).await?;
    }
    for (pack, chunks) in &marks.chunks {
        let mut found = RewrittenPack::default();
        for id in chunks {
            let mut place = known.get(pack).and_then(|object| object.find(id));
            for _ in 1..moved::MAX_STEPS {
                place = match place {
                    Some(at) if !packs.stays(&at.pack) => {
                        known.get(&at.pack).and_then(|object| object.find(id))
                    }
                    other => other,
                };
            }
            match place {
                Some(at) if packs.stays(&at.pack) && at.pack != *pack => {
                    found.targets.insert(at.pack);
                }
                _ => found.left += 1,
            }
        }
        marks.rewritten.insert(*pack, found);
    }
    Ok(())
}

/// The chunks of packs that are gone, and of which no map says where they are.
fn lost(
    marks: &Marks,
    packs: &Packs,
    known: &HashMap<PackId, Moved>,
) -> BTreeMap<PackId, Vec<ChunkId>> {
    let mut lost: BTreeMap<PackId, Vec<ChunkId>> = BTreeMap::new();
    for (pack, chunks) in &marks.chunks {
        for id in chunks {
            let (mut here, mut steps) = (*pack, 0);
            while !packs.listed.contains_key(&here)
                && steps < moved::MAX_STEPS
                && let Some(next) = known.get(&here).and_then(|object| object.find(id))
            {
                (here, steps) = (next.pack, steps + 1);
            }
            if !packs.listed.contains_key(&here) {
                lost.entry(*pack).or_default().push(*id);
            }
        }
    }
    lost
}
