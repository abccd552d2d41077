//! Random damage to swap, FAT, exFAT, NTFS, XFS and btrfs: 20,000 times each, and
//! `FREESPACE_MUTATIONS` times when that is set.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use common::make;
use common::mutate::{Dice, Outcome, Seam, count, is_subset, processor_time};
use common::sparse::{Changed, Recording, Sparse};
use freespace::{FileSystem, FreeSpaceOptions, Level, Window};
use std::path::Path;
use std::time::Duration;

const USUAL: u64 = 20_000;

/// Damages a file system; most of it must be noticed, and none take long.
fn damage(name: &'static str, kind: FileSystem, image: &Path) -> Outcome {
    let image = Sparse::load(image);
    let options = FreeSpaceOptions { btrfs: true, ..FreeSpaceOptions::default() };
    let found = freespace::read(kind, &Window::whole(&image), &options).unwrap();
    let seam = Seam { name, kind, options, image, free: found.free };
    let outcome = seam.run(count(USUAL));
    assert!(outcome.slowest < Duration::from_secs(2), "{outcome:?}");
    assert!(outcome.refused > 0 && outcome.accepted > 0, "{outcome:?}");
    outcome
}

#[test]
fn damaged_swap_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("swap", FileSystem::SWAP, &make::swap(dir.path(), &[]));
}

#[test]
fn damaged_fat32_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("fat32", FileSystem::FAT32, &make::fat(dir.path(), 32, &[]));
}

#[test]
fn damaged_fat16_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("fat16", FileSystem::FAT16, &make::fat(dir.path(), 16, &[]));
}

#[test]
fn damaged_exfat_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("exfat", FileSystem::EXFAT, &make::exfat(dir.path(), &[]));
}

#[test]
#[should_panic(expected = "yields bytes in use")]
fn without_the_walk_over_its_files_damage_to_exfat_goes_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::exfat(dir.path(), &[]));
    let options = FreeSpaceOptions { level: Some(Level::Fast), ..FreeSpaceOptions::default() };
    let found = freespace::read(FileSystem::EXFAT, &Window::whole(&image), &options).unwrap();
    Seam { name: "exfat", kind: FileSystem::EXFAT, options, image, free: found.free }.run(20_000);
}

#[test]
fn damaged_ntfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("ntfs", FileSystem::NTFS, &make::ntfs(dir.path(), &[]));
}

/// The sizes that single bytes hardly ever make: each power of two, in both values that a table's size hangs on.
#[test]
fn ntfs_with_holes_of_any_size_yields_nothing_and_takes_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::ntfs(dir.path(), &[]));
    let options = FreeSpaceOptions::default();
    for power in 0..47 {
        let records = (1u64 << power) * 4;
        let table = make::with_ntfs_hole(&image, 0x80, 1 << power, |room| room);
        let bits = (records / 8).div_ceil(4096);
        let both = make::with_ntfs_hole(&table, 0xB0, bits, |room| room - 4096);
        for damaged in [table, both] {
            let start = processor_time();
            let read = freespace::read(FileSystem::NTFS, &Window::whole(&damaged), &options);
            assert!(read.is_err(), "a hole of 2^{power} clusters");
            let took = processor_time().saturating_sub(start);
            assert!(took < Duration::from_secs(2), "a hole of 2^{power} clusters: {took:?}");
        }
    }
}

#[test]
fn damaged_xfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("xfs", FileSystem::XFS, &make::xfs(dir.path(), &[]));
}

#[test]
fn damaged_btrfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("btrfs", FileSystem::BTRFS, &make::btrfs(dir.path(), &[]));
}

/// Flips bits in the tree blocks of a btrfs and makes their checksums right again: a file system that
/// was written wrong, not one that was damaged later. Returns how many such images yield blocks in use.
fn resealed_btrfs(level: Option<Level>, count: u64) -> usize {
    const NODE: u64 = 16 << 10;
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::btrfs(dir.path(), &[]));
    let options = FreeSpaceOptions { btrfs: true, level, ..FreeSpaceOptions::default() };
    let recording = Recording::new(&image);
    let found = freespace::read(FileSystem::BTRFS, &Window::whole(&recording), &options).unwrap();
    let blocks: Vec<u64> = recording
        .finish()
        .into_iter()
        .flat_map(|range| (range.start..range.end).step_by(4096))
        // Each tree block carries the file system's identity.
        .filter(|at| *at > 68 << 10 && image.bytes(at + 32, 16) == image.bytes(0x1_0020, 16))
        .collect();
    assert!(blocks.len() > 5, "{blocks:?}");
    let unsafe_one = |number: &u64| {
        let mut dice = Dice(*number);
        let at = blocks[dice.below(blocks.len() as u64) as usize];
        let mut block = image.bytes(at, NODE as usize);
        // Mostly where there is something.
        let byte = (0..20)
            .map(|_| 32 + dice.below(NODE - 32) as usize)
            .find(|byte| block[*byte] != 0)
            .unwrap_or(100);
        block[byte] ^= 1 << dice.below(8);
        let sum = crc32c::crc32c(&block[32..]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
        let changed = Changed { image: &image, changes: vec![(at, block)] };
        let now = freespace::read(FileSystem::BTRFS, &Window::whole(&changed), &options);
        now.is_ok_and(|now| !is_subset(&now.free, &found.free))
    };
    (0..count).filter(unsafe_one).count()
}

#[test]
fn btrfs_that_was_sealed_with_wrong_content_yields_nothing_in_use() {
    assert_eq!(resealed_btrfs(None, count(4_000)), 0);
}

#[test]
fn without_the_other_tree_to_compare_with_wrong_content_of_btrfs_goes_unseen() {
    assert!(resealed_btrfs(Some(Level::Fast), 4_000) > 0);
}
