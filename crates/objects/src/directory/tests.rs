use super::*;
use crate::Created;
use block::fs::simulated::{FaultRates, Machine, Nature};
use block::offload::Inline;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

const KEY: &str = "packs/a";

/// A store in a simulated directory, as a process sees it that starts now.
fn start(machine: &Machine) -> Directory {
    Directory::new(FsPath::on(Arc::new(machine.start()), "/store")).unwrap()
}

fn machine(nature: Nature, seed: u64) -> Machine {
    let machine = Machine::new(nature, seed);
    crate::create_local(FsPath::on(Arc::new(machine.start()), "/store")).unwrap();
    machine
}

fn content() -> Bytes {
    Bytes::from(vec![7; 3000])
}

async fn is_whole(machine: &Machine) -> bool {
    let found = crate::get(&start(machine), KEY, 1 << 20).await;
    found.is_ok_and(|found| found == content())
}

#[tokio::test]
async fn what_exists_already_is_durable_when_that_was_answered() {
    let _inline = Inline::on_this_thread();
    for nature in Nature::ALL {
        for seed in 0..400 {
            let machine = machine(nature, seed);
            // The first writer is killed at some call, also before it synced what can be seen.
            let first = start(&machine);
            machine.kill_after(seed % 20);
            let _ = crate::put_content(&first, KEY, content(), 100).await;
            crate::put_content(&start(&machine), KEY, content(), 100).await.unwrap();
            machine.lose_power();
            assert!(is_whole(&machine).await, "{nature:?}, seed {seed}");
        }
    }
}

#[tokio::test]
async fn what_is_no_file_is_no_object() {
    let place = tempfile::tempdir().unwrap();
    let store = Directory::new(place.path().into()).unwrap();
    crate::put_content(&store, KEY, content(), 100).await.unwrap();
    let packs = place.path().join("packs");
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, packs.join("pipe"), pipe, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(packs.join("socket")).unwrap();

    let listed: Vec<_> = store.list(Some(&"packs".into())).try_collect().await.unwrap();
    assert_eq!(listed.iter().map(|meta| meta.location.as_ref()).collect::<Vec<_>>(), [KEY]);
    let listed = store.list_with_delimiter(Some(&"packs".into())).await.unwrap();
    assert_eq!(listed.objects.len(), 1);
    let found = crate::get(&store, "packs/socket", 100).await.unwrap_err();
    assert_eq!(found.kind(), block::ErrorKind::NotFound, "{found}");
    let part = crate::get_range(&store, &"packs/socket".into(), 0, 1).await.unwrap_err();
    assert_eq!(part.kind(), block::ErrorKind::NotFound, "{part}");
}

#[tokio::test]
async fn what_a_listing_of_a_directory_shows_is_durable() {
    let _inline = Inline::on_this_thread();
    for nature in Nature::ALL {
        for seed in 0..400 {
            let machine = machine(nature, seed);
            let first = start(&machine);
            machine.kill_after(seed % 20);
            let _ = crate::put_content(&first, KEY, content(), 100).await;
            let next = start(&machine);
            let listed: Vec<_> = next.list(Some(&"packs".into())).try_collect().await.unwrap();
            machine.lose_power();
            assert!(listed.is_empty() || is_whole(&machine).await, "{nature:?}, seed {seed}");
        }
    }
}

/// The names in the directory of the objects.
fn names(machine: &Machine) -> Vec<String> {
    let directory = FsPath::on(Arc::new(machine.start()), "/store/packs");
    let found = directory.read_dir().unwrap_or_default();
    found.into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
}

#[tokio::test]
async fn no_name_that_was_removed_comes_back_after_the_answer() {
    let _inline = Inline::on_this_thread();
    for nature in Nature::ALL {
        for seed in 0..200 {
            let machine = machine(nature, seed);
            let directory = start(&machine);
            crate::put_content(&directory, KEY, content(), 100).await.unwrap();
            // Also when somebody was quicker.
            crate::put_content(&directory, KEY, content(), 100).await.unwrap();
            machine.lose_power();
            assert_eq!(names(&machine), ["a"], "{nature:?}, seed {seed}");
            let directory = start(&machine);
            directory.delete(&KEY.into()).await.unwrap();
            machine.lose_power();
            assert_eq!(names(&machine), [""; 0], "{nature:?}, seed {seed}");
        }
    }
}

#[tokio::test]
async fn a_directory_in_the_place_of_one_that_was_synced_is_synced_too() {
    let _inline = Inline::on_this_thread();
    for nature in Nature::ALL {
        for seed in 0..200 {
            let machine = machine(nature, seed);
            let directory = start(&machine);
            crate::put_content(&directory, KEY, content(), 100).await.unwrap();
            // As if the share were mounted again, and a backup of it this time.
            let store = &directory.root;
            store.join("packs").rename(&store.join("away")).unwrap();
            store.sync_directory().unwrap();
            crate::put_content(&directory, KEY, content(), 100).await.unwrap();
            machine.lose_power();
            assert!(is_whole(&machine).await, "{nature:?}, seed {seed}");
        }
    }
}

#[tokio::test]
async fn a_name_that_cannot_be_synced_is_no_success() {
    let _inline = Inline::on_this_thread();
    for nature in Nature::ALL {
        let mut lost = 0;
        for seed in 0..50 {
            let machine = machine(nature, seed);
            let directory = start(&machine);
            directory.put(&"packs/b".into(), "b".into()).await.unwrap();
            machine.set_faults(FaultRates { sync_directory: 1000, ..FaultRates::default() });
            let outcome = match seed % 2 {
                0 => crate::put_new(&directory, KEY, content()).await.map(|made| {
                    assert_eq!(made, Created::Ours);
                }),
                _ => crate::put_content(&directory, KEY, content(), 100).await,
            };
            let error = outcome.expect_err("it is not durable");
            assert_eq!(error.kind(), Kinds::Unavailable, "{error}");
            machine.lose_power();
            lost += u32::from(!is_whole(&machine).await);
        }
        assert!(lost > 0, "{nature:?}: it may be lost");
    }
}
