//! Damaged metadata of ext2, ext3 and ext4: refused or harmless, every time.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use common::mutate::{Seam, count};
use common::sparse::Sparse;
use common::{dumpe2fs, must};
use freespace::{FileSystem, FreeSpaceOptions, Level};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file system of 24 MiB with files of many sizes, some of them deleted again.
fn make(dir: &Path, arguments: &[&str]) -> PathBuf {
    let image = dir.join("image");
    let content = dir.join("content");
    std::fs::create_dir(&content).unwrap();
    let mut script = String::new();
    for n in 0..300usize {
        let len = (n * n * 37) % 90_000;
        std::fs::write(content.join(format!("f{n}")), vec![n as u8; len]).unwrap();
        if n % 3 == 0 {
            writeln!(script, "rm /f{n}").unwrap();
        }
    }
    std::os::unix::fs::symlink("x".repeat(200), content.join("link")).unwrap();
    let text = image.to_str().unwrap();
    let content = content.to_str().unwrap();
    let all = [arguments, &["-q", "-F", "-d", content, text, "24M"]].concat();
    must(60, "mke2fs", &all);
    let commands = dir.join("commands");
    std::fs::write(&commands, script).unwrap();
    must(60, "debugfs", &["-w", "-f", commands.to_str().unwrap(), text]);
    let checked = common::run(60, "e2fsck", &["-fy", text]);
    assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
    image
}

/// Damages a file system `count` times; panics when it then lends a block in use.
fn damage(name: &'static str, arguments: &[&str], level: Option<Level>, count: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), arguments);
    let options = FreeSpaceOptions { level, ..FreeSpaceOptions::default() };
    let free = dumpe2fs(&image);
    let image = Sparse::load(&image);
    let outcome = Seam { name, kind: FileSystem::EXT4, options, image, free }.run(count);
    assert!(outcome.slowest < Duration::from_secs(4), "{outcome:?}");
}

const CHECKSUMS: &[&str] = &["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "metadata_csum,64bit"];
const NO_CHECKSUMS: &[&str] = &["-t", "ext3", "-b", "1024", "-g", "4096"];

#[test]
fn no_damage_to_ext4_with_checksums_lends_a_block_in_use() {
    damage("ext4 with checksums", CHECKSUMS, None, count(20_000));
}

#[test]
fn no_damage_to_ext4_with_checksums_of_descriptors_only_lends_a_block_in_use() {
    let arguments = ["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "uninit_bg,^metadata_csum"];
    damage("ext4 with checksums of descriptors", &arguments, None, count(20_000));
}

#[test]
fn no_damage_to_ext3_lends_a_block_in_use() {
    damage("ext3", NO_CHECKSUMS, None, count(20_000));
}

#[test]
fn no_damage_to_ext4_with_clusters_lends_a_block_in_use() {
    let arguments = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^metadata_csum", "-C", "8192"];
    damage("ext4 with clusters", &arguments, None, count(20_000));
}

/// Were the inodes not walked, damage to bitmaps would go unseen: this run must see it.
#[test]
fn the_damage_is_such_that_a_shallow_check_without_checksums_lends_blocks_in_use() {
    let seen = std::panic::catch_unwind(|| {
        damage("ext3 without the walk", NO_CHECKSUMS, Some(Level::Fast), 20_000);
    });
    assert!(seen.is_err());
}
