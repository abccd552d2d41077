//! The life of a disk: making, sharing, refusing, rebasing, crashes between steps.

use crate::common::{Home, LENGTH as BLOCK, Spy, bytes, cache, golden, home, kind, put, same};
use block::{Attempt, Device, Durability, ErrorKind, Span, ZeroMode, conformance};
use disk::{CreateOptions, Disk, DiskSource, Ending, Image, Mode, Rebase, Resident};
use std::sync::Arc;
use std::time::Duration;
use store::RefKind;

fn set(bytes: &mut [u8], block: usize, value: u8) {
    bytes[block * BLOCK..(block + 1) * BLOCK].fill(value);
}

#[tokio::test]
async fn an_image_is_a_read_only_device() {
    let home = Home::new().await;
    let mut image = golden(3, 300);
    image[400_000..800_000].fill(0);
    home.image("golden:1", &image).await;
    let found = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    let manifest = home.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let device = Image::new(home.store.clone(), manifest, cache());
    device.prefetch(Span::whole(device.size())).await.unwrap();
    conformance::check_read_only(&device, &image).await;
    let extents = device.extents(Span::whole(device.size()), usize::MAX).await.unwrap();
    assert!(extents.iter().any(|e| e.kind.reads_zero() && e.span.len() >= 390_000));
}

#[tokio::test]
async fn a_read_that_has_to_wait_counts_each_chunk_once() {
    let home = Home::new().await;
    let image = golden(3, 300);
    home.image("golden:1", &image).await;
    let found = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    let manifest = home.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let whole = Span::whole(manifest.size());
    let chunks = manifest.chunks().await.unwrap().len() as u64;
    assert!(chunks > 2, "{chunks} chunks are too few to tell");
    let cache = cache();
    let device = Image::new(home.store.clone(), manifest, Arc::clone(&cache));
    device.read(Span::whole(BLOCK as u64), &mut [0; BLOCK]).await.unwrap();
    let before = cache.stats();
    let mut buf = vec![0; image.len()];
    assert_eq!(device.try_read(whole, &mut buf).unwrap(), Attempt::WouldWait);
    device.read(whole, &mut buf).await.unwrap();
    same(&buf, &image);
    let after = cache.stats();
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (1, chunks - 1));
}

#[tokio::test]
async fn a_disk_over_an_image_keeps_the_device_contract() {
    let home = Home::new().await;
    let image = golden(2, 256);
    home.image("golden:1", &image).await;
    home.create("d", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("d").await;
    conformance::against_bytes(&*disk, image, 4).await;
    let counters = disk.counters();
    assert!(counters.read > 0 && counters.written > 0 && counters.private > 0);
}

#[tokio::test]
async fn disks_of_one_image_see_only_their_own_writes() {
    let (home, image) = home().await;
    for name in ["a", "b"] {
        home.create(name, "golden:1", Mode::Persistent).await.unwrap();
    }
    let (a, b) = (home.open("a").await, home.open("b").await);
    put(&a, 3, 0xaa).await;
    same(&bytes(&*b).await, &image);
    assert_ne!(bytes(&*a).await, image);
    let list = home.disks.list().await.unwrap();
    assert_eq!(list.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(list[0].private_bytes > 0 && list[1].private_bytes == 0);
    assert_eq!(list[0].image, "golden:1");
}

#[tokio::test]
async fn bad_names_sizes_and_images_are_refused() {
    let (home, image) = home().await;
    let long = "x".repeat(300);
    for name in ["", "a/b", "..", ".hidden", long.as_str()] {
        assert_eq!(kind(home.create(name, "golden", Mode::Persistent).await), ErrorKind::Invalid);
        assert_eq!(kind(home.disks.open(name).await), ErrorKind::Invalid);
        assert_eq!(kind(home.disks.remove(name).await), ErrorKind::Invalid);
    }
    assert_eq!(kind(home.create("a", "nothing", Mode::Persistent).await), ErrorKind::NotFound);
    assert_eq!(kind(home.create("a", "golden:9", Mode::Persistent).await), ErrorKind::NotFound);
    for size in [0, 512, image.len() as u64 + 1, u64::MAX] {
        let options = CreateOptions { size: Some(size), mode: Mode::Persistent };
        let made = home.disks.create("a", &"golden".parse().unwrap(), options).await;
        assert_eq!(kind(made), ErrorKind::Invalid, "size {size}");
    }
    assert!(home.disks.list().await.unwrap().is_empty());
    assert_eq!(kind(home.disks.open("a").await), ErrorKind::NotFound);
    assert_eq!(kind(home.disks.remove("a").await), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_disk_made_from_a_snapshot_holds_what_that_does_and_goes_its_own_way() {
    let (home, image) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 1, 9).await;
    disk.snapshot("s", &()).await.unwrap();
    let then = crate::common::bytes(&*disk).await;
    put(&disk, 1, 8).await;
    let options = CreateOptions::default();
    home.disks.create("b", &"a@s".parse().unwrap(), options).await.unwrap();
    let other = home.open("b").await;
    assert!(crate::common::bytes(&*other).await == then && then != image);
    put(&other, 2, 7).await;
    other.snapshot("own", &()).await.unwrap();
    disk.rollback("s").await.unwrap();
    assert!(crate::common::bytes(&*disk).await == then);
    // The image and the disk that it came from may go.
    drop(disk);
    home.disks.remove("a").await.unwrap();
    other.rollback("own").await.unwrap();
    other.reset().await.unwrap();
    assert!(crate::common::bytes(&*other).await == image);
    for (disk, snapshot) in [("a", "s"), ("b", "nothing")] {
        let source = DiskSource::Snapshot { disk: disk.to_owned(), snapshot: snapshot.to_owned() };
        let made = home.disks.create("c", &source, options).await;
        assert_eq!(kind(made), ErrorKind::NotFound);
    }
    let small = CreateOptions { size: Some(512), ..options };
    let made = home.disks.create("c", &"b@own".parse().unwrap(), small).await;
    assert_eq!(kind(made), ErrorKind::Invalid);
}

#[tokio::test]
async fn of_several_disks_each_is_made_or_says_why_not() {
    let (home, image) = home().await;
    home.create("pc2", "golden", Mode::Persistent).await.unwrap();
    let taken = home.open("pc2").await;
    put(&taken, 1, 9).await;
    let names =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let (golden, options) = ("golden".parse().unwrap(), CreateOptions::default());
    let made = home.disks.create_all(&names(&["pc1", "pc2", "pc3"]), &golden, options).await;
    let made = made.unwrap();
    assert_eq!(made[1].as_ref().unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(
        (&*made[0].as_ref().unwrap().name, &*made[2].as_ref().unwrap().name),
        ("pc1", "pc3")
    );
    for name in ["pc1", "pc3"] {
        assert!(crate::common::bytes(&*home.open(name).await).await == image);
    }
    assert!(crate::common::bytes(&*taken).await != image, "the one that was there is left alone");
    // What is wrong with all of them is said once, and nothing is made.
    for (names, from, wrong) in [
        (names(&["pc4", "pc5", "pc4"]), "golden", ErrorKind::Invalid),
        (names(&["pc4", "../pc5"]), "golden", ErrorKind::Invalid),
        (names(&["pc4", "pc5"]), "nothing", ErrorKind::NotFound),
        (names(&["pc4", "pc5"]), "pc1@nothing", ErrorKind::NotFound),
    ] {
        let made = home.disks.create_all(&names, &from.parse().unwrap(), options).await;
        assert_eq!(made.unwrap_err().kind(), wrong);
    }
    assert_eq!(home.disks.list().await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_mark_is_found_again_until_the_disk_holds_something_else() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 1, 9).await;
    assert_eq!(disk.mark(), None, "nobody set one");
    let mark = disk.set_mark().await.unwrap();
    assert_eq!(disk.set_mark().await.unwrap(), mark);
    disk.flush().await.unwrap();
    drop(disk);
    let disk = home.open("a").await;
    assert_eq!(disk.mark().as_ref(), Some(&mark), "another process finds it");
    let then = bytes(&*disk).await;
    // Whatever is published of it.
    disk.snapshot("s", &()).await.unwrap();
    assert_eq!(disk.mark().as_ref(), Some(&mark));
    disk.commit(&"golden".parse().unwrap(), &()).await.unwrap();
    assert_eq!(disk.mark().as_ref(), Some(&mark));
    assert!(bytes(&*disk).await == then);
    put(&disk, 1, 9).await;
    assert_eq!(disk.mark(), None, "written, be it with the same");
    let second = disk.set_mark().await.unwrap();
    assert_ne!(second, mark);
    disk.rollback("s").await.unwrap();
    let third = disk.mark();
    assert!(third.as_ref() != Some(&mark) && third.as_ref() != Some(&second));
    drop(disk);
    home.create("e", "golden", Mode::Ephemeral).await.unwrap();
    let error = home.open("e").await.set_mark().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_disk_that_was_written_or_only_discarded_since_does_not_hold_what_it_did() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    let of = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    let golden = of.body.manifest.unwrap();
    assert!(disk.holds(&golden));
    // It takes no room.
    disk.discard(Span::whole(disk.size()), Durability::Durable).await.unwrap();
    assert_eq!(disk.info().private_bytes, 0);
    assert!(!disk.holds(&golden));
    disk.reset().await.unwrap();
    assert!(disk.holds(&golden));
    put(&disk, 1, 9).await;
    assert!(!disk.holds(&golden));
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_the_disk() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    let error = home.disks.open("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    assert_eq!(kind(home.disks.remove("a").await), ErrorKind::Conflict);
    drop(disk);
    home.open("a").await;
}

#[tokio::test]
async fn the_newest_version_is_meant_when_none_is_named() {
    let (home, _) = home().await;
    for tag in ["2", "10", "9"] {
        home.image(&format!("golden:{tag}"), &golden(7, 3)).await;
    }
    home.image("goldener:99", &golden(7, 3)).await;
    let newest = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    assert_eq!(newest.name, "golden:10");
}

#[tokio::test]
async fn removing_takes_the_snapshots_and_frees_the_name() {
    let (home, image) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 1, 9).await;
    disk.snapshot("s", &()).await.unwrap();
    drop(disk);
    assert_eq!(home.disks.snapshots(None).await.unwrap()["a"][0].name, "s");
    assert!(home.disks.snapshots(Some("b")).await.unwrap().is_empty());
    home.disks.remove("a").await.unwrap();
    assert!(home.disks.list().await.unwrap().is_empty());
    for kind in [RefKind::Disk, RefKind::Snapshot] {
        assert!(home.store.refs().list(kind).await.unwrap().is_empty());
    }
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    assert!(home.open("a").await.snapshots().await.unwrap().is_empty());
    same(&bytes(&*home.open("a").await).await, &image);
}

#[tokio::test]
async fn opening_a_disk_asks_for_no_snapshot() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    home.open("a").await.snapshot("s", &()).await.unwrap();
    let spy = Spy::on(&home);
    let disks = home.watched(&spy, 9).await;
    let disk = disks.open("a").await.unwrap();
    assert_eq!(disks.list().await.unwrap().len(), 1);
    let asked = spy.asked();
    assert!(asked.iter().any(|path| path.starts_with("refs/disk/a")), "{asked:?}");
    assert!(!asked.iter().any(|path| path.starts_with("refs/snapshot")), "{asked:?}");
    // They are there all the same, for whoever asks and for names that are taken.
    assert_eq!(disk.snapshots().await.unwrap()[0].name, "s");
    assert_eq!(kind(disk.snapshot("s", &()).await), ErrorKind::Conflict);
    disk.snapshot("t", &()).await.unwrap();
    disk.remove_snapshot("s").await.unwrap();
    let left = disk.snapshots().await.unwrap();
    assert_eq!(left.iter().map(|snapshot| &snapshot.name).collect::<Vec<_>>(), ["t"]);
    assert_eq!(disks.snapshots(Some("a")).await.unwrap()["a"], left);
}

#[tokio::test]
async fn what_crashes_left_of_disks_is_swept_and_the_disks_stay() {
    let (home, image) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let place = home.directory.path().join("disks");
    for left in [".new-b", ".gone-c"] {
        std::fs::create_dir_all(place.join(left)).unwrap();
        std::fs::write(place.join(left).join("0001.data"), "left over").unwrap();
    }
    home.disks.sweep().await;
    assert!(!place.join(".new-b").exists() && !place.join(".gone-c").exists());
    same(&bytes(&*home.open("a").await).await, &image);
    home.disks.server().await.unwrap();
    assert!(place.join(".server").exists());
}

#[tokio::test]
async fn disks_are_made_and_removed_only_while_nobody_sweeps() {
    let (home, _) = home().await;
    home.create("b", "golden", Mode::Persistent).await.unwrap();
    let place = home.directory.path().join("disks");
    let sweeping = std::fs::File::open(&place).unwrap();
    let a_while = Duration::from_millis(200);
    // What is begun is finished later: a step that waits is not undone.
    let mut making = std::pin::pin!(home.create("a", "golden", Mode::Persistent));
    let mut removing = std::pin::pin!(home.disks.remove("b"));
    sweeping.lock().unwrap();
    assert!(tokio::time::timeout(a_while, &mut making).await.is_err());
    assert!(tokio::time::timeout(a_while, &mut removing).await.is_err());
    assert!(!place.join("a").exists() && !place.join(".new-a").exists());
    assert!(place.join("b").exists());
    sweeping.unlock().unwrap();
    making.await.unwrap();
    removing.await.unwrap();
    assert!(place.join("a").exists() && !place.join("b").exists());
}

#[tokio::test]
async fn a_creation_that_crashed_leaves_nothing_in_the_way() {
    let (home, image) = home().await;
    // Before the directory had its name, and after, without the ref.
    let place = home.directory.path().join("disks");
    std::fs::create_dir_all(place.join(".new-a")).unwrap();
    std::fs::write(place.join(".new-a").join("0001.data"), "left over").unwrap();
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let refs = home.store.refs();
    let found = refs.get(RefKind::Disk, "a").await.unwrap().unwrap();
    refs.remove(RefKind::Disk, "a", found.sequence).await.unwrap();
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    // Opening makes the ref of one that was left without.
    let found = refs.get(RefKind::Disk, "a").await.unwrap().unwrap();
    refs.remove(RefKind::Disk, "a", found.sequence).await.unwrap();
    let disk = home.open("a").await;
    same(&bytes(&*disk).await, &image);
    assert!(refs.get(RefKind::Disk, "a").await.unwrap().is_some());
    // One that holds something is not thrown away.
    put(&disk, 0, 1).await;
    drop(disk);
    let found = refs.get(RefKind::Disk, "a").await.unwrap().unwrap();
    refs.remove(RefKind::Disk, "a", found.sequence).await.unwrap();
    assert_eq!(kind(home.create("a", "golden", Mode::Persistent).await), ErrorKind::Conflict);
}

#[tokio::test]
async fn a_disk_of_another_home_is_not_removed_with_its_store() {
    let (mut home, image) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 1, 9).await;
    disk.snapshot("s", &()).await.unwrap();
    drop(disk);
    // A second home on the same store: first without a directory of this name, then with one that
    // a crashed creation left.
    let first = std::mem::replace(&mut home.directory, tempfile::tempdir().unwrap());
    home.again().await;
    let error = home.disks.remove("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("another home"), "{error}");
    home.create("b", "golden", Mode::Persistent).await.unwrap();
    let place = home.directory.path().join("disks");
    std::fs::rename(place.join("b"), place.join("a")).unwrap();
    home.disks.remove("a").await.unwrap();
    assert!(!place.join("a").exists());
    let second = std::mem::replace(&mut home.directory, first);
    home.again().await;
    let disk = home.open("a").await;
    put(&disk, 1, 8).await;
    disk.rollback("s").await.unwrap();
    let mut expected = image.clone();
    set(&mut expected, 1, 9);
    same(&bytes(&*disk).await, &expected);
    drop(disk);
    // A name is given up only on request, and not while its directory is here.
    assert_eq!(kind(home.disks.remove_lost("a").await), ErrorKind::Conflict);
    home.directory = second;
    home.again().await;
    home.disks.remove_lost("a").await.unwrap();
    assert_eq!(kind(home.disks.remove_lost("a").await), ErrorKind::NotFound);
    assert!(home.store.refs().list(RefKind::Snapshot).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_disk_returns_to_its_image_or_a_snapshot() {
    let (home, image) = home().await;
    let place = home.directory.path().join("disks").join("a");
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 1, 9).await;
    disk.snapshot("s", &()).await.unwrap();
    put(&disk, 2, 9).await;
    disk.close().await.unwrap();
    drop(disk);
    let mut frozen = image.clone();
    set(&mut frozen, 1, 9);
    let cut = |len: u64| {
        for entry in std::fs::read_dir(&place).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "data") {
                std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
            }
        }
    };
    // One byte of the last private block must be there, as a disk may end or have ended in it.
    cut(3 * BLOCK as u64 - 1);
    drop(home.open("a").await);
    cut(2 * BLOCK as u64);
    assert_eq!(kind(home.disks.open("a").await), ErrorKind::Corrupt);
    let harm: [&dyn Fn(); 3] = [
        &|| std::fs::write(place.join("disk.json"), "{").unwrap(),
        &|| {
            for entry in std::fs::read_dir(&place).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|kind| kind == "map") {
                    std::fs::write(path, "short").unwrap();
                }
            }
        },
        &|| {
            for entry in std::fs::read_dir(&place).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|kind| kind == "data") {
                    std::fs::remove_file(path).unwrap();
                }
            }
        },
    ];
    let mut contents = std::collections::HashSet::from([0]);
    for damage in harm {
        for (snapshot, expected) in [(Some("s"), &frozen), (None, &image)] {
            damage();
            assert_eq!(kind(home.disks.open("a").await), ErrorKind::Corrupt);
            assert_eq!(kind(home.disks.recover("a", Some("no")).await), ErrorKind::NotFound);
            assert_eq!(kind(home.disks.open("a").await), ErrorKind::Corrupt);
            home.disks.recover("a", snapshot).await.unwrap();
            let disk = home.open("a").await;
            same(&bytes(&*disk).await, expected);
            assert!(contents.insert(disk.content()), "who had the disk would go on with it");
            assert_eq!(disk.snapshots().await.unwrap().len(), 1);
            put(&disk, 3, 7).await;
            disk.close().await.unwrap();
            drop(disk);
            assert_eq!(bytes(&*home.open("a").await).await[3 * BLOCK], 7);
        }
    }
}

#[tokio::test]
async fn a_damaged_disk_says_so_and_can_be_removed() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    home.create("b", "golden", Mode::Persistent).await.unwrap();
    let place = home.directory.path().join("disks");
    std::fs::write(place.join("a").join("disk.json"), "{").unwrap();
    std::fs::write(place.join("b").join("0001.map"), "short").unwrap();
    let list = home.disks.list().await.unwrap();
    assert_eq!(list[0].state, Resident::Damaged);
    assert!(list[0].error.as_ref().unwrap().contains("disk.json"));
    for name in ["a", "b"] {
        let error = home.disks.open(name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("sojourn disk reset"), "{error}");
        home.disks.remove(name).await.unwrap();
    }
}

#[tokio::test]
async fn the_ref_of_a_disk_names_what_it_stands_on() {
    let (mut home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    let of = |home: &Home| {
        let refs = home.store.refs();
        async move { refs.get(RefKind::Disk, "a").await.unwrap().unwrap().body }
    };
    let first = of(&home).await;
    put(&disk, 1, 5).await;
    disk.snapshot("s", &()).await.unwrap();
    let second = of(&home).await;
    assert_ne!(first.manifest, second.manifest);
    let snapshot = home.store.refs().get(RefKind::Snapshot, "a@s").await.unwrap().unwrap();
    assert_eq!(second.manifest, snapshot.body.manifest);
    assert_eq!(second.labels["image"], "golden:1");
    // The layers are gone, and so is their room.
    assert_eq!(disk.info().private_bytes, 0);
    disk.reset().await.unwrap();
    assert_eq!(of(&home).await.manifest, first.manifest);
    disk.rollback("s").await.unwrap();
    drop(disk);
    home.again().await;
    let disk = home.open("a").await;
    assert_eq!(of(&home).await.manifest, second.manifest);
    assert_eq!(bytes(&*disk).await[BLOCK..2 * BLOCK], [5; BLOCK]);
}

#[tokio::test]
async fn a_disk_says_whether_it_is_as_its_image_open_or_closed() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let mut home = home;
    // Looks at the open disk, then at what is left of it on the file system.
    macro_rules! unchanged {
        ($disk:ident) => {{
            $disk.flush().await.unwrap();
            let open = $disk.info().unchanged;
            drop($disk);
            home.again().await;
            let closed = home.disks.list().await.unwrap()[0].unchanged;
            (open, closed)
        }};
    }
    assert!(home.disks.list().await.unwrap()[0].unchanged);
    let disk = home.open("a").await;
    assert_eq!(unchanged!(disk), (true, true), "opened and closed");
    let disk = home.open("a").await;
    let (mode, durability) =
        (ZeroMode { may_punch: true, only_if_fast: false }, Durability::Buffered);
    disk.zero(Span::between(0, 4 * BLOCK as u64), mode, durability).await.unwrap();
    assert_eq!(unchanged!(disk), (false, false), "zeroed");
    let disk = home.open("a").await;
    disk.reset().await.unwrap();
    assert_eq!(unchanged!(disk), (true, true), "reset");
    let disk = home.open("a").await;
    put(&disk, 1, 5).await;
    assert_eq!(unchanged!(disk), (false, false), "written");
    let disk = home.open("a").await;
    disk.snapshot("s", &()).await.unwrap();
    assert_eq!(disk.info().private_bytes, 0, "the snapshot has them");
    assert_eq!(unchanged!(disk), (false, false), "snapshotted");
}

#[tokio::test]
async fn an_upload_that_fails_costs_nothing_and_the_next_one_makes_up_for_it() {
    let (mut home, image) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    let mut model = image;
    for round in 0..12u8 {
        put(&disk, round as usize, round + 1).await;
        set(&mut model, round as usize, round + 1);
        // Fails in the middle of whatever is written first, second, …
        home.backend.allow(u64::from(round) % 3);
        let made = disk.snapshot("s", &()).await;
        home.backend.allow(u64::MAX);
        same(&bytes(&*disk).await, &model);
        if made.is_ok() {
            disk.remove_snapshot("s").await.unwrap();
        }
    }
    disk.flush().await.unwrap();
    drop(disk);
    home.again().await;
    let disk = home.open("a").await;
    same(&bytes(&*disk).await, &model);
    disk.snapshot("all", &()).await.unwrap();
    put(&disk, 0, 99).await;
    disk.rollback("all").await.unwrap();
    same(&bytes(&*disk).await, &model);
    assert_eq!(disk.info().private_bytes, 0);
}

#[tokio::test]
async fn snapshots_are_of_one_moment_while_the_disk_is_written() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    // Block 0 is always written before block 20, so that no moment shows it older.
    let writer = {
        let disk = Arc::clone(&disk);
        async move {
            for value in 1..120u8 {
                put(&disk, 0, value).await;
                tokio::task::yield_now().await;
                put(&disk, 20, value).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let snapshots = async {
        for i in 0..8 {
            disk.snapshot(&format!("s{i}"), &()).await.unwrap();
        }
    };
    tokio::join!(writer, snapshots);
    let last = bytes(&*disk).await;
    assert!(last[0] == 119 && last[20 * BLOCK] == 119);
    for i in 0..8 {
        disk.rollback(&format!("s{i}")).await.unwrap();
        let then = bytes(&*disk).await;
        let (first, second) = (then[0], then[20 * BLOCK]);
        let before = golden(1, 40)[20 * BLOCK];
        assert!(second == first || second == first.wrapping_sub(1) || second == before);
    }
}

#[tokio::test]
async fn a_commit_is_a_new_version_and_never_an_old_one() {
    let (home, mut model) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 2, 7).await;
    set(&mut model, 2, 7);
    disk.snapshot("s", &()).await.unwrap();
    put(&disk, 5, 8).await;
    set(&mut model, 5, 8);
    let made = disk.commit(&"golden".parse().unwrap(), &()).await.unwrap();
    assert_eq!(made.name, "golden:2");
    assert_eq!(made.body.labels["parent"], "golden:1");
    same(&home.image_bytes("golden:2").await, &model);
    assert_eq!(kind(disk.commit(&"golden:2".parse().unwrap(), &()).await), ErrorKind::Conflict);
    let named = disk.commit(&"web:first".parse().unwrap(), &()).await.unwrap();
    assert_eq!(named.body.manifest, made.body.manifest);
    assert_eq!(disk.info().image, "golden:1");
    disk.reset().await.unwrap();
    same(&bytes(&*disk).await, &golden(1, 40));
}

/// A disk of version 1, with a private block 2, and block 4 private by way of a snapshot.
async fn rebased(home: &Home, image: &[u8]) -> (Arc<Disk>, Vec<u8>) {
    home.create("a", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    put(&disk, 4, 44).await;
    disk.snapshot("s", &()).await.unwrap();
    put(&disk, 2, 22).await;
    let mut mine = image.to_vec();
    set(&mut mine, 2, 22);
    set(&mut mine, 4, 44);
    (disk, mine)
}

#[tokio::test]
async fn a_rebase_merges_what_only_one_side_changed() {
    let (mut home, image) = home().await;
    let (disk, mut mine) = rebased(&home, &image).await;
    let mut new = image.clone();
    set(&mut new, 7, 77);
    set(&mut new, 4, 44); // the same as the disk's
    new.resize(new.len() + 5 * BLOCK, 9); // and larger
    home.image("golden:2", &new).await;
    let report = disk.rebase(&"golden".parse().unwrap(), Rebase::Refuse).await.unwrap();
    assert_eq!(report.image, "golden:2");
    assert!(report.both_changed.is_empty());
    set(&mut mine, 7, 77);
    mine.extend_from_slice(&new[mine.len()..]);
    same(&bytes(&*disk).await, &mine);
    assert_eq!(disk.info().image, "golden:2");
    disk.close().await.unwrap();
    drop(disk);
    home.again().await;
    let disk = home.open("a").await;
    same(&bytes(&*disk).await, &mine);
    // Its snapshot is as it was, and a reset goes to the new version.
    disk.reset().await.unwrap();
    same(&bytes(&*disk).await, &new);
    disk.rollback("s").await.unwrap();
    let mut then = image;
    set(&mut then, 4, 44);
    same(&bytes(&*disk).await, &then);
    // It belongs to its old version again, so that what that lacks is not taken for its own.
    assert_eq!(disk.info().image, "golden:1");
    disk.rebase(&"golden".parse().unwrap(), Rebase::Refuse).await.unwrap();
    same(&bytes(&*disk).await, &new);
}

#[tokio::test]
async fn a_rebase_refuses_what_both_changed_unless_told() {
    let (home, image) = home().await;
    let (disk, mut mine) = rebased(&home, &image).await;
    let mut new = image;
    for block in [2, 4, 9] {
        set(&mut new, block, 99);
    }
    home.image("golden:2", &new).await;
    let onto = "golden:2".parse().unwrap();
    let error = disk.rebase(&onto, Rebase::Refuse).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("8192..12288") && error.message().contains("16384..20480"));
    same(&bytes(&*disk).await, &mine);
    assert_eq!(disk.info().image, "golden:1");
    let report = disk.rebase(&onto, Rebase::KeepMine).await.unwrap();
    let both = [Span::between(8192, 12288), Span::between(16384, 20480)];
    assert_eq!(report.both_changed, both);
    set(&mut mine, 9, 99);
    same(&bytes(&*disk).await, &mine);
}

#[tokio::test]
async fn what_changes_a_disk_as_a_whole_waits_for_its_client() {
    let (home, _) = home().await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    disk.snapshot("s", &()).await.unwrap();
    let first = disk.attach("vm-1").await.unwrap();
    let second = disk.attach("vm-1").await.unwrap();
    let error = disk.attach("vm-2").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("vm-1"));
    assert_eq!(kind(disk.rollback("s").await), ErrorKind::Conflict);
    assert_eq!(kind(disk.reset().await), ErrorKind::Conflict);
    let onto = "golden".parse().unwrap();
    assert_eq!(kind(disk.rebase(&onto, Rebase::Refuse).await), ErrorKind::Conflict);
    // These need not wait.
    disk.snapshot("t", &()).await.unwrap();
    disk.grow(1 << 20).await.unwrap();
    assert_eq!(kind(disk.grow(512).await), ErrorKind::Invalid);
    first.detach(Ending::Clean).await.unwrap();
    assert_eq!(kind(disk.attach("vm-2").await), ErrorKind::Conflict);
    drop(second);
    disk.attach("vm-2").await.unwrap().detach(Ending::Lost).await.unwrap();
    disk.rollback("s").await.unwrap();
    assert_eq!(disk.holder(), None);
}

#[tokio::test]
async fn what_a_client_was_answered_outlives_a_kill() {
    let mut home = Home::new().await;
    home.image("debian:1", &golden(5, 300)).await;
    home.create("web", "debian", Mode::Persistent).await.unwrap();
    for ending in [None, Some(Ending::Clean), Some(Ending::Lost)] {
        let disk = home.open("web").await;
        let attachment = disk.attach("guest").await.unwrap();
        let block = 7 + ending.map_or(0, |ending| 2 + ending as u64);
        let span = Span::between(block * 4096, (block + 1) * 4096);
        disk.write(span, &[0x77; 4096], Durability::Buffered).await.unwrap();
        let written = bytes(&*disk).await;
        match ending {
            Some(ending) => attachment.detach(ending).await.unwrap(),
            None => drop(attachment),
        }
        drop(disk);
        home.again().await;
        assert_eq!(bytes(&*home.open("web").await).await, written, "{ending:?}");
    }
}

#[tokio::test]
async fn a_reset_gives_back_what_is_not_private_any_more_too() {
    let mut home = Home::new().await;
    let image = golden(5, 300);
    home.image("debian:1", &image).await;
    home.create("web", "debian", Mode::Persistent).await.unwrap();
    let disk = home.open("web").await;
    let span = Span::between(0, 1 << 20);
    disk.write(span, &vec![0x77; 1 << 20], Durability::Buffered).await.unwrap();
    drop(disk);
    // A kill before anything was flushed, and the notes of what was written are gone: no block is private.
    std::fs::remove_file(home.directory.path().join("disks/web/0001.recent")).unwrap();
    home.again().await;
    let disk = home.open("web").await;
    assert!(disk.info().private_bytes >= 1 << 20);
    assert_eq!(bytes(&*disk).await, image);
    disk.reset().await.unwrap();
    assert_eq!(disk.info().private_bytes, 0);
}
