//! Which chunks of a store a home can read without a network.

use ::vm::NearbyChunks;
use async_trait::async_trait;
use block::{Result, offload};
use engine::Engine;
use std::sync::Arc;
use store::ChunkRef;

/// What a home has at hand.
pub(super) struct NearbyOfHome(pub(super) Arc<Engine>);

#[async_trait]
impl NearbyChunks for NearbyOfHome {
    async fn at_hand(&self, mut chunks: Vec<ChunkRef>) -> Result<Vec<ChunkRef>> {
        let engine = Arc::clone(&self.0);
        offload(move || {
            chunks.retain(|at| engine.is_at_hand(at));
            Ok(chunks)
        })
        .await
    }
}
