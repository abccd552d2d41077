use super::*;
use crate::testing;
use crate::{Argon2Cost, NewKey, Secret, import};
use block::Memory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::Clocked;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

async fn fresh(encrypted: bool) -> (Store, Clocked) {
    let backend = Clocked::new(testing::NOW);
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    let world = testing::world(1);
    let store = if encrypted {
        let secret = Secret::key_file(testing::noise(77, 40)).unwrap();
        let key = NewKey { name: "test", secret: &secret, cost: Argon2Cost::NORMAL };
        Store::create_encrypted(shared, testing::encrypted_settings(), world, &key).await
    } else {
        Store::create(shared, testing::settings(), world).await
    };
    (store.unwrap(), backend)
}

fn body(created: u64) -> RefBody {
    RefBody { manifest: None, size: 512, created, labels: BTreeMap::new() }
}

async fn make(store: &Store, name: &str, created: u64) -> RefRecord {
    store.refs().create(RefKind::Image, name, body(created)).await.unwrap()
}

async fn newest(store: &Store, name: &str) -> Result<String> {
    Ok(resolve(store, &name.parse().unwrap()).await?.name)
}

async fn damage(backend: &Clocked, number: usize) {
    let mut listed = objects::list(backend, "refs/image").await.unwrap();
    listed.sort_by(|a, b| a.location.cmp(&b.location));
    backend.put(&listed[number].location, "damage".into()).await.unwrap();
}

#[tokio::test]
async fn the_newest_version_is_the_last_made_and_of_one_second_the_highest_number_then_a_word() {
    for encrypted in [false, true] {
        let (store, _) = fresh(encrypted).await;
        for (name, created) in [("a:10", 5), ("a:9", 5), ("b:1", 9), ("a:old", 4)] {
            make(&store, name, created).await;
        }
        assert_eq!(newest(&store, "a").await.unwrap(), "a:10");
        make(&store, "a:word", 5).await;
        assert_eq!(newest(&store, "a").await.unwrap(), "a:word");
        make(&store, "a:2", 6).await;
        assert_eq!(newest(&store, "a").await.unwrap(), "a:2");
        assert_eq!(newest(&store, "a:9").await.unwrap(), "a:9");
        assert_eq!(next_tag(&store, "a").await.unwrap(), "11");
        assert_eq!(newest(&store, "c").await.unwrap_err().kind(), ErrorKind::NotFound);
        let names: Vec<String> =
            versions(&store, "a").await.unwrap().into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["a:old", "a:9", "a:10", "a:word", "a:2"]);
    }
}

#[tokio::test]
async fn a_version_without_a_tag_is_refused_where_no_higher_number_is_left() {
    for encrypted in [false, true] {
        let (store, _) = fresh(encrypted).await;
        let last = make(&store, "a:18446744073709551615", 1).await;
        let name: ImageName = "a".parse().unwrap();
        let session = testing::session(&store).await;
        let made = publish(&session, &name, body(2));
        let made = tokio::time::timeout(Duration::from_secs(30), made).await;
        let refused = made.expect("it ends").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.message().contains("a:18446744073709551615"), "{refused}");
        assert_eq!(next_tag(&store, "a").await.unwrap_err().kind(), ErrorKind::Invalid);
        let early = must_be_free(&store, &name).await.unwrap_err();
        assert_eq!(early.kind(), ErrorKind::Invalid, "nobody stores an image in vain");
        publish(&session, &"a:word".parse().unwrap(), body(2)).await.unwrap();
        publish(&session, &"b".parse().unwrap(), body(2)).await.unwrap();
        store.refs().remove(RefKind::Image, &last.name, last.sequence).await.unwrap();
        must_be_free(&store, &name).await.unwrap();
        assert_eq!(publish(&session, &name, body(3)).await.unwrap().name, "a:1");
        session.close(Ok(())).await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_version_that_might_be_the_newest_is_never_passed_over() {
    for encrypted in [false, true] {
        let (store, backend) = fresh(encrypted).await;
        make(&store, "a:1", 1).await;
        make(&store, "a:2", 2).await;
        damage(&backend, 1).await;
        assert_eq!(newest(&store, "a").await.unwrap_err().kind(), ErrorKind::Corrupt);
        // Where names are hidden it might be of any image.
        make(&store, "b:1", 1).await;
        assert_eq!(newest(&store, "b").await.is_err(), encrypted);
    }
}

#[tokio::test]
async fn no_record_of_another_image_is_read() {
    let (store, backend) = fresh(false).await;
    make(&store, "other:1", 1).await;
    // As long as no record is.
    backend
        .put(&Path::from("refs/image/other:1/00000000000000000001"), vec![b'x'; 1 << 20].into())
        .await
        .unwrap();
    let before = backend.gets();
    make(&store, "a:1", 1).await;
    assert_eq!(newest(&store, "a").await.unwrap(), "a:1");
    assert_eq!(next_tag(&store, "a").await.unwrap(), "2");
    assert_eq!(next_tag(&store, "b").await.unwrap(), "1");
    assert_eq!(backend.gets() - before, 2, "the record of a:1, twice");
}

async fn import(store: &Store, name: &str) -> RefRecord {
    import_bytes(store, name, testing::noise(3, 40960)).await
}

async fn import_bytes(store: &Store, name: &str, bytes: Vec<u8>) -> RefRecord {
    let session = testing::session(store).await;
    let view = Memory::from(bytes);
    let done = import::from_device(&session, &view, &()).await.unwrap();
    let body = RefBody { manifest: Some(done.manifest), size: done.size, ..body(testing::NOW) };
    let made = publish(&session, &name.parse().unwrap(), body).await;
    session.close(made).await.unwrap()
}

#[tokio::test]
async fn a_version_is_the_newest_also_when_the_clock_of_its_maker_is_behind() {
    for encrypted in [false, true] {
        let (store, _) = fresh(encrypted).await;
        make(&store, "b:1", 9_000).await;
        for (created, name, expected) in [
            (1_000, "a", ("a:1", 1_000)),
            (500, "a", ("a:2", 1_001)),
            (7, "a:old", ("a:old", 1_002)),
        ] {
            let session = testing::session(&store).await;
            let made = publish(&session, &name.parse().unwrap(), body(created)).await;
            let made = session.close(made).await.unwrap();
            assert_eq!((made.name.as_str(), made.body.created), expected);
            assert_eq!(newest(&store, "a").await.unwrap(), made.name);
        }
        let session = testing::session(&store).await;
        let taken = publish(&session, &"a:old".parse().unwrap(), body(2_000)).await;
        assert_eq!(session.close(taken).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
}

#[tokio::test]
async fn a_removed_version_comes_back_until_what_it_kept_was_deleted() {
    let (store, backend) = fresh(false).await;
    let made = import(&store, "a").await;
    assert_eq!(made.name, "a:1");
    let error = restore(&store, RefKind::Image, "a:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    store.refs().remove(RefKind::Image, "a:1", made.sequence).await.unwrap();
    let options = gc::GcOptions::default();
    gc::collect(&store, &options, &()).await.unwrap();
    // It is condemned, and not deleted yet.
    let back = restore(&store, RefKind::Image, "a:1").await.unwrap();
    assert_eq!(back.body, made.body);
    backend.advance(2 * 86_400);
    let report = gc::collect(&store, &options, &()).await.unwrap();
    assert_eq!(report.freed.objects, 0);
    store.manifest(&manifest_of(&back).unwrap()).await.unwrap().chunks().await.unwrap();

    store.refs().remove(RefKind::Image, "a:1", back.sequence).await.unwrap();
    let all = gc::GcOptions { grace: Duration::ZERO, ..options };
    assert!(gc::collect(&store, &all, &()).await.unwrap().freed.objects > 0);
    let error = restore(&store, RefKind::Image, "a:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(objects::list(&backend, "pins").await.unwrap().len(), 0);
}

/// An image of chunks, each with a hole behind it.
fn chunks(seeds: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    let chunk = |seed| [testing::noise(seed, 7 * 4096), vec![0; 4096]].concat();
    seeds.flat_map(chunk).collect()
}

#[tokio::test]
async fn a_removed_version_of_whose_pack_one_chunk_alone_was_kept_does_not_come_back() {
    let (store, backend) = fresh(false).await;
    let all = import_bytes(&store, "all:1", chunks(1..=6)).await;
    let first = import_bytes(&store, "first:1", chunks(1..=1)).await;
    assert_eq!(objects::list(&backend, "packs").await.unwrap().len(), 1);
    // What a session may have written is not condemned: the maps stay longer than the pack.
    let session = testing::session(&store).await;
    store.refs().remove(RefKind::Image, "all:1", all.sequence).await.unwrap();
    let options = gc::GcOptions::default();
    assert_eq!(gc::collect(&store, &options, &()).await.unwrap().rewritten.objects, 1);
    session.close(Ok(())).await.unwrap();
    store.refs().remove(RefKind::Image, "first:1", first.sequence).await.unwrap();
    backend.advance(86_400);
    assert_eq!(gc::collect(&store, &options, &()).await.unwrap().freed.objects, 1);
    store.stored_manifest(&manifest_of(&all).unwrap()).await.unwrap().chunks().await.unwrap();

    let error = restore(&store, RefKind::Image, "all:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let session = testing::session(&store).await;
    assert!(!hold_whole(&session, manifest_of(&all).unwrap()).await.unwrap());
    assert!(hold_whole(&session, manifest_of(&first).unwrap()).await.unwrap());
    session.close(Ok(())).await.unwrap();
    restore(&store, RefKind::Image, "first:1").await.unwrap();
    let report = crate::verify::store(&store, &Default::default(), &()).await.unwrap();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

#[tokio::test]
async fn nothing_is_brought_back_while_a_collection_is_at_work() {
    let (store, _) = fresh(false).await;
    let made = import(&store, "a:1").await;
    store.refs().remove(RefKind::Image, "a:1", made.sequence).await.unwrap();
    let collection = store.session("garbage collection").await.unwrap();
    let error = restore(&store, RefKind::Image, "a:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    collection.close(Ok(())).await.unwrap();
    restore(&store, RefKind::Image, "a:1").await.unwrap();
}
