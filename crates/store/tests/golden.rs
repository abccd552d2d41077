//! A small store of every format version is kept in `tests/golden`. It must stay readable, and
//! writing the same content must give the same bytes.
//!
//! `UPDATE_GOLDEN=1 cargo test -p store --test golden` writes the newest version's anew: only
//! right when the format was meant to change, and then under a new number.

#![allow(clippy::unwrap_used)] // tests

use block::{Memory, Span};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Content, RefBody, RefKind, Store, backend, import, testing, verify};

type Objects = BTreeMap<String, Bytes>;

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

/// Three pages that do not compress, two of zeroes, four that compress, half a kibibyte.
fn image() -> Vec<u8> {
    let mut bytes = testing::noise(4, 3 * 4096);
    bytes.resize(5 * 4096, 0);
    bytes.extend((0..4 * 4096 + 512).map(|i| (i / 64 % 7) as u8 + b'a'));
    bytes
}

async fn objects(backend: &dyn ObjectStore) -> Objects {
    let listed: Vec<_> = backend.list(None).try_collect().await.unwrap();
    let mut objects = Objects::new();
    for meta in listed {
        let bytes = backend.get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.insert(meta.location.to_string(), bytes);
    }
    objects
}

/// A store with the image, an image version and a disk that was removed.
async fn write(backend: Arc<dyn ObjectStore>) {
    let store = Store::create(backend, testing::settings(), testing::world(2)).await.unwrap();
    let done = import::from_device(&testing::session(&store).await, &Memory::from(image()), &()).await.unwrap();
    let body = RefBody {
        manifest: Some(done.manifest),
        size: done.size,
        created: testing::NOW,
        labels: [("source".to_owned(), "example.raw".to_owned())].into(),
    };
    let refs = store.refs();
    refs.create(RefKind::Image, "example:1", body.clone()).await.unwrap();
    refs.create(RefKind::Disk, "gone", body).await.unwrap();
    refs.remove(RefKind::Disk, "gone", 1).await.unwrap();
}

#[tokio::test]
async fn writing_gives_the_bytes_of_the_golden_store() {
    let backend = Arc::new(InMemory::new());
    write(backend.clone()).await;
    let written = objects(&*backend).await;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for (key, bytes) in &written {
            let path = folder().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
    let golden = objects(&*backend::local(folder()).unwrap()).await;
    let keys = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&written), keys(&golden));
    for (key, bytes) in written {
        assert!(golden[&key] == bytes, "{key} differs");
    }
}

#[tokio::test]
async fn the_golden_store_is_read() {
    // A copy: nothing may be written to the original.
    let backend = Arc::new(InMemory::new());
    for (key, bytes) in objects(&*backend::local(folder()).unwrap()).await {
        backend.put(&Path::from(key), bytes.into()).await.unwrap();
    }
    let store = Store::open(backend, testing::world(3)).await.unwrap();
    assert!(store.refs().list(RefKind::Disk).await.unwrap().is_empty());
    let record = store.refs().get(RefKind::Image, "example:1").await.unwrap().unwrap();
    assert_eq!(record.body.labels["source"], "example.raw");
    let id = record.body.manifest.unwrap();
    assert_eq!(verify::manifest(&store, &id, &()).await.unwrap().damaged, []);
    let manifest = store.manifest(&id).await.unwrap();
    let expected = image();
    assert_eq!(manifest.size(), expected.len() as u64);
    for piece in manifest.pieces(Span::whole(manifest.size())).await.unwrap() {
        let bytes = &expected[piece.span.index_in(Span::whole(manifest.size()))];
        match piece.content {
            Content::Hole => assert!(bytes.iter().all(|b| *b == 0)),
            Content::Chunk { at, skip } => {
                let chunk = store.read_chunk(&at).await.unwrap();
                assert_eq!(&chunk[skip as usize..][..bytes.len()], bytes);
            }
        }
    }
}
