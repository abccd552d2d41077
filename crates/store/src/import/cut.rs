//! Looking for known chunks in a device, without storing anything.

use super::feed::{Batch, Feed, FeedItem};
use super::sections::Sections;
use crate::manifest_root;
use crate::{ChunkId, Progress, Store, chunk};
use block::{BLOCK, Device, Result, offload};
use std::collections::HashMap;
use std::sync::Arc;

/// Cuts a device as an import does. Gives where the wanted chunks start in it, in bytes.
///
/// # Errors
/// Any error from [`from_device`](super::from_device), without any error from the store.
pub(crate) async fn search(
    store: &Store,
    source: &dyn Device,
    wanted: Arc<HashMap<ChunkId, u32>>,
    progress: &dyn Progress,
) -> Result<HashMap<ChunkId, u64>> {
    let size = source.size();
    manifest_root::check_size(size)?;
    let mut feed = Feed::default();
    let mut sections = Sections::new(source, size);
    let mut found = HashMap::new();
    let mut at = 0;
    while at < size {
        let (hole, until) = sections.at(at).await?;
        if hole {
            feed.count_hole(until - at);
            feed.jump(until.div_ceil(BLOCK));
            at = until;
        } else {
            at = sections.feed(&mut feed, at, until).await?;
        }
        if at >= size {
            feed.jump(0);
        }
        if feed.is_ready() || at >= size {
            let batch = feed.take();
            progress.advance(batch.scanned, 0);
            let (store, wanted) = (store.clone(), Arc::clone(&wanted));
            found.extend(offload(move || Ok(among(&store, &wanted, &batch))).await?);
        }
    }
    Ok(found)
}

/// The wanted chunks of a batch.
fn among(store: &Store, wanted: &HashMap<ChunkId, u32>, batch: &Batch) -> Vec<(ChunkId, u64)> {
    let mut found = Vec::new();
    for item in &batch.items {
        if let FeedItem::Chunk { start, data } = item {
            let id = chunk::id_of(store.settings(), data);
            if wanted.contains_key(&id) {
                found.push((id, start * BLOCK));
            }
        }
    }
    found
}
