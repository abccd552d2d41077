//! What a disk or an image costs in a store that has many of them already: as much as in a small one.

use crate::common::{Home, cache};
use block::Memory;
use disk::{CreateOptions, Disks, Mode};
use object_store::ObjectStore;
use objects::testing::{FaultRates, Unreliable};
use objects::{OpenStoreOptions, PieceOptions, layered};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::testing;
use store::{RefBody, RefKind, Store, images, import};

/// How many requests it takes to make a disk of the newest version of an image, and to import another
/// image, in a store with so many images, each of which has a disk with a snapshot.
async fn requests(images: usize) -> (u64, u64) {
    let home = Home::new().await;
    for number in 0..images {
        let name = format!("image{number}:1");
        home.image(&name, &testing::noise(number as u64, 64 << 10)).await;
        let found = home.store.refs().get(RefKind::Image, &name).await.unwrap().unwrap();
        home.create(&format!("disk{number}"), &name, Mode::Persistent).await.unwrap();
        let snapshot = format!("disk{number}@one");
        home.store.refs().create(RefKind::Snapshot, &snapshot, found.body).await.unwrap();
    }
    let shared: Arc<dyn ObjectStore> = Arc::clone(&home.backend) as _;
    let counted = Unreliable::new(shared, 1, FaultRates::default());
    let bare: Arc<dyn ObjectStore> = Arc::new(counted.clone());
    let pieces = PieceOptions { dir: home.directory.path().join("pieces"), limit: 64 << 20 };
    let options = OpenStoreOptions { pieces: Some(pieces), ..OpenStoreOptions::default() };
    let opened = layered(bare, "s3://test", &options, |patient| patient);
    let store = Store::open(opened.backend, testing::world(9)).await.unwrap();
    let disks = Disks::new(home.directory.path().join("disks"), store.clone(), cache());

    let before = counted.calls();
    let options = CreateOptions { size: None, mode: Mode::Persistent };
    disks.create("alice", &"image1".parse().unwrap(), options).await.unwrap();
    let creation = counted.calls() - before;

    // The first one learns which chunks there are; from then on that is on this machine's disk.
    imported(&store, "first").await;
    let before = counted.calls();
    imported(&store, "second").await;
    (creation, counted.calls() - before)
}

async fn imported(store: &Store, name: &str) {
    let session = testing::session(store).await;
    let content = testing::noise(1000 + name.len() as u64, 64 << 10);
    let content = Memory::from(content);
    let done = import::from_device(&session, &content, &()).await.unwrap();
    let body = RefBody {
        manifest: Some(done.manifest),
        size: done.size,
        created: testing::NOW,
        labels: BTreeMap::new(),
    };
    let made = images::publish(&session, &name.parse().unwrap(), body).await;
    session.close(made).await.unwrap();
}

#[tokio::test]
async fn a_disk_and_an_image_take_as_many_requests_among_sixty_images_as_among_three() {
    let (few, many) = (requests(3).await, requests(60).await);
    assert_eq!(few, many);
    let (creation, import) = few;
    assert!(creation <= 20 && import <= 30, "{few:?}");
}
