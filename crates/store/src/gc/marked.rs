//! What a collection found to be in use, and what it cannot judge.
//!
//! Memory: 32 bytes and some for each manifest, segment and pack, 20 bytes for each distinct place of
//! a chunk that something refers to (at most three times that while it grows), and the ids of chunks
//! in packs that were rewritten or are gone.

use crate::condemned::Absent;
use crate::{ChunkId, ChunkRef, ManifestId, PackId, SegmentId, pack};
use block::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap, HashSet};

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
    pub(super) fn stays(&self, id: &PackId) -> bool {
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
    pub(super) chunks: HashMap<PackId, HashSet<ChunkId>>,
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

    /// Notes an object that cannot be read, and goes on; gives the error back where that is the backend's trouble.
    pub(super) fn note_unreadable(&mut self, unsure: Unsure, error: Error) -> Result<()> {
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

    pub(super) fn sort(&mut self) {
        self.places.sort_unstable();
        self.places.dedup_by_key(|place| (place.pack, place.offset));
        self.sorted = self.places.len();
    }
}
