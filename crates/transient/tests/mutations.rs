//! Random damage to swap, FAT, exFAT, NTFS, XFS and btrfs: 20,000 times each, and
//! `TRANSIENT_MUTATIONS` times when that is set.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use common::make;
use common::mutate::{Outcome, Seam, count};
use common::sparse::Sparse;
use std::path::Path;
use std::time::Duration;
use transient::{Kind, Level, Options, Window};

const USUAL: u64 = 20_000;

/// Damages a file system; most of it must be noticed, and none take long.
fn damage(name: &'static str, kind: Kind, image: &Path) -> Outcome {
    let image = Sparse::load(image);
    let options = Options { btrfs: true, ..Options::default() };
    let found = transient::read(kind, &Window::whole(&image), &options).unwrap();
    let seam = Seam { name, kind, options, image, free: found.free };
    let outcome = seam.run(count(USUAL));
    assert!(outcome.slowest < Duration::from_secs(2), "{outcome:?}");
    assert!(outcome.refused > 0 && outcome.accepted > 0, "{outcome:?}");
    outcome
}

#[test]
fn damaged_swap_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("swap", Kind::Swap, &make::swap(dir.path(), &[]));
}

#[test]
fn damaged_fat32_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("fat32", Kind::Fat32, &make::fat(dir.path(), 32, &[]));
}

#[test]
fn damaged_fat16_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("fat16", Kind::Fat16, &make::fat(dir.path(), 16, &[]));
}

#[test]
fn damaged_exfat_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("exfat", Kind::Exfat, &make::exfat(dir.path(), &[]));
}

#[test]
#[should_panic(expected = "yields bytes in use")]
fn without_the_walk_over_its_files_damage_to_exfat_goes_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::exfat(dir.path(), &[]));
    let options = Options { level: Some(Level::Fast), ..Options::default() };
    let found = transient::read(Kind::Exfat, &Window::whole(&image), &options).unwrap();
    Seam { name: "exfat", kind: Kind::Exfat, options, image, free: found.free }.run(20_000);
}

#[test]
fn damaged_ntfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("ntfs", Kind::Ntfs, &make::ntfs(dir.path(), &[]));
}

#[test]
fn damaged_xfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("xfs", Kind::Xfs, &make::xfs(dir.path(), &[]));
}

#[test]
fn damaged_btrfs_yields_nothing_in_use() {
    let dir = tempfile::tempdir().unwrap();
    damage("btrfs", Kind::Btrfs, &make::btrfs(dir.path(), &[]));
}
