//! Chunks that are not where maps say: found by their ids in the indexes of all packs.
//!
//! A pack that was rewritten is gone, and only its `moved` object leads to its chunks. Should that be
//! lost, nothing names the packs that have them now, and they would pass for garbage.

use super::marked::{Marks, Packs, UnreadableObject, Unsure};
use crate::pack::{self, PackIndex};
use crate::{ChunkId, PackId, Store, moved};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Indexes that are read at the same time.
const CONCURRENCY: usize = 16;

/// Marks every pack that has one of these chunks, which are wanted of packs that are gone. While one of
/// them is found nowhere, no pack can be told to be garbage.
///
/// # Errors
/// The backend's, when they say nothing of a pack.
pub(super) async fn find(
    store: &Store,
    marks: &mut Marks,
    packs: &Packs,
    lost: &BTreeMap<PackId, Vec<ChunkId>>,
) -> Result<()> {
    let wanted: HashSet<ChunkId> = lost.values().flatten().copied().collect();
    let mut found: HashMap<ChunkId, PackId> = HashMap::new();
    let mut unread = 0u64;
    // Anew, since packs may have been written since the first listing.
    let listed = objects::list(store.backend(), pack::PREFIX).await?;
    let mut loads = stream::iter(listed)
        .map(|meta| async move { PackIndex::load(store.backend(), store.settings(), &meta).await })
        .buffer_unordered(CONCURRENCY);
    while let Some(index) = loads.next().await {
        match index {
            Ok(index) => {
                for at in index.chunks().filter(|at| wanted.contains(&at.id)) {
                    marks.refer(&at, packs);
                    found.insert(at.id, at.pack);
                }
            }
            Err(e) => match e.kind() {
                ErrorKind::NotFound => {}
                ErrorKind::Corrupt | ErrorKind::Unsupported => unread += 1,
                _ => return Err(e),
            },
        }
    }
    drop(loads);
    for (pack, chunks) in lost {
        let nowhere = chunks.iter().filter(|id| !found.contains_key(*id)).count();
        let (path, map) = (pack::path(pack), moved::key(pack));
        marks.doubts.push(match nowhere {
            0 => UnreadableObject {
                unsure: Unsure::Nothing,
                error: Error::not_found(format!(
                    "object {path} is gone and {map} does not say where {} of its chunks are; other \
                     packs have them, and \"sojourn repair\" makes {map} anew",
                    chunks.len()
                )),
            },
            _ => UnreadableObject {
                unsure: Unsure::Packs,
                error: Error::not_found(format!(
                    "object {path} is gone, {map} does not say where its chunks are, and {nowhere} of \
                     those that are in use are in no pack whose index can be read ({unread} indexes \
                     cannot); heal the store with \"sojourn repair --from\", or remove the names that \
                     need them"
                )),
            },
        });
    }
    Ok(())
}
