//! Looking for chunks that a store has lost.

use super::{ChunkLookup, RepairSource};
use crate::Progress;
use crate::condemned::Absent;
use crate::import;
use crate::pack::{self, PackIndex};
use crate::{ChunkId, ChunkRef, Encoding, PackId, Store, chunk};
use block::{Device, Error, ErrorKind, Result, Span, offload};
use bytes::Bytes;
use objects::Hint;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is looked for: the plain length of each chunk, and where images show its start.
#[derive(Debug, Default)]
pub(super) struct LostChunks {
    pub(super) lengths: HashMap<ChunkId, u32>,
    pub(super) offsets: HashMap<ChunkId, Vec<u64>>,
}

/// Where chunks were found.
pub(super) struct Finder<'a> {
    store: &'a Store,
    sources: &'a [RepairSource],
    /// In other packs of the store itself.
    own: HashMap<ChunkId, ChunkRef>,
    /// In bad packs of the store itself, with what is stored of them.
    aside: HashMap<ChunkId, (ChunkRef, Bytes)>,
    /// In a source.
    elsewhere: HashMap<ChunkId, (usize, ChunkLocation)>,
}

#[derive(Debug, Clone, Copy)]
enum ChunkLocation {
    /// In a pack of a store.
    Pack(ChunkRef),
    /// At an offset of a device.
    Device(u64),
    /// Where a source knows by the id.
    Lookup,
}

impl<'a> Finder<'a> {
    /// Looks into all packs of the store but for the bad ones, and then into the sources; what is in a
    /// condemned pack counts only where no other has it. `aside` is what the bad ones still have.
    pub(super) async fn search(
        store: &'a Store,
        sources: &'a [RepairSource],
        wanted: LostChunks,
        aside: HashMap<ChunkId, (ChunkRef, Bytes)>,
        (bad, absent): (&HashSet<PackId>, &Absent),
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut finder =
            Self { store, sources, own: HashMap::new(), aside, elsewhere: HashMap::new() };
        let lengths = Arc::new(wanted.lengths);
        if lengths.is_empty() {
            return Ok(finder);
        }
        for at in chunks_of(store, bad).await? {
            let better = match finder.own.get(&at.id) {
                Some(found) => absent.pack(&found.pack) && !absent.pack(&at.pack),
                None => true,
            };
            if lengths.get(&at.id) == Some(&at.len) && better {
                // An index says what ought to be there.
                if store.read_at(&at).await.is_ok() {
                    finder.own.insert(at.id, at);
                }
            }
        }
        for (number, source) in sources.iter().enumerate() {
            match source {
                RepairSource::Store(other) if store.shares_ids(other) => {
                    for at in chunks_of(other, &HashSet::new()).await? {
                        if lengths.get(&at.id) == Some(&at.len) {
                            finder
                                .elsewhere
                                .entry(at.id)
                                .or_insert((number, ChunkLocation::Pack(at)));
                        }
                    }
                }
                RepairSource::Store(other) => {
                    finder.rehash(number, other, &lengths, progress).await?
                }
                RepairSource::Chunks(chunks) => {
                    for (id, len) in lengths.iter() {
                        // A claim says what ought to be there.
                        if chunks.claims(id)
                            && looked_up(store, &**chunks, id, *len).await.is_some()
                        {
                            finder.elsewhere.entry(*id).or_insert((number, ChunkLocation::Lookup));
                        }
                    }
                }
                RepairSource::Device { device, .. } => {
                    finder.at_offsets(number, &**device, &lengths, &wanted.offsets).await?;
                    let found =
                        import::search(store, &**device, Arc::clone(&lengths), progress).await?;
                    for (id, offset) in found {
                        finder
                            .elsewhere
                            .entry(id)
                            .or_insert((number, ChunkLocation::Device(offset)));
                    }
                }
            }
        }
        Ok(finder)
    }

    /// Looks through a store whose ids are others, chunk by chunk.
    async fn rehash(
        &mut self,
        number: usize,
        other: &Store,
        lengths: &Arc<HashMap<ChunkId, u32>>,
        progress: &dyn Progress,
    ) -> Result<()> {
        for meta in objects::list(other.backend(), pack::PREFIX).await? {
            let index = match PackIndex::load(other.backend(), other.settings(), &meta).await {
                Ok(index) => index,
                Err(e) if is_loss(&e) => continue,
                Err(e) => return Err(e),
            };
            let path = &meta.location;
            let Ok(bytes) = objects::get_range(other.backend(), path, 0, meta.size).await else {
                continue;
            };
            let (store, other, lengths) = (self.store.clone(), other.clone(), Arc::clone(lengths));
            let found = offload(move || {
                let ours = |at: ChunkRef| {
                    let from = at.offset as usize..(at.offset + at.stored) as usize;
                    let plain = at.decode(other.settings(), bytes.slice(from)).ok()?;
                    let id = chunk::id_of(store.settings(), &plain);
                    lengths.contains_key(&id).then_some((id, at))
                };
                Ok(index.chunks().filter_map(ours).collect::<Vec<_>>())
            });
            for (id, at) in found.await? {
                self.elsewhere.entry(id).or_insert((number, ChunkLocation::Pack(at)));
            }
            progress.advance(meta.size, meta.size);
        }
        Ok(())
    }

    /// Looks where the damaged images show the chunks: the device may be a copy of one of them.
    async fn at_offsets(
        &mut self,
        number: usize,
        device: &dyn Device,
        lengths: &HashMap<ChunkId, u32>,
        offsets: &HashMap<ChunkId, Vec<u64>>,
    ) -> Result<()> {
        for (id, offsets) in offsets {
            let Some(len) = lengths.get(id) else { continue };
            for offset in offsets {
                if let Ok(plain) = read_device(device, *offset, *len).await
                    && chunk::id_of(self.store.settings(), &plain) == *id
                {
                    self.elsewhere.entry(*id).or_insert((number, ChunkLocation::Device(*offset)));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether a chunk was found.
    pub(super) fn has(&self, id: &ChunkId) -> bool {
        self.own.contains_key(id) || self.aside.contains_key(id) || self.elsewhere.contains_key(id)
    }

    /// Another place in the store itself.
    pub(super) fn own(&self, id: &ChunkId) -> Option<ChunkRef> {
        self.own.get(id).copied()
    }

    /// What another bad pack of the store has of a chunk.
    pub(super) fn aside(&self, id: &ChunkId, len: u32) -> Option<(Encoding, Bytes)> {
        let (at, stored) = self.aside.get(id)?;
        (at.len == len).then(|| (at.encoding, stored.clone()))
    }

    /// What is stored of a chunk in the packs in which it was found. It is not verified, and other stores
    /// may have sealed it under another key.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store's own backend
    /// cannot be read: that says nothing of the chunk.
    pub(super) async fn stored(&self, id: &ChunkId, len: u32) -> Result<Vec<(Encoding, Bytes)>> {
        let mut found = Vec::new();
        if let Some(at) = self.own(id).filter(|at| at.len == len) {
            match stored_at(self.store, &at).await {
                Ok(stored) => found.push((at.encoding, stored)),
                Err(e) if is_loss(&e) => {}
                Err(e) => return Err(e),
            }
        }
        found.extend(self.aside(id, len));
        if let Some((number, ChunkLocation::Pack(at))) = self.elsewhere.get(id)
            && at.len == len
            && let RepairSource::Store(other) = &self.sources[*number]
            && let Ok(stored) = stored_at(other, at).await
        {
            found.push((at.encoding, stored));
        }
        Ok(found)
    }

    /// The content of a chunk from where it was found, verified; `None` when nobody has them.
    pub(super) async fn content(&self, id: &ChunkId, len: u32) -> Option<Bytes> {
        let (number, place) = self.elsewhere.get(id)?;
        let plain = match (&self.sources[*number], place) {
            (RepairSource::Store(other), ChunkLocation::Pack(at)) => other.read_at(at).await,
            (RepairSource::Device { device, .. }, ChunkLocation::Device(offset)) => {
                read_device(&**device, *offset, len).await
            }
            (RepairSource::Chunks(chunks), ChunkLocation::Lookup) => {
                return looked_up(self.store, &**chunks, id, len).await;
            }
            _ => return None,
        };
        let plain = plain.ok()?;
        let right =
            plain.len() == len as usize && chunk::id_of(self.store.settings(), &plain) == *id;
        right.then_some(plain)
    }
}

/// The verified bytes of a chunk from something that answers its id.
async fn looked_up(
    store: &Store,
    chunks: &dyn ChunkLookup,
    id: &ChunkId,
    len: u32,
) -> Option<Bytes> {
    let (pack, encoding) = (PackId([0; 32]), Encoding::Plain);
    let at = ChunkRef { id: *id, len, pack, offset: 0, stored: len, encoding };
    let plain = chunks.read(&at).await.ok()?;
    let right = plain.len() == len as usize && chunk::id_of(store.settings(), &plain) == *id;
    right.then_some(plain)
}

/// Every chunk of every pack whose index can be read.
async fn chunks_of(store: &Store, without: &HashSet<PackId>) -> Result<Vec<ChunkRef>> {
    let mut chunks = Vec::new();
    for meta in objects::list(store.backend(), pack::PREFIX).await? {
        match PackIndex::load(store.backend(), store.settings(), &meta).await {
            Ok(index) if without.contains(&index.id) => {}
            Ok(index) => chunks.extend(index.chunks()),
            Err(e) if is_loss(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(chunks)
}

/// What is stored of a chunk at a place, as the store itself has it.
async fn stored_at(store: &Store, at: &ChunkRef) -> Result<Bytes> {
    let (path, hint) = (pack::path(&at.pack), Hint::Fresh);
    objects::get_range_with(store.backend(), &path, at.offset.into(), at.stored.into(), hint).await
}

fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}

/// Reads from a device; what lies behind its end is zero, as in the last chunk of an image.
async fn read_device(device: &dyn Device, offset: u64, len: u32) -> Result<Bytes> {
    let mut bytes = vec![0; len as usize];
    let span = Span::between(offset.min(device.size()), device.size().min(offset + u64::from(len)));
    device.read(span, &mut bytes[..span.len() as usize]).await?;
    Ok(bytes.into())
}
