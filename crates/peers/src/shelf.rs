//! Where a peer takes chunks and maps from, and where it keeps them.

use crate::summary::Inventory;
use crate::wire::FetchUrgency;
use async_trait::async_trait;
use block::Result;
use bytes::Bytes;
use lookaside::ChunkBytes;
use std::sync::Arc;
use store::{ChunkRef, Encoding, MapId, Settings};

/// A chunk as a store has it: compressed, and sealed where the store is.
pub type StoredChunk = (Encoding, Bytes);

/// Where a peer takes chunks and maps from, and where it keeps them. What is given to others is always as a store has
/// it: of an encrypted store nothing leaves in clear.
#[async_trait]
pub trait Shelf: Send + Sync {
    /// What all users of the store agree on.
    fn settings(&self) -> &Settings;

    /// What is here.
    fn inventory(&self) -> &Arc<Inventory>;

    /// A chunk, out of what is kept on this machine. The bytes may be wrong: whoever asks verifies them.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when the compressor or cipher fails.
    async fn chunk_here(&self, at: &ChunkRef) -> Result<Option<StoredChunk>>;

    /// A chunk, loaded as for a guest of this machine, and kept. Who asks has found it in the place that `at` tells.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) and [`Corrupt`](block::ErrorKind::Corrupt) when there is no such
    /// chunk, or not for this machine; else the store's.
    async fn fetch_chunk(&self, at: &ChunkRef, urgency: FetchUrgency) -> Result<StoredChunk>;

    /// The object of a map, out of what is kept on this machine. It may be wrong: whoever asks verifies it.
    async fn map_here(&self, id: &MapId) -> Option<Bytes>;

    /// The object of a map, out of the store, and kept.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    async fn fetch_map(&self, id: &MapId) -> Result<Bytes>;

    /// Keeps a chunk that another peer gave, and that is the chunk; it is done later, and may be left undone.
    fn keep(&self, at: &ChunkRef, given: &ChunkBytes);

    /// Waits until so many bytes may be sent to others.
    async fn pay(&self, bytes: u64);
}
