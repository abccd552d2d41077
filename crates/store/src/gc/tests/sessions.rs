//! What sessions hold stays, and what they found stored they may rely on.

use super::*;
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[tokio::test]
async fn a_session_keeps_what_it_found_stored_and_a_later_one_does_not_rely_on_it() {
    let (store, backend) = fresh().await;
    publish(&store, "old:1", &[1, 2, 3]).await;
    backend.advance(3600);
    let early = testing::session(&store).await;
    let body = store_in(&early, &[2, 3]).await;
    assert_eq!(count(&backend, "packs").await, 1, "nothing was stored again");
    remove(&store, "old:1").await;
    backend.advance(3600);
    let no_rewriting = GcOptions { rewrite_below: 0.0, ..now() };
    let found = gc(&store, no_rewriting).await;
    assert!(found.found.objects > 0);
    assert_eq!(found.freed, Amount::default());
    assert_eq!(found.waiting[0].sessions, ["test"]);

    // Begun after the pack was condemned: stores the same again, under another name.
    let late = testing::session(&store).await;
    let again = store_in(&late, &[1, 2, 3]).await;
    assert_eq!(count(&backend, "packs").await, 2);
    late.publish(RefKind::Image, "late:1", again).await.unwrap();
    late.close(Ok(())).await.unwrap();
    early.publish(RefKind::Image, "early:1", body).await.unwrap();
    early.close(Ok(())).await.unwrap();
    backend.advance(3600);
    let freed = gc(&store, no_rewriting).await.freed;
    assert_eq!(freed.objects, 2, "segment and root of the old version; the pack is in use again");
    assert_eq!(read(&backend, "early:1").await, image(&[2, 3]));
    assert_eq!(read(&backend, "late:1").await, image(&[1, 2, 3]));
}

#[tokio::test]
async fn nothing_is_collected_while_a_session_saw_a_record_that_is_lost() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1]).await;
    remove(&store, "a:1").await;
    assert_eq!(gc(&store, GcOptions::default()).await.found.objects, 3);
    publish(&store, "b:1", &[2]).await;
    backend.advance(3600);
    let session = testing::session(&store).await;
    let stored = store_in(&session, &[2]).await;
    remove(&store, "b:1").await;
    // The next record would have the number that the session saw.
    let records = objects::list(&backend, "refs/gc").await.unwrap();
    backend.delete(&records.last().unwrap().location).await.unwrap();
    backend.advance(3600);

    for _ in 0..2 {
        let refused = collect(&store, &now(), &()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.message().contains("number 1) is lost"), "{refused}");
    }
    let published = session.publish(RefKind::Image, "c:1", stored).await.map(drop);
    session.close(published).await.unwrap();
    assert_eq!(read(&backend, "c:1").await, image(&[2]));
    gc(&store, now()).await;
    assert_eq!(read(&backend, "c:1").await, image(&[2]));
    assert_eq!(count(&backend, pack::PREFIX).await, 1);
}

/// What a session holds, the image of [1, 2], stays half a day after its name was removed, and under the one that it
/// then gets.
async fn outlives_its_name(store: &Store, backend: &Clocked, session: Session, body: RefBody) {
    backend.advance(DAY / 2);
    gc(store, now()).await;
    gc(store, now()).await;
    session.publish(RefKind::Image, "next:1", body).await.unwrap();
    session.close(Ok(())).await.unwrap();
    backend.advance(2 * DAY);
    gc(store, now()).await;
    assert_eq!(read(backend, "next:1").await, image(&[1, 2]));
}

#[tokio::test]
async fn what_a_session_holds_stays_without_its_name() {
    let (store, backend) = fresh().await;
    publish(&store, "base:1", &[1, 2]).await;
    let session = testing::session(&store).await;
    let found = session.hold(RefKind::Image, "base:1").await.unwrap().unwrap();
    assert!(session.hold(RefKind::Image, "other:1").await.unwrap().is_none());
    remove(&store, "base:1").await;
    outlives_its_name(&store, &backend, session, found.body).await;
}

#[tokio::test]
async fn what_a_session_holds_from_its_beginning_stays_without_its_name_by_one_pin() {
    let (store, backend) = fresh().await;
    publish(&store, "base:1", &[1, 2]).await;
    let found = store.refs().get(RefKind::Image, "base:1").await.unwrap().unwrap();
    let roots = found.body.roots().unwrap();
    let session = store.session_holding("test", &roots).await.unwrap();
    session.hold(RefKind::Image, "base:1").await.unwrap().unwrap();
    let still = async |sequence| {
        session.still_holds(RefKind::Image, "base:1", sequence, &roots).await.unwrap()
    };
    // A record that took its place names it, too.
    assert!(still(found.sequence).await && still(found.sequence + 1).await);
    assert_eq!(count(&backend, "pins").await, 1);
    remove(&store, "base:1").await;
    assert!(session.hold(RefKind::Image, "base:1").await.unwrap().is_none());
    assert!(!still(found.sequence).await, "its newest record is a removal");
    outlives_its_name(&store, &backend, session, found.body).await;
}

#[tokio::test]
async fn a_session_that_was_taken_for_dead_publishes_nothing() {
    let (store, backend) = fresh().await;
    let session = testing::session(&store).await;
    let body = store_in(&session, &[1, 2]).await;
    backend.advance(DAY);
    assert_eq!(gc(&store, now()).await.pins, 1);
    let error = session.publish(RefKind::Image, "a:1", body.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let looked_up = store.refs().look_up(RefKind::Image, "a:1").await.unwrap();
    let over = session.publish_over(&looked_up, body.clone()).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::Fenced);
    assert!(session.hold(RefKind::Image, "a:1").await.unwrap().is_none());
    assert!(store.refs().get(RefKind::Image, "a:1").await.unwrap().is_none());
    assert_eq!(count(&backend, "packs").await, 0);
    publish(&store, "b:1", &[3]).await;
    let looked_up = store.refs().look_up(RefKind::Image, "b:1").await.unwrap();
    let over = session.publish_over(&looked_up, body).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::Fenced);
    let found = store.refs().get(RefKind::Image, "b:1").await.unwrap().unwrap();
    assert_eq!(found.body, looked_up.record().unwrap().body, "it means what it did");
    assert_eq!(session.close(Err::<(), _>(error)).await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_tell_whether_it_lives_gives_a_name_back_that_it_wrote_over() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let backend =
        ScriptedStore::new(Arc::new(Clocked::new(testing::NOW)), move |call| match call {
            StoreCall::Get(path) if path.as_ref().starts_with("pins/") && cut.load(Relaxed) => {
                StoreFault::Fail(std::io::ErrorKind::PermissionDenied)
            }
            _ => StoreFault::None,
        });
    let store =
        Store::create(Arc::new(backend), testing::settings(), testing::world(1)).await.unwrap();
    publish(&store, "a:1", &[3]).await;
    let session = testing::session(&store).await;
    let body = store_in(&session, &[1, 2]).await;
    let before = store.refs().look_up(RefKind::Image, "a:1").await.unwrap();
    is_cut.store(true, Relaxed);
    session.publish_over(&before, body.clone()).await.unwrap_err();
    let after = store.refs().look_up(RefKind::Image, "a:1").await.unwrap();
    assert_eq!(after.record().unwrap().body, before.record().unwrap().body);
    is_cut.store(false, Relaxed);
    let record = session.publish_over(&after, body.clone()).await.unwrap();
    assert_eq!(record.body, body);
    session.close(Ok(())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pin_whose_writer_could_not_ask_for_the_one_before_goes_with_its_session() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let clocked = Clocked::new(testing::NOW);
    let backend = ScriptedStore::new(Arc::new(clocked.clone()), move |call| match call {
        StoreCall::Get(path) if path.as_ref().starts_with("pins/") && cut.load(Relaxed) => {
            StoreFault::Fail(std::io::ErrorKind::PermissionDenied)
        }
        _ => StoreFault::None,
    });
    let store =
        Store::create(Arc::new(backend), testing::settings(), testing::world(1)).await.unwrap();
    publish(&store, "a:1", &[3]).await;
    let found = store.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap();
    let held = found.body.manifest.unwrap();
    let session = testing::session(&store).await;
    is_cut.store(true, Relaxed);
    session.hold_manifests(&[held]).await.unwrap_err();
    assert_eq!(count(&clocked, "pins").await, 2);
    is_cut.store(false, Relaxed);
    session.check().await.unwrap();
    session.close(Ok(())).await.unwrap();
    assert_eq!(count(&clocked, "pins").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_renews_its_pin_and_is_not_taken_for_dead() {
    let (store, backend) = fresh().await;
    let session = testing::session(&store).await;
    let body = store_in(&session, &[1, 2]).await;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        backend.advance(3600);
        gc(&store, now()).await;
        session.check().await.unwrap();
    }
    session.publish(RefKind::Image, "a:1", body).await.unwrap();
    session.close(Ok(())).await.unwrap();
    gc(&store, now()).await;
    assert_eq!(read(&backend, "a:1").await, image(&[1, 2]));
    assert_eq!(count(&backend, "pins").await, 0);
}
