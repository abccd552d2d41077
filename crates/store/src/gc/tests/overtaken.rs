//! A collection that was asleep, or slow, while others swept the lists that it is at.

use super::*;
use crate::testing::FixedClock;
use crate::{PackId, World};
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[tokio::test]
async fn what_was_written_again_stays_although_many_lists_were_swept_meanwhile() {
    let (store, backend) = fresh().await;
    let mut first = None;
    for piece in 0..70 {
        let name = format!("i{piece}:1");
        publish(&store, &name, &[piece]).await;
        if piece == 0 {
            first = objects::list(&backend, pack::PREFIX).await.unwrap().pop();
        }
        remove(&store, &name).await;
        assert_eq!(gc(&store, GcOptions::default()).await.found.objects, 3);
    }
    publish(&store, "new:1", &[100]).await;
    remove(&store, "new:1").await;
    backend.advance(DAY);

    let (first, is_first) = (first.unwrap().location, AtomicBool::new(true));
    let slow = ScriptedStore::new(Arc::new(backend.clone()), move |call| match call {
        StoreCall::Get(path) | StoreCall::Ranges(path, _)
            if *path == first && is_first.swap(false, Relaxed) =>
        {
            StoreFault::Hold
        }
        _ => StoreFault::None,
    });
    let late = Store::open(Arc::new(slow.clone()), testing::world(2)).await.unwrap();
    let others = async {
        slow.calls.until(|log| log.held == 1).await;
        let report = gc(&store, GcOptions::default()).await;
        assert!(report.freed.objects >= 3 && report.found.objects == 3, "{report:?}");
        publish(&store, "again:1", &[0]).await;
        slow.calls.release(1);
    };
    tokio::join!(gc(&late, GcOptions::default()), others);
    assert_eq!(read(&backend, "again:1").await, image(&[0]));
    let report = verify::store(&store, &verify::VerifyOptions::default(), &()).await.unwrap();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    // Nothing is left over for good.
    for _ in 0..3 {
        backend.advance(2 * DAY);
        gc(&store, now()).await;
    }
    assert_eq!(count(&backend, pack::PREFIX).await, 1);
}

/// Requests of a sweep at the same time.
const CONCURRENCY: usize = 16;

/// Packs that are on a list, a collection that is at it, and the clock of its machine.
struct Sweeping {
    backend: Clocked,
    slow: ScriptedStore,
    is_held_up: Arc<AtomicBool>,
    store: Store,
    clock: Arc<FixedClock>,
    list: List,
    keys: Vec<Path>,
}

impl Sweeping {
    /// So many packs; the requests that `held` picks wait until the test has done its part.
    async fn new(packs: u64, held: fn(&StoreCall) -> bool) -> Self {
        let id = |n: u64| PackId(*blake3::hash(&n.to_le_bytes()).as_bytes());
        let ids: Vec<PackId> = (0..packs).map(id).collect();
        let keys: Vec<Path> = ids.iter().map(pack::path).collect();
        let backend = Clocked::new(testing::NOW);
        let is_held_up = Arc::new(AtomicBool::new(false));
        let is_asked = Arc::clone(&is_held_up);
        let slow = ScriptedStore::new(Arc::new(backend.clone()), move |call| {
            match is_asked.load(Relaxed) && held(call) {
                true => StoreFault::Hold,
                false => StoreFault::None,
            }
        });
        let clock = Arc::new(FixedClock::new(testing::NOW));
        let world = World { clock: clock.clone(), entropy: testing::world(1).entropy };
        let shared: Arc<dyn ObjectStore> = Arc::new(slow.clone());
        let store = Store::create(shared, testing::settings(), world).await.unwrap();
        let item = |id: &PackId| {
            let name = condemned::CondemnedName { kind: condemned::CondemnedKind::Pack, id: id.0 };
            condemned::CondemnedObject { name, size: 1 }
        };
        let id = lists::write(&store, ids.iter().map(item).collect()).await.unwrap();
        let id = crate::id::CondemnedId(id);
        let list = List { id, sequence: 1, objects: packs, bytes: packs, swept: None };
        CollectionState::default().replace(&store, vec![list.clone()]).await.unwrap();
        let made = Self { backend, slow, is_held_up, store, clock, list, keys };
        made.write_all().await;
        made
    }

    async fn write_all(&self) {
        for key in &self.keys {
            self.backend.put(key, "x".into()).await.unwrap();
        }
    }

    /// How many packs are left by a sweep in whose midst `meanwhile` happens.
    async fn left(&self, meanwhile: impl AsyncFnOnce()) -> usize {
        let session = testing::session(&self.store).await;
        self.is_held_up.store(true, Relaxed);
        let others = async {
            self.slow.calls.until(|log| log.held == CONCURRENCY).await;
            meanwhile().await;
            self.is_held_up.store(false, Relaxed);
            self.slow.calls.release(CONCURRENCY);
        };
        let marks = marked::Marks::default();
        let sweep = sweep::sweep(&session, &self.list, &marks, false);
        let (swept, ()) = tokio::join!(sweep, others);
        swept.unwrap();
        session.close(Ok(())).await.unwrap();
        count(&self.backend, pack::PREFIX).await
    }

    /// Another collection sweeps the list, and later so many others that nobody remembers it; then all that it named is
    /// written again.
    async fn overtake(&self) {
        let state = CollectionState::load(&self.store).await.unwrap();
        state.replace(&self.store, Vec::new()).await.unwrap();
        self.write_all().await;
    }
}

fn is_read_of_pack(call: &StoreCall) -> bool {
    match call {
        StoreCall::Get(path) | StoreCall::Ranges(path, _) => path.as_ref().starts_with("packs/"),
        _ => false,
    }
}

fn is_deletion(call: &StoreCall) -> bool {
    matches!(call, StoreCall::Delete(_))
}

#[tokio::test]
async fn a_list_that_was_swept_while_its_packs_were_looked_at_is_left() {
    let sweeping = Sweeping::new(20, is_read_of_pack).await;
    assert_eq!(sweeping.left(async || sweeping.overtake().await).await, 20);
}

#[tokio::test]
async fn a_list_that_was_swept_in_the_midst_of_its_deletions_is_left_at_the_next_batch() {
    let sweeping = Sweeping::new(600, is_deletion).await;
    assert_eq!(sweeping.left(async || sweeping.overtake().await).await, 600 - 256);
}

#[tokio::test]
async fn a_machine_that_slept_looks_again_before_it_deletes_more() {
    let half_a_day = testing::NOW + 12 * 3600;
    let sweeping = Sweeping::new(200, is_deletion).await;
    let left = sweeping.left(async || {
        sweeping.clock.set(half_a_day);
        sweeping.overtake().await;
    });
    assert_eq!(left.await, 200 - CONCURRENCY, "what was under way is deleted");
    // Nobody was quicker: it goes on.
    let sweeping = Sweeping::new(600, is_deletion).await;
    assert_eq!(sweeping.left(async || sweeping.clock.set(half_a_day)).await, 0);
}
