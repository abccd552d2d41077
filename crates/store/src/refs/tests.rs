use super::*;
use crate::{ManifestId, Settings, testing};
use block::ErrorKind;
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use std::sync::Arc;

async fn store(backend: Arc<dyn ObjectStore>) -> Store {
    Store::create(backend, testing::settings(), testing::world(9)).await.unwrap()
}

fn body(size: u64) -> RefBody {
    RefBody { manifest: None, size, created: 1, labels: BTreeMap::new() }
}

#[tokio::test]
async fn a_name_lives_from_create_to_remove_and_again() {
    let refs = store(Arc::new(InMemory::new())).await.refs();
    let kind = RefKind::Disk;
    assert_eq!(refs.get(kind, "a").await.unwrap(), None);
    let made = refs.create(kind, "a", body(1)).await.unwrap();
    assert_eq!((made.sequence, made.written), (1, testing::NOW));
    assert_eq!(refs.get(kind, "a").await.unwrap().unwrap(), made);
    assert_eq!(refs.create(kind, "a", body(2)).await.unwrap_err().kind(), ErrorKind::Conflict);
    let moved = refs.update(kind, "a", 1, body(3)).await.unwrap();
    assert_eq!((moved.sequence, moved.body.size), (2, 3));
    for error in [
        refs.update(kind, "a", 1, body(4)).await.unwrap_err(),
        refs.remove(kind, "a", 1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
    refs.remove(kind, "a", 2).await.unwrap();
    assert_eq!(refs.get(kind, "a").await.unwrap(), None);
    assert!(refs.list(kind).await.unwrap().is_empty());
    assert_eq!(refs.remove(kind, "a", 3).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(refs.create(kind, "a", body(5)).await.unwrap().sequence, 4);
}

#[tokio::test]
async fn what_was_looked_up_is_written_over_once_and_nothing_is_asked_for_meanwhile() {
    let backend = ScriptedStore::new(Arc::new(InMemory::new()), |_| StoreFault::None);
    let refs = store(Arc::new(backend.clone())).await.refs();
    let kind = RefKind::Disk;
    let mut expected = 0;
    for round in 0..2 {
        // Where there is none at first, and where it was removed later; then over a record.
        for record in [false, true] {
            let found = refs.look_up(kind, "a").await.unwrap();
            let other = refs.look_up(kind, "a").await.unwrap();
            assert_eq!(found.record().map(|record| record.sequence), record.then_some(expected));
            let before = backend.calls.log().count(|_| true);
            let written = refs.write_over(&found, body(7)).await.unwrap();
            // A removal may be cleared away at any time: that is looked at once more.
            let calls = if !record && round == 1 { 2 } else { 1 };
            assert_eq!(backend.calls.log().count(|_| true) - before, calls);
            expected += 1;
            assert_eq!(written.sequence, expected);
            assert_eq!(refs.get(kind, "a").await.unwrap(), Some(written));
            let late = refs.write_over(&other, body(8)).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Conflict);
        }
        refs.remove(kind, "a", expected).await.unwrap();
        expected += 1;
    }
}

#[tokio::test]
async fn of_many_names_the_last_one_that_is_left_is_read_and_no_other() {
    let backend = ScriptedStore::new(Arc::new(InMemory::new()), |_| StoreFault::None);
    let refs = store(Arc::new(backend.clone())).await.refs();
    let kind = RefKind::Parcel;
    for name in ["work@2", "work@10", "work@9", "play@30", "work@11"] {
        refs.create(kind, name, body(1)).await.unwrap();
    }
    refs.remove(kind, "work@11", 1).await.unwrap();
    let last = async || {
        let number = |name: &str| name.strip_prefix("work@")?.parse::<u64>().ok();
        let before = backend.calls.log().count(|call| matches!(call, StoreCall::Get(_)));
        let found = refs.last_of(kind, number).await.map(|found| found.map(|found| found.name));
        let gets = backend.calls.log().count(|call| matches!(call, StoreCall::Get(_))) - before;
        (found, gets)
    };
    let (found, gets) = last().await;
    assert_eq!((found.unwrap().as_deref(), gets), (Some("work@10"), 2));
    // What cannot be read might be the last one, where it is not before it.
    let damage = async |name: &str| {
        let path = Path::from(format!("refs/parcel/{name}/00000000000000000001"));
        backend.put(&path, PutPayload::from_static(b"damaged")).await.unwrap();
    };
    damage("work@9").await;
    assert_eq!(last().await.0.unwrap().as_deref(), Some("work@10"));
    damage("work@10").await;
    assert_eq!(last().await.0.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(refs.last_of(kind, |_| None::<u64>).await.unwrap(), None);
}

#[tokio::test]
async fn kinds_are_apart_and_a_list_is_sorted() {
    let refs = store(Arc::new(InMemory::new())).await.refs();
    for name in ["b:2", "a:1", "b:1"] {
        refs.create(RefKind::Image, name, body(1)).await.unwrap();
    }
    refs.create(RefKind::Snapshot, "a@1", body(1)).await.unwrap();
    refs.update(RefKind::Image, "b:1", 1, body(2)).await.unwrap();
    let names: Vec<_> = refs
        .list(RefKind::Image)
        .await
        .unwrap()
        .records
        .into_iter()
        .map(|r| (r.name, r.sequence))
        .collect();
    assert_eq!(names, [("a:1".into(), 1), ("b:1".into(), 2), ("b:2".into(), 1)]);
    assert_eq!(refs.list(RefKind::Snapshot).await.unwrap().records.len(), 1);
    assert!(refs.list(RefKind::Disk).await.unwrap().is_empty());
}

#[tokio::test]
async fn names_of_the_wrong_form_are_refused() {
    let refs = store(Arc::new(InMemory::new())).await.refs();
    for (kind, name) in [
        (RefKind::Image, "debian"),
        (RefKind::Image, "debian:"),
        (RefKind::Image, "../x:1"),
        (RefKind::Disk, "a@b"),
        (RefKind::Disk, "a/b"),
        (RefKind::Disk, ""),
        (RefKind::Snapshot, "disk"),
        (RefKind::Parcel, "work"),
        (RefKind::Machine, "work@1"),
    ] {
        let error = refs.create(kind, name, body(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
    }
}

#[tokio::test]
async fn of_32_racing_creators_one_wins_on_every_backend() {
    let dir = tempfile::tempdir().unwrap();
    let backends: [Arc<dyn ObjectStore>; 2] =
        [Arc::new(InMemory::new()), objects::local(dir.path()).unwrap()];
    for backend in backends {
        let store = store(backend).await;
        for round in 0..4 {
            let name = format!("disk{round}");
            let mut tasks = tokio::task::JoinSet::new();
            for size in 0..32 {
                let (refs, name) = (store.refs(), name.clone());
                tasks.spawn(async move { refs.create(RefKind::Disk, &name, body(size)).await });
            }
            let mut winners = Vec::new();
            while let Some(outcome) = tasks.join_next().await {
                match outcome.unwrap() {
                    Ok(record) => winners.push(record),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
                }
            }
            assert_eq!(winners.len(), 1, "{store:?}");
            let found = store.refs().get(RefKind::Disk, &name).await.unwrap().unwrap();
            assert_eq!(found, winners[0]);
        }
    }
}

#[tokio::test]
async fn a_gap_hides_nothing_and_a_foreign_object_is_corrupt_and_named() {
    let backend = Arc::new(InMemory::new());
    let refs = store(backend.clone()).await.refs();
    refs.create(RefKind::Disk, "a", body(1)).await.unwrap();
    refs.update(RefKind::Disk, "a", 1, body(2)).await.unwrap();
    refs.update(RefKind::Disk, "a", 2, body(3)).await.unwrap();
    let record = |n: u64| Path::from(key(RefKind::Disk, "a", n));
    backend.delete(&record(1)).await.unwrap();
    assert_eq!(refs.get(RefKind::Disk, "a").await.unwrap().unwrap().sequence, 3);
    refs.update(RefKind::Disk, "a", 3, body(4)).await.unwrap();
    backend.delete(&record(3)).await.unwrap();
    assert_eq!(refs.get(RefKind::Disk, "a").await.unwrap().unwrap().sequence, 4);
    assert_eq!(refs.update(RefKind::Disk, "a", 4, body(5)).await.unwrap().sequence, 5);

    let refs = store(Arc::new(InMemory::new())).await.refs();
    let stray = Path::from("refs/disk/a/notes.txt");
    refs.store.backend().put_opts(&stray, PutPayload::new(), Default::default()).await.unwrap();
    let error = refs.get(RefKind::Disk, "a").await.unwrap_err();
    assert!(error.message().contains("notes.txt"), "{error}");
}

#[tokio::test]
async fn a_damaged_name_is_listed_with_its_error_and_hides_no_other() {
    let backend = Arc::new(InMemory::new());
    let refs = store(backend.clone()).await.refs();
    for name in ["a:1", "b:1", "c:1", "d:1", "e:1"] {
        refs.create(RefKind::Image, name, body(1)).await.unwrap();
    }
    let put = async |path: String, text: &'static str| {
        backend.put(&Path::from(path), text.into()).await.unwrap();
    };
    put(key(RefKind::Image, "b:1", 1), "garbage").await;
    put(key(RefKind::Image, "c:1", 3), "not a record, a gap before it").await;
    put("refs/image/d:1/notes.txt".into(), "stray").await;
    put("refs/image/lost".into(), "stray").await;
    put("refs/image/not a name/00000000000000000001".into(), "stray").await;
    let listing = refs.list(RefKind::Image).await.unwrap();
    let good: Vec<&str> = listing.records.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(good, ["a:1", "e:1"]);
    let damaged: Vec<&str> = listing.damaged.iter().map(|bad| bad.name.as_str()).collect();
    assert_eq!(damaged, ["b:1", "c:1", "d:1", "lost", "not a name"]);
    for bad in &listing.damaged {
        assert_eq!(bad.error.kind(), ErrorKind::Corrupt);
        assert!(bad.error.message().contains(&bad.name), "{}", bad.error);
    }
}

/// A backend whose creations take a day, in which another writer does something.
async fn asleep(
    slow: impl AsyncFnOnce(&Refs) -> Result<()>,
    meanwhile: impl AsyncFnOnce(&Refs, &InMemory),
) -> (Arc<InMemory>, Refs, Result<()>) {
    let inner = Arc::new(InMemory::new());
    let sleepy = ScriptedStore::new(inner.clone(), |call| match call {
        StoreCall::Put(_) => StoreFault::Hold,
        _ => StoreFault::None,
    });
    Store::create(inner.clone(), testing::settings(), testing::world(9)).await.unwrap();
    let clock = Arc::new(testing::FixedClock::new(testing::NOW));
    let world =
        crate::World { clock: clock.clone(), entropy: Arc::new(testing::FixedEntropy::new(5)) };
    let slow_refs = Store::open(Arc::new(sleepy.clone()), world).await.unwrap().refs();
    let refs = Store::open(inner.clone(), testing::world(6)).await.unwrap().refs();
    refs.create(RefKind::Disk, "a", body(1)).await.unwrap();
    let others = async {
        sleepy.calls.until(|log| log.held == 1).await;
        clock.set(testing::NOW + 86_400);
        meanwhile(&refs, &inner).await;
        sleepy.calls.release(1);
    };
    let (outcome, ()) = tokio::join!(slow(&slow_refs), others);
    (inner, refs, outcome)
}

async fn forget(backend: &InMemory, sequence: u64) {
    backend.delete(&Path::from(key(RefKind::Disk, "a", sequence))).await.unwrap();
}

#[tokio::test]
async fn who_slept_while_a_row_was_trimmed_has_not_written_and_leaves_nothing() {
    let (_, refs, outcome) = asleep(
        async |refs| refs.update(RefKind::Disk, "a", 1, body(99)).await.map(drop),
        async |refs, backend| {
            for last in 1..5 {
                refs.update(RefKind::Disk, "a", last, body(last + 1)).await.unwrap();
            }
            forget(backend, 1).await;
            forget(backend, 2).await;
            forget(backend, 3).await;
        },
    )
    .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
    let found = refs.get(RefKind::Disk, "a").await.unwrap().unwrap();
    assert_eq!((found.sequence, found.body.size), (5, 5));
    assert_eq!(
        refs.check_key(&key(RefKind::Disk, "a", 2)).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn who_slept_until_a_removal_was_forgotten_brings_no_name_back() {
    let (_, refs, outcome) = asleep(
        async |refs| refs.update(RefKind::Disk, "a", 1, body(99)).await.map(drop),
        async |refs, backend| {
            refs.remove(RefKind::Disk, "a", 1).await.unwrap();
            forget(backend, 1).await;
            forget(backend, 2).await;
        },
    )
    .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(refs.get(RefKind::Disk, "a").await.unwrap(), None);
}

#[tokio::test]
async fn who_slept_while_nobody_else_wrote_has_written() {
    let (_, refs, outcome) = asleep(
        async |refs| refs.update(RefKind::Disk, "a", 1, body(99)).await.map(drop),
        async |_, _| {},
    )
    .await;
    outcome.unwrap();
    assert_eq!(refs.get(RefKind::Disk, "a").await.unwrap().unwrap().body.size, 99);
}

fn sample(settings: &Settings) -> (String, Bytes, RefDocument) {
    let document = RefDocument {
        kind: RefKind::Image,
        name: "debian:3".into(),
        sequence: 7,
        writer: WriterId([0xab; 16]),
        written: 5,
        body: Some(RefBody {
            manifest: Some(ManifestId([0x3c; 32])),
            size: 1 << 30,
            created: 4,
            labels: [("source".to_owned(), "debian.raw".to_owned())].into(),
        }),
    };
    let key = key(RefKind::Image, "debian:3", 7);
    (key.clone(), document.encode(settings, &key).unwrap(), document)
}

#[test]
fn any_truncation_or_flipped_bit_of_a_record_is_refused() {
    for settings in [testing::settings(), testing::encrypted_settings()] {
        let (key, good, document) = sample(&settings);
        let read = |bytes: &[u8]| RefDocument::decode(&settings, &key, bytes);
        assert_eq!(read(&good).unwrap().into_record(), document.into_record());
        for len in 0..good.len() {
            assert!(read(&good[..len]).is_err(), "{len} bytes");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                let error = read(&bad).err().expect("a flipped bit was accepted");
                assert!(error.message().contains(&key));
            }
        }
    }
}

#[test]
fn a_record_in_clear_does_not_pass_in_an_encrypted_store_nor_the_reverse() {
    let (plain, encrypted) = (testing::settings(), testing::encrypted_settings());
    for (writer, reader) in [(&plain, &encrypted), (&encrypted, &plain)] {
        let (key, bytes, _) = sample(writer);
        let error = RefDocument::decode(reader, &key, &bytes).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("not encrypted"), "{error}");
    }
}

#[test]
fn the_length_of_a_sealed_record_says_little_of_its_name() {
    let settings = testing::encrypted_settings();
    let lengths: Vec<usize> = ["a:1", "a-much-longer-name-than-that:1"]
        .map(|name| {
            let (_, _, document) = sample(&settings);
            let document = RefDocument { name: name.into(), ..document };
            document.encode(&settings, "refs/image/x/1").unwrap().len()
        })
        .to_vec();
    assert_eq!(lengths[0], lengths[1]);
}

#[tokio::test]
async fn names_live_hidden_in_an_encrypted_store_as_in_one_in_clear() {
    let backend = Arc::new(InMemory::new());
    let secret = crate::Secret::key_file(vec![1; 32]).unwrap();
    let new = crate::NewKey { name: "first", secret: &secret, cost: crate::Argon2Cost::TRIVIAL };
    let (settings, world) = (testing::encrypted_settings(), testing::world(1));
    let refs =
        Store::create_encrypted(backend.clone(), settings, world, &new).await.unwrap().refs();
    for name in ["b", "a", "c"] {
        refs.create(RefKind::Disk, name, body(1)).await.unwrap();
    }
    refs.update(RefKind::Disk, "b", 1, body(2)).await.unwrap();
    refs.remove(RefKind::Disk, "c", 1).await.unwrap();
    let again = refs.create(RefKind::Disk, "a", body(5)).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    let found = refs.list(RefKind::Disk).await.unwrap().records;
    let found: Vec<_> = found.iter().map(|r| (r.name.as_str(), r.sequence)).collect();
    assert_eq!(found, [("a", 1), ("b", 2)]);
    assert_eq!(refs.get(RefKind::Disk, "b").await.unwrap().unwrap().body.size, 2);
    // A record that was copied to where another one of the row would be is refused.
    let place = refs.place(RefKind::Disk, "a");
    let from = Path::from(key(RefKind::Disk, &place, 1));
    backend.copy(&from, &Path::from(key(RefKind::Disk, &place, 2))).await.unwrap();
    assert_eq!(refs.get(RefKind::Disk, "a").await.unwrap_err().kind(), ErrorKind::Corrupt);
    let listing = refs.list(RefKind::Disk).await.unwrap();
    assert_eq!((listing.records.len(), listing.damaged.len()), (1, 1));
}

#[tokio::test]
async fn a_record_under_another_name_is_refused() {
    let backend = Arc::new(InMemory::new());
    let refs = store(backend.clone()).await.refs();
    refs.create(RefKind::Disk, "a", body(1)).await.unwrap();
    let from = Path::from(key(RefKind::Disk, "a", 1));
    backend.copy(&from, &Path::from(key(RefKind::Disk, "b", 1))).await.unwrap();
    assert_eq!(refs.get(RefKind::Disk, "b").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_newer_version_is_refused_by_its_number_and_a_flipped_bit_is_no_newer_version() {
    let settings = testing::settings();
    let (key, good, _) = sample(&settings);
    let text = String::from_utf8(good.to_vec()).unwrap().replace("ref 1 ", "ref 12 ");
    let error = RefDocument::decode(&settings, &key, text.as_bytes()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "it lacks the checksum of a newer version");
    let start = "sojourn-ref 12 ".len();
    let others = format!("{}{}", &text[..start], &text[start + 8..]);
    let sum = format!("{:08x}", crc32c::crc32c(others.as_bytes()));
    let newer = format!("{}{sum}{}", &text[..start], &text[start + 8..]);
    let error = RefDocument::decode(&settings, &key, newer.as_bytes()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("version 12"));
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.to_vec();
            bad[at] ^= 1 << bit;
            let error = RefDocument::decode(&settings, &key, &bad).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit} of byte {at}");
        }
    }
}

#[tokio::test]
async fn labels_that_are_too_long_are_refused() {
    let refs = store(Arc::new(InMemory::new())).await.refs();
    let mut long = body(1);
    long.labels.insert("x".into(), "y".repeat(70_000));
    let error = refs.create(RefKind::Disk, "a", long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_record_of_another_writer_is_written_over_the_one_that_it_was_judged_by_alone() {
    let refs = store(Arc::new(InMemory::new())).await.refs();
    let (kind, name) = (RefKind::Disk, "a");
    refs.create(kind, name, body(1)).await.unwrap();
    let before = refs.newest_keyed(kind, name).await.unwrap();
    let offered = async |sequence| {
        let document = RefDocument {
            kind,
            name: name.to_owned(),
            sequence,
            writer: WriterId([4; 16]),
            written: 1,
            body: Some(body(7)),
        };
        let key = RefKey { kind, row: name.to_owned(), sequence };
        let bytes = document.encode(refs.store.settings(), &key.text()).unwrap();
        (KeyedRecord::decode(&refs, &key, &bytes).unwrap(), bytes)
    };
    let (next, bytes) = offered(2).await;
    assert!(!refs.write_keyed(&next, None, bytes.clone()).await.unwrap());
    let (ahead, far) = offered(3).await;
    assert!(!refs.write_keyed(&ahead, before.as_ref(), far.clone()).await.unwrap());
    // The gap is filled by somebody else, perhaps with a fence or a removal.
    refs.update(kind, name, 1, body(2)).await.unwrap();
    assert!(!refs.write_keyed(&ahead, before.as_ref(), far.clone()).await.unwrap());
    assert!(!refs.write_keyed(&next, before.as_ref(), bytes).await.unwrap());
    assert_eq!(refs.get(kind, name).await.unwrap().unwrap().body, body(2));
    let before = refs.newest_keyed(kind, name).await.unwrap();
    for _ in 0..2 {
        assert!(refs.write_keyed(&ahead, before.as_ref(), far.clone()).await.unwrap());
    }
    assert_eq!(refs.get(kind, name).await.unwrap().unwrap().body, body(7));
}
