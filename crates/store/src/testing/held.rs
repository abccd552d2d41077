//! What packs hold, whoever needs it and wherever maps lead.

use crate::pack::{self, PackIndex};
use crate::{ChunkId, Store};
use block::{ErrorKind, Result};
use std::collections::BTreeSet;

/// Every chunk that can be read out of some pack whose index can be read.
///
/// # Errors
/// Any error from the backend that say nothing of a pack.
pub async fn held_chunks(store: &Store) -> Result<BTreeSet<ChunkId>> {
    let mut held = BTreeSet::new();
    for meta in objects::list(store.backend(), pack::PREFIX).await? {
        let index = match PackIndex::load(store.backend(), store.settings(), &meta).await {
            Ok(index) => index,
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => continue,
            Err(e) => return Err(e),
        };
        for at in index.chunks() {
            if store.read_at(&at).await.is_ok() {
                held.insert(at.id);
            }
        }
    }
    Ok(held)
}
