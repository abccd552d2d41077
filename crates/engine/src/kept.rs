//! What is kept of the store on this machine, for other machines: chunks and maps as the store has them, out of the
//! piece cache and the block cache, and never over the link.

use crate::Engine;
use block::{Result, offload};
use bytes::Bytes;
use gateway::wire::ObjectKey;
use lookaside::ChunkBytes;
use std::sync::Arc;
use store::{ChunkRef, Encoding, Manifest, MapId, chunk};

impl Engine {
    /// The stored bytes of a chunk at a place of the store, if the piece cache has that. They are not verified.
    pub async fn kept_chunk(self: &Arc<Self>, at: &ChunkRef) -> Option<Bytes> {
        let (engine, place) = (Arc::clone(self), *at);
        let is_kept = offload(move || Ok(engine.store.has_kept(&engine.link, &place))).await;
        if !is_kept.unwrap_or(false) {
            return None;
        }
        let path = ObjectKey::Pack(at.pack).path();
        let (backend, len) = (self.store.object_store(), u64::from(at.stored));
        objects::get_range(&*backend, &path, at.offset.into(), len).await.ok()
    }

    /// A chunk that the block cache has, as a store would have it.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when the compressor or cipher fails.
    pub async fn cached_chunk(&self, at: &ChunkRef) -> Result<Option<(Encoding, Bytes)>> {
        if !self.cache.contains(at.id.as_bytes()) {
            return Ok(None);
        }
        match self.cache.get(at.id.as_bytes()) {
            Some(plain) => self.as_stored(at, plain).await.map(Some),
            None => Ok(None),
        }
    }

    /// A chunk's plain bytes as a store would have them: compressed, and sealed where the store is.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when the compressor or cipher fails.
    pub async fn as_stored(&self, at: &ChunkRef, plain: Bytes) -> Result<(Encoding, Bytes)> {
        let (settings, id) = (self.store.settings().clone(), at.id);
        offload(move || chunk::encode(&settings, &id, plain)).await
    }

    /// Puts a chunk that came from another machine, and was verified, into the piece cache, as if it had been read from
    /// the store at this place. Says whether it could be: the bytes have to be such as the store's own.
    pub async fn keep_chunk(&self, at: &ChunkRef, given: &ChunkBytes) -> bool {
        let ChunkBytes::Stored(encoding, stored) = given else { return false };
        let fits = *encoding == at.encoding && stored.len() == at.stored as usize;
        if fits {
            let start = u64::from(at.offset);
            let range = start..start + u64::from(at.stored);
            let path = ObjectKey::Pack(at.pack).path();
            self.link.keep_range(&path, &range, stored.clone()).await;
        }
        fits
    }

    /// The object of a map, if the piece cache has it. It is not verified.
    pub async fn kept_map(self: &Arc<Self>, id: &MapId) -> Option<Bytes> {
        let (engine, path) = (Arc::clone(self), id.path());
        let asked = path.clone();
        let is_kept = offload(move || Ok(engine.link.has_object(&asked))).await;
        if !is_kept.unwrap_or(false) {
            return None;
        }
        let backend = self.store.object_store();
        objects::get(&*backend, path.as_ref(), MapId::MAX_LEN).await.ok()
    }

    /// What of a manifest's maps and chunks is kept; of chunks those whose maps all are. Nothing is asked of the store.
    ///
    /// # Errors
    /// Any error from the maps.
    pub async fn kept_of(
        self: &Arc<Self>,
        manifest: &Manifest,
    ) -> Result<(Vec<MapId>, Vec<ChunkRef>)> {
        let (engine, all) = (Arc::clone(self), manifest.maps());
        let count = all.len();
        let maps = offload(move || {
            let kept = |id: &MapId| engine.link.has_object(&id.path());
            Ok(all.into_iter().filter(kept).collect::<Vec<_>>())
        });
        let maps = maps.await?;
        if maps.len() < count {
            return Ok((maps, Vec::new()));
        }
        let chunks = manifest.chunks().await?;
        let engine = Arc::clone(self);
        let chunks = offload(move || {
            let kept = |at: &ChunkRef| engine.store.has_kept(&engine.link, at);
            Ok(chunks.into_iter().filter(kept).collect())
        });
        Ok((maps, chunks.await?))
    }

    /// Whether a chunk can be read without a network: the store is a directory, or the piece cache has the chunk. Looks
    /// into the file system.
    pub fn is_at_hand(&self, at: &ChunkRef) -> bool {
        let is_local = self.link.pieces().is_none() && self.link.expected(1).is_none();
        is_local || self.store.has_kept(&self.link, at)
    }
}
