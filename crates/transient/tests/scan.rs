//! The rules for the whole machine, on images that are looked at together.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

#[path = "../../freespace/tests/common/mod.rs"]
mod common;

use common::{images, make, must, run, skip, unpack};
use freespace::{Code, FreeSpaceOptions, Level, Source};
use std::path::{Path, PathBuf};
use transient::{BorrowPolicy, HostDisk, Scan, ScanOptions};

fn ext4(dir: &Path, name: &str) -> PathBuf {
    let image = dir.join(name);
    must(60, "mke2fs", &["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "16M"]);
    image
}

/// The one verdict on each image.
fn verdicts(images: &[PathBuf], options: &ScanOptions) -> Vec<Option<Code>> {
    let scan = Scan::run(images, options);
    let verdict = |disk: &transient::DiskReport| match &disk.refusal {
        Some(refusal) => Some(refusal.code),
        None => disk.parts[0].verdict.as_ref().err().map(|refusal| refusal.code),
    };
    scan.disks.iter().map(verdict).collect()
}

#[test]
fn a_suspended_system_anywhere_refuses_everything() {
    let Some(images) = images() else { return };
    let dir = tempfile::tempdir().unwrap();
    let generated =
        |name: &str| unpack(&images.join(format!("generated/{name}.img.zst")), dir.path());
    let swap = generated("hib-swap-first1MiB");
    let exfat = generated("hib-exfat");
    let clean = ext4(dir.path(), "clean");
    let options = ScanOptions::default();
    // exFAT says that it is clean, although the suspended system has it mounted.
    let together = verdicts(&[exfat.clone(), clean.clone(), swap], &options);
    assert_eq!(together, [Some(Code::Hibernated); 3]);
    assert_eq!(verdicts(&[clean], &options), [None]);
}

#[test]
fn a_suspended_system_in_a_swap_file_refuses_everything() {
    let dir = tempfile::tempdir().unwrap();
    let root = ext4(dir.path(), "root");
    let other = ext4(dir.path(), "other");
    let mut swap = vec![0; 1 << 20];
    swap[4086..4095].copy_from_slice(b"S1SUSPEND");
    let (file, table) = (dir.path().join("swap"), dir.path().join("fstab"));
    std::fs::write(&file, &swap).unwrap();
    std::fs::write(&table, "/var/deep/swap none swap sw 0 0\n").unwrap();
    let commands = format!(
        "mkdir etc\nmkdir var\nmkdir var/deep\nwrite {} etc/fstab\nwrite {} var/deep/swap\n",
        table.display(),
        file.display()
    );
    let script = dir.path().join("script");
    std::fs::write(&script, commands).unwrap();
    must(60, "debugfs", &["-w", "-f", script.to_str().unwrap(), root.to_str().unwrap()]);
    assert!(run(60, "e2fsck", &["-fy", root.to_str().unwrap()]).status.code().unwrap() < 4);
    let options = ScanOptions::default();
    assert_eq!(verdicts(&[other.clone(), root.clone()], &options), [Some(Code::Hibernated); 2]);
    // The same file without the mark is a file like any other.
    swap[4086..4096].copy_from_slice(b"SWAPSPACE2");
    std::fs::write(&file, &swap).unwrap();
    std::fs::write(&script, format!("rm var/deep/swap\nwrite {} var/deep/swap\n", file.display()))
        .unwrap();
    must(60, "debugfs", &["-w", "-f", script.to_str().unwrap(), root.to_str().unwrap()]);
    assert!(run(60, "e2fsck", &["-fy", root.to_str().unwrap()]).status.code().unwrap() < 4);
    assert_eq!(verdicts(&[other, root], &options), [None; 2]);
}

/// An ext4 image to which a script of debugfs was done. `@NAME` in it is a file beside the image.
fn filled(dir: &Path, name: &str, features: &str, script: &str) -> PathBuf {
    let image = dir.join(name);
    let path = image.to_str().unwrap();
    must(60, "mke2fs", &["-q", "-F", "-t", "ext4", "-O", features, path, "16M"]);
    let commands = dir.join(format!("{name}.script"));
    std::fs::write(&commands, script.replace('@', &format!("{}/", dir.display()))).unwrap();
    let done = run(60, "debugfs", &["-w", "-f", commands.to_str().unwrap(), path]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.lines().count() <= 1, "{name}: {said}");
    assert!(run(60, "e2fsck", &["-fy", path]).status.code().unwrap() < 4);
    image
}

#[test]
fn a_suspended_system_is_found_in_a_swap_file_however_the_system_names_it() {
    let root = "mkdir etc\nmkdir var\nmkdir var/lib\n";
    // What the table or the unit says; what is done beside it; where the file is.
    let cases = [
        (
            "escapes",
            "^inline_data",
            "/my\\040swap none swap sw 0 0",
            "write @t etc/fstab\n",
            "\"my swap\"",
        ),
        (
            "table by a link",
            "^inline_data",
            "/var/s none swap",
            "mkdir conf\nwrite @t conf/tab\nsymlink etc/fstab ../conf/tab\n",
            "var/s",
        ),
        (
            "directory by a link",
            "^inline_data",
            "/link/s none swap",
            "write @t etc/fstab\nsymlink link /var/lib\n",
            "var/lib/s",
        ),
        (
            "file by a link",
            "^inline_data",
            "/s none swap",
            "write @t etc/fstab\nsymlink s var/lib/real\n",
            "var/lib/real",
        ),
        (
            "inline directories",
            "inline_data",
            "/var/lib/s none swap",
            "write @t etc/fstab\n",
            "var/lib/s",
        ),
        (
            "unit",
            "^inline_data",
            "[Swap]\nWhat=/var/s",
            "mkdir etc/systemd\nmkdir etc/systemd/system\nwrite @t etc/systemd/system/var-s.swap\n",
            "var/s",
        ),
    ];
    for (name, features, table, script, file) in cases {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t"), format!("{table}\n")).unwrap();
        let mut swap = vec![0; 1 << 20];
        for (mark, expected) in [(b"S1SUSPEND\0", Some(Code::Hibernated)), (b"SWAPSPACE2", None)] {
            swap[4086..4096].copy_from_slice(mark);
            std::fs::write(dir.path().join("f"), &swap).unwrap();
            let script = format!("{root}{script}write @f {file}\n");
            let image = filled(dir.path(), "root", features, &script);
            let clean = ext4(dir.path(), "clean");
            let verdicts = verdicts(&[image, clean], &ScanOptions::default());
            assert_eq!(verdicts, [expected; 2], "{name}: {expected:?}");
        }
    }
}

#[test]
fn a_suspended_system_is_found_in_a_swap_file_of_another_file_system_than_the_table() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t"), "/data/most/s none swap sw 0 0\n").unwrap();
    let mut swap = vec![0; 1 << 20];
    swap[4086..4095].copy_from_slice(b"S1SUSPEND");
    std::fs::write(dir.path().join("f"), &swap).unwrap();
    // It is mounted at /data there.
    let data = filled(dir.path(), "data", "^inline_data", "mkdir most\nwrite @f most/s\n");
    assert_eq!(verdicts(std::slice::from_ref(&data), &ScanOptions::default()), [None]);
    let table = "mkdir etc\nwrite @t etc/fstab\n";
    let linked = "mkdir etc\nwrite @l etc/fstab\nsymlink swap /data/most/s\n";
    std::fs::write(dir.path().join("l"), "/swap none swap sw 0 0\n").unwrap();
    for (name, script) in [("root", table), ("linked", linked)] {
        let root = filled(dir.path(), name, "^inline_data", script);
        let all = verdicts(&[root, data.clone()], &ScanOptions::default());
        assert_eq!(all, [Some(Code::Hibernated); 2], "{name}");
    }
}

#[test]
fn what_was_not_unmounted_may_be_what_a_suspended_system_has_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let fat = make::fat(dir.path(), 16, &[]);
    let clean = ext4(dir.path(), "clean");
    // With the checksum of its superblock, as its own system would leave it.
    let left = |name: &str, command: &str| {
        let image = ext4(dir.path(), name);
        must(60, "debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
        image
    };
    let dirty = make::exfat(dir.path(), &[]);
    let mut bytes = std::fs::read(&dirty).unwrap();
    bytes[106] |= 2;
    std::fs::write(&dirty, &bytes).unwrap();
    for (name, unclean, code) in [
        ("journal to replay", left("replay", "feature needs_recovery"), Code::NeedsReplay),
        ("mounted state", left("state", "ssv state 0"), Code::Unclean),
        ("orphans", left("orphans", "ssv last_orphan 11"), Code::Orphans),
        ("dirty exFAT", dirty, Code::Unclean),
    ] {
        let all = [fat.clone(), clean.clone(), unclean];
        let mut options = ScanOptions::default();
        let hidden = Some(Code::HiddenState);
        assert_eq!(verdicts(&all, &options), [hidden, None, Some(code)], "{name}");
        let scan = Scan::run(&all, &options);
        let said = &scan.disks[0].parts[0].verdict.as_ref().unwrap_err().sentence;
        assert!(said.contains("which was not unmounted"), "{name}: {said}");
        drop(scan); // it has the images locked
        options.nothing_hidden = true;
        assert_eq!(verdicts(&all, &options), [None, None, Some(code)], "{name}");
    }
}

#[test]
fn a_btrfs_that_is_lent_may_hide_a_suspended_system_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let all = [make::btrfs(dir.path(), &[]), make::fat(&sub(&dir), 16, &[])];
    let mut options = ScanOptions::default();
    options.reader.btrfs = true;
    assert_eq!(verdicts(&all, &options), [None, Some(Code::HiddenState)]);
}

/// A new directory in a test's own.
fn sub(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("sub");
    std::fs::create_dir(&path).unwrap();
    path
}

#[test]
fn what_dm_verity_has_hashes_of_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = ext4(dir.path(), "root");
    let mut hashes = vec![0; 1 << 20];
    hashes[..8].copy_from_slice(b"verity\0\0");
    hashes[64..68].copy_from_slice(&4096u32.to_le_bytes());
    hashes[72..80].copy_from_slice(&4096u64.to_le_bytes());
    let beside = dir.path().join("hashes");
    std::fs::write(&beside, &hashes).unwrap();
    let (covered, other) = (Some(Code::UnsupportedFeature), Some(Code::OtherFileSystem));
    let options = ScanOptions::default();
    assert_eq!(verdicts(&[image.clone(), beside], &options), [covered, other]);
    assert_eq!(verdicts(std::slice::from_ref(&image), &options), [None]);
    // Behind the file system itself.
    let appended = dir.path().join("appended");
    let all = [std::fs::read(&image).unwrap(), hashes].concat();
    std::fs::write(&appended, all).unwrap();
    assert_eq!(verdicts(&[appended], &options), [covered]);
}

#[test]
fn what_may_be_the_origin_of_a_cache_or_a_snapshot_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let origin = ext4(dir.path(), "origin");
    let store = dir.path().join("store");
    let mut options = ScanOptions::default();
    for (at, magic, own, other) in [
        (0, &b"\x21\x93\x48\x23\x01\0\0\0"[..], Code::CacheMember, Code::CacheMember),
        (32, b"\x03\xc4\x18\0\0\0\0\0\x02", Code::CacheMember, Code::CacheMember),
        (0, b"SnAp\x01\0\0\0\x01\0\0\0\x08", Code::VolumeManager, Code::Snapshots),
    ] {
        let mut bytes = vec![0; 4 << 20];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        std::fs::write(&store, bytes).unwrap();
        // The owner's word on suspended systems says nothing of it.
        for nothing_hidden in [false, true] {
            options.nothing_hidden = nothing_hidden;
            let all = verdicts(&[origin.clone(), store.clone()], &options);
            assert_eq!(all, [Some(other), Some(own)], "{magic:?}");
        }
        let scan = Scan::run(&[origin.clone(), store.clone()], &options);
        let said = &scan.disks[0].parts[0].verdict.as_ref().unwrap_err().sentence;
        assert!(said.contains(store.to_str().unwrap()), "{said}");
    }
    assert_eq!(verdicts(&[origin], &options), [None]);
}

#[test]
fn a_proof_without_checksums_that_is_not_deep_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let all = [ext4(dir.path(), "sealed"), make::fat(dir.path(), 16, &[])];
    let mut options = ScanOptions::default();
    assert_eq!(Scan::run(&all, &options).warnings(), [""; 0]);
    options.reader.level = Some(Level::Fast);
    let warnings = Scan::run(&all, &options).warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("fat16") && warnings[0].contains("--proof"), "{warnings:?}");
}

#[test]
fn what_does_not_show_that_it_is_mounted_is_refused_beside_what_cannot_be_looked_into() {
    let dir = tempfile::tempdir().unwrap();
    let luks = dir.path().join("luks");
    let mut bytes = vec![0; 4 << 20];
    bytes[..6].copy_from_slice(b"LUKS\xba\xbe");
    std::fs::write(&luks, &bytes).unwrap();
    let swap = dir.path().join("swap");
    std::fs::write(&swap, vec![0; 16 << 20]).unwrap();
    must(60, "mkswap", &["-q", swap.to_str().unwrap()]);
    let all = [ext4(dir.path(), "clean"), swap, luks];
    let mut options = ScanOptions::default();
    let encrypted = Some(Code::Encrypted);
    assert_eq!(verdicts(&all, &options), [None, Some(Code::HiddenState), encrypted]);
    options.nothing_hidden = true;
    assert_eq!(verdicts(&all, &options), [None, None, encrypted]);
}

#[test]
fn a_suspended_system_under_the_mark_of_something_else_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let swap = dir.path().join("swap");
    let mut bytes = vec![0; 16 << 20];
    // What was there before the swap space.
    bytes[..4].copy_from_slice(b"XFSB");
    bytes[4086..4095].copy_from_slice(b"S1SUSPEND");
    std::fs::write(&swap, &bytes).unwrap();
    let all = [ext4(dir.path(), "clean"), swap];
    assert_eq!(verdicts(&all, &ScanOptions::default()), [Some(Code::Hibernated); 2]);
}

#[test]
fn swap_files_that_are_not_looked_into_may_hide_a_suspended_system() {
    let dir = tempfile::tempdir().unwrap();
    let btrfs = make::btrfs(dir.path(), &[]);
    let ntfs = dir.path().join("ntfs");
    std::fs::File::create(&ntfs).unwrap().set_len(32 << 20).unwrap();
    must(60, "mkntfs", &["-q", "-F", "-Q", ntfs.to_str().unwrap()]);
    // A disk that cannot be judged at all hides as much.
    let torn = dir.path().join("torn");
    let mut bytes = vec![0; 4 << 20];
    bytes[446 + 4] = 0xEE;
    bytes[446 + 8] = 1;
    bytes[446 + 12..446 + 16].copy_from_slice(&8191u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    std::fs::write(&torn, &bytes).unwrap();
    // So does an NTFS that has lost the sector that it is known by.
    let headless = dir.path().join("headless");
    let mut bytes = std::fs::read(&ntfs).unwrap();
    bytes[..512].fill(0);
    std::fs::write(&headless, &bytes).unwrap();
    let clean = ext4(dir.path(), "clean");
    let options = ScanOptions::default();
    assert_eq!(verdicts(&[ntfs.clone(), clean.clone()], &options), [None; 2]);
    for (beside, code) in [
        (btrfs, Code::NeedsConsent),
        (torn, Code::PartitionTable),
        (headless, Code::OtherFileSystem),
    ] {
        let all = [ntfs.clone(), clean.clone(), beside];
        let expected = [Some(Code::HiddenState), None, Some(code)];
        assert_eq!(verdicts(&all, &options), expected);
        let options = ScanOptions { nothing_hidden: true, ..ScanOptions::default() };
        assert_eq!(verdicts(&all, &options), [None, None, Some(code)]);
    }
}

#[test]
fn a_file_system_under_a_damaged_partition_table_is_taken_for_stale() {
    let dir = tempfile::tempdir().unwrap();
    let image = ext4(dir.path(), "disk");
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&8192u32.to_le_bytes());
    // It ends behind the end of the disk.
    bytes[446 + 12..446 + 16].copy_from_slice(&(1u32 << 20).to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    std::fs::write(&image, &bytes).unwrap();
    assert_eq!(verdicts(&[image], &ScanOptions::default()), [Some(Code::PartitionTable)]);
}

/// Writes one entry of a partition table, in bytes, and the mark of a table.
fn entry(disk: &mut [u8], slot: usize, kind: u8, start: usize, len: usize) {
    let at = 446 + 16 * slot;
    disk[at + 4] = kind;
    disk[at + 8..at + 12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
    disk[at + 12..at + 16].copy_from_slice(&((len / 512) as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
}

#[test]
fn a_disk_inside_a_partition_is_not_lent_as_the_file_system_that_was_there_before() {
    let dir = tempfile::tempdir().unwrap();
    let swap = dir.path().join("swap");
    std::fs::write(&swap, vec![0; 16 << 20]).unwrap();
    must(60, "mkswap", &["-q", swap.to_str().unwrap()]);
    for (name, image) in [
        ("swap", swap),
        ("ext4", ext4(dir.path(), "ext4")),
        ("fat", make::fat(dir.path(), 16, &[])),
        ("btrfs", make::btrfs(&sub(&dir), &[])),
    ] {
        let part = std::fs::read(image).unwrap();
        let start = 1 << 20;
        let verdict = |part: &[u8]| {
            let mut disk = vec![0; start];
            entry(&mut disk, 0, 0x83, start, part.len());
            disk.extend_from_slice(part);
            let path = dir.path().join("disk");
            std::fs::write(&path, disk).unwrap();
            let mut options = ScanOptions::default();
            options.reader.btrfs = true;
            verdicts(&[path], &options)
        };
        assert_eq!(verdict(&part), [None], "{name} alone");
        // What a guest's installer writes first: its table, and nothing more below 1 MiB.
        let mut inside = part.clone();
        entry(&mut inside, 0, 0x83, 1 << 20, part.len() - (1 << 20));
        assert_eq!(verdict(&inside), [Some(Code::Ambiguous)], "{name} under a table");
        entry(&mut inside, 1, 0x83, 2 << 20, part.len());
        assert_eq!(verdict(&inside), [Some(Code::Ambiguous)], "{name} under a damaged table");
        // The signature alone is any boot sector's.
        let mut bootable = part.clone();
        bootable[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(verdict(&bootable), [None], "{name} with boot code");
    }
}

#[test]
fn a_suspended_system_is_seen_in_a_partition_that_looks_like_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut swap = vec![0; 16 << 20];
    swap[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    swap[1028..1032].copy_from_slice(&4095u32.to_le_bytes());
    swap[4086..4095].copy_from_slice(b"S1SUSPEND");
    entry(&mut swap, 0, 0x83, 1 << 20, 8 << 20);
    let mut disk = vec![0; 1 << 20];
    entry(&mut disk, 0, 0x82, 1 << 20, swap.len());
    disk.extend_from_slice(&swap);
    let path = dir.path().join("disk");
    std::fs::write(&path, disk).unwrap();
    assert_eq!(verdicts(&[path], &ScanOptions::default()), [Some(Code::Hibernated)]);
}

#[test]
fn an_image_that_a_virtual_machine_has_open_is_refused() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let image = ext4(dir.path(), "image");
    // QEMU's own way to open a disk, with its locks.
    let mut machine = Command::new("qemu-io")
        .args(["-f", "raw"])
        .arg(&image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("qemu-io: {e}; scripts/setup test installs it"));
    machine.stdin.as_mut().unwrap().write_all(b"read 0 512\n").unwrap();
    let mut line = String::new();
    BufReader::new(machine.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let images = [image];
    assert_eq!(verdicts(&images, &ScanOptions::default()), [Some(Code::InUse)]);
    drop(machine.stdin.take());
    machine.wait().unwrap();
    assert_eq!(verdicts(&images, &ScanOptions::default()), [None]);
}

#[test]
fn an_image_that_is_locked_or_behind_a_loop_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = ext4(dir.path(), "image");
    let held = HostDisk::open(&image).unwrap();
    assert_eq!(
        verdicts(std::slice::from_ref(&image), &ScanOptions::default()),
        [Some(Code::InUse)]
    );
    drop(held);
    assert_eq!(verdicts(std::slice::from_ref(&image), &ScanOptions::default()), [None]);
    let device = run(20, "losetup", &["--find", "--show", "--read-only", image.to_str().unwrap()]);
    if !device.status.success() {
        return skip("no loop device can be made here");
    }
    let device = String::from_utf8(device.stdout).unwrap().trim().to_owned();
    let behind = verdicts(std::slice::from_ref(&image), &ScanOptions::default());
    // The device itself, named, is looked at although it cannot be written.
    let itself = HostDisk::open(Path::new(&device)).map(|disk| disk.size());
    must(20, "losetup", &["--detach", &device]);
    assert_eq!(behind, [Some(Code::InUse)]);
    assert_eq!(itself.unwrap(), 16 << 20);
}

#[test]
fn partitions_of_an_image_are_judged_one_by_one_and_lent_in_disk_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let part = std::fs::read(ext4(dir.path(), "part")).unwrap();
    let mut disk = vec![0; 48 << 20];
    entry(&mut disk, 0, 0x83, 2 << 20, 16 << 20);
    entry(&mut disk, 1, 0x83, 20 << 20, 16 << 20);
    entry(&mut disk, 2, 0x82, 40 << 20, 4 << 20);
    for start in [2 << 20, 20 << 20] {
        disk[start..start + part.len()].copy_from_slice(&part);
    }
    // The second one was not unmounted.
    disk[(20 << 20) + 1024 + 0x3A] = 0;
    let image = dir.path().join("disk");
    std::fs::write(&image, &disk).unwrap();
    let options = ScanOptions {
        reader: FreeSpaceOptions { level: Some(Level::Deep), ..FreeSpaceOptions::default() },
        nothing_hidden: false,
    };
    let scan = Scan::run(std::slice::from_ref(&image), &options);
    let report = &scan.disks[0];
    assert_eq!(report.table, "mbr");
    let codes: Vec<Option<Code>> =
        report.parts.iter().map(|part| part.verdict.as_ref().err().map(|r| r.code)).collect();
    assert!(
        matches!(codes[..], [None, Some(Code::Unclean | Code::Checksum), Some(Code::Unknown)]),
        "{codes:?}"
    );
    let loans = scan.loans(&BorrowPolicy { want: Some(3 << 20), ..BorrowPolicy::default() });
    assert_eq!(loans.len(), 1);
    let spans = &loans[0].spans;
    assert_eq!(spans.iter().map(|span| span.len()).sum::<u64>(), 3 << 20);
    assert!(spans.iter().all(|span| span.offset() >= 3 << 20 && span.end() <= 17 << 20));
}
