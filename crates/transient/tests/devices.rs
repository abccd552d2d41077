//! Block devices of this machine, real ones as far as the kernel is concerned: loop devices with
//! partitions. One test after the other, because a scan of devices looks at all of them.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

#[path = "../../freespace/tests/common/mod.rs"]
mod common;

use block::{Attempt, BLOCK, Device, Durability, Span};
use common::guest::Guest;
use common::{must, run, skip};
use freespace::Code;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use transient::{BorrowPolicy, DiskKey, HostDisk, Plan, Scan, ScanOptions};

static ALONE: Mutex<()> = Mutex::new(());

/// The turn of whoever has a device, or starts a process: that is a copy of this one for a moment, with all
/// that others have open.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const PART: u64 = 16 << 20;
/// Where the partitions start.
const STARTS: [u64; 2] = [2 << 20, 20 << 20];

/// An image behind a loop device.
#[allow(dead_code, reason = "the directory and the turn are held, not read")]
struct Loop {
    node: PathBuf,
    image: PathBuf,
    dir: tempfile::TempDir,
    alone: Option<MutexGuard<'static, ()>>,
}

impl Loop {
    /// `None` after saying that none can be made here.
    fn new(bytes: &[u8], partitions: &[u64]) -> Option<Self> {
        let alone = alone();
        let mut device = Self::another(bytes, partitions)?;
        device.alone = Some(alone);
        Some(device)
    }

    /// One more, beside one that this test has.
    fn another(bytes: &[u8], partitions: &[u64]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, bytes).unwrap();
        let made = run(20, "losetup", &["--find", "--show", image.to_str().unwrap()]);
        if !made.status.success() {
            skip("no loop device can be made here (root and the loop driver are needed)");
            return None;
        }
        let node = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        let device = Self { node, image, dir, alone: None };
        for (number, start) in partitions.iter().enumerate() {
            let (number, start) = ((number + 1).to_string(), (start / 512).to_string());
            let length = (PART / 512).to_string();
            must(20, "addpart", &[device.node.to_str().unwrap(), &number, &start, &length]);
        }
        Some(device)
    }

    fn part(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("{}p{number}", self.node.display()))
    }

    fn scan(&self) -> Scan {
        Scan::run(std::slice::from_ref(&self.node), &ScanOptions::default())
    }

    /// What is said of each of its parts.
    fn codes(&self) -> Vec<Option<Code>> {
        let scan = self.scan();
        let code =
            |part: &transient::PartitionReport| part.verdict.as_ref().err().map(|why| why.code);
        scan.disks[0].parts.iter().map(code).collect()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let node = self.node.to_str().unwrap();
        for number in ["1", "2"] {
            run(20, "delpart", &[node, number]); // they would be there for the next user of the device
        }
        run(20, "losetup", &["--detach", node]);
    }
}

/// A disk of 40 MiB with two ext4 partitions, and a table that says so.
fn partitioned() -> Vec<u8> {
    // Every test asks for it before it has a device: the process that makes it has ended then.
    static MADE: LazyLock<Vec<u8>> = LazyLock::new(make_partitioned);
    MADE.clone()
}

fn make_partitioned() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("part");
    must(60, "mke2fs", &["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "16M"]);
    let part = std::fs::read(image).unwrap();
    let mut disk = vec![0; 40 << 20];
    for (slot, start) in STARTS.into_iter().enumerate() {
        let at = 446 + 16 * slot;
        disk[at + 4] = 0x83;
        disk[at + 8..at + 12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&((PART / 512) as u32).to_le_bytes());
        disk[start as usize..][..part.len()].copy_from_slice(&part);
    }
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk
}

#[test]
fn partitions_of_a_device_are_held_as_long_as_they_are_looked_at() {
    let disk = partitioned();
    let Some(device) = Loop::new(&disk, &STARTS) else { return };
    let scan = device.scan();
    let report = &scan.disks[0];
    assert_eq!(report.table, "kernel");
    let spans: Vec<Span> = report.parts.iter().map(|part| part.span).collect();
    assert_eq!(spans, STARTS.map(|start| Span::between(start, start + PART)));
    assert_eq!(scan.accepted().count(), 2, "{scan:?}");
    for number in [1, 2] {
        assert_eq!(HostDisk::open(&device.part(number)).unwrap_err().code, Code::InUse);
    }
    drop(scan);
    assert!(HostDisk::open(&device.part(1)).is_ok());
    assert!(std::fs::read(&device.image).unwrap() == disk, "something was written");
}

/// Mounts where this process does not see it.
struct Mounted(Child);

impl Mounted {
    fn new(node: &Path, place: &Path) -> Self {
        let script = r#"mount -t ext4 "$0" "$1" && echo mounted && read -r _"#;
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .args([node, place])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self(child)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_partition_that_is_mounted_where_nobody_sees_it_is_refused_and_no_other() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    let place = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&device.part(1), place.path());
    let seen = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!seen.contains(device.node.to_str().unwrap()));
    assert_eq!(device.codes(), [Some(Code::InUse), None]);
    drop(mounted);
    assert_eq!(device.codes(), [None, None]);
    // Not while it is lent, either.
    let scan = device.scan();
    let node = device.part(2);
    let refused = run(20, "unshare", &["--mount", "mount", node.to_str().unwrap(), "/mnt"]);
    assert!(!refused.status.success(), "it was mounted while it was held");
    drop(scan);
}

#[test]
fn a_device_that_a_virtual_machine_has_is_refused_and_it_gets_none_that_is_held() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    let whole = Guest::start(&device.node).unwrap();
    assert_eq!(device.codes(), [Some(Code::InUse); 2], "it has the whole disk");
    drop(whole);
    let part = Guest::start(&device.part(1)).unwrap();
    assert_eq!(device.codes(), [Some(Code::InUse), None], "it has one partition");
    drop(part);
    let file = Guest::start(&device.image).unwrap();
    assert_eq!(device.codes(), [Some(Code::InUse); 2], "it has the file behind the disk");
    drop(file);
    let scan = device.scan();
    assert_eq!(scan.accepted().count(), 2, "{scan:?}");
    for disk in [&device.node, &device.part(1), &device.part(2), &device.image] {
        assert!(Guest::start(disk).is_none(), "it got {}", disk.display());
    }
    drop(scan);
    assert!(Guest::start(&device.node).is_some());
}

#[test]
fn a_device_whose_bytes_another_device_shows_is_refused() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    // By another name of the same file, with its first partition mounted.
    let link = device.dir.path().join("link");
    std::fs::hard_link(&device.image, &link).unwrap();
    for (file, options) in [(&link, &["--offset", "2097152"][..]), (&device.node, &[][..])] {
        let args = [&["--find", "--show"], options, &[file.to_str().unwrap()]].concat();
        let other = must(20, "losetup", &args).trim().to_owned();
        let codes = device.codes();
        must(20, "losetup", &["--detach", &other]);
        assert_eq!(codes, [Some(Code::InUse); 2], "{}", file.display());
        assert_eq!(device.codes(), [None; 2]);
    }
}

#[test]
fn two_devices_that_show_the_same_file_systems_do_not_lend_together() {
    let disk = partitioned();
    let Some(device) = Loop::new(&disk, &STARTS) else { return };
    // Another one as far as the kernel knows: so is the same disk by another way.
    let twin = Loop::another(&disk, &STARTS).unwrap();
    let scan = Scan::run(&[device.node.clone(), twin.node.clone()], &ScanOptions::default());
    let refusals: Vec<_> =
        scan.disks.iter().flat_map(|disk| &disk.parts).map(|part| part.verdict.as_ref()).collect();
    assert_eq!(refusals.len(), 4);
    for refusal in refusals {
        let refusal = refusal.expect_err("both lend");
        assert_eq!(refusal.code, Code::Duplicate, "{refusal}");
    }
    drop(scan);
    // The two partitions of one of them have the same content as well, and are two.
    assert_eq!(device.codes(), [None; 2]);
    assert_eq!(twin.codes(), [None; 2]);
}

#[tokio::test]
async fn a_loop_device_that_is_made_while_a_disk_lends_stops_it() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    let policy = BorrowPolicy { want: Some(1 << 20), ..BorrowPolicy::default() };
    let plan = Plan::new(device.scan().loans(&policy)).unwrap();
    let key = DiskKey::generate(|bytes| {
        bytes[0] = 1;
        Ok(())
    });
    let (stitched, _members) = plan.stitch(1 << 20, &key.unwrap()).unwrap();
    let block = Span::whole(BLOCK);
    stitched.write(block, &[1; BLOCK as usize], Durability::Buffered).await.unwrap();
    let image = device.image.to_str().unwrap();
    let other = must(20, "losetup", &["--find", "--show", image]).trim().to_owned();
    plan.watch().expire();
    let written = stitched.write(block, &[2; BLOCK as usize], Durability::Buffered).await;
    must(20, "losetup", &["--detach", &other]);
    let error = written.unwrap_err();
    assert!(error.message().contains(&other), "{error}");
}

#[tokio::test]
async fn what_is_written_is_on_the_device_when_that_is_said() {
    let disk = partitioned();
    let Some(device) = Loop::new(&disk, &STARTS) else { return };
    let policy = BorrowPolicy { want: Some(1 << 20), ..BorrowPolicy::default() };
    let plan = Plan::new(device.scan().loans(&policy)).unwrap();
    let key = DiskKey::generate(|bytes| {
        bytes[0] = 1;
        Ok(())
    });
    let (stitched, members) = plan.stitch(1 << 20, &key.unwrap()).unwrap();
    let lent = plan.lent()[0];
    let start =
        if plan.disks()[lent.member].path() == device.part(1) { STARTS[0] } else { STARTS[1] };
    let place = start + lent.span.offset();
    let file = std::fs::File::options().read(true).write(true).open(&device.image).unwrap();
    let there = || {
        let mut bytes = vec![0; BLOCK as usize];
        file.read_exact_at(&mut bytes, place).unwrap();
        bytes
    };
    let before = there();
    let block = Span::whole(BLOCK);
    let now = stitched.try_write(block, &[1; BLOCK as usize]).unwrap();
    assert_eq!(now, Attempt::WouldWait);
    stitched.write(block, &[1; BLOCK as usize], Durability::Buffered).await.unwrap();
    assert!(there() != before, "it is in the page cache of the partition only");
    // What the owner writes there by another node later stays, however the borrower goes on.
    file.write_all_at(&[0xee; BLOCK as usize], place).unwrap();
    stitched.flush().await.unwrap();
    drop((stitched, plan, members));
    must(20, "blockdev", &["--flushbufs", device.part(1).to_str().unwrap()]);
    must(20, "blockdev", &["--flushbufs", device.part(2).to_str().unwrap()]);
    assert_eq!(there(), [0xee; BLOCK as usize]);
}

#[test]
fn the_last_look_sees_what_changed_behind_the_page_cache_of_a_device() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    let scan = device.scan();
    let loans = scan.loans(&BorrowPolicy::default());
    loans[0].recheck().unwrap();
    // The state of the first file system: not unmounted.
    let file = std::fs::File::options().write(true).open(&device.image).unwrap();
    file.write_all_at(&[0], STARTS[0] + 1024 + 0x3A).unwrap();
    let mut cached = [1];
    let node = std::fs::File::open(device.part(1)).unwrap();
    node.read_exact_at(&mut cached, 1024 + 0x3A).unwrap();
    assert_eq!(cached, [1], "the device's page cache is not stale, so this shows nothing");
    loans[0].recheck().unwrap_err();
    loans[1].recheck().unwrap();
}

#[test]
fn a_read_only_device_is_looked_at_and_never_lent() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    let part = device.part(1);
    let set = |how: &str| must(20, "blockdev", &[how, part.to_str().unwrap()]);
    set("--setro");
    let scan = Scan::run(std::slice::from_ref(&part), &ScanOptions::default());
    assert_eq!(scan.accepted().count(), 1, "{scan:?}");
    let plan = Plan::new(scan.loans(&BorrowPolicy::default())).unwrap();
    let refused = plan.members().err();
    set("--setrw");
    let error = refused.expect("it was opened for writing");
    assert_eq!(error.kind(), block::ErrorKind::Denied);
    assert!(error.message().contains("read-only"), "{error}");
    plan.members().unwrap();
}

#[test]
fn marks_on_the_whole_of_a_partitioned_device_refuse_its_partitions() {
    let mut disk = partitioned();
    disk[..4].copy_from_slice(b"XFSB");
    let Some(device) = Loop::new(&disk, &STARTS) else { return };
    assert_eq!(device.codes(), [Some(Code::Ambiguous); 2]);
    // Named by itself, a partition is judged by its disk too.
    let look = || Scan::run(&[device.part(1)], &ScanOptions::default());
    // Somebody else on this machine may look at it at the same moment, and keep it from being opened.
    let mut alone = look();
    for _ in 0..100 {
        if !alone.disks[0].parts.is_empty() {
            break;
        }
        alone = look();
    }
    assert!(!alone.disks[0].parts.is_empty(), "{alone:?}");
    assert_eq!(alone.disks[0].parts[0].verdict.as_ref().unwrap_err().code, Code::Ambiguous);
}

#[test]
fn a_table_that_contradicts_itself_or_the_kernel_refuses_the_partitions_of_a_device() {
    let refused = [Some(Code::PartitionTable); 2];
    // The kernel has read another table than the one that is there now.
    let mut disk = partitioned();
    disk[446 + 12..446 + 16].copy_from_slice(&((PART / 1024) as u32).to_le_bytes());
    let device = Loop::new(&disk, &STARTS);
    let Some(device) = device else { return };
    assert_eq!(device.codes(), refused);
    drop(device);
    if !Path::new("/usr/sbin/sfdisk").exists() {
        skip("there is no sfdisk");
        return;
    }
    // A GPT over the same partitions.
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut bytes = partitioned();
    bytes[446..512].fill(0);
    std::fs::write(&image, bytes).unwrap();
    let script = "label: gpt\nfirst-lba: 34\nstart=4096, size=32768\nstart=40960, size=32768\n";
    let table = dir.path().join("table");
    std::fs::write(&table, script).unwrap();
    let command = format!("/usr/sbin/sfdisk -q {} < {}", image.display(), table.display());
    let turn = alone();
    must(20, "sh", &["-c", &command]);
    drop(turn);
    let disk = std::fs::read(&image).unwrap();
    let codes = |damage: &dyn Fn(&mut [u8])| {
        let mut disk = disk.clone();
        damage(&mut disk);
        Loop::new(&disk, &STARTS).unwrap().codes()
    };
    assert_eq!(codes(&|_| {}), [None, None]);
    let cut = |disk: &mut [u8]| disk[(40 << 20) - 512..].fill(0);
    assert_eq!(codes(&cut), refused, "the second copy is lost");
    let hybrid = |disk: &mut [u8]| {
        let entry: Vec<u8> = partitioned()[446..462].to_vec();
        disk[462..478].copy_from_slice(&entry);
    };
    assert_eq!(codes(&hybrid), refused, "another partition in the MBR");
}

#[test]
fn a_suspended_system_on_a_device_that_was_not_named_refuses_the_one_that_was() {
    let Some(device) = Loop::new(&partitioned(), &STARTS) else { return };
    assert_eq!(device.codes(), [None, None]);
    let mut swap = vec![0; 4 << 20];
    swap[4086..4095].copy_from_slice(b"S1SUSPEND");
    let asleep = Loop::another(&swap, &[]).unwrap();
    assert_eq!(device.codes(), [Some(Code::Hibernated); 2]);
    drop(asleep);
    // What nobody can look into hides one, for those that do not show that they are mounted.
    let mut luks = vec![0; 4 << 20];
    luks[..6].copy_from_slice(b"LUKS\xba\xbe");
    let hidden = Loop::another(&luks, &[]).unwrap();
    assert_eq!(device.codes(), [None, None], "ext4 shows it");
    let mut fresh = vec![0; 16 << 20];
    fresh[4086..4096].copy_from_slice(b"SWAPSPACE2");
    fresh[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    fresh[1028..1032].copy_from_slice(&4095u32.to_le_bytes());
    let swap = Loop::another(&fresh, &[]).unwrap();
    assert_eq!(swap.codes(), [Some(Code::HiddenState)]);
    let name = hidden.node.display().to_string();
    drop(hidden);
    // This machine's own disks may hide one too.
    let sentences = format!("{:?}", swap.scan().disks);
    assert!(!sentences.contains(&name), "{sentences}");
    let consent = ScanOptions { nothing_hidden: true, ..ScanOptions::default() };
    let scan = Scan::run(std::slice::from_ref(&swap.node), &consent);
    assert_eq!(scan.accepted().count(), 1, "{scan:?}");
}

#[tokio::test]
async fn a_device_keeps_all_that_is_not_lent_and_is_told_of_what_is_free_again() {
    let disk = partitioned();
    let Some(device) = Loop::new(&disk, &STARTS) else { return };
    let scan = device.scan();
    let policy = BorrowPolicy { want: Some(6 << 20), ..BorrowPolicy::default() };
    let plan = Plan::new(scan.loans(&policy)).unwrap();
    drop(scan);
    let key = DiskKey::generate(|bytes| {
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        Ok(())
    });
    let (stitched, members) = plan.stitch(6 << 20, &key.unwrap()).unwrap();
    let whole = Span::whole(6 << 20);
    stitched.write(whole, &vec![7; 6 << 20], Durability::Buffered).await.unwrap();
    stitched.flush().await.unwrap();
    // Where each lent range is on the disk, and not on its partition.
    let lent: Vec<Span> = plan
        .lent()
        .iter()
        .map(|lent| {
            let path = plan.disks()[lent.member].path();
            let start = if path == device.part(1) { STARTS[0] } else { STARTS[1] };
            Span::between(start + lent.span.offset(), start + lent.span.end())
        })
        .collect();
    let kept = |now: &[u8]| {
        let mut at = 0;
        for span in
            lent.iter().copied().chain([Span::between(disk.len() as u64, disk.len() as u64)])
        {
            let part = at as usize..span.offset() as usize;
            assert!(now[part.clone()] == disk[part], "bytes before {} changed", span.offset());
            at = span.end();
        }
    };
    let now = || {
        must(20, "blockdev", &["--flushbufs", device.node.to_str().unwrap()]);
        std::fs::read(&device.image).unwrap()
    };
    let written = now();
    kept(&written);
    let in_blocks = |span: &Span| span.pieces(BLOCK).collect::<Vec<_>>();
    for block in lent.iter().flat_map(in_blocks) {
        let place = block.index_in(Span::whole(disk.len() as u64));
        assert!(written[place.clone()] != disk[place], "the block at {} is unused", block.offset());
    }
    let room = std::fs::metadata(&device.image).unwrap().blocks();
    drop(stitched);
    for lent in plan.lent() {
        members[lent.member].trim(lent.span).unwrap();
    }
    for loan in plan.loans() {
        loan.recheck().unwrap();
    }
    drop((plan, members));
    let given = now();
    kept(&given);
    let zero = |span: &Span| {
        given[span.index_in(Span::whole(disk.len() as u64))].iter().all(|byte| *byte == 0)
    };
    assert!(lent.iter().all(zero), "what was discarded reads as zeroes");
    let after = std::fs::metadata(&device.image).unwrap().blocks();
    assert!(after + (6 << 20) / 512 <= room, "{after} blocks of {room} are left");
    for number in [1, 2] {
        must(60, "e2fsck", &["-fn", device.part(number).to_str().unwrap()]);
    }
    let file = std::fs::File::open(&device.node).unwrap();
    let mut head = [0; 512];
    file.read_exact_at(&mut head, 0).unwrap();
    assert!(head[..] == disk[..512]);
}
