//! Other people's file systems, RAID members, encrypted disks and partition tables: recognised, and
//! refused by name, or read without lending what is in use.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

#[path = "../../freespace/tests/common/mod.rs"]
mod common;

use common::{each, hash, images, unpack};
use freespace::{Code, FreeSpaceOptions};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use transient::{Scan, ScanOptions};

fn all_consent() -> ScanOptions {
    ScanOptions {
        reader: FreeSpaceOptions { level: None, btrfs: true, shadow_copies: true },
        nothing_hidden: true,
    }
}

fn packed(images: &Path, folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(images.join(folder)).unwrap();
    let mut list: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    list.retain(|path| path.extension().is_some_and(|ext| ext != "xxd"));
    list.sort();
    list
}

/// The codes of all refusals, and whether anything was accepted.
fn verdict(image: &Path) -> (Vec<Code>, bool) {
    let before = hash(image);
    let scan = Scan::run(&[image.to_path_buf()], &all_consent());
    let disk = &scan.disks[0];
    let mut codes: Vec<Code> = disk.refusal.iter().map(|refusal| refusal.code).collect();
    codes.extend(disk.parts.iter().filter_map(|part| part.verdict.as_ref().err()).map(|r| r.code));
    let accepted = scan.accepted().next().is_some();
    for (_, part, accepted) in scan.accepted() {
        let end = part.span.offset() + part.span.len();
        let inner = accepted.usable.iter().all(|span| {
            span.offset() >= part.span.offset() + (1 << 20) && span.end() + (1 << 20) <= end
        });
        assert!(inner, "{}: inside of the margins", image.display());
    }
    drop(scan);
    assert_eq!(hash(image), before, "{} was written", image.display());
    (codes, accepted)
}

/// What each image of util-linux's tests must be refused as; all others are plain file systems, or
/// disks, that may be accepted.
const REFUSED: &[(&str, &[Code])] = &[
    ("adaptec-raid", &[Code::RaidMember]),
    ("bcache-journal", &[Code::CacheMember]),
    ("bcachefs", &[Code::CacheMember]),
    ("bitlocker-win7", &[Code::Encrypted]),
    ("cs_fvault2", &[Code::Encrypted]),
    ("ddf-raid", &[Code::RaidMember]),
    ("drbd-v08", &[Code::RaidMember]),
    ("drbd-v09", &[Code::RaidMember]),
    ("hpt45x-raid", &[Code::RaidMember]),
    ("isw-raid", &[Code::RaidMember]),
    ("luks1", &[Code::Encrypted]),
    ("mdraid-1", &[Code::RaidMember]),
    ("promise-raid", &[Code::RaidMember]),
    ("via-raid", &[Code::RaidMember]),
    ("vmfs_volume", &[Code::VolumeManager]),
    ("zfs", &[Code::VolumeManager]),
    ("f2fs", &[Code::OtherFileSystem]),
    ("jfs", &[Code::OtherFileSystem]),
    ("reiser3", &[Code::OtherFileSystem]),
    ("minix-BE", &[Code::OtherFileSystem]),
    ("vxfs-le", &[Code::OtherFileSystem]),
    ("tuxonice", &[Code::Hibernated]),
    ("swap0", &[Code::UnknownFeature]),
];

#[test]
fn what_is_no_plain_file_system_is_refused_by_name() {
    let Some(images) = images() else { return };
    let list = packed(&images, "blkid");
    let plain =
        ["ext2", "ext3", "ext4", "ntfs", "fat", "exfat", "xfs", "btrfs", "swap1", "small-fat"];
    let wrong = Mutex::new(Vec::new());
    each(&list, |path| {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(path, dir.path());
        let name = image.file_stem().unwrap().to_str().unwrap().to_owned();
        let (codes, accepted) = verdict(&image);
        if let Some((_, expected)) = REFUSED.iter().find(|(known, _)| *known == name)
            && !codes.first().is_some_and(|code| expected.contains(code))
        {
            wrong.lock().unwrap().push(format!("{name}: {codes:?}"));
        }
        if !plain.iter().any(|start| name.starts_with(start)) {
            assert!(!accepted, "{name} was accepted");
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn encrypted_disks_are_refused_and_the_plain_ones_beside_them_recognised() {
    let Some(images) = images() else { return };
    each(&packed(&images, "crypt"), |path| {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(path, dir.path());
        let (codes, _) = verdict(&image);
        let plain = path.file_name().unwrap().to_str().unwrap().starts_with("img_fs_");
        let named = codes.iter().any(|code| matches!(code, Code::Encrypted | Code::Unknown));
        assert_eq!(plain, !named, "{}: {codes:?}", path.display());
    });
}
