//! Fresh file systems with files in them, made by their own tools without mounting anything.

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
