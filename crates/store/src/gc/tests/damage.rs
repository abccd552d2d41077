//! Lists of garbage that are damaged.

use super::*;

/// A store with an image, another one that was removed and condemned, and the key of the list.
async fn condemned() -> (Store, Clocked, Path) {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3]).await;
    publish(&store, "b:1", &[4, 5]).await;
    remove(&store, "b:1").await;
    assert_eq!(gc(&store, GcOptions::default()).await.found.objects, 3);
    let list = objects::list(&backend, "condemned").await.unwrap().remove(0).location;
    (store, backend, list)
}

async fn damage(backend: &Clocked, path: &Path) {
    let mut bytes = backend.get(path).await.unwrap().bytes().await.unwrap().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    backend.put(path, bytes.into()).await.unwrap();
}

#[tokio::test]
async fn with_a_damaged_or_lost_list_no_session_begins_and_the_error_names_it_and_the_remedy() {
    for lost in [false, true] {
        let (store, backend, list) = condemned().await;
        match lost {
            true => backend.delete(&list).await.unwrap(),
            false => damage(&backend, &list).await,
        }
        for error in [
            store.session("import").await.unwrap_err(),
            collect(&store, &GcOptions { dry_run: true, ..now() }, &()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains(list.as_ref()), "{error}");
            assert!(error.message().contains("`sojourn gc`"), "{error}");
        }
        assert_eq!(count(&backend, "pins").await, 0);
    }
}

#[tokio::test]
async fn a_lost_list_that_comes_back_takes_nothing_that_was_stored_meanwhile() {
    let (store, backend, list) = condemned().await;
    let bytes = backend.get(&list).await.unwrap().bytes().await.unwrap();
    backend.delete(&list).await.unwrap();
    assert_eq!(gc(&store, GcOptions::default()).await.replaced, [list.to_string()]);
    // The same as the list names, by a session that has not published it yet.
    let session = testing::session(&store).await;
    let body = store_in(&session, &[4, 5]).await;
    backend.put(&list, bytes.into()).await.unwrap();
    backend.advance(DAY / 2);
    gc(&store, now()).await;
    let made = session.publish(RefKind::Image, "c:1", body).await;
    session.close(made).await.unwrap();
    assert_eq!(read(&backend, "c:1").await, image(&[4, 5]));
}

#[tokio::test]
async fn a_collection_replaces_a_damaged_list_and_what_it_named_is_not_taken_into_use() {
    let (store, backend, list) = condemned().await;
    damage(&backend, &list).await;
    let report = gc(&store, GcOptions::default()).await;
    assert_eq!(report.replaced, [list.to_string()]);
    assert_eq!((report.found, report.freed), (Amount::default(), Amount::default()));
    let lists = objects::list(&backend, "condemned").await.unwrap();
    assert!(lists.len() == 1 && lists[0].location != list);

    // What is stored again is not what the list names.
    let packs = count(&backend, "packs").await;
    publish(&store, "c:1", &[4, 5]).await;
    assert_eq!(count(&backend, "packs").await, packs + 1);
    backend.advance(DAY);
    let report = gc(&store, GcOptions::default()).await;
    assert_eq!((report.freed.objects, report.replaced.len()), (3, 0));
    for (name, pieces) in [("a:1", &[1, 2, 3][..]), ("c:1", &[4, 5])] {
        assert_eq!(read(&backend, name).await, image(pieces));
    }
}

#[tokio::test]
async fn what_another_list_names_is_not_on_the_new_one_too() {
    let (store, backend, list) = condemned().await;
    publish(&store, "c:1", &[7]).await;
    remove(&store, "c:1").await;
    assert_eq!(gc(&store, GcOptions::default()).await.found.objects, 3);
    damage(&backend, &list).await;
    let report = gc(&store, GcOptions::default()).await;
    assert_eq!(report.replaced, [list.to_string()]);
    let waiting: Vec<u64> = report.waiting.iter().map(|waiting| waiting.garbage.objects).collect();
    assert_eq!(waiting, [3, 3]);
    backend.advance(DAY);
    assert_eq!(gc(&store, GcOptions::default()).await.freed.objects, 6);
    assert_eq!(read(&backend, "a:1").await, image(&[1, 2, 3]));
}

#[tokio::test]
async fn a_damaged_list_of_what_was_deleted_is_forgotten() {
    let (store, backend, list) = condemned().await;
    backend.advance(DAY);
    assert_eq!(gc(&store, GcOptions::default()).await.freed.objects, 3);
    damage(&backend, &list).await;
    store.session("import").await.unwrap_err();
    assert_eq!(gc(&store, GcOptions::default()).await.replaced, [list.to_string()]);
    publish(&store, "b:1", &[4, 5]).await;
    assert_eq!(read(&backend, "b:1").await, image(&[4, 5]));
    assert_eq!(CollectionState::load(&store).await.unwrap().lists, []);
}

#[tokio::test]
async fn a_damaged_list_stays_while_others_are_at_work_and_who_they_are_is_told() {
    let (store, backend, list) = condemned().await;
    let session = store.session("import of debian").await.unwrap();
    damage(&backend, &list).await;
    let error = collect(&store, &now(), &()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    for word in [list.as_ref(), "import of debian", "`sojourn gc`"] {
        assert!(error.message().contains(word), "{error}");
    }
    let body = store_in(&session, &[4, 5, 6]).await;
    let made = session.publish(RefKind::Image, "c:1", body).await;
    session.close(made).await.unwrap();
    assert_eq!(gc(&store, now()).await.replaced, [list.to_string()]);
    for (name, pieces) in [("a:1", &[1, 2, 3][..]), ("c:1", &[4, 5, 6])] {
        assert_eq!(read(&backend, name).await, image(pieces));
    }
    for prefix in ["packs", "segments", "manifests"] {
        assert_eq!(count(&backend, prefix).await, 2, "{prefix}");
    }
}

#[tokio::test]
async fn what_cannot_be_judged_when_a_list_is_replaced_is_kept() {
    let (store, backend, list) = condemned().await;
    damage(&backend, &list).await;
    let id = store.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap().body.manifest.unwrap();
    let root = Path::from(format!("manifests/{id}"));
    let good = backend.get(&root).await.unwrap().bytes().await.unwrap();
    damage(&backend, &root).await;
    let report = gc(&store, now()).await;
    assert_eq!((report.replaced.len(), report.doubts.len()), (1, 1));
    assert_eq!(report.freed.objects, 1, "the root of what was removed");
    backend.put(&root, good.into()).await.unwrap();
    assert_eq!(read(&backend, "a:1").await, image(&[1, 2, 3]));
    assert_eq!(gc(&store, now()).await.freed.objects, 2);
    assert_eq!(read(&backend, "a:1").await, image(&[1, 2, 3]));
    publish(&store, "a:2", &[1, 2, 3]).await;
    assert_eq!(count(&backend, "packs").await, 1, "what is in use may be used again");
}

#[tokio::test]
async fn a_damaged_record_is_replaced_by_a_collection_or_a_repair_and_nothing_is_lost() {
    for by_repair in [false, true] {
        let (store, backend, _) = condemned().await;
        let mut records = objects::list(&backend, "refs/gc/store").await.unwrap();
        records.sort_by(|a, b| a.location.cmp(&b.location));
        damage(&backend, &records.last().unwrap().location).await;
        // Imports, creations, commits and starts of machines begin with one of these, and get no further.
        let base = store.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap();
        let base = base.body.manifest.unwrap();
        for error in [
            store.session("import").await.unwrap_err(),
            store.session_holding("start of a machine", &[base]).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains("`sojourn repair`"), "{error}");
        }
        assert_eq!(count(&backend, "pins").await, 0);
        if by_repair {
            let report = crate::repair::store(&store, &[], false, &()).await.unwrap();
            assert_eq!((report.restored, report.left), (vec!["refs/gc/store".into()], vec![]));
        } else {
            assert_eq!(gc(&store, GcOptions::default()).await.replaced, ["refs/gc/store"]);
        }
        let clean = verify::store(&store, &verify::VerifyOptions::default(), &()).await.unwrap();
        assert_eq!(clean.faults, []);
        // What was condemned stays so: it is stored again under other names, and then deleted.
        publish(&store, "c:1", &[4, 5]).await;
        backend.advance(2 * DAY);
        gc(&store, GcOptions::default()).await;
        backend.advance(2 * DAY);
        gc(&store, GcOptions::default()).await;
        for (name, pieces) in [("a:1", &[1, 2, 3][..]), ("c:1", &[4, 5])] {
            assert_eq!(read(&backend, name).await, image(pieces));
        }
        assert_eq!(count(&backend, "packs").await, 2);
    }
}

#[tokio::test]
async fn a_damaged_record_stays_while_others_are_at_work() {
    let (store, backend, _) = condemned().await;
    let session = store.session("import of debian").await.unwrap();
    let record = objects::list(&backend, "refs/gc/store").await.unwrap().pop().unwrap().location;
    damage(&backend, &record).await;
    let error = crate::repair::store(&store, &[], false, &()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("import of debian"), "{error}");
    session.close(Ok(())).await.unwrap();
    assert_eq!(crate::repair::store(&store, &[], false, &()).await.unwrap().left, []);
}
