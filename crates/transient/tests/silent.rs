//! Loop devices on a file system that does not answer: a real one on FUSE, which takes the kernel's requests and
//! answers none. Whoever waits for it cannot be killed, so another process asks.

#![allow(clippy::unwrap_used)] // a test speaks by panicking
#![allow(clippy::disallowed_methods)] // it waits for another process

#[path = "../../freespace/tests/common/mod.rs"]
mod common;

use block::{BLOCK, Device, Durability, ErrorKind, Span};
use common::{must, run, skip};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request, Session,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, UNIX_EPOCH};
use transient::{BorrowPolicy, DiskKey, Plan, Scan, ScanOptions};

/// One test after the other: each sees the loop devices of all.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const FILE: INodeNo = INodeNo(2);
/// Nothing is kept by the kernel.
const NOT_KEPT: Duration = Duration::ZERO;

/// What is said later.
type Later = Box<dyn FnOnce() + Send>;

/// Requests that have no answer, while there are none.
#[derive(Clone, Default)]
struct Silence(Arc<Mutex<Option<Vec<Later>>>>);

impl Silence {
    fn answer(&self, answer: impl FnOnce() + Send + 'static) {
        let mut silent = self.0.lock().unwrap();
        match &mut *silent {
            Some(held) => held.push(Box::new(answer)),
            None => answer(),
        }
    }

    fn begin(&self) {
        self.0.lock().unwrap().get_or_insert_default();
    }

    fn end(&self) {
        let held = self.0.lock().unwrap().take();
        held.into_iter().flatten().for_each(|answer| answer());
    }
}

/// A directory with one file.
struct OneFile {
    bytes: Vec<u8>,
    silence: Silence,
}

impl OneFile {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let is_file = node == FILE;
        FileAttr {
            ino: node,
            size: if is_file { self.bytes.len() as u64 } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name != "image" {
            return reply.error(Errno::ENOENT);
        }
        let found = self.attributes(FILE);
        self.silence.answer(move || reply.entry(&NOT_KEPT, &found, Generation(0)));
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.attributes(node);
        self.silence.answer(move || reply.attr(&NOT_KEPT, &found));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.silence.answer(move || reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = self.bytes.len().min(offset as usize);
        let end = self.bytes.len().min(start + size as usize);
        let found = self.bytes[start..end].to_vec();
        self.silence.answer(move || reply.data(&found));
    }
}

/// A read-only loop device on a file of such a file system.
struct SilentLoop {
    node: PathBuf,
    silence: Silence,
    session: Option<BackgroundSession>,
    _dir: tempfile::TempDir,
}

impl SilentLoop {
    /// One that still answers; `None` after saying that none can be made here.
    fn new(bytes: Vec<u8>) -> Option<Self> {
        let (dir, silence) = (tempfile::tempdir().unwrap(), Silence::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("sojourn-test".into())];
        let files = OneFile { bytes, silence: silence.clone() };
        let session = match Session::new(files, dir.path(), &config).and_then(Session::spawn) {
            Ok(session) => session,
            Err(e) => {
                skip(&format!("FUSE cannot be used here: {e}"));
                return None;
            }
        };
        let image = dir.path().join("image");
        let made =
            run(20, "losetup", &["--find", "--show", "--read-only", image.to_str().unwrap()]);
        if !made.status.success() {
            skip("no loop device can be made here (root and the loop driver are needed)");
            return None;
        }
        let node = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        Some(Self { node, silence, session: Some(session), _dir: dir })
    }

    fn name(&self) -> &str {
        self.node.to_str().unwrap()
    }
}

impl Drop for SilentLoop {
    fn drop(&mut self) {
        self.silence.end();
        run(20, "losetup", &["--detach", self.name()]);
        let _ = self.session.take().unwrap().umount_and_join();
    }
}

/// An image with a file system that lends.
fn lender(dir: &Path) -> PathBuf {
    let image = dir.join("lender");
    must(60, "mke2fs", &["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "16M"]);
    image
}

/// Scans in a process of its own, which must end; what it says of the target.
fn scan_elsewhere(target: &Path) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_the_other_process_does", "--nocapture"])
        .env("SCANNED", target)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "the scan of {target:?} does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
#[allow(clippy::print_stdout)] // for `scan_elsewhere`
fn what_the_other_process_does() {
    let Some(target) = std::env::var_os("SCANNED") else { return };
    let scan = Scan::run(&[target.into()], &ScanOptions::default());
    println!("scanned: {} accepted, {:?}", scan.accepted().count(), scan.disks);
}

#[test]
fn a_loop_device_whose_file_does_not_answer_is_in_use_and_holds_up_nobody() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let image = lender(dir.path());
    let Some(device) = SilentLoop::new(std::fs::read(&image).unwrap()) else { return };
    let said = scan_elsewhere(&image);
    assert!(said.contains("scanned: 1 accepted"), "{said}");
    device.silence.begin();
    // It may stand on the image.
    let said = scan_elsewhere(&image);
    assert!(said.contains("scanned: 0 accepted"), "{said}");
    assert!(said.contains("InUse") && said.contains(device.name()), "{said}");
    // Nor does it lend itself.
    let said = scan_elsewhere(&device.node);
    assert!(said.contains("scanned: 0 accepted") && said.contains("does not answer"), "{said}");
    device.silence.end();
    let said = scan_elsewhere(&image);
    assert!(said.contains("scanned: 1 accepted"), "{said}");
}

#[tokio::test]
#[allow(clippy::await_holding_lock, reason = "a test of its own thread")]
async fn a_disk_that_lends_is_written_again_when_a_new_loop_device_answers() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let image = lender(dir.path());
    let scan = Scan::run(std::slice::from_ref(&image), &ScanOptions::default());
    let policy = BorrowPolicy { want: Some(1 << 20), ..BorrowPolicy::default() };
    let plan = Plan::new(scan.loans(&policy)).unwrap();
    let key = DiskKey::generate(|bytes| {
        bytes[0] = 1;
        Ok(())
    });
    let (stitched, _members) = plan.stitch(1 << 20, &key.unwrap()).unwrap();
    let write = async || {
        plan.watch().expire();
        let write = stitched.write(Span::whole(BLOCK), &[1; BLOCK as usize], Durability::Buffered);
        tokio::time::timeout(Duration::from_secs(30), write).await.unwrap()
    };
    write().await.unwrap();
    let Some(device) = SilentLoop::new(vec![0; 1 << 20]) else { return };
    device.silence.begin();
    let error = write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains(device.name()), "{error}");
    device.silence.end();
    // Whoever asked hears the answer in a moment.
    let began = Instant::now();
    while let Err(error) = write().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What it stands on is known now, and it is not asked again.
    device.silence.begin();
    write().await.unwrap();
}
