//! Fresh file systems with files in them, made by their own tools without mounting anything.

use super::sparse::Sparse;
use super::{exfat, must};
use std::path::{Path, PathBuf};

/// An empty image of `size` bytes.
fn empty(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder of files to copy: of many sizes, some in folders.
pub(crate) fn files(dir: &Path) -> PathBuf {
    let root = dir.join("files");
    for (i, folder) in
        [root.clone(), root.join("inner"), root.join("inner/most")].iter().enumerate()
    {
        std::fs::create_dir(folder).unwrap();
        for n in 0..12usize {
            let len = (n * n * 1500 + i * 700) % 90_000;
            std::fs::write(folder.join(format!("f{i}-{n}")), vec![b'a' + n as u8; len]).unwrap();
        }
    }
    root
}

pub(crate) fn swap(dir: &Path, options: &[&str]) -> PathBuf {
    let image = empty(dir, "swap", 16 << 20);
    must(60, "mkswap", &[&["-q"], options, &[text(&image)]].concat());
    image
}

/// A FAT of 16 or 32 bits, with files between which others were deleted.
pub(crate) fn fat(dir: &Path, bits: u32, options: &[&str]) -> PathBuf {
    let image = empty(dir, "fat", if bits == 32 { 40 << 20 } else { 16 << 20 });
    let bits = bits.to_string();
    let sectors = if bits == "32" { "1" } else { "4" };
    let always = ["-F", &bits, "-s", sectors];
    must(60, "mkfs.fat", &[&always[..], options, &[text(&image)]].concat());
    let files = files(dir);
    must(60, "mcopy", &["-s", "-i", text(&image), text(&files), "::/"]);
    must(
        60,
        "mdel",
        &["-i", text(&image), "::/files/f0-3", "::/files/f0-8", "::/files/inner/f1-5"],
    );
    must(60, "mcopy", &["-i", text(&image), text(&files.join("f0-11")), "::/late"]);
    image
}

pub(crate) fn exfat(dir: &Path, options: &[&str]) -> PathBuf {
    let image = empty(dir, "exfat", 12 << 20);
    must(60, "mkfs.exfat", &[options, &["-c", "4k", "-b", "64k", text(&image)]].concat());
    exfat::fill(&image);
    image
}

pub(crate) fn ntfs(dir: &Path, options: &[&str]) -> PathBuf {
    let image = empty(dir, "ntfs", 8 << 20);
    must(60, "mkntfs", &[&["-F", "-q", "-f"], options, &[text(&image)]].concat());
    let files = files(dir);
    for n in [2, 5, 7, 10, 11] {
        let from = files.join(format!("f0-{n}"));
        must(60, "ntfscp", &["-f", text(&image), text(&from), &format!("f{n}")]);
    }
    image
}

/// What [`ntfs`] makes, with a hole of so many clusters behind the value of an attribute of `$MFT`, which has as many
/// bytes as `size` makes of its room. The copy of the file table says the same.
pub(crate) fn with_ntfs_hole(
    image: &Sparse,
    attribute: u32,
    hole: u64,
    size: impl Fn(u64) -> u64,
) -> Sparse {
    let le = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let cluster = le(&image.bytes(11, 2)) * le(&image.bytes(13, 1));
    let copies = [48, 56].map(|at| le(&image.bytes(at, 8)) * cluster);
    let mut record = image.bytes(copies[0], 1024);
    let mut at = le(&record[0x14..0x16]) as usize;
    while le(&record[at..at + 4]) != u64::from(attribute) {
        at += le(&record[at + 4..at + 8]) as usize;
    }
    let len = le(&record[at + 4..at + 8]) as usize;
    let (mut end, mut clusters) = (at + le(&record[at + 0x20..at + 0x22]) as usize, 0);
    while record[end] != 0 {
        let sizes = [usize::from(record[end] & 15), usize::from(record[end] >> 4)];
        clusters += le(&record[end + 1..end + 1 + sizes[0]]);
        end += 1 + sizes[0] + sizes[1];
    }
    let mut run = vec![6];
    run.extend(&hole.to_le_bytes()[..6]);
    run.push(0);
    let grow = (end + run.len()).saturating_sub(at + len).next_multiple_of(8);
    let used = le(&record[0x18..0x1C]) as usize;
    assert!(used + grow <= 510, "the record has no room");
    record.copy_within(at + len..used, at + len + grow);
    record[end..end + run.len()].copy_from_slice(&run);
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x18, &((used + grow) as u32).to_le_bytes());
    put(at + 4, &((len + grow) as u32).to_le_bytes());
    put(at + 0x18, &(clusters + hole - 1).to_le_bytes());
    let room = (clusters + hole) * cluster;
    for (place, value) in [(0x28, room), (0x30, size(room)), (0x38, size(room))] {
        put(at + place, &value.to_le_bytes());
    }
    let mut damaged = image.clone();
    for copy in copies {
        damaged.patch(copy, &record);
    }
    damaged
}

pub(crate) fn xfs(dir: &Path, options: &[&str]) -> PathBuf {
    let image = empty(dir, "xfs", 320 << 20);
    let files = files(dir);
    let mut lines = String::from("/none\n0 0\nd--755 0 0\n");
    for n in 0..12 {
        lines += &format!("f{n} ---644 0 0 {}\n", files.join(format!("f0-{n}")).display());
    }
    lines += "inner d--755 0 0\n";
    for n in 0..12 {
        lines += &format!("g{n} ---644 0 0 {}\n", files.join(format!("inner/f1-{n}")).display());
    }
    lines += "$\n$\n";
    let prototype = dir.join("prototype");
    std::fs::write(&prototype, lines).unwrap();
    must(
        60,
        "mkfs.xfs",
        &[&["-q", "-f", "-p", text(&prototype)], options, &[text(&image)]].concat(),
    );
    image
}

pub(crate) fn btrfs(dir: &Path, options: &[&str]) -> PathBuf {
    let image = empty(dir, "btrfs", 160 << 20);
    let files = files(dir);
    let always = ["-q", "-f", "--rootdir", text(&files)];
    must(60, "mkfs.btrfs", &[&always[..], options, &[text(&image)]].concat());
    image
}
