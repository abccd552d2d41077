//! Another store with the same key.

use crate::{ChunkBytes, ChunkSource, CostEstimate, SourceKind};
use async_trait::async_trait;
use block::Result;
use store::{ChunkId, ChunkRef, OtherStore};

/// Another store with the same key, as a source. It claims nothing before it was asked what it has
/// ([`OtherStore::learn`]).
#[derive(Debug)]
pub struct Replica {
    name: String,
    store: OtherStore,
    estimate: CostEstimate,
}

impl Replica {
    /// The store that people call `name`.
    pub fn new(name: impl Into<String>, store: OtherStore, estimate: CostEstimate) -> Self {
        Self { name: name.into(), store, estimate }
    }
}

#[async_trait]
impl ChunkSource for Replica {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Store
    }

    fn estimate(&self) -> CostEstimate {
        self.estimate
    }

    fn is_distant(&self) -> bool {
        self.estimate == CostEstimate::DISTANT
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.store.claims(id)
    }

    fn chunks(&self) -> u64 {
        self.store.chunks()
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        self.store.chunk(at).await.map(ChunkBytes::Plain)
    }

    /// It may have the chunk again after its own repair.
    fn disown(&self, _id: &ChunkId) {}
}
