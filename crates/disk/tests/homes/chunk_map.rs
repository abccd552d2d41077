//! The chunk map tells where each block of a disk is: by what was done to it, whether or not it is open, and
//! without opening or changing anything.

use crate::common::{Home, LENGTH, bytes, cache, home, kind, put};
use block::conformance::Sequence;
use block::{BLOCK, Device, Durability, ErrorKind, Span, ZeroMode};
use disk::{BlockPlace, ChunkMap, Disk, DiskLayers, IsKept, LoadOptions, Loader, Mode};
use object_store::ObjectStoreExt;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkRef, Content, RefKind};

fn nothing_kept() -> IsKept {
    Arc::new(|_: &ChunkRef| false)
}

/// Where each block is.
fn places(map: &ChunkMap) -> Vec<BlockPlace> {
    assert_eq!(map.cell_bytes(), BLOCK);
    let count = map.size().div_ceil(BLOCK) as usize;
    let mut found = vec![None; count];
    for place in BlockPlace::ALL {
        for (block, bytes) in map.cells(place).enumerate().filter(|(_, bytes)| *bytes > 0) {
            assert_eq!(bytes, (map.size() - block as u64 * BLOCK).min(BLOCK), "block {block}");
            assert_eq!(found[block].replace(place), None, "block {block} is at one place");
        }
    }
    found.into_iter().map(|place| place.unwrap()).collect()
}

async fn drawn(layers: DiskLayers) -> Vec<BlockPlace> {
    places(&layers.map(ChunkMap::MOST_CELLS, nothing_kept()).await.unwrap())
}

/// Where the blocks of the image are that nobody read: nowhere when they are zeroes.
fn of_image(image: &[u8]) -> Vec<BlockPlace> {
    let place = |block: &[u8]| match block.iter().all(|byte| *byte == 0) {
        true => BlockPlace::Zero,
        false => BlockPlace::Stored,
    };
    image.chunks(LENGTH).map(place).collect()
}

/// Where the blocks of a disk are that is not open.
async fn closed(home: &Home) -> Vec<BlockPlace> {
    drawn(home.disks.look("alice").await.unwrap().layers().await.unwrap()).await
}

async fn zero(disk: &Disk, block: usize) {
    let span = Span::between((block * LENGTH) as u64, ((block + 1) * LENGTH) as u64);
    disk.zero(span, ZeroMode { may_punch: true, only_if_fast: false }, Durability::Buffered)
        .await
        .unwrap();
}

#[tokio::test]
async fn each_block_is_where_what_was_done_to_it_put_it() {
    let (home, image) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    let mut expected = of_image(&image);
    assert_eq!(drawn(disk.layers()).await, expected);
    let mut random = Sequence::new(9);
    for _ in 0..30 {
        let block = random.below(40) as usize;
        if random.below(3) == 0 {
            zero(&disk, block).await;
            expected[block] = BlockPlace::Zero;
        } else {
            put(&disk, block, 7).await;
            expected[block] = BlockPlace::Private;
        }
    }
    assert_eq!(drawn(disk.layers()).await, expected);
    bytes(&*disk).await;
    for place in &mut expected {
        if *place == BlockPlace::Stored {
            *place = BlockPlace::Cached;
        }
    }
    assert_eq!(drawn(disk.layers()).await, expected);

    // What was private is the store's then, and what is written later is private again.
    disk.snapshot("monday", &()).await.unwrap();
    let after = drawn(disk.layers()).await;
    let was_private = expected.iter().zip(&after).filter(|(was, _)| **was == BlockPlace::Private);
    assert!(was_private.clone().count() > 3);
    assert!(was_private.clone().all(|(_, now)| *now == BlockPlace::Stored), "{after:?}");
    put(&disk, 5, 9).await;
    assert_eq!(drawn(disk.layers()).await[5], BlockPlace::Private);
}

#[tokio::test]
async fn what_a_snapshot_could_not_send_waits() {
    let (home, _) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    put(&disk, 3, 7).await;
    put(&disk, 4, 7).await;
    home.backend.allow(1);
    disk.snapshot("monday", &()).await.unwrap_err();
    put(&disk, 4, 8).await;
    let drawn = drawn(disk.layers()).await;
    assert_eq!(drawn[3..5], [BlockPlace::Waiting, BlockPlace::Private]);
}

#[tokio::test]
async fn a_closed_disk_is_told_by_its_files_and_not_opened() {
    let (mut home, image) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    for block in [1, 2, 33] {
        put(&disk, block, 7).await;
    }
    zero(&disk, 20).await;
    let open = drawn(disk.layers()).await;
    // As a kill would leave it: nothing was flushed.
    drop(disk);
    home.again().await;
    assert_eq!(closed(&home).await, open);
    let disk = home.open("alice").await;
    disk.close().await.unwrap();
    drop(disk);
    assert_eq!(closed(&home).await, open);
    let looked_at = home.disks.look("alice").await.unwrap();
    let _opened_meanwhile = home.open("alice").await;
    assert_eq!(drawn(looked_at.layers().await.unwrap()).await, open);
    assert_eq!(open[1], BlockPlace::Private);
    assert_eq!(open.len(), image.len().div_ceil(LENGTH));

    assert_eq!(kind(home.disks.look("bob").await), ErrorKind::NotFound);
    assert_eq!(kind(home.disks.look("../alice").await), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_closed_disk_whose_own_map_is_missing_is_damaged_and_not_one_that_is_not_there() {
    let (home, _) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let place = home.directory.path().join("disks/alice");
    let files = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path());
    let maps: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "map")).collect();
    assert!(!maps.is_empty());
    maps.iter().for_each(|map| std::fs::remove_file(map).unwrap());
    assert_eq!(kind(home.disks.look("alice").await), ErrorKind::Corrupt);
}

#[tokio::test]
async fn what_lies_in_borrowed_room_is_private() {
    let (mut home, _) = home().await;
    home.create("alice", "golden:1", Mode::Ephemeral).await.unwrap();
    home.with_room(Duration::from_secs(30)).await;
    let disk = home.open("alice").await;
    put(&disk, 6, 7).await;
    let found = drawn(disk.layers()).await;
    let private = found.iter().filter(|place| **place == BlockPlace::Private).count();
    assert_eq!((found[6], private), (BlockPlace::Private, 1));
}

#[tokio::test]
async fn what_the_image_holds_where_its_map_cannot_be_had_is_not_guessed() {
    let (mut home, image) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    put(&disk, 6, 7).await;
    disk.close().await.unwrap();
    drop(disk);
    let objects = objects::list_all(&*home.backend).await.unwrap();
    for object in objects.iter().filter(|one| one.location.as_ref().starts_with("segments/")) {
        home.backend.delete(&object.location).await.unwrap();
    }
    home.again().await;
    let found = closed(&home).await;
    let unread = found.iter().filter(|place| **place == BlockPlace::Unread).count();
    assert_eq!((found[6], unread), (BlockPlace::Private, image.len().div_ceil(LENGTH) - 1));
}

#[tokio::test]
async fn a_chunk_that_is_near_is_told_apart_and_what_lies_behind_the_image_is_zeroes() {
    let (home, image) = home().await;
    let size = Some(2 << 30);
    let options = disk::CreateOptions { size, mode: Mode::Persistent };
    home.disks.create("alice", &"golden:1".parse().unwrap(), options).await.unwrap();
    let disk = home.open("alice").await;
    let map = disk.layers().map(64, Arc::new(|_: &ChunkRef| true)).await.unwrap();
    let cells: Vec<u64> = map.cells(BlockPlace::Kept).collect();
    let kept: u64 = of_image(&image).iter().filter(|at| **at == BlockPlace::Stored).count() as u64;
    // Of the last block the image has a sector.
    assert_eq!(map.total(BlockPlace::Kept), (kept - 1) * BLOCK + 512);
    assert_eq!((cells.len(), cells[0]), (64, map.total(BlockPlace::Kept)));
    assert_eq!(map.total(BlockPlace::Zero), (2 << 30) - map.total(BlockPlace::Kept));
    for wrong in [0, ChunkMap::MOST_CELLS + 1] {
        assert_eq!(kind(disk.layers().map(wrong, nothing_kept()).await), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn a_block_of_memory_is_where_that_is_which_is_harder_to_have() {
    /// Where what changed begins, in blocks.
    const DELTA: usize = 8;
    let (home, _) = home().await;
    let mut image = vec![0; 2 * DELTA * LENGTH];
    // Blocks 1 and 2 of the memory, and what changed in 2 and 4.
    for (block, fill) in [(1, 1), (2, 2), (DELTA + 2, 3), (DELTA + 4, 4)] {
        image[block * LENGTH..][..LENGTH].fill(fill);
    }
    home.image("memory:1", &image).await;
    let found = home.store.refs().get(RefKind::Image, "memory:1").await.unwrap().unwrap();
    let manifest = home.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let loader = Loader::new(home.store.clone(), cache(), LoadOptions::default());
    let (size, delta) = ((DELTA - 1) as u64 * BLOCK, DELTA as u64 * BLOCK);
    let memory = || DiskLayers::of_memory(&loader, Arc::clone(&manifest), size, delta).unwrap();
    let mut expected = vec![BlockPlace::Zero; DELTA - 1];
    for block in [1, 2, 4] {
        expected[block] = BlockPlace::Stored;
    }
    assert_eq!(drawn(memory()).await, expected);
    // What changed is near, and what it changes is not.
    let changed = manifest.pieces(Span::between(delta, 2 * delta)).await.unwrap();
    let chunk = |content: &Content| match content {
        Content::Chunk { at, .. } => Some(at.id),
        Content::Hole => None,
    };
    let changed: Vec<_> = changed.iter().filter_map(|piece| chunk(&piece.content)).collect();
    let is_near: IsKept = Arc::new(move |at: &ChunkRef| changed.contains(&at.id));
    expected[4] = BlockPlace::Kept;
    assert_eq!(places(&memory().map(64, is_near).await.unwrap()), expected);
    for (size, delta) in [(2 * delta, delta), (delta, delta + BLOCK), (delta, u64::MAX)] {
        let wrong = DiskLayers::of_memory(&loader, Arc::clone(&manifest), size, delta);
        assert_eq!(kind(wrong), ErrorKind::Corrupt);
    }
}

#[tokio::test]
async fn drawing_reads_no_chunk() {
    let (home, _) = home().await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    let before = home.store.counters().chunk_reads;
    drawn(disk.layers()).await;
    closed(&home).await;
    assert_eq!(home.store.counters().chunk_reads, before);
}
