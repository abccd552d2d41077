//! Kernels out of file systems that mke2fs and mkfs.vfat made, and kernels that are given.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use block::{Device, Memory, Span};
use bytes::Bytes;
use netboot::kernel::given::{KernelToGive, parameters};
use netboot::kernel::{BootFile, BootFiles, GivenKernels, NbdRoot, find, find_given};
use proptest::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const PART: u64 = 1 << 20;
const SIZE: u64 = 16 << 20;

/// Writes these files below a directory.
fn write_files(root: &Path, files: &[(&str, &[u8])]) {
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// An ext4 with these files.
fn ext4(options: &[&str], files: &[(&str, &[u8])]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    write_files(&root, files);
    let image = dir.path().join("image");
    let made =
        Command::new(if Path::new("/sbin/mke2fs").exists() { "/sbin/mke2fs" } else { "mke2fs" })
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(&root)
            .args(options)
            .arg(&image)
            .arg(format!("{}k", (SIZE - 2 * PART) / 1024))
            .status();
    assert!(made.unwrap().success(), "mke2fs; scripts/setup test installs it");
    std::fs::read(image).unwrap()
}

/// A FAT with so many bits and these files.
fn fat(bits: u32, files: &[(&str, &[u8])]) -> Vec<u8> {
    fat_after(bits, files, |_| ())
}

/// The same, with something done to the image before the files are put into it.
fn fat_after(bits: u32, files: &[(&str, &[u8])], before: impl FnOnce(&Path)) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    write_files(&root, files);
    let image = dir.path().join("image");
    let mkfs =
        ["/sbin/mkfs.vfat", "/usr/sbin/mkfs.vfat"].into_iter().find(|at| Path::new(at).exists());
    let (cluster, size) = match bits {
        12 => ("8", "14336"),
        16 => ("4", "14336"),
        _ => ("1", "36864"),
    };
    let made = Command::new(mkfs.unwrap_or("mkfs.vfat"))
        .args(["-n", "ESP", "-i", "ABCD1234", "-s", cluster, "-F", &bits.to_string(), "-C"])
        .arg(&image)
        .arg(size)
        .output();
    assert!(made.unwrap().status.success(), "mkfs.vfat; scripts/setup test installs it");
    before(&image);
    let tops = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    mtools("mcopy", &image, ["-s".into()].into_iter().chain(tops).chain(["::/".into()]));
    std::fs::read(image).unwrap()
}

/// Runs one of mtools on an image; options come first.
fn mtools(program: &str, image: &Path, arguments: impl IntoIterator<Item = PathBuf>) {
    let done = Command::new(program).arg("-i").arg(image).args(arguments).output();
    let Ok(done) = done else { panic!("no mtools; scripts/setup test installs them") };
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";

/// A disk with a GPT and these parts, each a purpose and its content. The UUID of the first consists of ones, and so on.
fn gpt(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut disk = vec![0; PART as usize];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[512..520].copy_from_slice(b"EFI PART");
    disk[512 + 72] = 2;
    disk[512 + 80] = 128;
    disk[512 + 84] = 128;
    for (index, (purpose, content)) in parts.iter().enumerate() {
        let digits: Vec<u8> = purpose.bytes().filter(|byte| *byte != b'-').collect();
        let byte = |at: usize| {
            u8::from_str_radix(std::str::from_utf8(&digits[2 * at..2 * at + 2]).unwrap(), 16)
        };
        let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let (first, end) = (disk.len() / 512, (disk.len() + content.len()).div_ceil(512));
        let entry = 1024 + 128 * index;
        for (to, from) in order.into_iter().enumerate() {
            disk[entry + to] = byte(from).unwrap();
        }
        disk[entry + 16..entry + 32].fill(0x11 * (index as u8 + 1));
        disk[entry + 32..entry + 40].copy_from_slice(&(first as u64).to_le_bytes());
        disk[entry + 40..entry + 48].copy_from_slice(&(end as u64 - 1).to_le_bytes());
        disk.extend_from_slice(content);
        disk.resize(end * 512, 0);
    }
    disk
}

/// A unified kernel image with these sections, each filled up as linkers do.
fn unified(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut image = vec![0; 128];
    image[..2].copy_from_slice(b"MZ");
    image[0x3c] = 128;
    image.extend_from_slice(b"PE\0\0\x64\x86");
    image.extend_from_slice(&(sections.len() as u16).to_le_bytes());
    image.extend_from_slice(&[0; 12]);
    image.extend_from_slice(&[240, 0, 0, 0]);
    image.extend_from_slice(&[0; 240]);
    let mut at = 1024;
    for (name, content) in sections {
        let mut header = [0; 40];
        header[..name.len()].copy_from_slice(name.as_bytes());
        let length = content.len() as u32;
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[16..20].copy_from_slice(&length.next_multiple_of(512).to_le_bytes());
        header[20..24].copy_from_slice(&(at as u32).to_le_bytes());
        image.extend_from_slice(&header);
        at += content.len().next_multiple_of(512);
    }
    image.resize(1024, 0);
    for (_, content) in sections {
        image.extend_from_slice(content);
        image.resize(image.len().next_multiple_of(512), 0);
    }
    image
}

/// Bytes that are like no others, but for those of the same seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let step = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some((*state >> 33) as u8)
    };
    let mut state = seed;
    std::iter::from_fn(move || step(&mut state)).take(length).collect()
}

/// Both files of a boot.
async fn both(found: &BootFiles, device: &Arc<dyn Device>) -> [Bytes; 2] {
    let read = async |which| found.read(Arc::clone(device), which, Bytes::new()).await.unwrap();
    [read(BootFile::Kernel).await, read(BootFile::Initrd).await]
}

/// A disk with a master boot record and one part, which starts at 1 MiB.
fn disk(part: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; SIZE as usize];
    disk[440..444].copy_from_slice(&0xabcd_1234_u32.to_le_bytes());
    disk[450] = 0x83;
    disk[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    disk[458..462].copy_from_slice(&((part.len() / 512) as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[PART as usize..PART as usize + part.len()].copy_from_slice(part);
    disk
}

async fn device(bytes: &[u8]) -> Arc<dyn Device> {
    let memory = Memory::new(bytes.len() as u64);
    memory
        .write(Span::between(0, bytes.len() as u64), bytes, block::Durability::Buffered)
        .await
        .unwrap();
    Arc::new(memory)
}

fn debian(root: &str) -> Vec<(&'static str, Vec<u8>)> {
    let grub = format!(
        "menuentry x {{\nlinux /boot/vmlinuz-6.1 {root} ro quiet ip=dhcp\ninitrd /boot/initrd.img-6.1\n}}\n"
    );
    vec![
        ("boot/vmlinuz-6.1", vec![1; 300_000]),
        ("boot/initrd.img-6.1", (0..2_000_000u32).map(|i| (i / 7) as u8).collect()),
        ("boot/grub/grub.cfg", grub.into_bytes()),
        ("etc/hostname", b"x".to_vec()),
    ]
}

fn borrowed<'a>(files: &'a [(&'static str, Vec<u8>)]) -> Vec<(&'static str, &'a [u8])> {
    files.iter().map(|(path, content)| (*path, content.as_slice())).collect()
}

#[tokio::test]
async fn a_debian_is_started_as_grub_would_with_its_root_wherever_that_is_named() {
    let uuid = "11111111-2222-3333-4444-555555555555";
    for (root, options) in [
        (format!("root=UUID={uuid}"), vec!["-U", uuid]),
        ("root=PARTUUID=abcd1234-01".to_owned(), vec![]),
        ("root=LABEL=system".to_owned(), vec!["-L", "system"]),
        ("root=/dev/vda1".to_owned(), vec!["-b", "1024"]),
        (String::new(), vec!["-O", "^extents,^64bit"]),
    ] {
        let files = debian(&root);
        let device = device(&disk(&ext4(&options, &borrowed(&files)))).await;
        let found = find(Arc::clone(&device)).await.unwrap();
        assert_eq!(found.root("/dev/nbd0"), "/dev/nbd0p1", "{root}");
        assert_eq!(found.arguments(), ["ro", "quiet"], "{root}");
        assert_eq!(
            found.read(Arc::clone(&device), BootFile::Kernel, Bytes::new()).await.unwrap(),
            files[0].1
        );
        assert_eq!(found.read(device, BootFile::Initrd, Bytes::new()).await.unwrap(), files[1].1);
    }
}

#[tokio::test]
async fn a_disk_without_a_table_and_without_a_configuration_is_started_by_names() {
    let files = [
        ("boot/vmlinuz-6.1.0-9", &b"old"[..]),
        ("boot/vmlinuz-6.1.0-10", b"new"),
        ("boot/initrd.img-6.1.0-10", b"ram disk"),
        ("etc/hostname", b"x"),
    ];
    let device = device(&ext4(&[], &files)).await;
    let found = find(Arc::clone(&device)).await.unwrap();
    assert_eq!(
        (found.root("/dev/nbd0"), found.kernel()),
        ("/dev/nbd0".into(), "/boot/vmlinuz-6.1.0-10")
    );
    assert_eq!(found.read(device, BootFile::Kernel, Bytes::new()).await.unwrap(), &b"new"[..]);
}

#[tokio::test]
async fn several_ram_disks_become_one() {
    let entry = b"version 2\nlinux /vmlinuz\ninitrd /ucode.img\ninitrd /initrd.img\noptions root=/dev/sda1\n";
    let files = [
        ("loader/entries/a.conf", &entry[..]),
        ("loader/entries/b.conf", b"version 1\nlinux /old\n"),
        ("vmlinuz", b"kernel"),
        ("old", b"kernel"),
        ("ucode.img", b"12345"),
        ("initrd.img", b"678"),
    ];
    let device = device(&disk(&ext4(&[], &files))).await;
    let found = find(Arc::clone(&device)).await.unwrap();
    assert_eq!(found.kernel(), "/vmlinuz");
    assert_eq!((found.length(BootFile::Kernel), found.length(BootFile::Initrd)), (6, 11));
    let read = async |front| {
        found.read(Arc::clone(&device), BootFile::Initrd, Bytes::from_static(front)).await.unwrap()
    };
    assert_eq!(read(b"").await, &b"12345\x00\x00\x00678"[..]);
    assert_eq!(read(b"front").await, &b"front\x00\x00\x0012345\x00\x00\x00678"[..]);
}

#[tokio::test]
async fn a_system_is_asked_what_its_ram_disk_makes_of_a_root_over_nbd() {
    let (tools, dracut) = ("usr/share/initramfs-tools/init", "usr/lib/dracut/dracut-init.sh");
    let module = "usr/lib/dracut/modules.d/95sojourn/module-setup.sh";
    for (installed, boot_script, dracut_module) in [
        (&[tools][..], true, false),
        // The package, which has both, on a system with initramfs-tools.
        (&[tools, module], true, false),
        (&[dracut, module], false, true),
        (&[tools, dracut, module], true, true),
        (&[dracut], false, false),
    ] {
        let mut files = debian("root=/dev/vda1 boot=local");
        files.extend(installed.iter().map(|path| (*path, b"#!/bin/sh".to_vec())));
        let found = find(device(&disk(&ext4(&[], &borrowed(&files)))).await).await.unwrap();
        assert_eq!(found.nbd_root(), NbdRoot { boot_script, dracut_module }, "{installed:?}");
        assert_eq!(found.arguments(), ["ro", "quiet"]);
        // Without a RAM disk nobody makes anything of it.
        files.retain(|(path, _)| !path.starts_with("boot/initrd") && !path.ends_with("grub.cfg"));
        let found = find(device(&disk(&ext4(&[], &borrowed(&files)))).await).await.unwrap();
        let none = NbdRoot { boot_script: false, dracut_module: false };
        assert_eq!(found.nbd_root(), none, "{installed:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_the_way_out() {
    let nowhere = debian("root=UUID=00000000-0000-0000-0000-000000000000");
    for bytes in [
        vec![0; SIZE as usize],
        disk(&ext4(&[], &[("etc/hostname", b"x")])),
        disk(&ext4(&[], &borrowed(&nowhere))),
        vec![0x55; 600],
        Vec::new(),
    ] {
        let error = find(device(&bytes).await).await.unwrap_err();
        assert!(error.message().contains("--method iscsi"), "{error}");
    }
}

#[tokio::test]
async fn an_efi_system_partition_has_the_kernel_and_another_part_the_root() {
    let (kernel, initrd) = (noise(1, 300_000), noise(2, 700_001));
    let new = b"title x\nversion 6.10\nlinux /0123456789abcdef/6.10/linux\n\
        initrd /0123456789abcdef/6.10/initrd.img\noptions root=PARTUUID=22222222-2222-2222-2222-222222222222 ro\n";
    let esp: [(&str, &[u8]); 6] = [
        ("loader/entries/0123456789abcdef-6.10.conf", new),
        ("loader/entries/0123456789abcdef-6.9.conf", b"version 6.9\nlinux /OLD\n"),
        ("loader/entries/readme.txt", b"version 7\nlinux /OLD\n"),
        ("OLD", b"kernel"),
        ("0123456789abcdef/6.10/linux", &kernel),
        ("0123456789abcdef/6.10/initrd.img", &initrd),
    ];
    let root = ext4(&[], &[("usr/share/initramfs-tools/init", b"#!/bin/sh")]);
    for bits in [12, 16, 32] {
        let disk = gpt(&[(ESP, &fat(bits, &esp)), (LINUX, &root)]);
        let device = device(&disk).await;
        let found = find(Arc::clone(&device)).await.unwrap();
        assert_eq!(found.root("/dev/nbd0"), "/dev/nbd0p2", "{bits}");
        assert_eq!(found.arguments(), ["ro"]);
        assert_eq!(found.nbd_root(), NbdRoot { boot_script: true, dracut_module: false });
        assert!(both(&found, &device).await == [kernel.as_slice(), &initrd], "{bits}");
    }
}

#[tokio::test]
async fn a_file_in_pieces_is_read_in_order() {
    let initrd = noise(3, 5_000_000);
    let esp: [(&str, &[u8]); 4] = [
        ("loader/entries/a.conf", b"linux /vmlinuz\ninitrd /initrd\noptions root=/dev/sda2\n"),
        ("loader/entries/b.conf", b"linux /missing\n"),
        ("vmlinuz", b"kernel"),
        ("initrd", &initrd),
    ];
    // There is room for it only between other files.
    let crowd = |image: &Path| {
        let dir = tempfile::tempdir().unwrap();
        let file = |number: usize| dir.path().join(format!("file{number}"));
        let files: Vec<PathBuf> = (0..26).map(file).collect();
        for file in &files {
            std::fs::write(file, vec![0; 512 << 10]).unwrap();
        }
        mtools("mcopy", image, files.iter().cloned().chain(["::/".into()]));
        mtools("mdel", image, (0..26).step_by(2).map(|number| format!("::/file{number}").into()));
    };
    for bits in [12, 16] {
        let esp = fat_after(bits, &esp, crowd);
        let device = device(&gpt(&[(ESP, &esp), (LINUX, &[0; 8192])])).await;
        let found = find(Arc::clone(&device)).await.unwrap();
        assert!(both(&found, &device).await == [b"kernel".as_slice(), &initrd], "{bits}");
    }
}

#[tokio::test]
async fn the_newest_of_entries_and_unified_kernels_is_started() {
    let (kernel, initrd) = (noise(4, 100_000), noise(5, 40_001));
    let command_line =
        b"root=PARTUUID=22222222-2222-2222-2222-222222222222 rw rootflags=subvol=@ quiet\0";
    let newest = unified(&[
        (".osrel", b"ID=x\nVERSION_ID=\"1\"\n"),
        (".cmdline", command_line),
        (".uname", b"6.10.2-arch1"),
        (".ucode", b"micro"),
        (".initrd", &initrd),
        (".linux", &kernel),
        (".cmdline", b"of another profile"),
    ]);
    let older = unified(&[(".uname", b"6.9.12"), (".linux", b"old")]);
    let esp: [(&str, &[u8]); 6] = [
        ("EFI/Linux/arch-linux.efi", &newest),
        ("EFI/Linux/zz-linux.EFI", &older),
        ("EFI/Linux/broken.efi", b"MZ"),
        ("EFI/Linux/other.efi", &unified(&[(".text", b"no kernel")])),
        ("loader/entries/a.conf", b"version 6.10.1\nlinux /vmlinuz\n"),
        ("vmlinuz", b"older"),
    ];
    let disk = gpt(&[(ESP, &fat(16, &esp)), (LINUX, &ext4(&[], &[("etc/hostname", b"x")]))]);
    let device = device(&disk).await;
    let found = find(Arc::clone(&device)).await.unwrap();
    assert_eq!(found.kernel(), "/EFI/Linux/arch-linux.efi");
    assert_eq!(found.arguments(), ["rw", "rootflags=subvol=@", "quiet"]);
    assert_eq!(found.length(BootFile::Kernel), 100_000);
    let joined = [&b"micro\0\0\0"[..], &initrd].concat();
    assert!(both(&found, &device).await == [kernel.as_slice(), &joined]);
}

/// A part whose file system is not read, called so.
fn btrfs(uuid: u8, label: &str) -> Vec<u8> {
    let mut part = vec![0; PART as usize];
    let at = 64 << 10;
    part[at + 32..at + 48].fill(uuid);
    part[at + 64..at + 72].copy_from_slice(b"_BHRfS_M");
    part[at + 299..at + 299 + label.len()].copy_from_slice(label.as_bytes());
    part
}

#[tokio::test]
async fn a_root_that_cannot_be_read_is_found_by_its_names() {
    let mut xfs = vec![0; PART as usize];
    xfs[..4].copy_from_slice(b"XFSB");
    xfs[32..48].fill(0xab);
    xfs[108..112].copy_from_slice(b"data");
    for (root, part) in [
        ("root=UUID=cdcdcdcd-CDCD-cdcd-cdcd-cdcdcdcdcdcd rootflags=subvol=@", Some(3)),
        ("root=LABEL=system rootflags=subvol=@", Some(3)),
        ("root=UUID=abababab-abab-abab-abab-abababababab rootflags=subvol=@", Some(2)),
        ("root=LABEL=data rootflags=subvol=@", Some(2)),
        ("root=PARTUUID=33333333-3333-3333-3333-333333333333 rootflags=subvol=@", Some(3)),
        ("root=/dev/nvme0n1p2 rootflags=subvol=@", Some(2)),
        // No root is named, and one is marked as such.
        ("rootflags=subvol=@", Some(3)),
        ("root=UUID=00000000-0000-0000-0000-000000000000", None),
        ("root=/dev/mapper/system-root", None),
    ] {
        let entry = format!("linux /vmlinuz\ninitrd /initrd\noptions {root} ro\n");
        let esp: [(&str, &[u8]); 3] = [
            ("loader/entries/a.conf", entry.as_bytes()),
            ("vmlinuz", b"kernel"),
            ("initrd", b"ram disk"),
        ];
        let disk = gpt(&[(ESP, &fat(12, &esp)), (LINUX, &xfs), (ROOT, &btrfs(0xcd, "system"))]);
        let found = find(device(&disk).await).await;
        let Some(part) = part else {
            assert!(found.unwrap_err().message().contains("--method iscsi"), "{root}");
            continue;
        };
        let found = found.unwrap();
        assert_eq!(found.root("/dev/nbd0"), format!("/dev/nbd0p{part}"), "{root}");
        assert_eq!(found.arguments(), ["rootflags=subvol=@", "ro"], "{root}");
        // Whoever made the RAM disk: the boot script does no harm.
        assert_eq!(found.nbd_root(), NbdRoot { boot_script: true, dracut_module: false });
    }
}

#[tokio::test]
async fn a_root_that_is_not_known_is_left_to_the_ram_disk_when_there_is_room_for_one() {
    let root = "UUID=99999999-9999-9999-9999-999999999999";
    let entry = format!("linux /vmlinuz\ninitrd /initrd\noptions root={root} rd.luks.name=x ro\n");
    let esp: [(&str, &[u8]); 3] = [
        ("loader/entries/a.conf", entry.as_bytes()),
        ("vmlinuz", b"kernel"),
        ("initrd", b"ram disk"),
    ];
    let esp = fat(12, &esp);
    for (size, is_left) in [(300 << 20, true), (64 << 20, false)] {
        let mut disk = gpt(&[(ESP, &esp), (LINUX, b"LUKS\xba\xbe")]);
        let first = disk.len() as u64 / 512 - 1;
        let last = (first + size / 512 - 1).to_le_bytes();
        disk[1024 + 128 + 40..1024 + 128 + 48].copy_from_slice(&last);
        let memory = Memory::new((first * 512) + size);
        let span = Span::between(0, disk.len() as u64);
        memory.write(span, &disk, block::Durability::Buffered).await.unwrap();
        match find(Arc::new(memory)).await {
            Ok(found) => {
                assert!(is_left);
                assert_eq!(found.root("/dev/nbd0"), root);
                assert_eq!(found.arguments(), ["rd.luks.name=x", "ro"]);
            }
            Err(e) => assert!(!is_left && e.message().contains("--method iscsi"), "{e}"),
        }
    }
}

#[tokio::test]
async fn damage_of_one_part_hides_no_kernel_on_another() {
    let mut entry = b"linux /vmlinuz\n".to_vec();
    entry.resize(5000, b'#');
    let files: [(&str, &[u8]); 2] = [("loader/entries/a.conf", &entry), ("vmlinuz", b"kernel")];
    let mut esp = fat(16, &files);
    // The table: every chain ends after one cluster, which is before the entry does.
    let table = usize::from(u16::from_le_bytes([esp[14], esp[15]])) * 512;
    esp[table..table + 8192].fill(0xff);
    let alone = find(device(&gpt(&[(ESP, &esp)])).await).await.unwrap_err();
    assert_eq!(alone.kind(), block::ErrorKind::Corrupt, "{alone}");
    let debian = debian("root=/dev/sda2");
    let disk = gpt(&[(ESP, &esp), (LINUX, &ext4(&[], &borrowed(&debian)))]);
    let found = find(device(&disk).await).await.unwrap();
    assert_eq!((found.kernel(), found.arguments().len()), ("/boot/vmlinuz-6.1", 2));
}

#[tokio::test]
async fn a_kernel_that_is_given_goes_before_that_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let kernels = GivenKernels::of(&dir.path().join("boot"));
    assert_eq!(kernels.get("debian:1").unwrap(), None);
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let give = KernelToGive {
        kernel: write("vmlinuz-7", b"given kernel"),
        initrd: Some(write("initrd-7", b"given ram disk")),
        append: parameters(" ro ip=dhcp  console=ttyS0,115200 ").unwrap(),
    };
    kernels.set("debian:1", &give).unwrap();
    let given = kernels.get("debian:1").unwrap().unwrap();
    assert_eq!((given.kernel.name.as_str(), given.kernel.bytes), ("vmlinuz-7", 12));
    assert_eq!(kernels.get("debian:2").unwrap(), None);

    let device = device(&disk(&ext4(&[], &borrowed(&debian("root=/dev/vda1"))))).await;
    let found = find_given(Arc::clone(&device), given).await.unwrap();
    assert_eq!(found.root("/dev/nbd0"), "/dev/nbd0p1");
    assert_eq!(found.arguments(), ["ro", "console=ttyS0,115200"]);
    assert_eq!(found.nbd_root(), NbdRoot { boot_script: true, dracut_module: false });
    assert_eq!(both(&found, &device).await, [&b"given kernel"[..], b"given ram disk"]);

    // Another one takes its place, with a root that only the RAM disk can find, and without a RAM disk.
    let other = KernelToGive {
        kernel: write("vmlinuz-8", b"other"),
        initrd: None,
        append: parameters("root=/dev/mapper/system").unwrap(),
    };
    kernels.set("debian:1", &other).unwrap();
    let given = kernels.get("debian:1").unwrap().unwrap();
    let other = find_given(Arc::clone(&device), given).await.unwrap();
    assert_eq!(other.root("/dev/nbd0"), "/dev/mapper/system");
    assert!(!other.has_initrd() && !other.nbd_root().boot_script);
    assert_eq!(both(&other, &device).await, [&b"other"[..], b""]);
    // Whoever began with the first one gets none of the other.
    let gone = found.read(Arc::clone(&device), BootFile::Kernel, Bytes::new()).await;
    assert_eq!(gone.unwrap_err().kind(), block::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(dir.path().join("boot/debian:1")).unwrap().count(), 2);

    assert!(kernels.unset("debian:1").unwrap());
    assert!(!kernels.unset("debian:1").unwrap());
    assert_eq!(kernels.get("debian:1").unwrap(), None);
}

#[test]
fn what_cannot_be_given_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let kernels = GivenKernels::of(&dir.path().join("boot"));
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("empty"), b"").unwrap();
    std::fs::File::create(path("long")).unwrap().set_len((128 << 20) + 1).unwrap();
    std::fs::write(path("good"), b"kernel").unwrap();
    let give = |kernel: &str| KernelToGive { kernel: path(kernel), initrd: None, append: vec![] };
    kernels.set("debian:1", &give("good")).unwrap();
    for (kernel, kind) in [
        ("empty", block::ErrorKind::Invalid),
        ("long", block::ErrorKind::Invalid),
        ("boot", block::ErrorKind::Invalid),
        ("missing", block::ErrorKind::NotFound),
    ] {
        let error = kernels.set("debian:1", &give(kernel)).unwrap_err();
        assert_eq!(error.kind(), kind, "{kernel}");
        assert!(error.message().contains(kernel), "{error}");
    }
    for name in ["", "..", "a/b", "lock", ".hidden"] {
        kernels.set(name, &give("good")).unwrap_err();
        assert_eq!(kernels.get(name).unwrap(), None, "{name}");
        assert!(!kernels.unset(name).unwrap(), "{name}");
    }
    for words in ["init=\"a b\"", "${netX/mac}", "a || b", "#", "b\\c", "é"] {
        assert!(parameters(words).is_err(), "{words}");
    }
    assert!(parameters(&"a".repeat(2049)).is_err());
    assert_eq!(kernels.get("debian:1").unwrap().unwrap().kernel.name, "good");
    std::fs::write(path("boot/debian:1/boot.toml"), "[kernel]\nfile = \"../good\"\n").unwrap();
    assert_eq!(kernels.get("debian:1").unwrap_err().kind(), block::ErrorKind::Invalid);
    kernels.set("debian:1", &give("good")).unwrap();
    assert_eq!(kernels.get("debian:1").unwrap().unwrap().kernel.name, "good");
}

#[test]
fn no_damage_panics_or_lasts() {
    let size = SIZE as usize;
    let good = disk(&ext4(&[], &borrowed(&debian("root=/dev/sda1"))));
    damaged(&good, &[0..4096, PART as usize..PART as usize + 65_536, PART as usize..size]);
    let image = unified(&[
        (".cmdline", b"root=/dev/sda1"),
        (".initrd", &[5; 3000]),
        (".linux", &[6; 9000]),
    ]);
    for bits in [12, 16] {
        let files: [(&str, &[u8]); 4] = [
            ("loader/entries/a.conf", b"version 1\nlinux /vmlinuz\noptions root=/dev/sda1\n"),
            ("EFI/Linux/a.efi", &image),
            ("EFI/Linux/a long name of a file.efi", &image),
            ("vmlinuz", &[7; 50_000]),
        ];
        let good = disk(&fat(bits, &files));
        let start = PART as usize;
        // Boot sector, tables, directories and files.
        damaged(&good, &[start..start + 64, start + 512..start + 65_536, start..start + 262_144]);
    }
}

/// Looks for a kernel on a disk with some of its bytes changed at these places.
fn damaged(good: &[u8], places: &[Range<usize>; 3]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [a, b, c] = places.clone();
    let place = prop_oneof![a, b, c];
    let config =
        ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let damage = proptest::collection::vec((place, any::<u8>()), 1..40);
    let result = runner.run(&damage, |damage| {
        let mut bytes = good.to_vec();
        for (at, by) in damage {
            bytes[at] ^= by;
        }
        runtime.block_on(async {
            let device = device(&bytes).await;
            if let Ok(found) = find(Arc::clone(&device)).await {
                let _ = found.read(Arc::clone(&device), BootFile::Kernel, Bytes::new()).await;
                let _ = found.read(device, BootFile::Initrd, Bytes::new()).await;
            }
        });
        Ok(())
    });
    result.unwrap();
}
