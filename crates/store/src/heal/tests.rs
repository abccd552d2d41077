use super::*;
use crate::rewritten;
use crate::{chunk, import, pack, testing};
use block::Memory;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

struct Lab {
    backend: Arc<InMemory>,
    store: Store,
    chunks: Vec<ChunkRef>,
}

/// A store with an image of several chunks.
async fn lab() -> Lab {
    let backend = Arc::new(InMemory::new());
    let store =
        Store::create(backend.clone(), testing::settings(), testing::world(1)).await.unwrap();
    let image = Memory::from(testing::noise(5, 1 << 20));
    let done = import::from_device(&testing::session(&store).await, &image, &()).await.unwrap();
    let chunks = store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap();
    assert!(chunks.len() > 4 && chunks.iter().all(|at| at.pack == chunks[0].pack));
    Lab { backend, store, chunks }
}

impl Lab {
    /// Another store with the same objects.
    async fn copy(&self) -> Store {
        let copy = Arc::new(self.backend.fork());
        Store::open(copy, testing::world(2)).await.unwrap()
    }

    /// Rewrites the chunks of a pack into a new one, as gc and repair do.
    async fn rewrite(&self, pack: &PackId, chunks: &[ChunkRef]) -> Vec<ChunkRef> {
        let mut builder = pack::Builder::new();
        for at in chunks.iter().rev() {
            let path = pack::path(&at.pack);
            let range = u64::from(at.offset)..u64::from(at.offset + at.stored);
            let stored = self.backend.get_range(&path, range).await.unwrap();
            builder.add(at.id, at.len, at.encoding, &stored);
        }
        let done = builder.finish(self.store.settings(), |_| false).unwrap();
        let key = pack::path(&done.id);
        self.backend.put(&key, done.bytes.clone().into()).await.unwrap();
        let meta = self.backend.head(&key).await.unwrap();
        let index =
            pack::PackIndex::load(&*self.backend, self.store.settings(), &meta).await.unwrap();
        let now: Vec<_> = index.chunks().collect();
        rewritten::save(&self.store, pack, now.iter().copied()).await.unwrap();
        now
    }

    async fn remove(&self, pack: &PackId) {
        self.backend.delete(&pack::path(pack)).await.unwrap();
    }

    async fn flip(&self, key: &str, at: usize) {
        let path = Path::from(key);
        let mut bytes = self.backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[at] ^= 1;
        self.backend.put(&path, bytes.into()).await.unwrap();
    }
}

#[tokio::test]
async fn chunks_of_a_rewritten_pack_are_found_over_several_steps() {
    let lab = lab().await;
    let old = lab.chunks[0].pack;
    let (live, dead) = lab.chunks.split_at(4);
    let first = lab.rewrite(&old, live).await;
    let second = lab.rewrite(&first[0].pack, &first[1..]).await;
    assert_ne!(second[0].pack, first[0].pack);
    lab.remove(&old).await;
    for at in live {
        assert_eq!(
            chunk::id_of(lab.store.settings(), &lab.store.read_chunk(at).await.unwrap()),
            at.id
        );
    }
    assert_eq!(lab.store.counters().chunks_moved, 4);
    assert_eq!(lab.store.read_chunk(&dead[0]).await.unwrap_err().kind(), ErrorKind::NotFound);
    // The step in between goes; what a reader remembers of it is out of date then.
    lab.remove(&first[0].pack).await;
    let left: Vec<_> =
        live.iter().filter(|at| second.iter().any(|there| there.id == at.id)).collect();
    assert_eq!(left.len(), 3);
    for at in left {
        lab.store.read_chunk(at).await.unwrap();
    }
    assert_eq!(lab.store.counters().healed, 0);
}

#[tokio::test]
async fn what_a_reader_remembers_of_a_pack_is_read_anew_when_it_does_not_hold_any_more() {
    let lab = lab().await;
    let old = lab.chunks[0].pack;
    let first = lab.rewrite(&old, &lab.chunks[..3]).await;
    lab.remove(&old).await;
    lab.store.read_chunk(&lab.chunks[0]).await.unwrap();
    // Rewritten again, in another order, and the object replaced by one that leads there directly.
    let again: Vec<_> = first[..2].to_vec();
    let second = lab.rewrite(&old, &again).await;
    assert_ne!(first[0].pack, second[0].pack);
    lab.remove(&first[0].pack).await;
    for at in &lab.chunks[..3] {
        let kept = again.iter().any(|there| there.id == at.id);
        assert_eq!(lab.store.read_chunk(at).await.is_ok(), kept);
    }
}

#[tokio::test]
async fn a_damaged_or_missing_chunk_is_read_from_another_store_and_counted() {
    let lab = lab().await;
    let copy = lab.copy().await;
    let at = lab.chunks[1];
    lab.flip(&format!("packs/{}", at.pack), at.offset as usize + 7).await;
    assert_eq!(lab.store.read_chunk(&at).await.unwrap_err().kind(), ErrorKind::Corrupt);
    lab.store.add_source(copy).unwrap();
    lab.store.read_chunk(&at).await.unwrap();
    lab.remove(&at.pack).await;
    for at in &lab.chunks {
        lab.store.read_chunk(at).await.unwrap();
    }
    let counters = lab.store.counters();
    assert_eq!(counters.healed, 1 + lab.chunks.len() as u64);
    assert_eq!(counters.chunk_failures, 1);
}

#[tokio::test]
async fn another_store_is_searched_by_chunk_id_when_it_has_other_packs() {
    let lab = lab().await;
    let other = Arc::new(InMemory::new());
    let other = Store::create(other, testing::settings(), testing::world(3)).await.unwrap();
    // The same content behind other content: the same chunks, in another pack.
    let mut bytes = testing::noise(6, 64 << 10);
    bytes.resize(80 << 10, 0);
    bytes.extend(testing::noise(5, 1 << 20));
    import::from_device(&testing::session(&other).await, &Memory::from(bytes), &()).await.unwrap();
    lab.store.add_source(other).unwrap();
    lab.remove(&lab.chunks[0].pack).await;
    for at in &lab.chunks {
        lab.store.read_chunk(at).await.unwrap();
    }
}

#[tokio::test]
async fn segments_and_roots_come_from_another_store_too() {
    let lab = lab().await;
    let copy = lab.copy().await;
    let done = import::from_device(
        &testing::session(&copy).await,
        &Memory::from(testing::noise(9, 1 << 18)),
        &(),
    )
    .await;
    let id = done.unwrap().manifest;
    assert_eq!(lab.store.manifest(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
    lab.store.add_source(copy).unwrap();
    for at in lab.store.manifest(&id).await.unwrap().chunks().await.unwrap() {
        lab.store.read_chunk(&at).await.unwrap();
    }
    assert!(lab.store.counters().healed > 2);
}

#[tokio::test]
async fn a_store_with_another_key_is_refused_as_a_source() {
    let lab = lab().await;
    let settings = crate::Settings::generate(&testing::FixedEntropy::new(77)).unwrap();
    let other =
        Store::create(Arc::new(InMemory::new()), settings, testing::world(3)).await.unwrap();
    let error = lab.store.add_source(other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("repair --from"), "{error}");
}
