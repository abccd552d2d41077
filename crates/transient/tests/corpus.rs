//! Images of other projects' tests, most of them damaged: read by every reader, and through a scan.
//! Each is refused, or yields only what an independent tool knows as free.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

#[path = "../../freespace/tests/common/mod.rs"]
mod common;

use block::Span;
use common::mutate::{is_subset, processor_time, well_formed};
use common::oracle::{btrfs_in_use, clear_bits, clusters_of_files, joined, numbers, xfs_db};
use common::sparse::Sparse;
use common::{dumpe2fs, each, hash, images, must, run, unpack};
use freespace::{FileSystem, FreeSpace, FreeSpaceOptions, PartitionTable, READERS, Window};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use transient::{HostDisk, Scan, ScanOptions};

/// The most processor time that a reader may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Unpacks an image, also from an archive or a hexadecimal dump.
fn image_of(packed: &Path, dir: &Path) -> PathBuf {
    let name = packed.file_name().unwrap().to_str().unwrap();
    if name.contains(".tar.") {
        let extract = ["--sparse", "-C", dir.to_str().unwrap(), "-xf", packed.to_str().unwrap()];
        must(120, "tar", &extract);
        return std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    }
    if !name.ends_with(".xxd") {
        return unpack(packed, dir);
    }
    // "00000010: 0200 0200 ...  text": sixteen bytes, and lines of zeroes left out.
    let mut image = Vec::new();
    for line in std::fs::read_to_string(packed).unwrap().lines().filter(|line| *line != "*") {
        let (offset, rest) = line.split_once(": ").unwrap();
        image.resize(usize::from_str_radix(offset, 16).unwrap(), 0);
        let digits: String = rest.split("  ").next().unwrap().split(' ').collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        image.extend((0..digits.len()).step_by(2).map(byte));
    }
    let path = dir.join(name.trim_end_matches(".xxd"));
    std::fs::write(&path, image).unwrap();
    path
}

/// Asks the file system's own tool about what its reader yields.
fn judge(image: &Path, found: &FreeSpace) {
    let name = image.display();
    let path = image.to_str().unwrap();
    let unit = u64::from(found.unit);
    let free: u64 = found.free.iter().map(|span| span.len()).sum();
    let apart = |used: Span| found.free.iter().all(|span| span.intersect(used).is_none());
    match found.kind {
        FileSystem::EXT2 | FileSystem::EXT3 | FileSystem::EXT4 => {
            assert!(is_subset(&found.free, &dumpe2fs(image)), "{name}");
        }
        FileSystem::NTFS => {
            let map = run(60, "ntfscat", &["-f", path, "$Bitmap"]).stdout;
            let theirs = clear_bits(&map, found.size / unit, unit);
            assert!(is_subset(&found.free, &theirs), "{name}");
            // Every file's clusters, from the records and not from the bitmap.
            let last = found.size / unit - 1;
            for span in found.free.iter().take(32) {
                let (from, to) = (span.offset() / unit, (span.end() / unit - 1).min(last));
                let range = format!("{from}-{to}");
                let shown = run(60, "ntfscluster", &["-f", "-q", "-c", &range, path]);
                let text = String::from_utf8_lossy(&shown.stdout).into_owned();
                assert!(!text.contains("Inode"), "{name}: clusters {range}: {text}");
            }
        }
        FileSystem::SWAP => assert!(apart(Span::whole(unit)), "{name}"),
        FileSystem::FAT16 | FileSystem::FAT32 => {
            let checked = run(60, "fsck.fat", &["-n", path]);
            let text = String::from_utf8_lossy(&checked.stdout).into_owned();
            // "image: 37 files, 1234/5678 clusters"
            let last = text.lines().last().unwrap();
            let counts = numbers(last.rsplit(' ').nth(1).unwrap());
            assert!(free / unit <= counts[1] - counts[0], "{name}: {text}");
            let head = Sparse::load(image).bytes(0, 512);
            let half = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
            let whole = |at: usize| half(at) | half(at + 2) << 16;
            let fat = if half(22) == 0 { whole(36) } else { half(22) };
            let data = (half(14) + u64::from(head[16]) * fat) * half(11) + half(17) * 32;
            for (first, last) in clusters_of_files(image) {
                let used = Span::between(data + (first - 2) * unit, data + (last - 1) * unit);
                assert!(apart(used), "{name}: {used:?}");
            }
        }
        FileSystem::EXFAT => {
            let checked = run(60, "fsck.exfat", &["-n", path]);
            let text = String::from_utf8_lossy(&checked.stdout).into_owned()
                + &String::from_utf8_lossy(&checked.stderr);
            assert!(!text.contains("marked as free"), "{name}: {text}");
            let dump = must(60, "dump.exfat", &[path]);
            let line = dump.lines().find(|line| line.starts_with("Free Clusters:")).unwrap();
            assert!(free / unit <= numbers(line)[0], "{name}: {dump}");
        }
        FileSystem::XFS => {
            let (theirs, _) = xfs_db(image);
            assert!(is_subset(&found.free, &joined(theirs)), "{name}");
        }
        FileSystem::BTRFS => {
            let raw = Sparse::load(image).bytes((64 << 10) + 148, 4);
            let node = u64::from(u32::from_le_bytes(raw.try_into().unwrap()));
            let used = btrfs_in_use(image, node);
            assert!(used.into_iter().all(apart), "{name}");
        }
        kind => panic!("{name}: nobody knows what is free in {kind}"),
    }
}

/// Every image of a folder; how many readers accepted one.
fn folder(name: &str) -> usize {
    let Some(images) = images() else { return usize::MAX };
    let mut list: Vec<PathBuf> =
        std::fs::read_dir(images.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    list.sort();
    assert!(list.len() > 10, "{name}");
    let accepted = AtomicUsize::new(0);
    each(&list, |packed| {
        let dir = tempfile::tempdir().unwrap();
        let image = image_of(packed, dir.path());
        let before = hash(&image);
        let reader = FreeSpaceOptions { level: None, btrfs: true, shadow_copies: true };
        let mut results: Vec<FreeSpace> = Vec::new();
        for kind in READERS.iter().flat_map(|reader| reader.kinds).copied() {
            let disk = HostDisk::open(&image).unwrap();
            let start = processor_time();
            let result = freespace::read(kind, &Window::whole(&disk), &reader);
            let took = processor_time().saturating_sub(start);
            assert!(took < LIMIT, "{}: {kind} took {took:?}", image.display());
            results.extend(result);
        }
        let scan =
            Scan::run(std::slice::from_ref(&image), &ScanOptions { reader, nothing_hidden: true });
        // What a scan lends is what a reader yielded.
        for (_, part, lent) in scan.accepted().filter(|(_, part, _)| part.span.offset() == 0) {
            let same = results.iter().find(|found| Some(found.kind) == part.kind).unwrap();
            assert!(is_subset(&lent.usable, &same.free), "{}", image.display());
        }
        drop(scan);
        for found in &results {
            assert!(well_formed(found, image.metadata().unwrap().len()), "{}", image.display());
            judge(&image, found);
        }
        accepted.fetch_add(results.len(), Ordering::Relaxed);
        assert_eq!(hash(&image), before, "{} was written", image.display());
    });
    accepted.into_inner()
}

#[test]
fn damaged_exfat_of_exfatprogs_is_refused_or_yields_what_is_free() {
    folder("exfat");
}

#[test]
fn fat_of_dosfstools_is_refused_or_yields_what_is_free() {
    assert!(folder("fat") > 0);
}

#[test]
fn damaged_btrfs_of_btrfs_progs_is_refused_or_yields_what_is_free() {
    assert!(folder("btrfs") > 0);
}

#[test]
fn disks_of_windows_are_refused_or_yield_what_is_free() {
    assert!(folder("windows") > 4);
}

#[test]
fn images_of_util_linux_are_refused_or_yield_what_is_free() {
    assert!(folder("blkid") > 4);
}

#[test]
fn no_file_system_is_taken_for_a_disk_of_its_own() {
    let Some(images) = images() else { return };
    let known = AtomicUsize::new(0);
    for name in ["generated", "windows", "blkid", "fat", "exfat", "btrfs"] {
        let entries = std::fs::read_dir(images.join(name)).unwrap();
        // Those of several GiB take a minute to unpack, and their readers' tests do that already.
        let small = |path: &PathBuf| !path.to_str().unwrap().contains("/aged-");
        let list: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(small).collect();
        each(&list, |packed| {
            let dir = tempfile::tempdir().unwrap();
            let image = image_of(packed, dir.path());
            if image.is_dir() {
                return;
            }
            let disk = HostDisk::open(&image).unwrap();
            if freespace::probe::probe(&Window::whole(&disk)).is_ok() {
                let table = PartitionTable::read(&disk);
                assert_eq!(table, Ok(PartitionTable::None), "{}", packed.display());
                known.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    assert!(known.into_inner() > 40);
}
