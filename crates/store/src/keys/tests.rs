use super::*;
use crate::slots::{self, FORM, hex};
use crate::{Argon2Cost, Secret};
use crate::{RefBody, RefKind, Settings, import, testing};
use block::{ErrorKind, Memory};
use bytes::Bytes;
use futures::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

fn passphrase(text: &str) -> Secret {
    Secret::passphrase(text.to_owned()).unwrap()
}

fn key_file(byte: u8) -> Secret {
    Secret::key_file(vec![byte; 40]).unwrap()
}

fn new<'a>(name: &'a str, secret: &'a Secret) -> NewKey<'a> {
    NewKey { name, secret, cost: Argon2Cost::TRIVIAL }
}

async fn create(backend: &Arc<InMemory>, seed: u64, secret: &Secret) -> Result<Store> {
    let world = testing::world(seed);
    let settings = Settings::generate_encrypted(&*world.entropy)?;
    Store::create_encrypted(backend.clone(), settings, world, &new("first", secret)).await
}

async fn open(backend: &Arc<InMemory>, secret: Option<&Secret>) -> Result<Store> {
    Store::open_with(backend.clone(), testing::world(9), async || Ok(secret.cloned())).await
}

fn names(slots: &[KeySlot]) -> Vec<&str> {
    slots.iter().map(|slot| slot.name.as_str()).collect()
}

#[tokio::test]
async fn the_right_secret_opens_a_store_and_a_wrong_or_missing_one_says_so() {
    let backend = Arc::new(InMemory::new());
    let made = create(&backend, 1, &passphrase("correct")).await.unwrap();
    let opened = open(&backend, Some(&passphrase("correct"))).await.unwrap();
    assert_eq!(opened.settings(), made.settings());
    for (secret, says) in [
        (None, "SOJOURN_PASSPHRASE"),
        (Some(passphrase("wrong")), "wrong passphrase"),
        (Some(key_file(1)), "passphrase of one of its key slots (first)"),
    ] {
        let error = open(&backend, secret.as_ref()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains(says), "{error}");
    }
}

#[tokio::test]
async fn keys_are_added_rotated_and_removed_but_for_the_last_one() {
    let backend = Arc::new(InMemory::new());
    let keys = create(&backend, 1, &passphrase("one")).await.unwrap().keys();
    keys.add(&new("robot", &key_file(7))).await.unwrap();
    assert_eq!(names(&keys.list().await.unwrap()), ["first", "robot"]);
    let error = keys.add(&new("robot", &key_file(8))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    open(&backend, Some(&key_file(7))).await.unwrap();
    open(&backend, Some(&passphrase("one"))).await.unwrap();

    keys.rotate(&new("first", &passphrase("two"))).await.unwrap();
    assert!(open(&backend, Some(&passphrase("one"))).await.is_err());
    open(&backend, Some(&passphrase("two"))).await.unwrap();
    open(&backend, Some(&key_file(7))).await.unwrap();
    let kept = sequences(&*backend).await.unwrap();
    assert_eq!(kept, [3], "the old documents are gone");

    keys.remove("first").await.unwrap();
    assert!(open(&backend, Some(&passphrase("two"))).await.is_err());
    let error = keys.remove("robot").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(keys.remove("nobody").await.unwrap_err().kind(), ErrorKind::NotFound);
    open(&backend, Some(&key_file(7))).await.unwrap();
}

#[tokio::test]
async fn of_two_that_change_the_keys_at_once_one_is_told() {
    let backend = Arc::new(InMemory::new());
    let keys = create(&backend, 1, &passphrase("one")).await.unwrap().keys();
    let (a, b) = (key_file(1), key_file(2));
    let (new_a, new_b) = (new("a", &a), new("b", &b));
    let (first, second) = tokio::join!(keys.add(&new_a), keys.add(&new_b));
    let outcomes = [first.is_ok(), second.is_ok()];
    let slots = keys.list().await.unwrap();
    assert_eq!(slots.len(), 1 + outcomes.iter().filter(|won| **won).count());
    assert!(outcomes.contains(&true));
}

#[tokio::test]
async fn one_of_two_makers_of_a_store_wins_and_its_key_opens_it() {
    let backend = Arc::new(InMemory::new());
    let (one, two) = (passphrase("one"), passphrase("two"));
    let (first, second) = tokio::join!(create(&backend, 1, &one), create(&backend, 2, &two));
    assert_ne!(first.is_ok(), second.is_ok());
    let (right, wrong) = if first.is_ok() { (one, two) } else { (two, one) };
    open(&backend, Some(&right)).await.unwrap();
    assert!(open(&backend, Some(&wrong)).await.is_err());
}

#[tokio::test]
async fn what_an_interrupted_creation_left_does_not_keep_the_next_from_being_opened() {
    let backend = Arc::new(InMemory::new());
    let world = testing::world(5);
    slots::create(&*backend, &world, &[3; 32], &new("first", &passphrase("lost"))).await.unwrap();
    create(&backend, 1, &passphrase("one")).await.unwrap();
    open(&backend, Some(&passphrase("one"))).await.unwrap();
    // Also one with a higher number, of a maker that was killed before it could clear up.
    slots::create(&*backend, &world, &[3; 32], &new("first", &passphrase("lost"))).await.unwrap();
    open(&backend, Some(&passphrase("one"))).await.unwrap();
    assert!(open(&backend, Some(&passphrase("lost"))).await.is_err());
    let store = open(&backend, Some(&passphrase("one"))).await.unwrap();
    store.keys().add(&new("second", &key_file(1))).await.unwrap();
    open(&backend, Some(&key_file(1))).await.unwrap();
    assert_eq!(sequences(&*backend).await.unwrap().len(), 1);
}

/// A backend where somebody makes the store of these settings just before it is made; if that cuts it off, nothing can
/// be read from then on.
fn forestalled(backend: &Arc<InMemory>, by: &Settings, cuts_off: bool) -> Arc<ScriptedStore> {
    let (place, bytes) = (backend.clone(), Bytes::from(by.encode().unwrap()));
    let is_cut = AtomicBool::new(false);
    let scripted = ScriptedStore::new(backend.clone(), move |call| match call {
        StoreCall::Put(path) if *path == Path::from(crate::settings::KEY) => {
            place.put(path, bytes.clone().into()).now_or_never().unwrap().unwrap();
            is_cut.store(cuts_off, Ordering::Relaxed);
            StoreFault::None
        }
        StoreCall::Get(_) if is_cut.load(Ordering::Relaxed) => {
            StoreFault::Fail(io::ErrorKind::ConnectionReset)
        }
        _ => StoreFault::None,
    });
    Arc::new(scripted)
}

#[tokio::test]
async fn a_store_that_was_made_although_nobody_could_tell_is_opened_by_its_key() {
    let (backend, world, secret) = (Arc::default(), testing::world(1), passphrase("one"));
    let settings = Settings::generate_encrypted(&*world.entropy).unwrap();
    // By a first request, whose answer was lost.
    let cut = forestalled(&backend, &settings, true);
    let made = Store::create_encrypted(cut, settings, world, &new("first", &secret)).await;
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Unavailable);
    open(&backend, Some(&secret)).await.unwrap();
}

#[tokio::test]
async fn who_was_too_late_to_make_a_store_leaves_no_key_in_it() {
    let (backend, world, secret) = (Arc::default(), testing::world(1), passphrase("one"));
    let settings = Settings::generate_encrypted(&*world.entropy).unwrap();
    let other = Settings::generate_encrypted(&*testing::world(2).entropy).unwrap();
    let late = forestalled(&backend, &other, false);
    let made = Store::create_encrypted(late, settings, world, &new("first", &secret)).await;
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(sequences(&*backend).await.unwrap().is_empty());
}

/// A backend that does not answer the first listing after the key slots with this number were written.
fn silent_after(backend: &Arc<InMemory>, sequence: u64) -> Arc<ScriptedStore> {
    let is_silent = AtomicBool::new(false);
    let scripted = ScriptedStore::new(backend.clone(), move |call| match call {
        StoreCall::Put(path) if *path == Path::from(key(sequence)) => {
            is_silent.store(true, Ordering::Relaxed);
            StoreFault::None
        }
        StoreCall::List(_) if is_silent.swap(false, Ordering::Relaxed) => {
            StoreFault::Fail(io::ErrorKind::ConnectionReset)
        }
        _ => StoreFault::None,
    });
    Arc::new(scripted)
}

#[tokio::test]
async fn a_key_whose_removal_was_interrupted_is_gone_when_it_is_repeated() {
    let backend = Arc::new(InMemory::new());
    let (one, bob) = (passphrase("one"), key_file(7));
    let keys = create(&backend, 1, &one).await.unwrap().keys();
    keys.add(&new("bob", &bob)).await.unwrap();
    let silent = silent_after(&backend, 3);
    let store = Store::open_with(silent, testing::world(9), async || Ok(Some(one))).await.unwrap();
    let error = store.keys().remove("bob").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("old passphrase or key file"), "{error}");
    assert_eq!(sequences(&*backend).await.unwrap(), [3, 2], "the old one opens a copy of 2");

    assert_eq!(store.keys().remove("bob").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sequences(&*backend).await.unwrap(), [3]);
    assert_eq!(open(&backend, Some(&bob)).await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_key_that_takes_anothers_place_is_the_only_one_left_after_an_interruption() {
    let backend = Arc::new(InMemory::new());
    let (one, two, three) = (passphrase("one"), passphrase("two"), passphrase("three"));
    create(&backend, 1, &one).await.unwrap();
    let silent = silent_after(&backend, 2);
    let store = Store::open_with(silent, testing::world(9), async || Ok(Some(one))).await.unwrap();
    store.keys().rotate(&new("first", &two)).await.unwrap_err();
    store.keys().rotate(&new("first", &three)).await.unwrap();
    assert_eq!(sequences(&*backend).await.unwrap(), [3]);
    open(&backend, Some(&three)).await.unwrap();
}

#[tokio::test]
async fn a_store_in_clear_has_no_keys() {
    let backend = Arc::new(InMemory::new());
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let error = store.keys().list().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_flipped_bit_or_a_cut_in_the_slots_never_opens_the_store_wrongly() {
    let backend = Arc::new(InMemory::new());
    create(&backend, 1, &key_file(3)).await.unwrap();
    let place = Path::from(key(1));
    let good = backend.get(&place).await.unwrap().bytes().await.unwrap();
    for at in 0..good.len() {
        assert!(SlotsDocument::decode("k", &good[..at]).is_err(), "{at} bytes");
        for bit in 0..8 {
            let mut bad = good.to_vec();
            bad[at] ^= 1 << bit;
            assert!(SlotsDocument::decode("k", &bad).is_err(), "bit {bit} of byte {at}");
        }
    }
    backend.delete(&place).await.unwrap();
    let error = open(&backend, Some(&key_file(3))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("keys/"), "{error}");
}

#[tokio::test]
async fn hostile_slots_are_refused_with_the_right_checksum() {
    let backend = Arc::new(InMemory::new());
    create(&backend, 1, &passphrase("one")).await.unwrap();
    let bytes = backend.get(&Path::from(key(1))).await.unwrap().bytes().await.unwrap();
    let document: serde_json::Value = FORM.decode("k", &bytes).unwrap();
    let slot = document["slots"][0].clone();
    type Change = fn(&mut serde_json::Value, serde_json::Value);
    let changes: [(&str, Change); 7] = [
        ("cost", |d, _| d["slots"][0]["argon2id"]["memory_kib"] = u32::MAX.into()),
        ("cost is missing", |d, _| d["slots"][0]["argon2id"] = serde_json::Value::Null),
        ("salt", |d, _| d["slots"][0]["salt"] = "00".into()),
        ("wrapped", |d, _| d["slots"][0]["wrapped"] = "zz".into()),
        ("no slots", |d, _| d["slots"] = serde_json::json!([])),
        ("one name twice", |d, slot| d["slots"] = serde_json::json!([slot, slot])),
        ("many slots", |d, slot| d["slots"] = vec![slot; MAX_SLOTS + 1].into()),
    ];
    for (what, change) in changes {
        let mut bad = document.clone();
        change(&mut bad, slot.clone());
        let bytes = FORM.encode(&bad).unwrap();
        backend.put(&Path::from(key(1)), PutPayload::from(bytes)).await.unwrap();
        let error = open(&backend, Some(&passphrase("one"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
    }
    let mut newer = document.clone();
    newer["version"] = 7.into();
    let bytes = FORM.encode(&newer).unwrap();
    backend.put(&Path::from(key(1)), PutPayload::from(bytes)).await.unwrap();
    let error = open(&backend, Some(&passphrase("one"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("version 7"), "{error}");
}

/// Everything that a backend has, keys included.
async fn contents(backend: &InMemory) -> Vec<u8> {
    let mut all = Vec::new();
    for meta in objects::list(backend, "").await.unwrap() {
        all.extend_from_slice(meta.location.as_ref().as_bytes());
        all.extend_from_slice(&backend.get(&meta.location).await.unwrap().bytes().await.unwrap());
    }
    all
}

#[tokio::test]
async fn nothing_of_an_image_or_a_name_shows_in_an_encrypted_store() {
    let text = b"a very secret sentence ".repeat(400);
    let noise = testing::noise(77, 8192);
    let image = [text.as_slice(), &[0; 1600], &noise].concat();
    let image = [image.as_slice(), &vec![0; image.len().next_multiple_of(4096) - image.len()]];
    let image = image.concat();
    let shows = |all: &[u8], what: &[u8]| all.windows(what.len()).any(|window| window == what);
    for encrypted in [false, true] {
        let backend = Arc::new(InMemory::new());
        let store = if encrypted {
            create(&backend, 1, &passphrase("hunter2")).await.unwrap()
        } else {
            Store::create(backend.clone(), testing::settings(), testing::world(1)).await.unwrap()
        };
        let done =
            import::from_device(&testing::session(&store).await, &Memory::from(image.clone()), &())
                .await
                .unwrap();
        let body = RefBody {
            manifest: Some(done.manifest),
            size: done.size,
            created: 1,
            labels: BTreeMap::from([("source".into(), "payroll.raw".into())]),
        };
        let refs = store.refs();
        refs.create(RefKind::Image, "topsecret:1", body.clone()).await.unwrap();
        refs.create(RefKind::Disk, "director", body).await.unwrap();
        let all = contents(&backend).await;
        let chunk = store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap()[0];
        for (what, bytes) in [
            ("noise", &noise[5000..5032]),
            ("an image's name", b"topsecret"),
            ("a disk's name", b"director"),
            ("a label", b"payroll"),
            ("a manifest's id in a ref", done.manifest.to_string().as_bytes()),
            ("a chunk's id", chunk.id.as_bytes()),
        ] {
            // The key of the manifest has its id in both.
            let in_keys = what.starts_with("a manifest");
            assert_eq!(shows(&all, bytes), !encrypted || in_keys, "{what}, encrypted {encrypted}");
        }
        assert!(!shows(&all, b"hunter2"));
        assert_eq!(shows(&all, b"secret sentence"), !encrypted, "a literal of zstd");
        let master = store.settings().master().copied().unwrap_or([0xAB; 32]);
        assert!(!shows(&all, &master) && !shows(&all, hex(&master).as_bytes()));
    }
}

#[tokio::test]
async fn the_same_image_is_stored_once_in_an_encrypted_store_and_read_back() {
    let backend = Arc::new(InMemory::new());
    let store = create(&backend, 1, &key_file(1)).await.unwrap();
    let mut image = testing::noise(3, 300 << 10);
    image.extend((0..300 << 10).map(|i| (i / 97) as u8));
    let device = Memory::from(image.clone());
    let first = import::from_device(&testing::session(&store).await, &device, &()).await.unwrap();
    let again = open(&backend, Some(&key_file(1))).await.unwrap();
    let second = import::from_device(&testing::session(&again).await, &device, &()).await.unwrap();
    assert_eq!((second.manifest, second.stats.new_chunks), (first.manifest, 0));
    let manifest = again.manifest(&second.manifest).await.unwrap();
    for at in manifest.chunks().await.unwrap() {
        assert!(at.encoding.is_sealed());
    }
    for piece in manifest.pieces(block::Span::whole(manifest.size())).await.unwrap() {
        if let crate::Content::Chunk { at, skip } = piece.content {
            let bytes = again.read_chunk(&at).await.unwrap();
            let place = piece.span.offset() as usize..piece.span.end() as usize;
            assert_eq!(bytes[skip as usize..][..place.len()], image[place]);
        }
    }
}
