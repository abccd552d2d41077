use super::*;
use crate::ChunkSource;
use crate::conformance::{self, asked_for};
use block::conformance::Sequence;
use block::{ErrorKind, Memory};
use bytes::Bytes;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{ChunkId, Settings, testing};

async fn index(root: &Path, before: Option<ContentIndex>) -> (ContentIndex, IndexReport) {
    index_tree(&testing::settings(), root, before, &()).await.unwrap()
}

/// The chunks that an import would make of some files one behind the other.
fn cut(settings: &Settings, bytes: &[u8]) -> Vec<Bytes> {
    use store::chunker::{Cutter, PAGE, PageCut};
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(PAGE), 0);
    let (mut cutter, mut chunks, mut start) = (Cutter::default(), Vec::new(), 0);
    for (number, page) in padded.chunks_exact(PAGE).enumerate() {
        let end = (number + 1) * PAGE;
        match cutter.page(number as u64, page) {
            PageCut::Join => {}
            PageCut::Cut => {
                chunks.push(Bytes::copy_from_slice(&padded[start..end]));
                start = end;
            }
            PageCut::Hole => {
                if start < end - PAGE {
                    chunks.push(Bytes::copy_from_slice(&padded[start..end - PAGE]));
                }
                start = end;
            }
        }
    }
    if start < padded.len() {
        chunks.push(Bytes::copy_from_slice(&padded[start..]));
    }
    chunks.sort_by_key(|plain| settings.chunk_id(plain));
    chunks.dedup();
    chunks
}

fn content() -> Vec<u8> {
    let mut bytes = testing::noise(5, 3 << 20);
    bytes.extend(vec![0; 64 << 10]);
    bytes.extend(testing::noise(6, (1 << 20) + 777));
    bytes
}

#[tokio::test]
async fn a_tree_and_an_image_pass_the_suite() {
    let (settings, bytes) = (testing::settings(), content());
    let chunks = cut(&settings, &bytes);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("usr/lib")).unwrap();
    std::fs::write(dir.path().join("usr/lib/big"), &bytes).unwrap();
    std::fs::write(dir.path().join("small"), "x").unwrap();
    std::os::unix::fs::symlink("usr", dir.path().join("link")).unwrap();
    let (found, report) = index(dir.path(), None).await;
    assert_eq!((report.read_files, report.skipped), (1, 0));
    let tree = Indexed::tree("tree", found.clone()).unwrap();
    conformance::check(&tree, &settings, &chunks).await;
    assert!(Indexed::image("x", found, Arc::new(Memory::from(vec![0; 512]))).is_err());

    let mut image = bytes;
    image.resize(image.len().next_multiple_of(512), 0);
    let device = Arc::new(Memory::from(image));
    let stamp = FileStamp { size: 9, seconds: 1, nanos: 2 };
    let root = PathBuf::from("/golden.qcow2");
    let (found, _) = index_image(&settings, &root, stamp, &*device, None, &()).await.unwrap();
    let again =
        index_image(&settings, &root, stamp, &*device, Some(found.clone()), &()).await.unwrap();
    assert_eq!((again.1.kept_files, again.0 == found), (1, true));
    let image = Indexed::image("image", found, device).unwrap();
    conformance::check(&image, &settings, &chunks).await;
}

#[tokio::test]
async fn only_what_changed_is_read_again_and_a_changed_file_gives_nothing() {
    let settings = testing::settings();
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let bytes = testing::noise(u64::from(name.as_bytes()[0]), 200_000);
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let (first, report) = index(dir.path(), None).await;
    assert_eq!((report.read_files, report.kept_files), (3, 0));
    std::fs::write(dir.path().join("b"), testing::noise(99, 200_001)).unwrap();
    std::fs::remove_file(dir.path().join("c")).unwrap();
    let tree = Indexed::tree("tree", first.clone()).unwrap();
    for (name, kept) in [("a", true), ("b", false), ("c", false)] {
        let bytes = testing::noise(u64::from(name.as_bytes()[0]), 200_000);
        for plain in cut(&settings, &bytes) {
            let at = asked_for(&settings, &plain);
            assert!(tree.claims(&at.id));
            match tree.chunk(&at).await {
                Ok(answer) => assert!(kept && answer.verify(&settings, &at).unwrap() == plain),
                Err(e) => assert!(!kept && e.kind() == ErrorKind::NotFound, "{name}: {e}"),
            }
        }
    }
    let (second, report) = index(dir.path(), Some(first)).await;
    assert_eq!((report.read_files, report.kept_files), (1, 1));
    assert_eq!(second, index(dir.path(), None).await.0, "as one that was made anew");
    std::fs::remove_dir_all(dir.path()).unwrap();
    let tree = Indexed::tree("tree", second).unwrap();
    let at = asked_for(&settings, &cut(&settings, &testing::noise(97, 200_000))[0]);
    assert_eq!(
        tree.chunk(&at).await.unwrap_err().kind(),
        ErrorKind::Unavailable,
        "it may come back"
    );
    let nowhere = index_tree(&settings, dir.path(), None, &()).await.unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
}

fn some_index(seed: u64) -> ContentIndex {
    let mut random = Sequence::new(seed);
    let mut index = ContentIndex::new(IndexedKind::Tree, "/some/where");
    for number in 0..random.below(6) {
        let rows = (0..random.below(5))
            .map(|page| super::index::IndexRow {
                id: ChunkId(std::array::from_fn(|_| random.number() as u8)),
                page: page as u32,
                pages: 1 + random.below(64) as u16,
            })
            .collect();
        let stamp = FileStamp {
            size: 20_000 + random.below(1 << 40),
            seconds: random.number() as i64,
            nanos: random.below(1_000_000_000) as u32,
        };
        let path = PathBuf::from(format!("dir/file {number}"));
        index.files.push(super::index::IndexedFile { path, stamp, rows });
    }
    index
}

proptest! {
    #[test]
    fn an_index_survives_its_file_and_no_damage_passes(seed: u64, at: usize, bit in 0u8..8) {
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let index = some_index(seed);
            let bytes = index.encode(&settings).unwrap();
            prop_assert_eq!(&decode(&settings, &bytes).unwrap(), &index);
            let at = at % bytes.len();
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            prop_assert!(decode(&settings, &bad).is_err());
            prop_assert!(decode(&settings, &bytes[..at]).is_err());
        }
    }

    #[test]
    fn no_path_leads_out_of_the_tree(path in "(\\.\\./|/|\\./|a/){0,3}[a.]{0,3}") {
        let settings = testing::settings();
        let mut index = some_index(3);
        let stamp = FileStamp { size: 1, seconds: 0, nanos: 0 };
        let file = super::index::IndexedFile { path: path.clone().into(), stamp, rows: vec![] };
        index.files = vec![file];
        if let Ok(read) = decode(&settings, &index.encode(&settings).unwrap()) {
            let path = &read.files[0].path;
            prop_assert!(path.is_relative() && !path.as_os_str().is_empty());
            prop_assert!(!path.components().any(|part| part.as_os_str() == ".."));
        }
    }
}

#[tokio::test]
async fn a_tree_that_is_not_mounted_keeps_its_claims_and_a_file_that_is_gone_does_not() {
    let (settings, dir) = (testing::settings(), tempfile::tempdir().unwrap());
    let (root, away) = (dir.path().join("usr"), dir.path().join("away"));
    std::fs::create_dir(&root).unwrap();
    for (name, seed) in [("a", 5), ("b", 6)] {
        std::fs::write(root.join(name), testing::noise(seed, 1 << 20)).unwrap();
    }
    let chunk_of = |seed| asked_for(&settings, &cut(&settings, &testing::noise(seed, 1 << 20))[0]);
    let (a, b) = (chunk_of(5), chunk_of(6));
    let (found, _) = index(&root, None).await;
    // Also one that is opened while nothing is mounted.
    for is_away in [false, true] {
        let unmount = || {
            std::fs::rename(&root, &away).unwrap();
            std::fs::create_dir(&root).unwrap();
        };
        let mount = || {
            std::fs::remove_dir(&root).unwrap();
            std::fs::rename(&away, &root).unwrap();
        };
        if is_away {
            unmount();
        }
        let source = Indexed::tree("usr", found.clone()).unwrap();
        if !is_away {
            source.chunk(&a).await.unwrap();
            unmount();
        }
        for at in [&a, &b] {
            assert_eq!(source.chunk(at).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        mount();
        for at in [&a, &b] {
            source.chunk(at).await.unwrap().verify(&settings, at).unwrap();
        }
        let kept = dir.path().join("kept");
        std::fs::rename(root.join("b"), &kept).unwrap();
        assert_eq!(source.chunk(&b).await.unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::rename(&kept, root.join("b")).unwrap();
    }
}
