use super::*;
use crate::testing::{FaultRates, Unreliable};
use crate::{OpenStoreOptions, Opened, Patience, exact, get, get_range, get_range_with, layered};
use block::conformance::Sequence;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use proptest::prelude::*;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

/// A remote store with one pack of `len` bytes.
async fn remote(len: usize) -> (Vec<u8>, Unreliable, Path) {
    let bytes = Sequence::new(5).bytes(len);
    let memory = InMemory::new();
    let path = Path::from("packs/a");
    memory.put(&path, bytes.clone().into()).await.unwrap();
    memory.put(&Path::from("segments/s"), "a segment".into()).await.unwrap();
    memory.put(&Path::from("refs/r"), "a ref".into()).await.unwrap();
    (bytes, Unreliable::new(Arc::new(memory), 1, FaultRates::default()), path)
}

fn open(remote: &Unreliable, dir: &FilePath, limit: u64) -> Opened {
    let pieces = Some(PieceOptions { dir: dir.to_owned(), limit });
    let options = OpenStoreOptions { pieces, ..OpenStoreOptions::default() };
    layered(Arc::new(remote.clone()), "s3://test", &options, |patient| patient)
}

fn files(dir: &FilePath) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let inside = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
    let mut files: Vec<_> = inside.map(|file| file.path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn what_was_read_once_needs_no_network_even_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(1 << 20).await;
    let first = open(&counted, dir.path(), 1 << 30);
    for (offset, len) in [(0, 16), (100_000, 200_000), ((1 << 20) - 5, 5)] {
        let found = get_range(&*first.backend, &path, offset, len).await.unwrap();
        assert_eq!(found, bytes[offset as usize..(offset + len) as usize]);
    }
    let tail = get_range_with(&*first.backend, &path, 1_000_000, 576, Hint::Exact).await.unwrap();
    assert_eq!(get(&*first.backend, "segments/s", 100).await.unwrap(), "a segment");
    counted.set_down(true);
    let second = open(&counted, dir.path(), 1 << 30);
    let found = get_range(&*second.backend, &path, 90_000, 250_000).await.unwrap();
    assert_eq!(found, bytes[90_000..340_000]);
    let again = get_range_with(&*second.backend, &path, 1_000_000, 576, Hint::Exact).await;
    assert_eq!(again.unwrap(), tail);
    assert_eq!(get(&*second.backend, "segments/s", 100).await.unwrap(), "a segment");
    let counters = second.link.pieces().unwrap();
    assert_eq!((counters.misses, counters.hits), (0, 5));
}

#[tokio::test]
async fn names_are_never_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counted, _) = remote(10).await;
    let opened = open(&counted, dir.path(), 1 << 30);
    for turn in 1..=3 {
        get(&*opened.backend, "refs/r", 100).await.unwrap();
        assert_eq!(counted.calls(), turn);
    }
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn damaged_cut_and_foreign_files_are_fetched_again() {
    let (bytes, counted, path) = remote(300_000).await;
    let damage: [fn(&FilePath); 4] = [
        |file| {
            let mut content = std::fs::read(file).unwrap();
            let middle = content.len() / 2;
            content[middle] ^= 1;
            std::fs::write(file, content).unwrap();
        },
        |file| {
            let cut = std::fs::OpenOptions::new().write(true).open(file).unwrap();
            cut.set_len(cut.metadata().unwrap().len() / 2).unwrap();
        },
        |file| std::fs::write(file, "").unwrap(),
        |file| std::fs::remove_file(file).unwrap(),
    ];
    for damage in damage {
        let dir = tempfile::tempdir().unwrap();
        let opened = open(&counted, dir.path(), 1 << 30);
        for _ in 0..2 {
            let found = get_range(&*opened.backend, &path, 0, 300_000).await.unwrap();
            assert_eq!(found, bytes);
            assert_eq!(files(dir.path()).len(), 3);
            files(dir.path()).iter().for_each(|file| damage(file));
        }
        // One file in the place of another.
        get_range(&*opened.backend, &path, 0, 300_000).await.unwrap();
        let kept = files(dir.path());
        std::fs::copy(&kept[0], &kept[1]).unwrap();
        assert_eq!(get_range(&*opened.backend, &path, 0, 300_000).await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn the_directory_may_go_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(500_000).await;
    let opened = open(&counted, &dir.path().join("cache"), 1 << 30);
    for _ in 0..3 {
        assert_eq!(
            get_range(&*opened.backend, &path, 7, 400_000).await.unwrap(),
            bytes[7..400_007]
        );
        std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
    }
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_a_detour() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(500_000).await;
    // A file stands where the directory should be.
    let place = dir.path().join("cache");
    std::fs::write(&place, "in the way").unwrap();
    let opened = open(&counted, &place, 1 << 30);
    for _ in 0..2 {
        assert_eq!(
            get_range(&*opened.backend, &path, 7, 400_000).await.unwrap(),
            bytes[7..400_007]
        );
    }
    let counters = opened.link.pieces().unwrap();
    assert!(counters.not_kept >= 4 && counters.hits == 0, "{counters:?}");
}

#[tokio::test]
async fn the_limit_is_kept_and_the_least_recently_used_goes_first() {
    // Room is made at once, and not behind.
    let _inline = block::offload::Inline::on_this_thread();
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(16 << 20).await;
    let limit = 4 << 20;
    let opened = open(&counted, dir.path(), limit);
    get_range(&*opened.backend, &path, 0, 10).await.unwrap();
    for file in files(dir.path()) {
        let old = std::fs::File::open(&file).unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let used = files(dir.path());
    for offset in (0..16 << 20).step_by(1 << 18) {
        let found = get_range(&*opened.backend, &path, offset, 1 << 18).await.unwrap();
        assert_eq!(found, bytes[offset as usize..][..1 << 18]);
        let total: u64 = files(dir.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(total <= limit + limit / 8, "{total}");
    }
    assert!(!files(dir.path()).contains(&used[0]));
    assert!(opened.link.pieces().unwrap().evicted_bytes > 8 << 20);
}

#[tokio::test]
async fn an_object_that_is_written_anew_is_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counted, path) = remote(300_000).await;
    let opened = open(&counted, dir.path(), 1 << 30);
    get_range(&*opened.backend, &path, 0, 300_000).await.unwrap();
    let better = Sequence::new(6).bytes(300_000);
    opened.backend.put(&path, better.clone().into()).await.unwrap();
    assert_eq!(get_range(&*opened.backend, &path, 0, 300_000).await.unwrap(), better);
}

#[tokio::test]
async fn what_was_repaired_elsewhere_is_read_anew_when_it_is_asked_for_fresh() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counted, path) = remote(300_000).await;
    let opened = open(&counted, dir.path(), 1 << 30);
    get_range(&*opened.backend, &path, 1000, 5000).await.unwrap();
    let better = Sequence::new(6).bytes(300_000);
    counted.put(&path, better.clone().into()).await.unwrap();
    let stale = get_range(&*opened.backend, &path, 1000, 5000).await.unwrap();
    assert_ne!(stale, better[1000..6000]);
    let fresh = get_range_with(&*opened.backend, &path, 1000, 5000, Hint::Fresh).await.unwrap();
    assert_eq!(fresh, better[1000..6000]);
    assert_eq!(get_range(&*opened.backend, &path, 1000, 5000).await.unwrap(), fresh);
}

#[tokio::test]
async fn what_is_kept_stays_when_it_is_asked_for_fresh_and_is_the_same_or_the_store_is_away() {
    let (bytes, counted, path) = remote(300_000).await;
    counted.put(&Path::from("segments/s"), bytes.clone().into()).await.unwrap();
    // By the piece, and as it was asked for.
    for is_exact in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let pieces = Some(PieceOptions { dir: dir.path().to_owned(), limit: 1 << 30 });
        let patience = Patience::lasting(Duration::ZERO);
        let options = OpenStoreOptions { pieces, patience, ..OpenStoreOptions::default() };
        let remote = Arc::new(counted.clone());
        let opened = match is_exact {
            true => exact(remote, "gateway+https://test", &options),
            false => layered(remote, "s3://test", &options, |patient| patient),
        };
        let backend = &*opened.backend;
        let (offset, len) = (1000, 200_000);
        let kept = get_range(backend, &path, offset, len).await.unwrap();
        get(backend, "segments/s", 1 << 20).await.unwrap();
        let before = files(dir.path());
        assert_eq!(before.len(), if is_exact { 2 } else { 3 });
        let fresh = async |len| {
            let range = get_range_with(backend, &path, offset, len, Hint::Fresh).await;
            let whole = crate::get_with(backend, "segments/s", 1 << 20, Some(Hint::Fresh)).await;
            range.map(|range| (range, whole.unwrap()))
        };
        assert_eq!(fresh(len).await.unwrap(), (kept.clone(), bytes.clone().into()));
        fresh(1 << 20).await.unwrap_err(); // the object ends before
        assert_eq!(files(dir.path()), before);
        counted.set_down(true);
        fresh(len).await.unwrap_err();
        assert_eq!(get_range(backend, &path, offset, len).await.unwrap(), kept);
        assert_eq!(get(backend, "segments/s", 1 << 20).await.unwrap(), bytes);
        counted.set_down(false);
    }
}

#[tokio::test]
async fn a_part_that_was_kept_and_came_otherwise_is_kept_as_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(500_000).await;
    let opened = open(&counted, dir.path(), 1 << 30);
    get_range(&*opened.backend, &path, 0, 500_000).await.unwrap();
    let mut better = bytes.clone();
    better[140_000] ^= 1;
    counted.put(&path, better.clone().into()).await.unwrap();
    let fresh = get_range_with(&*opened.backend, &path, 130_000, 200_000, Hint::Fresh).await;
    assert_eq!(fresh.unwrap(), better[130_000..330_000]);
    counted.set_down(true);
    assert_eq!(get_range(&*opened.backend, &path, 0, 500_000).await.unwrap(), better);
}

#[tokio::test]
async fn many_readers_of_a_piece_fetch_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(1 << 20).await;
    let opened = open(&counted, dir.path(), 1 << 30);
    let reads = (0..50u64).map(|n| get_range(&*opened.backend, &path, n * 1000, 900));
    for (n, found) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(found.unwrap(), bytes[n * 1000..n * 1000 + 900]);
    }
    assert_eq!(counted.calls(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_reads_give_what_the_store_has(
        reads in prop::collection::vec((0u64..900_000, 1u64..300_000), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (bytes, counted, path) = remote(900_000).await;
            let opened = open(&counted, dir.path(), 600_000);
            for (offset, len) in reads {
                let found = get_range(&*opened.backend, &path, offset, len).await;
                match bytes.get(offset as usize..(offset + len) as usize) {
                    Some(right) => assert_eq!(found.unwrap(), right),
                    None => assert_eq!(found.unwrap_err().kind(), block::ErrorKind::Corrupt),
                }
            }
        });
    }
}

/// Opens a store, such as a gateway, in which not all that lies beside a range may be read.
fn open_exact(remote: &Unreliable, dir: &FilePath, is_distant: bool) -> Opened {
    let pieces = Some(PieceOptions { dir: dir.to_owned(), limit: 1 << 30 });
    let options = OpenStoreOptions { pieces, is_distant, ..OpenStoreOptions::default() };
    exact(Arc::new(remote.clone()), "gateway+https://test", &options)
}

#[tokio::test]
async fn ranges_of_an_exact_store_are_fetched_and_kept_as_they_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, counted, path) = remote(1 << 20).await;
    let first = open_exact(&counted, dir.path(), false);
    let ranges = [100..300, 5_000..90_000, 700_000..700_000, (1 << 20) - 5..1 << 20];
    let asked = |ranges: &[Range<u64>]| -> Vec<Vec<u8>> {
        ranges.iter().map(|r| bytes[r.start as usize..r.end as usize].to_vec()).collect()
    };
    let found = first.backend.get_ranges(&path, &ranges[..2]).await.unwrap();
    assert_eq!(found, asked(&ranges[..2]));
    assert_eq!(first.link.pieces().unwrap().miss_bytes, 200 + 85_000, "nothing beside them");
    let found = first.backend.get_ranges(&path, &ranges).await.unwrap();
    assert_eq!(found, asked(&ranges));
    counted.set_down(true);
    let second = open_exact(&counted, dir.path(), false);
    assert!(second.link.has_range(&path, &ranges[1]) && !second.link.has_range(&path, &(100..301)));
    let found = second.backend.get_ranges(&path, &ranges).await.unwrap();
    assert_eq!(found, asked(&ranges));
    assert!(get_range(&*second.backend, &path, 100, 201).await.is_err(), "it is not here");
}

#[tokio::test]
async fn settings_that_somebody_read_are_kept_for_who_trusts_them_and_read_anew_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counted, _) = remote(10).await;
    counted.put(&Path::from("store.json"), "the settings".into()).await.unwrap();
    let opened = |settings| {
        let pieces = Some(PieceOptions { dir: dir.path().to_owned(), limit: 1 << 30 });
        let patience = Patience::lasting(Duration::ZERO);
        let options =
            OpenStoreOptions { pieces, settings, patience, ..OpenStoreOptions::default() };
        exact(Arc::new(counted.clone()), "gateway+https://test", &options).backend
    };
    let (never, for_next) = (opened(KeepSettings::Never), opened(KeepSettings::ForNext));
    let always = opened(KeepSettings::Always);
    let read = async |backend: &dyn ObjectStore| get(backend, "store.json", 100).await;
    assert_eq!(read(&*never).await.unwrap(), "the settings");
    crate::head(&*for_next, "store.json").await.unwrap();
    counted.set_down(true);
    assert!(read(&*always).await.is_err(), "nobody kept them");
    counted.set_down(false);
    assert_eq!(read(&*for_next).await.unwrap(), "the settings");
    counted.set_down(true);
    assert_eq!(read(&*always).await.unwrap(), "the settings");
    assert!(read(&*never).await.is_err() && read(&*for_next).await.is_err());
}

#[tokio::test]
async fn what_is_written_to_a_distant_store_and_its_settings_need_no_network_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let (_, counted, _) = remote(10).await;
    let bytes = Sequence::new(8).bytes(300_000);
    let (pack, segment) = (Path::from("packs/new"), Path::from("segments/new"));
    let settings = Path::from("store.json");
    counted.put(&settings, "the settings".into()).await.unwrap();
    let opened = open_exact(&counted, dir.path(), true);
    opened.backend.put(&pack, bytes.clone().into()).await.unwrap();
    opened.backend.put(&segment, "a segment".into()).await.unwrap();
    get(&*opened.backend, "store.json", 100).await.unwrap();
    counted.set_down(true);
    for (start, end) in [(0, 5), (100_000, 280_000), (299_990, 300_000)] {
        let found = get_range(&*opened.backend, &pack, start, end - start).await.unwrap();
        assert_eq!(found, bytes[start as usize..end as usize]);
    }
    assert_eq!(get(&*opened.backend, "segments/new", 100).await.unwrap(), "a segment");
    assert_eq!(get(&*opened.backend, "store.json", 100).await.unwrap(), "the settings");
    assert!(opened.link.has_range(&pack, &(100_000..280_000)));
    assert!(get_range(&*opened.backend, &pack, 299_990, 20).await.is_err(), "beyond its end");
}
