use super::super::{given, list};
use super::*;
use block::Span;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{import, testing};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Versions of an image, each with a whole list that a boot copy is worth and has none.
async fn add_uncopied(store: &Store, versions: &[&str]) {
    let session = testing::session(store).await;
    let bytes = block::Memory::from(testing::noise(3, 16 << 20));
    let done = import::from_device(&session, &bytes, &()).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let all = boot_list::of_ranges(&manifest, &[Span::whole(done.size)]).await.unwrap();
    let list: Vec<_> = all.into_iter().rev().step_by(8).collect();
    for version in versions {
        let body = RefBody {
            manifest: Some(done.manifest),
            size: done.size,
            created: 1,
            labels: BTreeMap::new(),
        };
        session.publish(RefKind::Image, version, body).await.unwrap();
        given::set(store, version, &list, false).await.unwrap();
    }
    session.close(Ok(())).await.unwrap();
}

async fn has_copy(store: &Store, version: &str) -> bool {
    let record = store.refs().get(RefKind::Image, version).await.unwrap().unwrap();
    record.body.boot_copy().unwrap().is_some()
}

/// A store that counts what is written, with versions of an image as in [`add_uncopied`].
async fn lab(versions: &[&str]) -> (tempfile::TempDir, Arc<objects::testing::Failing>, Store) {
    let dir = tempfile::tempdir().unwrap();
    let backend = objects::create_local(dir.path()).unwrap();
    let failing = Arc::new(objects::testing::Failing::new(backend, u64::MAX));
    let (settings, world) = (testing::settings(), testing::world(1));
    let store = Store::create(failing.clone(), settings, world).await.unwrap();
    add_uncopied(&store, versions).await;
    (dir, failing, store)
}

#[tokio::test]
async fn a_list_that_got_no_copy_gets_one_at_the_next_boot() {
    let versions = ["debian:1", "debian:2"];
    let mut writes = Vec::new();
    for together in [false, true] {
        let (_dir, failing, store) = lab(&versions).await;
        let (copying, names) = (Copying::default(), versions.map(str::to_owned));
        let before = failing.puts();
        if together {
            // Two boots at the same time, and one of a version that was removed since.
            let others = ["debian:3".to_owned(), "debian:1".to_owned()];
            let boots = [&names, &others].map(|names| copying.complete(&store, names, true));
            let [one, other] = boots;
            tokio::join!(one, other);
        } else {
            copying.complete(&store, &names, true).await;
        }
        for version in versions {
            assert!(has_copy(&store, version).await, "{version}");
        }
        writes.push(failing.puts() - before);
    }
    assert_eq!(writes[0], writes[1], "each once");
}

#[tokio::test(start_paused = true)]
async fn of_several_servers_one_makes_a_copy_that_was_left_out() {
    let names = ["debian:1".to_owned()];
    let (_dir, failing, store) = lab(&["debian:1"]).await;
    let before = failing.puts();
    Copying::default().complete(&store, &names, true).await;
    let writes = failing.puts() - before;
    let record = store.refs().get(RefKind::Image, "debian:1").await.unwrap().unwrap();
    let chunks = list::of(&store, &record).await.unwrap().unwrap().len();

    let (_dir, failing, _store) = lab(&["debian:1"]).await;
    let mut servers = JoinSet::new();
    let before = failing.puts();
    for seed in 2..6 {
        let store = Store::open(failing.clone(), testing::world(seed)).await.unwrap();
        let names = names.clone();
        servers.spawn(async move {
            let began = Instant::now();
            Copying::default().complete(&store, &names, false).await;
            assert!(has_copy(&store, "debian:1").await);
            began.elapsed()
        });
    }
    while let Some(waited) = servers.join_next().await {
        let (waited, most) = (waited.unwrap(), CHANCE * chunks as u32);
        assert!(!waited.is_zero() && waited <= most, "{waited:?} of {most:?}");
    }
    assert_eq!(failing.puts() - before, writes, "one of them");
}

#[tokio::test]
async fn a_wait_by_chance_is_longer_for_a_longer_list_and_has_an_end() {
    let (_dir, _, store) = lab(&[]).await;
    for (chunks, most) in [
        (0, Duration::ZERO),
        (16, Duration::from_millis(1200)),
        (8192, LONGEST_CHANCE),
        (usize::MAX, LONGEST_CHANCE),
    ] {
        let waits: Vec<_> = (0..64).map(|_| by_chance(&store, chunks).unwrap()).collect();
        let (least, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*longest <= most && *longest >= most / 2, "{longest:?} of {most:?}");
        assert!(*least <= most / 2, "{least:?} of {most:?}");
    }
}

#[tokio::test]
async fn a_copy_that_cannot_be_made_is_not_tried_again_before_the_next_start() {
    let (_dir, failing, store) = lab(&["debian:1"]).await;
    let (copying, names) = (Copying::default(), ["debian:1".to_owned()]);
    failing.allow(1);
    copying.complete(&store, &names, true).await;
    assert!(!has_copy(&store, "debian:1").await);
    failing.allow(1000);
    let before = failing.puts();
    for _ in 0..3 {
        copying.complete(&store, &names, true).await;
    }
    assert_eq!(failing.puts(), before, "the store is left alone");
    assert!(!has_copy(&store, "debian:1").await);
    Copying::default().complete(&store, &names, true).await;
    assert!(has_copy(&store, "debian:1").await, "another server starts anew");
    // Another list of the version is tried again.
    let record = store.refs().get(RefKind::Image, "debian:1").await.unwrap().unwrap();
    let list = list::of(&store, &record).await.unwrap().unwrap();
    given::set(&store, "debian:1", &list[1..], false).await.unwrap();
    copying.complete(&store, &names, true).await;
    assert!(has_copy(&store, "debian:1").await);
}
