//! The chunks that a store has already, learned from the indexes of its packs.

use crate::condemned::Absent;
use crate::pack::{self, PackIndex};
use crate::{ChunkId, ChunkRef, Encoding, PackId, PackTail, Settings};
use block::{ErrorKind, Result};
use futures::{StreamExt, stream};
use object_store::ObjectStore;
use std::collections::HashSet;

/// Indexes that are read at the same time.
const CONCURRENCY: usize = 16;

/// A sorted table, 48 bytes for each chunk.
#[derive(Debug, Default)]
pub(crate) struct ChunkTable {
    packs: Vec<PackId>,
    sealed: bool,
    rows: Vec<ChunkRow>,
    /// Packs of a newer format: nothing is known of what they hold.
    newer: HashSet<PackId>,
}

#[derive(Debug)]
struct ChunkRow {
    id: ChunkId,
    pack: u32,
    offset: u32,
    stored: u32,
    len: u32,
}

impl ChunkTable {
    /// Lists the packs and reads their indexes. A damaged pack counts as missing: what it held is
    /// stored again, and the pack replaced if it comes out the same.
    pub(crate) async fn load(backend: &dyn ObjectStore, settings: &Settings) -> Result<Self> {
        Self::load_without(backend, settings, &Absent::default()).await
    }

    /// Loads as [`load`](Self::load) does, without the packs that count as absent.
    pub(crate) async fn load_without(
        backend: &dyn ObjectStore,
        settings: &Settings,
        absent: &Absent,
    ) -> Result<Self> {
        let listed = objects::list(backend, pack::PREFIX).await?;
        // By value: over references the future would not be `Send` for the compiler.
        let mut loads = stream::iter(listed)
            .map(|meta| async move {
                let index = PackIndex::load(backend, settings, &meta).await;
                (meta.location, index)
            })
            .buffer_unordered(CONCURRENCY);
        let mut known = Self { sealed: settings.is_encrypted(), ..Self::default() };
        while let Some((key, index)) = loads.next().await {
            match index {
                // About to be deleted, or so it may be.
                Ok(index) if absent.pack(&index.id) => {}
                Ok(index) => known.add(&index),
                // Gone since the listing, damaged, or of a newer format.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported
                    ) =>
                {
                    tracing::warn!(pack = %key, error = %e, "a pack is left out of an import");
                    if e.kind() == ErrorKind::Unsupported {
                        known.newer.extend(pack::id_of_key(key.as_ref()));
                    }
                }
                Err(e) => return Err(e),
            }
        }
        known.sort();
        Ok(known)
    }

    /// Only what some packs hold, whose ends somebody kept. One that is not in the store as it was, and
    /// an end that is not its pack's, are passed over.
    pub(crate) async fn of_packs(
        backend: &dyn ObjectStore,
        settings: &Settings,
        absent: &Absent,
        packs: Vec<PackTail>,
    ) -> Result<Self> {
        let mut checks = stream::iter(packs)
            .map(|pack| async move {
                let path = pack::path(&pack.id);
                let key = path.as_ref();
                let Ok(index) = PackIndex::decode(settings, pack.id, key, &pack.tail, pack.size)
                else {
                    return Ok(None);
                };
                // Its writer may have been killed before its name was on stable storage.
                match objects::durable_head(backend, key).await {
                    Ok(there) if there.size == pack.size => Ok(Some(index)),
                    Ok(_) => Ok(None),
                    Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(e),
                }
            })
            .buffer_unordered(CONCURRENCY);
        let mut known = Self { sealed: settings.is_encrypted(), ..Self::default() };
        while let Some(index) = checks.next().await {
            match index? {
                Some(index) if !absent.pack(&index.id) => known.add(&index),
                _ => {}
            }
        }
        known.sort();
        Ok(known)
    }

    /// The packs of a newer format, over which nothing may be written.
    pub(crate) fn newer(&self) -> &HashSet<PackId> {
        &self.newer
    }

    fn add(&mut self, index: &PackIndex) {
        let pack = self.packs.len() as u32;
        self.packs.push(index.id);
        self.rows.extend(index.chunks().map(|at| ChunkRow {
            id: at.id,
            pack,
            offset: at.offset,
            stored: at.stored,
            len: at.len,
        }));
    }

    fn sort(&mut self) {
        // Two importers may have stored a chunk at the same time: all later ones choose alike.
        let packs = &self.packs;
        let order = |row: &ChunkRow| (row.id, packs[row.pack as usize], row.offset);
        self.rows.sort_unstable_by_key(order);
        self.rows.dedup_by_key(|row| row.id);
    }

    /// How many chunks.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Where a chunk is, if it is stored.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<ChunkRef> {
        let row = &self.rows[self.rows.binary_search_by_key(id, |row| row.id).ok()?];
        Some(ChunkRef {
            id: row.id,
            len: row.len,
            pack: self.packs[row.pack as usize],
            offset: row.offset,
            stored: row.stored,
            encoding: Encoding::of(row.stored, row.len, self.sealed),
        })
    }
}
