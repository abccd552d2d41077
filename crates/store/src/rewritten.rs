//! Packs that were rewritten: reading and saying where their chunks are now.

use crate::moved::{MAX_STEPS, Moved, key};
use crate::object;
use crate::object_kind::ObjectKind;
use crate::{ChunkRef, PackId, Store};
use block::{ErrorKind, Result};
use futures::{StreamExt, stream};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Objects that are read at the same time.
const CONCURRENCY: usize = 16;

/// Reads what is known of a pack that was rewritten; `None` when there is no such object.
pub(crate) async fn load(store: &Store, pack: &PackId) -> Result<Option<Moved>> {
    let key = key(pack);
    match object::read(store.backend(), store.settings(), ObjectKind::Moved, &key).await {
        Ok(body) => Moved::decode(&key, body).map(Some),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The packs that were rewritten, as far as objects say where their chunks are.
pub(crate) async fn packs(store: &Store) -> Result<HashSet<PackId>> {
    let listed = objects::list(store.backend(), ObjectKind::Moved.prefix()).await?;
    let names = listed.iter().filter_map(|meta| meta.location.as_ref().rsplit_once('/'));
    Ok(names.filter_map(|(_, name)| name.parse().ok()).collect())
}

/// Whether objects lead from every one of these chunks, step by step, to one of `packs`. Only they are read.
pub(crate) async fn lead_into(
    store: &Store,
    mut chunks: HashSet<ChunkRef>,
    packs: &HashSet<PackId>,
) -> Result<bool> {
    chunks.retain(|at| !packs.contains(&at.pack));
    for _ in 0..MAX_STEPS {
        if chunks.is_empty() {
            break;
        }
        // In an order that does not depend on chance: a simulation takes the same course again.
        let gone: BTreeSet<PackId> = chunks.iter().map(|at| at.pack).collect();
        let mut known: HashMap<PackId, Moved> = HashMap::new();
        let mut loads = stream::iter(gone)
            .map(|pack| async move { (pack, load(store, &pack).await) })
            .buffer_unordered(CONCURRENCY);
        while let Some((pack, moved)) = loads.next().await {
            known.extend(moved?.map(|moved| (pack, moved)));
        }
        let next = |at: &ChunkRef| {
            let moved = known.get(&at.pack)?;
            moved.find(&at.id).filter(|next| next.len == at.len)
        };
        let Some(steps) = chunks.iter().map(next).collect::<Option<HashSet<ChunkRef>>>() else {
            return Ok(false);
        };
        chunks = steps;
        chunks.retain(|at| !packs.contains(&at.pack));
    }
    Ok(chunks.is_empty())
}

/// Says where chunks of a pack are now, in place of what was said before.
pub(crate) async fn save(
    store: &Store,
    pack: &PackId,
    chunks: impl IntoIterator<Item = ChunkRef>,
) -> Result<()> {
    let key = key(pack);
    let body = Moved::encode(chunks);
    let bytes = object::encode(store.settings(), ObjectKind::Moved, &key, &body)?;
    objects::put_over(store.backend(), &key, bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkId, Encoding, testing};

    fn chunk(pack: u8) -> ChunkRef {
        ChunkRef {
            id: ChunkId([3; 32]),
            len: 4096,
            pack: PackId([pack; 32]),
            offset: 16,
            stored: 4096,
            encoding: Encoding::Plain,
        }
    }

    #[tokio::test]
    async fn the_object_is_found_by_its_pack_and_may_be_replaced() {
        let backend = std::sync::Arc::new(object_store::memory::InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let pack = PackId([7; 32]);
        assert!(load(&store, &pack).await.unwrap().is_none());
        for target in [1, 2] {
            save(&store, &pack, [chunk(target)]).await.unwrap();
            let moved = load(&store, &pack).await.unwrap().unwrap();
            assert_eq!(moved.chunks().collect::<Vec<_>>(), [chunk(target)]);
        }
    }
}
