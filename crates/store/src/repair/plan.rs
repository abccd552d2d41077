//! What is known of a bad pack: which chunks were in it, and which of them are still sound.
//!
//! Its index says so, or that of the same pack in another store. Where neither can be read, the segments
//! that names need do, and the `moved` objects that lead to the pack: when a collection rewrote an earlier
//! pack into this one, the segments name only the earlier one.

use super::finder::LostChunks;
use super::{Repair, RepairSource, is_loss};
use crate::pack::{self, PackIndex};
use crate::rewritten;
use crate::{ChunkId, ChunkRef, PackId, moved, verify};
use block::{ErrorKind, Result};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::collections::{HashMap, HashSet};

/// `moved` objects that are read at the same time.
const CONCURRENCY: usize = 16;

/// A bad pack, as far as it is known what was in it.
pub(super) struct BadPack {
    pub(super) pack: PackId,
    pub(super) there: bool,
    /// Its index can be read, here or in a source.
    pub(super) is_layout_known: bool,
    /// Its index is of no use, and something that may need chunks of it cannot be read, either.
    pub(super) is_partly_known: bool,
    /// Its chunks, in order.
    pub(super) parts: Vec<BadPackChunk>,
}

/// A chunk of a bad pack.
pub(super) struct BadPackChunk {
    pub(super) at: ChunkRef,
    /// What is stored of it, when that still gives the chunk.
    pub(super) stored: Option<Bytes>,
    /// The checksum of what was stored of it, when an index says so.
    pub(super) checksum: Option<u32>,
}

impl BadPack {
    /// The chunks that the pack does not give any more.
    pub(super) fn lost(&self) -> impl Iterator<Item = ChunkRef> {
        self.parts.iter().filter(|part| part.stored.is_none()).map(|part| part.at)
    }
}

/// What is wanted of chunks that bad packs still have.
pub(super) fn sound_in(
    plans: &[BadPack],
    wanted: &LostChunks,
) -> HashMap<ChunkId, (ChunkRef, Bytes)> {
    let parts = plans.iter().flat_map(|plan| &plan.parts);
    parts
        .filter(|part| wanted.lengths.get(&part.at.id) == Some(&part.at.len))
        .filter_map(|part| Some((part.at.id, (part.at, part.stored.clone()?))))
        .collect()
}

/// Each chunk of a pack, with its checksum where that is known.
type PackLayout = Vec<(ChunkRef, Option<u32>)>;

/// The chunks that maps lead to, by pack.
#[derive(Default)]
struct ReferencedChunks {
    chunks: HashMap<PackId, Vec<ChunkRef>>,
    /// A map cannot be read.
    is_partial: bool,
}

impl Repair<'_> {
    /// What is known of each of these packs.
    pub(super) async fn plans(
        &self,
        bad: &[PackId],
        full: &verify::StoreVerifyReport,
    ) -> Result<Vec<BadPack>> {
        let mut read = Vec::with_capacity(bad.len());
        for pack in bad {
            read.push(self.content(pack).await?);
        }
        let without = bad.iter().zip(&read).filter(|(_, (_, layout))| layout.is_none());
        let without: HashSet<PackId> = without.map(|(pack, _)| *pack).collect();
        let mut led = match without.is_empty() {
            true => ReferencedChunks::default(),
            false => self.led_into(&without).await?,
        };
        // What a name needs that cannot be read now is in no list of needs, nor what a session will publish.
        let is_partial = led.is_partial
            || full.faults.iter().any(|fault| names_chunks(&fault.object))
            || (!without.is_empty() && self.are_others_at_work().await?);
        let plans = bad.iter().zip(read).map(|(pack, (bytes, layout))| {
            let is_layout_known = layout.is_some();
            let layout = layout.unwrap_or_else(|| {
                let needed = full.unsure.get(pack).into_iter().flatten().map(|lost| lost.0);
                let mut known: Vec<ChunkRef> =
                    led.chunks.remove(pack).into_iter().flatten().chain(needed).collect();
                known.sort_unstable_by_key(|at| (at.offset, at.id));
                known.dedup_by_key(|at| at.id);
                known.into_iter().map(|at| (at, None)).collect()
            });
            let part =
                |(at, checksum)| BadPackChunk { at, stored: self.sound(&at, &bytes), checksum };
            let parts = layout.into_iter().map(part).collect();
            let is_partly_known = !is_layout_known && is_partial;
            BadPack {
                pack: *pack,
                there: !bytes.is_empty(),
                is_layout_known,
                is_partly_known,
                parts,
            }
        });
        Ok(plans.collect())
    }

    /// The bytes of a pack, none when it is gone, and what its index says, or a source's.
    async fn content(&self, pack: &PackId) -> Result<(Bytes, Option<PackLayout>)> {
        let path = pack::path(pack);
        let bytes = match objects::get(self.store.backend(), path.as_ref(), pack::MAX_LEN).await {
            Ok(bytes) => bytes,
            Err(e) if is_loss(&e) => Bytes::new(),
            Err(e) => return Err(e),
        };
        let settings = self.store.settings();
        let layout_in = |bytes: &Bytes| {
            let index =
                PackIndex::decode(settings, *pack, path.as_ref(), bytes, bytes.len() as u64)
                    .ok()?;
            let sums = index.checksums().map(Some);
            Some(index.chunks().zip(sums).collect::<PackLayout>())
        };
        let mut layout = layout_in(&bytes);
        for source in self.sources {
            if let (None, RepairSource::Store(other)) = (&layout, source)
                && self.store.shares_ids(other)
                && let Ok(there) = objects::get(other.backend(), path.as_ref(), pack::MAX_LEN).await
            {
                layout = layout_in(&there);
            }
        }
        Ok((bytes, layout))
    }

    /// What is stored of a chunk in a pack of these bytes, if it gives the chunk.
    fn sound(&self, at: &ChunkRef, bytes: &Bytes) -> Option<Bytes> {
        let range = at.offset as usize..at.offset as usize + at.stored as usize;
        let stored = (range.end <= bytes.len()).then(|| bytes.slice(range))?;
        at.decode(self.store.settings(), stored.clone()).ok().map(|_| stored)
    }

    /// What all maps say is in these packs.
    async fn led_into(&self, packs: &HashSet<PackId>) -> Result<ReferencedChunks> {
        let mut ids: Vec<PackId> = rewritten::packs(self.store).await?.into_iter().collect();
        // In an order that does not depend on chance: a simulation takes the same course again.
        ids.sort_unstable();
        let mut loads = stream::iter(ids)
            .map(|id| async move { rewritten::load(self.store, &id).await })
            .buffered(CONCURRENCY);
        let mut led = ReferencedChunks::default();
        while let Some(load) = loads.next().await {
            match load {
                Ok(map) => {
                    let chunks = map.iter().flat_map(moved::Moved::chunks);
                    for at in chunks.filter(|at| packs.contains(&at.pack)) {
                        led.chunks.entry(at.pack).or_default().push(at);
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    led.is_partial = true;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(led)
    }
}

/// Whether chunks are needed because of what is in an object.
fn names_chunks(key: &str) -> bool {
    ["refs", "manifests", "segments"].iter().any(|prefix| {
        key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')) //
    })
}
