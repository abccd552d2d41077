use super::*;
use crate::collection::{CollectionState, List, lists};
use crate::condemned;
use crate::testing::{self, noise};
use crate::{
    Argon2Cost, Content, Grain, ManifestId, NewKey, RefBody, RefKind, Secret, Session, Store,
    import, pack, verify,
};
use block::{ErrorKind, Memory, Span};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::Amount;
use objects::testing::Clocked;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

mod damage;
mod maps;
mod overtaken;
mod sessions;

const DAY: u64 = 86_400;
const PAGE: usize = 4096;
/// Pages of a piece: one chunk, and a page of zeroes.
const PIECE: usize = 8;

async fn fresh() -> (Store, Clocked) {
    let backend = Clocked::new(testing::NOW);
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    let store = Store::create(shared, testing::settings(), testing::world(1)).await.unwrap();
    (store, backend)
}

fn secret() -> Secret {
    Secret::key_file(noise(77, 40)).unwrap()
}

async fn fresh_encrypted() -> (Store, Clocked) {
    let backend = Clocked::new(testing::NOW);
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    let key = NewKey { name: "test", secret: &secret(), cost: Argon2Cost::NORMAL };
    let (settings, world) = (testing::encrypted_settings(), testing::world(1));
    let store = Store::create_encrypted(shared, settings, world, &key).await.unwrap();
    (store, backend)
}

/// An image of pieces, each a chunk of its own.
fn image(pieces: &[u8]) -> Vec<u8> {
    let piece = |seed: &u8| {
        let mut bytes = noise(u64::from(*seed) + 1, (PIECE - 1) * PAGE);
        bytes.resize(PIECE * PAGE, 0);
        bytes
    };
    pieces.iter().flat_map(piece).collect()
}

fn body(manifest: ManifestId, size: u64) -> RefBody {
    RefBody { manifest: Some(manifest), size, created: testing::NOW, labels: BTreeMap::new() }
}

async fn store_in(session: &Session, pieces: &[u8]) -> RefBody {
    let bytes = Memory::from(image(pieces));
    let done = import::from_device(session, &bytes, &()).await.unwrap();
    body(done.manifest, done.size)
}

async fn publish(store: &Store, name: &str, pieces: &[u8]) {
    let session = testing::session(store).await;
    let body = store_in(&session, pieces).await;
    let made = session.publish(RefKind::Image, name, body).await;
    session.close(made).await.unwrap();
}

async fn remove(store: &Store, name: &str) {
    let found = store.refs().get(RefKind::Image, name).await.unwrap().unwrap();
    store.refs().remove(RefKind::Image, name, found.sequence).await.unwrap();
}

/// What a name means, read anew.
async fn read(backend: &Clocked, name: &str) -> Vec<u8> {
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    read_from(&Store::open(shared, testing::world(9)).await.unwrap(), name).await
}

async fn read_from(store: &Store, name: &str) -> Vec<u8> {
    let found = store.refs().get(RefKind::Image, name).await.unwrap().unwrap();
    let manifest = store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let mut bytes = Vec::new();
    for piece in manifest.pieces(Span::whole(manifest.size())).await.unwrap() {
        let len = piece.span.len() as usize;
        match piece.content {
            Content::Hole => bytes.resize(bytes.len() + len, 0),
            Content::Chunk { at, skip } => {
                let plain = store.read_chunk(&at).await.unwrap();
                bytes.extend_from_slice(&plain[skip as usize..skip as usize + len]);
            }
        }
    }
    bytes
}

fn now() -> GcOptions {
    GcOptions { grace: Duration::ZERO, ..GcOptions::default() }
}

async fn gc(store: &Store, options: GcOptions) -> GcReport {
    collect(store, &options, &()).await.unwrap()
}

async fn count(backend: &Clocked, prefix: &str) -> usize {
    objects::list(backend, prefix).await.unwrap().len()
}

#[tokio::test]
async fn what_is_removed_is_deleted_after_the_grace_period_and_nothing_else() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3]).await;
    publish(&store, "a:2", &[2, 3, 4]).await;
    publish(&store, "b:1", &[7, 8]).await;
    remove(&store, "b:1").await;

    let options = GcOptions { rewrite_below: 0.0, ..GcOptions::default() };
    let dry = gc(&store, GcOptions { dry_run: true, ..options }).await;
    let found = gc(&store, options).await;
    assert_eq!(found.found.objects, 3, "a pack, a segment, a root");
    assert_eq!((dry.found, dry.freed), (found.found, Amount::default()));
    assert_eq!(found.freed, Amount::default());

    backend.advance(DAY - 1);
    let early = gc(&store, options).await;
    assert_eq!((early.freed, early.found), (Amount::default(), Amount::default()));
    assert_eq!((early.waiting[0].garbage, early.waiting[0].seconds), (found.found, 1));
    backend.advance(1);
    assert_eq!(gc(&store, options).await.freed, found.found);
    assert_eq!(count(&backend, "packs").await, 2);
    assert_eq!(read(&backend, "a:1").await, image(&[1, 2, 3]));
    assert_eq!(read(&backend, "a:2").await, image(&[2, 3, 4]));
    let last = gc(&store, options).await;
    assert_eq!((last.found, last.freed), (Amount::default(), Amount::default()));
    assert_eq!(count(&backend, "pins").await, 0);
}

#[tokio::test]
async fn mostly_unreferenced_packs_are_rewritten_and_readers_find_the_rest() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2, 9]).await;
    remove(&store, "a:1").await;
    let options = GcOptions { grace: Duration::from_secs(DAY), ..GcOptions::default() };
    let report = gc(&store, options).await;
    assert_eq!(report.rewritten.objects, 1);
    assert_eq!(report.kept_bytes, 7 * PAGE as u64 + pack::OVERHEAD);
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
    // A second one finds nothing more to do.
    assert_eq!(gc(&store, options).await.rewritten, Amount::default());
    backend.advance(DAY);
    let freed = gc(&store, options).await.freed;
    assert!(freed.bytes > 6 * 7 * PAGE as u64, "{freed:?}");
    assert_eq!(read(&backend, "a:2").await, image(&[2, 9]));
    assert_eq!(count(&backend, "moved").await, 1);
    // And again, from the new pack: what led to it leads on.
    publish(&store, "a:3", &[2]).await;
    remove(&store, "a:2").await;
    for _ in 0..4 {
        backend.advance(DAY);
        gc(&store, GcOptions { rewrite_below: 1.0, ..options }).await;
        assert_eq!(read(&backend, "a:3").await, image(&[2]));
    }
    remove(&store, "a:3").await;
    for _ in 0..2 {
        backend.advance(DAY);
        gc(&store, options).await;
    }
    for prefix in ["packs", "segments", "manifests", "moved", "pins"] {
        assert_eq!(count(&backend, prefix).await, 0, "{prefix}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_stops_the_deletion_of_what_it_may_refer_to() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3]).await;
    publish(&store, "b:1", &[4, 5]).await;
    remove(&store, "b:1").await;
    let all = gc(&store, GcOptions { dry_run: true, ..now() }).await.found;
    assert_eq!(all.objects, 3);
    let id = store.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap().body.manifest.unwrap();
    let root = Path::from(format!("manifests/{id}"));
    let record = Path::from("refs/image/a:1/00000000000000000001");
    let segment = mark::read_root(&store, id).await.unwrap()[0];
    let segment = Path::from(format!("segments/{segment}"));
    let strange = Path::from("refs/parcel/x/00000000000000000001");
    for (path, judged) in [(&segment, 2), (&root, 1), (&record, 0), (&strange, 0)] {
        let good = match backend.get(path).await {
            Ok(found) => Some(found.bytes().await.unwrap()),
            Err(_) => None,
        };
        let mut bad = good.clone().unwrap_or_default().to_vec();
        bad.extend_from_slice(b"damage");
        backend.put(path, bad.into()).await.unwrap();
        let report = gc(&store, GcOptions { dry_run: true, ..now() }).await;
        assert_eq!(report.found.objects, judged, "{path}");
        assert_eq!(report.doubts.len(), 1, "{:?}", report.doubts);
        let word = if path == &root { "image a:1" } else { path.as_ref() };
        assert!(report.doubts[0].contains(word), "{:?}", report.doubts);
        match good {
            Some(good) => drop(backend.put(path, good.into()).await.unwrap()),
            None => backend.delete(path).await.unwrap(),
        }
    }
    backend.delete(&segment).await.unwrap();
    let report = gc(&store, now()).await;
    assert_eq!(report.freed.objects, 2, "all but the pack");
    assert_eq!(count(&backend, "packs").await, 2);
}

#[tokio::test]
async fn a_chunk_that_is_damaged_keeps_its_pack_as_it_is() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2]).await;
    remove(&store, "a:1").await;
    let meta = objects::list(&backend, pack::PREFIX).await.unwrap().remove(0);
    let mut bytes = backend.get(&meta.location).await.unwrap().bytes().await.unwrap().to_vec();
    bytes[16 + 7 * PAGE + 100] ^= 1;
    backend.put(&meta.location, bytes.into()).await.unwrap();
    let report = gc(&store, now()).await;
    assert_eq!(report.rewritten, Amount::default());
    backend.get(&meta.location).await.unwrap();
}

#[tokio::test]
async fn a_pack_of_a_newer_format_stays_and_the_others_are_rewritten() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2]).await;
    let newer = objects::list(&backend, pack::PREFIX).await.unwrap().remove(0);
    publish(&store, "b:1", &[11, 12, 13, 14, 15, 16]).await;
    publish(&store, "b:2", &[12]).await;
    for name in ["a:1", "b:1"] {
        remove(&store, name).await;
    }
    let mut bytes = backend.get(&newer.location).await.unwrap().bytes().await.unwrap().to_vec();
    pack::make_newer(&mut bytes, 2, 0);
    backend.put(&newer.location, bytes.clone().into()).await.unwrap();
    let report = gc(&store, now()).await;
    assert_eq!(report.rewritten.objects, 1, "{report:?}");
    let there = backend.get(&newer.location).await.unwrap().bytes().await.unwrap();
    assert_eq!(there, bytes);
    assert_eq!(read(&backend, "b:2").await, image(&[12]));
}

#[tokio::test]
async fn a_rewriting_that_was_stopped_before_the_old_pack_was_condemned_is_finished() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2]).await;
    remove(&store, "a:1").await;
    let before = objects::list(&backend, "refs/gc").await.unwrap().len();
    gc(&store, GcOptions::default()).await;
    for meta in objects::list(&backend, "refs/gc").await.unwrap() {
        backend.delete(&meta.location).await.unwrap();
    }
    assert_eq!(before, 0);
    let report = gc(&store, now()).await;
    assert_eq!(report.rewritten, Amount::default(), "it was done already");
    assert_eq!(count(&backend, pack::PREFIX).await, 1);
    assert_eq!(read(&backend, "a:2").await, image(&[2]));
}

#[tokio::test]
async fn a_pack_that_is_in_use_altogether_is_never_rewritten() {
    for encrypted in [false, true] {
        let (store, backend) = if encrypted { fresh_encrypted().await } else { fresh().await };
        publish(&store, "a:1", &[1, 2, 3]).await;
        publish(&store, "a:2", &[4]).await;
        let before = objects::list(&backend, pack::PREFIX).await.unwrap();
        let options = GcOptions { rewrite_below: 1.0, ..now() };
        let report = gc(&store, options).await;
        assert_eq!((report.rewritten, report.found), Default::default());
        assert_eq!(objects::list(&backend, pack::PREFIX).await.unwrap(), before);
        // With any garbage in it, it is: once.
        publish(&store, "b:1", &[5, 6, 7]).await;
        publish(&store, "b:2", &[5, 6]).await;
        remove(&store, "b:1").await;
        assert_eq!(gc(&store, options).await.rewritten.objects, 1);
        assert_eq!(gc(&store, options).await.found, Amount::default());
    }
}

/// Publishes `a:2`, whose pack is then rewritten and condemned; gives the new pack.
async fn rewritten(store: &Store, backend: &Clocked) -> Path {
    publish(store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(store, "a:2", &[2]).await;
    remove(store, "a:1").await;
    let before = objects::list(backend, pack::PREFIX).await.unwrap();
    assert_eq!(gc(store, GcOptions::default()).await.rewritten.objects, 1);
    let packs = objects::list(backend, pack::PREFIX).await.unwrap();
    let is_new = |path: &Path| before.iter().all(|old| old.location != *path);
    packs.into_iter().map(|meta| meta.location).find(is_new).unwrap()
}

#[tokio::test]
async fn a_rewritten_pack_stays_while_the_one_in_its_place_is_condemned() {
    let (store, backend) = fresh().await;
    let new = rewritten(&store, &backend).await;
    // Another collection found the new pack before anything led to it.
    let new = new.filename().unwrap().parse::<crate::PackId>().unwrap();
    let name = condemned::CondemnedName { kind: condemned::CondemnedKind::Pack, id: new.0 };
    let list =
        lists::write(&store, vec![condemned::CondemnedObject { name, size: 1 }]).await.unwrap();
    let state = CollectionState::load(&store).await.unwrap();
    let (id, sequence) = (crate::id::CondemnedId(list), state.sequence + 1);
    let lists =
        [state.lists.clone(), vec![List { id, sequence, objects: 1, bytes: 1, swept: None }]];
    state.replace(&store, lists.concat()).await.unwrap();

    gc(&store, now()).await;
    assert_eq!(count(&backend, pack::PREFIX).await, 2, "either may be needed");
    gc(&store, now()).await;
    assert_eq!(count(&backend, pack::PREFIX).await, 1);
    assert_eq!(read(&backend, "a:2").await, image(&[2]));
}

#[tokio::test]
async fn a_rewritten_pack_stays_while_maps_lead_to_a_damaged_one_although_a_third_has_the_chunk() {
    let (store, backend) = fresh().await;
    let new = rewritten(&store, &backend).await;
    backend.put(&new, "cut off".into()).await.unwrap();
    let store = Store::open(Arc::new(backend.clone()), testing::world(9)).await.unwrap(); // knows no index
    publish(&store, "b:1", &[9, 2]).await;
    assert_eq!(count(&backend, pack::PREFIX).await, 3, "it is stored again");

    backend.advance(DAY);
    let report = gc(&store, now()).await;
    assert!(report.doubts.iter().any(|doubt| doubt.contains("only sound copy")), "{report:?}");
    assert_eq!(read(&backend, "a:2").await, image(&[2]));
    // Once the damaged one is as it was, it goes.
    let repaired = crate::repair::store(&store, &[], false, &()).await.unwrap();
    assert_eq!((repaired.restored.len(), repaired.left.len()), (1, 0), "{repaired:?}");
    backend.advance(DAY);
    gc(&store, now()).await;
    assert_eq!(read(&backend, "a:2").await, image(&[2]));
    assert_eq!(count(&backend, pack::PREFIX).await, 2);
}

#[tokio::test]
async fn what_could_not_be_judged_stays_condemned() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1, 2, 3]).await;
    publish(&store, "b:1", &[4, 5]).await;
    remove(&store, "b:1").await;
    let found = gc(&store, GcOptions::default()).await.found;
    assert_eq!(found.objects, 3);
    backend.advance(DAY);
    let strange = Path::from("refs/parcel/x/00000000000000000001");
    backend.put(&strange, "?".into()).await.unwrap();
    let report = gc(&store, GcOptions::default()).await;
    assert_eq!((report.freed, report.doubts.len()), (Amount::default(), 1));
    // A collection that knows better may be at its deletion.
    let session = testing::session(&store).await;
    store_in(&session, &[4, 5]).await;
    assert_eq!(count(&backend, pack::PREFIX).await, 3, "it is stored again");
    session.close(Ok(())).await.unwrap();
    backend.delete(&strange).await.unwrap();
    assert_eq!(gc(&store, GcOptions::default()).await.freed, found);
}

#[tokio::test]
async fn a_collection_whose_pin_was_renewed_is_not_another_one() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1]).await;
    let own = store.session("garbage collection").await.unwrap();
    let other = testing::session(&store).await;
    own.hold(RefKind::Image, "a:1").await.unwrap().unwrap();
    assert_eq!(count(&backend, "pins").await, 3);
    let census = census::take(&store).await.unwrap();
    let keys = own.pin_keys().await;
    let others = round::others(&census, &keys, &[]);
    let others: Vec<String> = others.into_iter().map(|seen| seen.what()).collect();
    assert_eq!(others, ["test"]);

    let options = GcOptions { stale: Duration::ZERO, ..now() };
    let round = round::Round { store: &store, session: &own, options: &options, progress: &() };
    assert_eq!(round.bury(round.now().await.unwrap()).await.unwrap().len(), 1);
    own.check().await.unwrap();
    assert_eq!(other.check().await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_collection_that_is_taken_for_dead_while_it_deletes_soon_stops() {
    const MANY: usize = 600;
    for (asleep, most) in [(0, 256), (120, 64)] {
        let backend = Clocked::new(testing::NOW);
        let slow = objects::testing::Unreliable::new(
            Arc::new(backend.clone()),
            1,
            objects::testing::FaultRates::default(),
        );
        let shared: Arc<dyn ObjectStore> = Arc::new(slow.clone());
        let store = Store::create(shared, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        let mut items = Vec::new();
        for number in 0..MANY {
            let id = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let name = condemned::CondemnedName { kind: condemned::CondemnedKind::Pack, id };
            backend.put(&Path::from(name.key()), "x".into()).await.unwrap();
            items.push(condemned::CondemnedObject { name, size: 1 });
        }
        let id = crate::id::CondemnedId(lists::write(&store, items).await.unwrap());
        let bytes = MANY as u64;
        let list = List { id, sequence: 1, objects: bytes, bytes, swept: None };
        CollectionState::default().replace(&store, vec![list.clone()]).await.unwrap();

        let delay = Duration::from_secs(1);
        slow.set(objects::testing::FaultRates {
            delayed: 1000,
            delay,
            ..objects::testing::FaultRates::default()
        });
        let bury = async {
            for _ in 0..10_000 {
                if count(&backend, pack::PREFIX).await < MANY {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            for meta in objects::list(&backend, "pins").await.unwrap() {
                backend.delete(&meta.location).await.unwrap();
            }
            tokio::time::advance(Duration::from_secs(asleep)).await;
        };
        let marks = marked::Marks::default();
        let (swept, ()) = tokio::join!(sweep::sweep(&session, &list, &marks, false), bury);
        assert_eq!(swept.unwrap_err().kind(), ErrorKind::Fenced);
        let deleted = MANY - count(&backend, pack::PREFIX).await;
        assert!((1..=most).contains(&deleted), "{deleted}");
    }
}

#[tokio::test]
async fn a_removal_is_forgotten_after_thirty_days_and_its_name_can_be_made_again() {
    let (store, backend) = fresh().await;
    publish(&store, "a:1", &[1]).await;
    publish(&store, "b:1", &[2]).await;
    remove(&store, "a:1").await;
    for days in [2, 27] {
        backend.advance(days * DAY);
        gc(&store, GcOptions::default()).await;
        assert_eq!(count(&backend, "refs/image/a:1").await, 1, "the removal stays");
    }
    backend.advance(2 * DAY);
    assert!(gc(&store, GcOptions::default()).await.records > 0);
    assert_eq!(count(&backend, "refs/image").await, 1, "that of the other image");
    publish(&store, "a:1", &[3]).await;
    assert_eq!(read(&backend, "a:1").await, image(&[3]));
}

#[tokio::test]
async fn an_encrypted_store_is_collected_and_what_is_left_is_read() {
    let (store, backend) = fresh_encrypted().await;
    let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
    publish(&store, "a:1", &[1, 2, 3, 4, 5, 6]).await;
    publish(&store, "a:2", &[2, 9]).await;
    publish(&store, "b:1", &[7]).await;
    remove(&store, "a:1").await;
    remove(&store, "b:1").await;
    let options = GcOptions::default();
    let found = gc(&store, options).await;
    assert_eq!((found.rewritten.objects, found.doubts.len()), (1, 0));
    backend.advance(DAY);
    assert_eq!(gc(&store, options).await.freed, found.found);
    let clean = gc(&store, options).await;
    assert_eq!((clean.found, clean.freed), (Amount::default(), Amount::default()));
    assert_eq!(count(&backend, "pins").await, 0);
    let reader = Store::open_with(shared, testing::world(2), async || Ok(Some(secret()))).await;
    assert_eq!(read_from(&reader.unwrap(), "a:2").await, image(&[2, 9]));
}

#[derive(Debug, Clone)]
enum Step {
    Begin(Vec<u8>),
    /// Store what a session is for.
    Write(usize),
    Derive(usize, usize, u8),
    Publish(usize),
    Crash(usize),
    Remove(usize),
    Collect(bool, u8),
    /// Damage a list of garbage.
    Damage(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pieces = prop::collection::vec(0u8..12, 1..8);
    let step = prop_oneof![
        3 => pieces.prop_map(Step::Begin),
        4 => (0usize..8).prop_map(Step::Write),
        2 => (0usize..8, 0usize..8, 0u8..12).prop_map(|(s, n, p)| Step::Derive(s, n, p)),
        3 => (0usize..8).prop_map(Step::Publish),
        1 => (0usize..8).prop_map(Step::Crash),
        2 => (0usize..8).prop_map(Step::Remove),
        4 => (any::<bool>(), 0u8..3).prop_map(|(grace, rewrite)| Step::Collect(grace, rewrite)),
        1 => (0usize..4).prop_map(Step::Damage),
        2 => (1u64..20).prop_map(|hours| Step::Wait(hours * 3600)),
    ];
    prop::collection::vec(step, 1..40)
}

/// A session of the model.
struct Writer {
    session: Session,
    pieces: Vec<u8>,
    stored: Option<RefBody>,
}

/// Writers and collections in turn, and what the store has to hold.
struct Interleaving {
    store: Store,
    backend: Clocked,
    names: BTreeMap<String, Vec<u8>>,
    writers: Vec<Writer>,
    made: u32,
    /// Whether a list of garbage is damaged: then others may refuse.
    damaged: bool,
}

impl Interleaving {
    async fn step(&mut self, step: Step) {
        match step {
            Step::Begin(pieces) => self.begin(pieces).await,
            Step::Write(at) if at < self.writers.len() => {
                let writer = &mut self.writers[at];
                writer.stored = Some(store_in(&writer.session, &writer.pieces).await);
            }
            Step::Derive(at, from, piece) if at < self.writers.len() && from < self.names.len() => {
                self.derive(at, from, piece).await;
            }
            Step::Publish(at) if at < self.writers.len() => self.publish(at).await,
            Step::Crash(at) if at < self.writers.len() => drop(self.writers.remove(at)),
            Step::Remove(at) if at < self.names.len() => {
                let name = self.names.keys().nth(at).unwrap().clone();
                self.names.remove(&name);
                remove(&self.store, &name).await;
            }
            Step::Collect(grace, rewrite) => self.collect(grace, rewrite).await,
            Step::Damage(at) => {
                let lists = objects::list(&self.backend, "condemned").await.unwrap();
                if let Some(meta) = lists.get(at) {
                    self.backend.put(&meta.location, "damage".into()).await.unwrap();
                    self.damaged = true;
                }
            }
            Step::Wait(seconds) => self.backend.advance(seconds),
            _ => {}
        }
    }

    async fn begin(&mut self, pieces: Vec<u8>) {
        let session = match self.store.session("a test").await {
            Err(e) if self.damaged => return assert_eq!(e.kind(), ErrorKind::Corrupt),
            other => other.unwrap(),
        };
        self.writers.push(Writer { session, pieces, stored: None });
    }

    async fn derive(&mut self, at: usize, from: usize, piece: u8) {
        let writer = &mut self.writers[at];
        let name = self.names.keys().nth(from).unwrap();
        let Some(found) = writer.session.hold(RefKind::Image, name).await.ok().flatten() else {
            return;
        };
        let mut pieces = self.names[name].clone();
        pieces[0] = piece;
        let base = self.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
        let view = Memory::from(image(&pieces));
        let changed = [Span::between(0, (PIECE * PAGE) as u64)];
        let size = base.size();
        let done =
            import::derive(&writer.session, &base, size, &view, &changed, Grain::Blocks, &());
        let manifest = done.await.unwrap().manifest;
        (writer.pieces, writer.stored) = (pieces, Some(body(manifest, size)));
    }

    async fn publish(&mut self, at: usize) {
        let Writer { session, pieces, stored } = self.writers.remove(at);
        let Some(body) = stored else { return };
        self.made += 1;
        let name = format!("i:{}", self.made);
        let outcome = session.publish(RefKind::Image, &name, body).await;
        match session.close(outcome).await {
            Ok(_) => drop(self.names.insert(name, pieces)),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Fenced),
        }
    }

    async fn collect(&mut self, grace: bool, rewrite: u8) {
        let grace = if grace { Duration::from_secs(DAY / 2) } else { Duration::ZERO };
        let rewrite_below = f64::from(rewrite) / 2.0;
        let options = GcOptions { grace, rewrite_below, ..GcOptions::default() };
        match collect(&self.store, &options, &()).await {
            // Others are at work.
            Err(e) if self.damaged => assert_eq!(e.kind(), ErrorKind::Conflict),
            done => {
                done.unwrap();
                self.damaged = false;
            }
        }
        self.names_have_their_content().await;
    }

    async fn names_have_their_content(&self) {
        for (name, pieces) in &self.names {
            assert_eq!(read(&self.backend, name).await, image(pieces), "{name}");
        }
    }

    /// All writers are gone, and two days later nothing is left but what names lead to.
    async fn end(mut self) {
        self.writers.clear();
        let Self { store, backend, names, .. } = &self;
        backend.advance(2 * DAY);
        gc(store, now()).await;
        // A pack that the first one rewrote, and that earlier ones had moved chunks to, leaves a record for
        // those who read it just then; nobody needs that any more.
        gc(store, now()).await;
        let clean = gc(store, now()).await;
        assert_eq!((clean.found, clean.freed), (Amount::default(), Amount::default()));
        assert!(clean.waiting.is_empty() && clean.doubts.is_empty());
        assert_eq!(count(backend, "pins").await, 0);
        self.names_have_their_content().await;
        if names.is_empty() {
            for prefix in ["packs", "segments", "manifests", "moved"] {
                assert_eq!(count(backend, prefix).await, 0, "{prefix}");
            }
        }
        for name in names.keys() {
            let found = store.refs().get(RefKind::Image, name).await.unwrap().unwrap();
            let report = verify::manifest(store, &found.body.manifest.unwrap(), &()).await.unwrap();
            assert!(report.damaged.is_empty(), "{:?}", report.damaged);
        }
    }
}

async fn run(steps: Vec<Step>) {
    let (store, backend) = fresh().await;
    let (names, writers) = (BTreeMap::new(), Vec::new());
    let mut run = Interleaving { store, backend, names, writers, made: 0, damaged: false };
    for step in steps {
        run.step(step).await;
    }
    run.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn whatever_is_interleaved_names_keep_their_content_and_garbage_goes(steps in steps()) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(run(steps));
    }
}
