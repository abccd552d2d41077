use super::*;
use crate::manifest_root;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::Segment;
use crate::{Encoding, PackId, SegmentId, testing};
use block::Memory;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

async fn store(seed: u64) -> (Store, Arc<InMemory>) {
    let backend = Arc::new(InMemory::new());
    let shared = Arc::clone(&backend) as Arc<dyn ObjectStore>;
    (Store::create(shared, testing::settings(), testing::world(seed)).await.unwrap(), backend)
}

/// Writes the manifest of an image whose segments hold these chunks, one after the other.
async fn written(store: &Store, segments: &[&[ChunkRef]]) -> ManifestId {
    let write = async |kind, body: Vec<u8>| {
        let (backend, settings) = (store.backend(), store.settings());
        object::write_content(backend, settings, kind, &body).await.unwrap()
    };
    let mut ids = Vec::new();
    for chunks in segments {
        let mut start = 0;
        let place = |at: &ChunkRef| {
            let blocks = at.len / PAGE as u32;
            start += blocks;
            Placed { start: start - blocks, blocks, skip: 0, at: *at }
        };
        let body = Segment::encode(&chunks.iter().map(place).collect::<Vec<_>>(), 0);
        ids.push(Some(SegmentId(write(ObjectKind::Segment, body).await)));
    }
    let root = manifest_root::encode(segments.len() as u64 * SEGMENT, &ids, 0);
    ManifestId(write(ObjectKind::Root, root).await)
}

/// Stores chunks of noise that the manifest of their image names.
async fn imported(store: &Store, bytes: Vec<u8>) -> Vec<ChunkRef> {
    let done =
        crate::import::from_device(&testing::session(store).await, &Memory::from(bytes), &())
            .await
            .unwrap();
    store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap()
}

#[tokio::test]
async fn chunks_that_overlap_in_a_pack_are_damage_and_not_a_panic() {
    let (store, _) = store(1).await;
    let good = imported(&store, testing::noise(5, 300 << 10)).await;
    let first = ChunkRef { stored: 65536, len: 65536, ..good[0] };
    let inside = ChunkRef {
        id: crate::ChunkId([7; 32]),
        offset: first.offset + 4,
        stored: 100,
        len: 4096,
        encoding: Encoding::Zstd,
        ..first
    };
    let id = written(&store, &[&[first, inside]]).await;
    let report = manifest(&store, &id, &()).await.unwrap();
    assert!(report.damaged.iter().any(|damage| damage.offset == u64::from(inside.offset)));
}

#[tokio::test]
async fn each_copy_of_a_chunk_is_verified() {
    let (store, backend) = store(1).await;
    let at = imported(&store, testing::noise(5, 8192)).await[0];
    let pack = pack::path(&at.pack);
    let copy = ChunkRef { pack: PackId([9; 32]), ..at };
    let mut bytes = backend.get(&pack).await.unwrap().bytes().await.unwrap().to_vec();
    bytes[at.offset as usize + 100] ^= 1;
    backend.put(&pack::path(&copy.pack), bytes.into()).await.unwrap();
    let id = written(&store, &[&[at], &[copy]]).await;
    let report = manifest(&store, &id, &()).await.unwrap();
    assert_eq!(report.chunks, 2);
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0].object, format!("packs/{}", copy.pack));
    assert_eq!(report.damaged[0].spans, [Span::between(SEGMENT, SEGMENT + 8192)]);
}
