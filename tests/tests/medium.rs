//! PCs that are started from a USB key of `packaging/medium/make`, beside disks of their owner's. The
//! laboratory (`lab/key-test`) makes the key and the disks, and fails when a byte that was not free has
//! changed; what else it found is judged here.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::{require, tool};
use std::path::Path;
use std::process::Command;

fn lines(fact: &serde_json::Value) -> Vec<&str> {
    fact.as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect()
}

/// Whether a line holds all of these.
fn said(fact: &serde_json::Value, words: &[&str]) -> bool {
    lines(fact).iter().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Fails unless a PC lent all four of its file systems, the system used them, and each was looked at
/// again at the end.
fn borrowed(facts: &serde_json::Value, secure_boot: &str) {
    assert_eq!(facts["root"], "overlay", "{facts}");
    assert_eq!(facts["secure_boot"], secure_boot, "{facts}");
    assert_eq!(lines(&facts["upper"]), ["ext4", "/dev/mapper/borrowed-files"], "{facts}");
    assert_eq!((&facts["login"], &facts["failed"]), (&"active".into(), &"0".into()), "{facts}");
    assert!(facts["swapped_kib"].as_u64().unwrap() > 10 << 10, "{facts}");
    assert_eq!(facts["used"], true, "{facts}");
    for (part, kind) in [
        ("/dev/sda1", "ext4"),
        ("/dev/sda2", "ntfs"),
        ("/dev/sda3", "fat32"),
        ("/dev/sda4", "swap"),
    ] {
        assert!(said(&facts["said"], &[part, kind, "can be borrowed"]), "{facts}");
        assert!(said(&facts["down"], &[part, kind, "as it was before"]), "{facts}");
    }
    assert!(said(&facts["said"], &["/dev/sdb: refused: removable"]), "{facts}");
    assert!(said(&facts["down"], &["borrowed is down; its key is gone"]), "{facts}");
}

/// Fails unless a PC lent nothing, said why, and its system came up in memory.
fn left_alone(facts: &serde_json::Value, why: &[&[&str]]) {
    assert_eq!((&facts["upper"], &facts["swaps"]), (&"tmpfs".into(), &"1".into()), "{facts}");
    assert!(said(&facts["said"], &["nothing is borrowed", "stays in memory"]), "{facts}");
    for words in why {
        assert!(said(&facts["said"], words), "{words:?}: {facts}");
    }
}

#[test]
#[ignore = "as root, a quarter of an hour: make test-medium"]
fn a_key_starts_a_pc_on_its_free_blocks_and_leaves_every_other_byte_as_it_was() {
    require!("qemu-system-x86_64", "mmdebstrap", "mksquashfs", "mkntfs", "mkfs.fat", "mcopy");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new(tests.join("../lab/key-test"))
        .arg("--sojourn")
        .arg(tool::sojourn())
        .output()
        .unwrap();
    let (out, err) = tool::texts(&done);
    assert!(done.status.success(), "{err}");
    let facts: serde_json::Value = serde_json::from_str(&out).unwrap();
    borrowed(&facts["bios"], "");
    borrowed(&facts["uefi"], "1");
    left_alone(
        &facts["refused"],
        &[
            &["/dev/sda1 (ext4): refused: unclean"],
            &["/dev/sda2 (ntfs): refused: unclean"],
            &["/dev/sda3 (fat32): refused: unclean"],
            &["/dev/sdb", "(ext4): refused: nothing-free"],
        ],
    );
    left_alone(
        &facts["suspended"],
        &[
            &["/dev/sda1 (ext4): refused: hibernated"],
            &["/dev/sda2 (ntfs): refused: hibernated"],
            &["/dev/sda3 (fat32): refused: hibernated"],
            &["suspended system: /dev/sda4"],
        ],
    );
    left_alone(
        &facts["uefi"]["told"],
        &[
            &["/dev/sda1 (ext4): refused: hibernated"],
            &["suspended system: HibernateLocation-", "the firmware was told"],
        ],
    );
    assert!(facts["cut"]["written"].as_u64().unwrap() > 64 << 20, "{facts}");
    let keep = &facts["keep"];
    assert_eq!(keep["upper"], "/dev/mapper/borrowed-files", "{keep}");
    assert!(said(&keep["down"], &["written back"]), "{keep}");
    assert_eq!((&keep["note"], &keep["check"]), (&"mine".into(), &0.into()), "{keep}");
    assert_eq!(lines(&keep["on_key"]), ["mine", "more"], "{keep}");
}
