use super::super::copy::copy;
use super::super::given::set;
use super::*;
use store::{import, testing};

const IMAGE: &str = "debian:1";

/// A store with an image, and the image's chunks.
async fn image() -> (tempfile::TempDir, Store, Vec<ChunkId>) {
    image_of(4).await
}

/// The same with an image of so many MiB.
async fn image_of(mib: usize) -> (tempfile::TempDir, Store, Vec<ChunkId>) {
    let dir = tempfile::tempdir().unwrap();
    let backend = objects::create_local(dir.path()).unwrap();
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let chunks = fill(&store, mib).await;
    (dir, store, chunks)
}

/// Imports an image of so many MiB; gives its chunks.
async fn fill(store: &Store, mib: usize) -> Vec<ChunkId> {
    let session = testing::session(store).await;
    let bytes = block::Memory::from(testing::noise(3, mib << 20));
    let done = import::from_device(&session, &bytes, &()).await.unwrap();
    let body = RefBody {
        manifest: Some(done.manifest),
        size: done.size,
        created: 1,
        labels: BTreeMap::new(),
    };
    session.publish(RefKind::Image, IMAGE, body).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let all = block::Span::whole(done.size);
    boot_list::of_ranges(&manifest, &[all]).await.unwrap()
}

async fn listed(store: &Store) -> Vec<ChunkId> {
    let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
    of(store, &record).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_first_boots_make_the_list_together_and_later_ones_leave_it() {
    let (_dir, store, chunks) = image().await;
    let boot = async |range: std::ops::Range<usize>| add(&store, IMAGE, &chunks[range]).await;
    assert_eq!(boot(4..8).await.unwrap(), Some(Added { new: 4, boots: 1 }));
    assert_eq!(boot(0..6).await.unwrap(), Some(Added { new: 4, boots: 2 }));
    let both = [&chunks[4..8], &chunks[0..4]].concat();
    assert_eq!(listed(&store).await, both, "what is new comes behind");
    for boots in 3..=BOOTS {
        assert_eq!(boot(2..7).await.unwrap(), Some(Added { new: 0, boots }));
    }
    assert_eq!(boot(0..12).await.unwrap(), None);
    assert_eq!(listed(&store).await, both);
}

#[tokio::test]
async fn a_list_that_is_lost_is_begun_anew_and_one_that_cannot_be_read_is_left() {
    let (dir, store, chunks) = image().await;
    for boot in [0..3, 3..6] {
        add(&store, IMAGE, &chunks[boot]).await.unwrap();
    }
    let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
    let id = record.body.boot_list().unwrap().unwrap();
    let path = dir.path().join("bootlists").join(id.to_string());
    let aside = dir.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    // Whoever opens it is told that it leads nowhere.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let unreadable = add(&store, IMAGE, &chunks[6..9]).await.unwrap_err();
    assert_ne!(unreadable.kind(), ErrorKind::NotFound, "{unreadable}");
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(listed(&store).await, &chunks[..6], "nothing was changed");
    std::fs::remove_file(&path).unwrap();
    let begun = add(&store, IMAGE, &chunks[6..9]).await.unwrap();
    assert_eq!(begun, Some(Added { new: 3, boots: 1 }));
    assert_eq!(listed(&store).await, &chunks[6..9]);
}

#[tokio::test]
async fn a_session_that_is_taken_for_dead_as_it_names_a_list_gives_the_version_back() {
    for boot in [0..2, 2..4] {
        let backend = std::sync::Arc::new(testing::burying(RefKind::Image, IMAGE, 2));
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let chunks = fill(&store, 4).await;
        let before = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let fenced = match boot.start {
            0 => add(&store, IMAGE, &chunks[boot.clone()]).await.map(drop),
            _ => set(&store, IMAGE, &chunks[boot.clone()], false).await,
        };
        assert_eq!(fenced.unwrap_err().kind(), ErrorKind::Fenced);
        let after = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        assert_eq!((after.body, after.sequence), (before.body, 3), "it is as it was");
        add(&store, IMAGE, &chunks[boot.clone()]).await.unwrap();
        assert_eq!(listed(&store).await, &chunks[boot]);
    }
}

#[tokio::test]
async fn a_list_gets_its_copy_when_it_is_whole_and_another_list_takes_it_away() {
    let (_dir, store, chunks) = image_of(16).await;
    let scattered: Vec<_> = chunks.iter().rev().step_by(8).copied().collect();
    let named = async || {
        let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        record.body.boot_copy().unwrap()
    };
    for boots in 1..=BOOTS {
        assert!(!copy(&store, IMAGE).await.unwrap(), "the list may still grow");
        let added = add(&store, IMAGE, &scattered).await.unwrap().unwrap();
        assert_eq!((added.boots, added.is_last()), (boots, boots == BOOTS));
    }
    assert_eq!(named().await, None);
    assert!(copy(&store, IMAGE).await.unwrap());
    let manifest = store.manifest(&named().await.unwrap()).await.unwrap();
    assert!(!copy(&store, IMAGE).await.unwrap(), "it has one");
    let copied = boot_copy::chunks(&manifest).await.unwrap();
    assert_eq!(copied.iter().map(|at| at.id).collect::<Vec<_>>(), scattered);
    set(&store, IMAGE, &chunks[..9], true).await.unwrap();
    assert_eq!(named().await, None, "one place is not worth one");
    set(&store, IMAGE, &scattered, true).await.unwrap();
    assert_eq!(named().await, Some(manifest.id()));
    set(&store, IMAGE, &scattered, false).await.unwrap();
    assert_eq!(named().await, None, "nobody wants one");
}

#[tokio::test]
async fn no_boot_is_added_to_a_list_of_ones_own() {
    let (_dir, store, chunks) = image().await;
    add(&store, IMAGE, &chunks[..3]).await.unwrap();
    set(&store, IMAGE, &chunks[6..9], true).await.unwrap();
    assert_eq!(add(&store, IMAGE, &chunks[..3]).await.unwrap(), None);
    assert_eq!(listed(&store).await, &chunks[6..9]);
    let gone = add(&store, "debian:2", &chunks[..3]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}
