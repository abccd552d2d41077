//! Maps of rewritten packs (`moved/…`) that are lost or damaged.

use super::*;
use crate::repair;

/// A store with a pack of which most was garbage, and that is in a new one now; its map's key.
async fn rewritten() -> (Store, Clocked, Path) {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2, 9]).await;
    remove(&store, "a:1").await;
    let report = gc(&store, now()).await;
    assert_eq!((report.rewritten.objects, report.doubts.len()), (1, 0));
    let map = objects::list(&backend, "moved").await.unwrap().remove(0).location;
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
    (store, backend, map)
}

fn all_now() -> GcOptions {
    GcOptions { stale: Duration::ZERO, ..now() }
}

async fn repaired(backend: &Clocked) -> repair::RepairReport {
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    let store = Store::open(shared, testing::world(4)).await.unwrap();
    repair::store(&store, &[], false, &()).await.unwrap()
}

#[tokio::test]
async fn the_only_copy_stays_when_the_map_that_leads_to_it_is_lost_and_repair_makes_the_map_anew() {
    let (store, backend, map) = rewritten().await;
    backend.delete(&map).await.unwrap();
    for _ in 0..3 {
        let report = gc(&store, all_now()).await;
        assert!(report.doubts.iter().any(|doubt| doubt.contains(map.as_ref())), "{report:?}");
        backend.advance(40 * DAY);
    }
    let report = repaired(&backend).await;
    assert_eq!((report.left.len(), report.lost_chunks), (0, 0), "{report:?}");
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
    let report = gc(&store, all_now()).await;
    assert_eq!(report.doubts, [""; 0]);
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
}

#[tokio::test]
async fn any_damage_to_a_map_is_repaired_from_what_packs_hold_and_a_collection_loses_nothing() {
    let (store, backend, map) = rewritten().await;
    let good = backend.get(&map).await.unwrap().bytes().await.unwrap();
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 1 << (at % 8);
        backend.put(&map, bad.into()).await.unwrap();
        if at % 16 == 0 {
            assert_eq!(gc(&store, all_now()).await.freed, Amount::default());
        }
        let report = repaired(&backend).await;
        assert_eq!((report.left.len(), report.lost_chunks), (0, 0), "byte {at}: {report:?}");
        assert_eq!(report.restored, [map.to_string()], "byte {at}");
        assert_eq!(gc(&store, all_now()).await.doubts, [""; 0], "byte {at}");
        assert_eq!(read(&backend, "a:2").await, image(&[2, 9]), "byte {at}");
    }
}

#[tokio::test]
async fn nothing_is_deleted_while_nobody_can_tell_where_a_chunk_is() {
    let (store, backend, map) = rewritten().await;
    backend.delete(&map).await.unwrap();
    // The index that would tell cannot be read for a while.
    let mut good = Vec::new();
    for meta in objects::list(&backend, "packs").await.unwrap() {
        let bytes = backend.get(&meta.location).await.unwrap().bytes().await.unwrap();
        let mut bad = bytes.to_vec();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        backend.put(&meta.location, bad.into()).await.unwrap();
        good.push((meta.location, bytes));
    }
    for _ in 0..2 {
        let report = gc(&store, all_now()).await;
        assert_eq!(report.freed, Amount::default());
        assert!(!report.doubts.is_empty());
    }
    for (path, bytes) in good {
        backend.put(&path, bytes.into()).await.unwrap();
    }
    assert_eq!(repaired(&backend).await.left, []);
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
}

#[tokio::test]
async fn the_old_pack_stays_until_the_new_copy_was_read() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2, 9]).await;
    remove(&store, "a:1").await;
    let before = objects::list(&backend, "packs").await.unwrap();
    assert_eq!(gc(&store, GcOptions::default()).await.rewritten.objects, 1);
    let packs = objects::list(&backend, "packs").await.unwrap();
    let new =
        packs.into_iter().find(|pack| !before.iter().any(|old| old.location == pack.location));
    let new = new.unwrap().location;
    let mut bytes = backend.get(&new).await.unwrap().bytes().await.unwrap().to_vec();
    bytes[5000] ^= 1;
    backend.put(&new, bytes.into()).await.unwrap();
    backend.advance(2 * DAY);
    let report = gc(&store, GcOptions::default()).await;
    assert!(report.doubts.iter().any(|doubt| doubt.contains(new.as_ref())), "{report:?}");
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
    assert_eq!(repaired(&backend).await.left, []);
    backend.advance(2 * DAY);
    assert_eq!(gc(&store, GcOptions::default()).await.doubts, [""; 0]);
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
}
