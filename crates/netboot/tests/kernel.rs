//! Kernels out of file systems that mke2fs made.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use block::{Device, Memory, Span};
use bytes::Bytes;
use netboot::kernel::{BootFile, NbdRoot, find};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const PART: u64 = 1 << 20;
const SIZE: u64 = 16 << 20;

/// An ext4 with these files.
fn ext4(options: &[&str], files: &[(&str, &[u8])]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
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

#[test]
fn no_damage_panics_or_lasts() {
    let good = disk(&ext4(&[], &borrowed(&debian("root=/dev/sda1"))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = prop_oneof![
        0..4096usize,
        PART as usize..PART as usize + 65_536,
        PART as usize..SIZE as usize
    ];
    let config =
        ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let damage = proptest::collection::vec((place, any::<u8>()), 1..40);
    let result = runner.run(&damage, |damage| {
        let mut bytes = good.clone();
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
